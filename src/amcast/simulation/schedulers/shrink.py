"""Shrinks a failing script: as few messages, destinations and steps as still fail in the same way.

Delta debugging: leave out a part, replay leniently, keep what still fails; first halves, then ever smaller parts, then
single steps. An arrival means a certain packet (its kind, message and link), not a place in a queue: if the packet is
not there, or not first on a FIFO link, the step is skipped. So leaving out a message leaves out everything about it,
and the remaining steps mean the same as before.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from typing import Final, NamedTuple

import msgspec

from amcast.kernel.effects import About
from amcast.kernel.errors import UsageError
from amcast.kernel.ids import MessageId, ProcessId, message_id
from amcast.kernel.process import Process
from amcast.kernel.spec import Claims
from amcast.simulation.inputs.random_streams import make_stream
from amcast.simulation.monitors.monitors import Monitoring
from amcast.simulation.narration import describe_failure
from amcast.simulation.schedulers.fuzz import Judge, Status
from amcast.simulation.schedulers.heal import describe_stuck, run_fair_ending
from amcast.simulation.schedulers.replay import Replayer, judge_world
from amcast.simulation.schedulers.script import Script
from amcast.simulation.world.actions import AnyAction, Arrive, Drop, Multicast, Repeat
from amcast.simulation.world.failure import ProcessFailedError
from amcast.simulation.world.world import NO_NODES, Hello, NodeBodies, Pair
from amcast.trace.recorder import Recorder

MAX_RUNS: Final = 20_000

ORDERS: Final = 60
"""How many other orders are tried when nothing more can be left out."""

Label = tuple[str, About]
"""A packet: the kind of its body, and the messages that it is about."""


class ScriptStep(NamedTuple):
    """An action, and the packets that it means."""

    action: AnyAction
    labels: tuple[Label, ...] = ()


Plan = Callable[[Replayer], Iterable[ScriptStep]]
"""The steps to replay, given the state of the world."""


class Failure(NamedTuple):
    """The kind of failure, which must stay the same."""

    status: Status
    kind: str


@dataclass(frozen=True)
class ShrinkResult:
    """A smaller script that fails in the same way."""

    script: Script
    runs: int
    limit: str | None = None
    """Why it may not be minimal, in a sentence."""


def classify_failure(status: Status, story: str) -> str:
    """The kind of a failure: its story without numbers and details."""
    if status == "stuck":
        return ""
    return re.sub(r"(?<![A-Za-z])\d+", "#", story.split(":")[0])


def shrink(
    script: Script,
    make: Callable[[ProcessId], Process],
    claims: Claims,
    judge: Judge,
    progress: Callable[[int, int], None] | None = None,
    max_runs: int = MAX_RUNS,
    node_bodies: NodeBodies = NO_NODES,
    monitoring: Monitoring | None = None,
) -> ShrinkResult:
    """Shrinks a failing script to a minimal one. `progress` is called with runs made and steps left."""
    return _Shrinker(script, make, claims, judge, progress, max_runs, node_bodies, monitoring).run()


class _BudgetSpentError(Exception):
    """The limit of runs is reached."""


class _Shrinker:
    def __init__(
        self,
        script: Script,
        make: Callable[[ProcessId], Process],
        claims: Claims,
        judge: Judge,
        progress: Callable[[int, int], None] | None,
        max_runs: int,
        node_bodies: NodeBodies,
        monitoring: Monitoring | None,
    ) -> None:
        self._script = script
        self._make = make
        self._claims = claims
        self._judge = judge
        self._progress = progress
        self._max_runs = max_runs
        self._node_bodies = node_bodies
        self._monitoring = monitoring
        self._runs = 0
        self._ends_fairly = False
        """Whether the failure shows only after a fair ending."""
        self._wanted: Failure
        self._story = ""
        self._items: list[ScriptStep] = []

    def run(self) -> ShrinkResult:
        self._begin()
        limit = None
        try:
            self._cut()
            self._reduce()
            self._reschedule()
            self._renumber()
        except _BudgetSpentError:
            limit = f"the limit of {self._max_runs} runs was reached; it may not be minimal"
        actions = [item.action for item in self._items]
        small = replace(self._script, actions=actions, status=self._wanted.status, story=self._story, lines=())
        return ShrinkResult(small, self._runs, limit)

    # Running

    def _begin(self) -> None:
        """Replays the script unchanged, to find how it fails."""
        self._items = [ScriptStep(action) for action in self._script.actions]
        for self._ends_fairly in (False, True):
            status, story, items = self._play(lambda player: self._items)
            if status != "holds":
                self._wanted = Failure(status, classify_failure(status, story))
                self._story, self._items = story, items
                return
        raise UsageError(f"the script of {self._script.protocol} does not fail; expected one that does")

    def _fails(self, items: Sequence[ScriptStep]) -> bool:
        """Whether these steps still fail in the same way; if so, those of them that happened are kept."""
        return self._fails_so(lambda player: items)

    def _fails_so(self, plan: Plan) -> bool:
        if self._runs >= self._max_runs:
            raise _BudgetSpentError
        status, story, happened = self._play(plan)
        if Failure(status, classify_failure(status, story)) != self._wanted:
            return False
        self._story, self._items = story, happened
        if self._progress is not None:
            self._progress(self._runs, len(happened))
        return True

    def _play(self, plan: Plan) -> tuple[Status, str, list[ScriptStep]]:
        self._runs += 1
        recorder = Recorder()
        player = Replayer(
            self._script, self._make, recorder, node_bodies=self._node_bodies, monitoring=self._monitoring
        )
        world = player.world
        happened: list[ScriptStep] = []
        try:
            world.start()
            for item in plan(player):
                retargeted = _retarget(player, item)
                if retargeted is not None:
                    happened.append(retargeted)
                    if not player.apply(retargeted.action):
                        happened.pop()
                if world.violations:
                    break
            ending = run_fair_ending(player, self._claims) if self._ends_fairly and not world.violations else []
            story = judge_world(
                world, recorder, self._judge, complete=self._ends_fairly and not world.list_due_deliveries()
            )
        except ProcessFailedError as failure:
            return "violated", describe_failure(failure), happened
        if story is not None:
            return "violated", story, happened
        if self._ends_fairly and world.list_due_deliveries():
            return "stuck", describe_stuck(player, ending), happened
        return "holds", "", happened

    # Ways of making it smaller

    def _reduce(self) -> None:
        """Leaves out and narrows until nothing more can go."""
        before = -1
        while before != (before := sum(map(_weight, self._items))):
            self._drop_messages()
            self._minimise()
            self._narrow()
            self._split()

    def _reschedule(self) -> None:
        """Tries some orders of fewer messages: leaving out steps alone can end in a local minimum."""
        if not all(isinstance(item.action, Multicast | Arrive) for item in self._items):
            return
        messages = [item.action for item in self._items if isinstance(item.action, Multicast)]
        for attempt in range(ORDERS):
            gone = messages[attempt % len(messages)].message
            kept, story = self._items, self._story
            wanted = [action for action in messages if action.message != gone] or messages
            random = make_stream(attempt, "shrink")
            if self._fails_so(partial(_shuffle, wanted, random)):
                self._cut()
                self._reduce()
                if len(self._items) >= len(kept):
                    self._items, self._story = kept, story
                else:
                    messages = [item.action for item in self._items if isinstance(item.action, Multicast)]

    def _cut(self) -> None:
        """Cuts the steps after the failure: violations stay, so bisection finds the shortest failing prefix."""
        if self._ends_fairly:
            return
        low, high = 0, len(self._items)
        whole = list(self._items)
        while low < high:
            middle = (low + high) // 2
            if self._fails(whole[:middle]):
                high = middle
            else:
                low = middle + 1

    def _drop_messages(self) -> None:
        for message in _list_messages(self._items):
            self._fails([kept for item in self._items if (kept := _drop_message(item, message)) is not None])

    def _minimise(self) -> None:
        """Leaves out parts, from halves down to single steps."""
        parts = 2
        while len(self._items) >= 2:
            size = -(-len(self._items) // parts)
            for start in range(len(self._items) - size, -size, -size):
                rest = self._items[: max(0, start)] + self._items[start + size :]
                if self._fails(rest):
                    parts = max(2, parts - 1)
                    break
            else:
                if size == 1:
                    return
                parts = min(len(self._items), parts * 2)

    def _narrow(self) -> None:
        """Leaves out destinations and payloads."""
        while any(self._fails(smaller) for smaller in _list_narrower(self._items)):
            pass

    def _split(self) -> None:
        """Splits bursts into single arrivals, if these fail as well."""
        items: list[ScriptStep] = []
        for item in self._items:
            if isinstance(item.action, Arrive) and len(item.labels) > 1:
                target = item.action.target
                pairs = zip(item.action.packets, item.labels, strict=True)
                items += [ScriptStep(Arrive(target, (packet,)), (label,)) for packet, label in pairs]
            else:
                items.append(item)
        if len(items) != len(self._items):
            self._fails(items)

    def _renumber(self) -> None:
        """Renumbers the messages of each sender from 0 on."""
        names: dict[MessageId, MessageId] = {}
        sent: dict[ProcessId, int] = {}
        for message, sender in sorted(_senders(self._items).items()):
            names[message] = message_id(sender, sent.get(sender, 0))
            sent[sender] = sent.get(sender, 0) + 1
        if any(old != new for old, new in names.items()):
            self._fails([_rename_messages(item, names) for item in self._items])


def _weight(item: ScriptStep) -> int:
    return 1 + len(item.labels) + (len(item.action.destinations) if isinstance(item.action, Multicast) else 0)


def _shuffle(multicasts: Sequence[Multicast], random: Random, player: Replayer) -> Iterator[ScriptStep]:
    """These messages, and all packets that follow from them, in a random order."""
    left = list(multicasts)
    while left or player.links:
        choice = random.randrange(len(left) + len(player.links))
        if choice < len(left):
            yield ScriptStep(left.pop(0))
        else:
            pair = list(player.links)[choice - len(left)]
            yield ScriptStep(Arrive(pair[1], ((pair[0], random.randrange(player.count_places(pair))),)))


# Packets by what they are


def _label(packet: tuple[int, tuple[object, ...]]) -> Label:
    _, envelope = packet
    return (type(envelope[2]).__name__, envelope[3])  # type: ignore[return-value]


def _retarget(player: Replayer, item: ScriptStep) -> ScriptStep | None:
    """Retargets an action at the packets that it means; None if none of them can arrive."""
    action = item.action
    match action:
        case Arrive(target, packets):
            return _retarget_arrival(player, target, packets, item.labels)
        case Drop(source, target, place) | Repeat(source, target, place):
            link = player.links.get((source, target), ())
            found = _find(link, len(link), item.labels[0] if item.labels else None, place)
            if found is None:
                return None
            return ScriptStep(msgspec.structs.replace(action, place=found), (_label(link[found]),))
        case _:
            return item


def _retarget_arrival(
    player: Replayer, target: ProcessId, packets: tuple[tuple[ProcessId, int], ...], labels: tuple[Label, ...]
) -> ScriptStep | None:
    """Retargets a burst: each packet that is taken changes the places of those behind it."""
    links: dict[Pair, tuple[tuple[int, tuple[object, ...]], ...]] = {}
    retargeted: list[tuple[ProcessId, int]] = []
    labels_found: list[Label] = []
    for number, (source, place) in enumerate(packets):
        pair = (source, target)
        link = links.get(pair, player.links.get(pair, ()))
        ordered = player.link_kind == "fifo" or (link and type(link[0][1][2]) is Hello)
        found = _find(link, 1 if ordered else len(link), labels[number] if labels else None, place)
        if found is not None and player.is_open(pair):
            retargeted.append((source, found))
            labels_found.append(_label(link[found]))
            links[pair] = link[:found] + link[found + 1 :]
    return ScriptStep(Arrive(target, tuple(retargeted)), tuple(labels_found)) if retargeted else None


def _find(link: Sequence[tuple[int, tuple[object, ...]]], places: int, label: Label | None, place: int) -> int | None:
    if label is None:
        return place if place < min(places, len(link)) else None
    return next((at for at in range(min(places, len(link))) if _label(link[at]) == label), None)


# Messages in a script


def _list_messages(items: Sequence[ScriptStep]) -> list[MessageId]:
    return sorted(_senders(items), reverse=True)


def _senders(items: Sequence[ScriptStep]) -> dict[MessageId, ProcessId]:
    return {i.action.message: i.action.sender for i in items if isinstance(i.action, Multicast)}


def _drop_message(item: ScriptStep, message: MessageId) -> ScriptStep | None:
    """A step without the packets that are about one message alone; None if nothing is left."""
    action = item.action
    if isinstance(action, Multicast):
        return None if action.message == message else item
    if not item.labels:
        return item
    kept = [place for place, label in enumerate(item.labels) if label[1] != message]
    if not kept:
        return None
    labels = tuple(item.labels[place] for place in kept)
    if isinstance(action, Arrive):
        return ScriptStep(Arrive(action.target, tuple(action.packets[place] for place in kept)), labels)
    return ScriptStep(action, labels)


def _list_narrower(items: list[ScriptStep]) -> Iterator[list[ScriptStep]]:
    """The scripts with one destination less, or without a payload, for each multicast."""
    for place, item in enumerate(items):
        action = item.action
        if not isinstance(action, Multicast):
            continue
        changes: list[dict[str, object]] = [{"size": 0}] if action.size else []
        if len(action.destinations) > 1:
            changes += [
                {"destinations": tuple(group for group in action.destinations if group != gone)}
                for gone in action.destinations
            ]
        for change in changes:
            yield [*items[:place], ScriptStep(msgspec.structs.replace(action, **change)), *items[place + 1 :]]


def _rename_messages(item: ScriptStep, names: dict[MessageId, MessageId]) -> ScriptStep:
    action = item.action
    if isinstance(action, Multicast):
        action = msgspec.structs.replace(action, message=names[action.message])
    return ScriptStep(action, tuple((kind, _rename_about(about, names)) for kind, about in item.labels))


def _rename_about(about: About, names: dict[MessageId, MessageId]) -> About:
    if isinstance(about, tuple):
        return tuple(names.get(message, message) for message in about)
    return None if about is None else names.get(about, about)
