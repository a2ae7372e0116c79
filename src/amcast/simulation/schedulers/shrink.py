"""A failing script made small: as few messages, destinations and steps as still fail in the same way.

Delta debugging: leave out a part, replay leniently, keep what still fails; first halves, then ever smaller parts, then
single steps. An arrival stands for a certain packet (what kind, about which message, on which link), not for a place in
a queue: when the packet is not there, or not first on a link in order, the step is passed over. So leaving out a
message leaves out everything about it, and what remains means the same as before.
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
from amcast.simulation.schedulers.fuzz import Judge, Status
from amcast.simulation.schedulers.heal import describe_stuck, run_fair_ending
from amcast.simulation.schedulers.replay import Replayer, judge_world
from amcast.simulation.schedulers.script import Script
from amcast.simulation.world.actions import AnyAction, Arrive, Drop, Multicast, Repeat
from amcast.simulation.world.world import Hello, Pair
from amcast.trace.recorder import Recorder

MAX_RUNS: Final = 20_000

ORDERS: Final = 60
"""How many other orders are tried when nothing more can be left out."""

Label = tuple[str, About]
"""What a packet is: the kind of its body, and which messages it is about."""


class ScriptStep(NamedTuple):
    """An action, and what the packets are that it means."""

    action: AnyAction
    labels: tuple[Label, ...] = ()


Plan = Callable[[Replayer], Iterable[ScriptStep]]
"""What to do next, given how the world stands."""


class Failure(NamedTuple):
    """What must stay the same."""

    status: Status
    kind: str


@dataclass(frozen=True)
class ShrinkResult:
    """A smaller script that fails in the same way."""

    script: Script
    runs: int
    limit: str | None = None
    """What kept it from being minimal, in a sentence."""


def classify_failure(status: Status, story: str) -> str:
    """A story without its numbers and details: the property, the exception, or the sentence up to the colon."""
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
) -> ShrinkResult:
    """Make a failing script minimal. `progress` hears of runs made and steps left."""
    return _Shrinker(script, make, claims, judge, progress, max_runs).run()


class _BudgetSpentError(Exception):
    """No more runs allowed."""


class _Shrinker:
    def __init__(
        self,
        script: Script,
        make: Callable[[ProcessId], Process],
        claims: Claims,
        judge: Judge,
        progress: Callable[[int, int], None] | None,
        max_runs: int,
    ) -> None:
        self._script = script
        self._make = make
        self._claims = claims
        self._judge = judge
        self._progress = progress
        self._max_runs = max_runs
        self._runs = 0
        self._settles = False
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
        """Run the script as it is: how does it fail?"""
        self._items = [ScriptStep(action) for action in self._script.actions]
        for self._settles in (False, True):
            status, story, items = self._play(lambda player: self._items)
            if status != "holds":
                self._wanted = Failure(status, classify_failure(status, story))
                self._story, self._items = story, items
                return
        raise UsageError(f"the script of {self._script.protocol} does not fail; expected one that does")

    def _fails(self, items: Sequence[ScriptStep]) -> bool:
        """Whether these still fail in the same way; if so, what of them happened is what we have now."""
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
        script = self._script
        player = Replayer(script.topology, self._make, script.links, script.tick_ns, recorder)
        world = player.world
        happened: list[ScriptStep] = []
        try:
            world.start()
            for item in plan(player):
                aimed = _aimed(player, item)
                if aimed is not None:
                    happened.append(aimed)
                    if not player.apply(aimed.action):
                        happened.pop()
                if world.violations:
                    break
            ending = run_fair_ending(player, self._claims) if self._settles and not world.violations else []
            story = judge_world(
                world, recorder, self._judge, complete=self._settles and not world.list_due_deliveries()
            )
        except UsageError:
            raise
        except Exception as error:
            return "error", f"{type(error).__name__}: {error}", happened
        if story is not None:
            return "violated", story, happened
        if self._settles and world.list_due_deliveries():
            return "stuck", describe_stuck(player, ending), happened
        return "holds", "", happened

    # Ways of making it smaller

    def _reduce(self) -> None:
        """Leave out and narrow until nothing more can go."""
        before = -1
        while before != (before := sum(map(_weight, self._items))):
            self._drop_messages()
            self._minimise()
            self._narrow()
            self._split()

    def _reschedule(self) -> None:
        """Leaving out can get stuck where another order of fewer messages would fail too: try some orders."""
        if not all(isinstance(item.action, Multicast | Arrive) for item in self._items):
            return
        messages = [item.action for item in self._items if isinstance(item.action, Multicast)]
        for attempt in range(ORDERS):
            gone = messages[attempt % len(messages)].message
            kept, story = self._items, self._story
            wanted = [action for action in messages if action.message != gone] or messages
            random = make_stream(attempt, "shrink")
            if self._fails_so(partial(_in_any_order, wanted, random)):
                self._cut()
                self._reduce()
                if len(self._items) >= len(kept):
                    self._items, self._story = kept, story
                else:
                    messages = [item.action for item in self._items if isinstance(item.action, Multicast)]

    def _cut(self) -> None:
        """What comes after the failure is not needed: violations stay, so halving finds the shortest failing prefix."""
        if self._settles:
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
        for message in _messages(self._items):
            self._fails([kept for item in self._items if (kept := _without(item, message)) is not None])

    def _minimise(self) -> None:
        """Leave out parts, from halves down to single steps."""
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
        """Fewer destinations, no payload."""
        while any(self._fails(smaller) for smaller in _narrower(self._items)):
            pass

    def _split(self) -> None:
        """One packet a step reads better than a burst, if it fails as well."""
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
        """Each sender's messages are its 0th, 1st, 2nd ... again."""
        names: dict[MessageId, MessageId] = {}
        sent: dict[ProcessId, int] = {}
        for message, sender in sorted(_senders(self._items).items()):
            names[message] = message_id(sender, sent.get(sender, 0))
            sent[sender] = sent.get(sender, 0) + 1
        if any(old != new for old, new in names.items()):
            self._fails([_renamed(item, names) for item in self._items])


def _weight(item: ScriptStep) -> int:
    return 1 + len(item.labels) + (len(item.action.destinations) if isinstance(item.action, Multicast) else 0)


def _in_any_order(multicasts: Sequence[Multicast], random: Random, player: Replayer) -> Iterator[ScriptStep]:
    """These messages, and everything that comes of them, in a random order."""
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


def _aimed(player: Replayer, item: ScriptStep) -> ScriptStep | None:
    """The action as it must be said now to mean the same packets; None if none of them can come."""
    action = item.action
    match action:
        case Arrive(target, packets):
            return _aimed_arrival(player, target, packets, item.labels)
        case Drop(source, target, place) | Repeat(source, target, place):
            link = player.links.get((source, target), ())
            found = _find(link, len(link), item.labels[0] if item.labels else None, place)
            if found is None:
                return None
            return ScriptStep(msgspec.structs.replace(action, place=found), (_label(link[found]),))
        case _:
            return item


def _aimed_arrival(
    player: Replayer, target: ProcessId, packets: tuple[tuple[ProcessId, int], ...], labels: tuple[Label, ...]
) -> ScriptStep | None:
    """A burst takes packets one by one; each changes the places of those behind it."""
    links: dict[Pair, tuple[tuple[int, tuple[object, ...]], ...]] = {}
    aimed: list[tuple[ProcessId, int]] = []
    meant: list[Label] = []
    for number, (source, place) in enumerate(packets):
        pair = (source, target)
        link = links.get(pair, player.links.get(pair, ()))
        ordered = player.link_kind == "fifo" or (link and type(link[0][1][2]) is Hello)
        found = _find(link, 1 if ordered else len(link), labels[number] if labels else None, place)
        if found is not None and player.is_open(pair):
            aimed.append((source, found))
            meant.append(_label(link[found]))
            links[pair] = link[:found] + link[found + 1 :]
    return ScriptStep(Arrive(target, tuple(aimed)), tuple(meant)) if aimed else None


def _find(link: Sequence[tuple[int, tuple[object, ...]]], places: int, label: Label | None, place: int) -> int | None:
    if label is None:
        return place if place < min(places, len(link)) else None
    return next((at for at in range(min(places, len(link))) if _label(link[at]) == label), None)


# Messages in a script


def _messages(items: Sequence[ScriptStep]) -> list[MessageId]:
    return sorted(_senders(items), reverse=True)


def _senders(items: Sequence[ScriptStep]) -> dict[MessageId, ProcessId]:
    return {i.action.message: i.action.sender for i in items if isinstance(i.action, Multicast)}


def _without(item: ScriptStep, message: MessageId) -> ScriptStep | None:
    """An item without what is about one message only."""
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


def _narrower(items: list[ScriptStep]) -> Iterator[list[ScriptStep]]:
    """The script with one destination less, or without a payload, for each multicast."""
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


def _renamed(item: ScriptStep, names: dict[MessageId, MessageId]) -> ScriptStep:
    action = item.action
    if isinstance(action, Multicast):
        action = msgspec.structs.replace(action, message=names[action.message])
    return ScriptStep(action, tuple((kind, _about(about, names)) for kind, about in item.labels))


def _about(about: About, names: dict[MessageId, MessageId]) -> About:
    if isinstance(about, tuple):
        return tuple(names.get(message, message) for message in about)
    return None if about is None else names.get(about, about)
