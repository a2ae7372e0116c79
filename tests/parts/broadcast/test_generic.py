"""Generic broadcast alone: everybody gets the same items between the same changes, whatever is lost.

A process here is its own group and owns one stream. A small random world of its own: links in order, timers when
nothing else can happen, links that begin anew, f crashes.
"""

from random import Random
from typing import Any

import pytest

from amcast.kernel.effects import CancelTimer, Effect, Note, Send, SetTimer
from amcast.kernel.events import Event, LinkReset, Receive, Started, Timer
from amcast.kernel.message import Body, Message, State
from amcast.kernel.process import Process
from amcast.kernel.topology import Topology
from amcast.parts.broadcast.generic import PAXOS_TIMER, GenericBroadcast, faults_tolerated
from amcast.parts.broadcast.messages import CLOSE, OPEN, Item, Tops

RETRY = (1000, 1000)


class Caster(Process):
    """Hands everything up into a list; whoever is told to lead leads."""

    def __init__(self, me: int, topology: Topology, kind: type[GenericBroadcast] = GenericBroadcast) -> None:
        super().__init__(me, topology)
        self.generic = kind(self, RETRY)
        self.log: list[Any] = []
        self.said = 0
        self.leading = me == 0
        self.lost: set[int] = set()

    def on_start(self, records: Any, incarnation: int) -> None:
        self.generic.begin()

    def say(self) -> None:
        self.said += 1
        message = Message(self.me * 1000 + self.said, self.me, (0,))
        self.generic.add_item(self.me, self.said, (message,))
        self.send_all(self.generic.others, Item(self.me, self.said, (message,)))

    def on_receive(self, sender: int, body: Body) -> None:
        assert self.generic.receive(sender, body), body

    def on_link_reset(self, peer: int, incarnation: int) -> None:
        self.generic.handle_link_reset(peer)
        for number, messages in sorted(self.generic.items[self.me].items()):
            if number > self.generic.delivered[self.me]:
                self.send(peer, Item(self.me, number, messages))

    def on_timer(self, name: str) -> None:
        if name == PAXOS_TIMER:
            self.generic.paxos.handle_timeout()
        else:
            for stream in sorted(self.lost):
                self.generic.request_change((CLOSE, stream))
            self.generic.request_missing()

    def on_step_end(self) -> None:
        if self.me not in self.generic.open:
            self.generic.request_change((OPEN, self.me))
        self.log += self.generic.collect_events()
        self.generic.set_leading(self.leading)
        self.generic.flush()

    def on_request(self, message: Message) -> None:
        raise AssertionError

    def snapshot(self) -> State:
        return self.generic.snapshot()

    def restore(self, state: State) -> None:
        self.generic.restore(state)  # type: ignore[arg-type]


class Room:
    """All casters, what is in flight between them, and chance."""

    def __init__(self, count: int, seed: int, kind: type[GenericBroadcast] = GenericBroadcast) -> None:
        self.random = Random(seed)
        self.topology = Topology.grid(count, 1)
        self.casters = {me: Caster(me, self.topology, kind) for me in range(count)}
        self.flight: dict[tuple[int, int], list[Body]] = {}
        self.timers: set[tuple[int, str]] = set()
        for me in range(count):
            self.step(me, Started())

    def step(self, me: int, *events: Event) -> None:
        self.carry(me, self.casters[me].step(events, 0))

    def carry(self, me: int, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Send(targets, body):
                    for target in targets:
                        if target in self.casters:
                            self.flight.setdefault((me, target), []).append(body)
                case SetTimer(name):
                    self.timers.add((me, name))
                case CancelTimer(name):
                    self.timers.discard((me, name))
                case Note():
                    pass
                case _:
                    raise AssertionError(effect)

    def crash(self, me: int) -> None:
        del self.casters[me]
        self.flight = {pair: bodies for pair, bodies in self.flight.items() if me not in pair}
        self.timers = {timer for timer in self.timers if timer[0] != me}
        self.casters[min(self.casters)].leading = True

    def renew(self) -> None:
        one, other = self.random.sample(sorted(self.casters), 2)
        self.flight.pop((one, other), None)
        self.flight.pop((other, one), None)
        self.step(one, LinkReset(other, 0))
        self.step(other, LinkReset(one, 0))

    def arrive(self) -> bool:
        pairs = sorted(pair for pair, bodies in self.flight.items() if bodies)
        if not pairs:
            return False
        source, target = self.random.choice(pairs)
        self.step(target, Receive(source, self.flight[(source, target)].pop(0)))
        return True

    def quiet(self) -> None:
        """Everything arrives; then everybody asks, and so on, until that changes nothing."""
        for _ in range(60):
            for _ in range(20_000):
                if not self.arrive():
                    break
            else:
                raise AssertionError("never falls silent")
            for me, name in sorted(self.timers):
                self.timers.discard((me, name))
                self.step(me, Timer(name))
            for me in sorted(self.casters):
                self.step(me, Timer("ask"))


def epochs(log: list[Any]) -> list[Any]:
    """Sets of items and the changes between them, in turn."""
    parts: list[Any] = [set()]
    for event in log:
        if len(event) == 2 and isinstance(event[0], int):
            parts[-1].add(event)
        else:
            parts += [event, set()]
    return parts


def disturbed(count: int, seed: int, kind: type[GenericBroadcast] = GenericBroadcast) -> Room:
    room = Room(count, seed, kind)
    random = room.random
    may_crash = faults_tolerated(count)
    for _ in range(400):
        chance = random.random()
        up = sorted(room.casters)
        if chance < 0.10:
            sayer = random.choice(up)
            room.casters[sayer].say()
            room.step(sayer)
        elif chance < 0.13:
            caster = room.casters[random.choice(up)]
            caster.generic.request_change((CLOSE, random.randrange(count)))
            room.step(caster.me)
        elif chance < 0.15:
            room.renew()
        elif chance < 0.155 and may_crash:
            may_crash -= 1
            room.crash(random.choice(up))
        elif chance < 0.2:
            caster = room.casters[random.choice(up)]
            caster.leading = not caster.leading
        else:
            room.arrive()
    for me, caster in room.casters.items():
        caster.leading = me == min(room.casters)
        room.step(me)
        caster.lost = set(range(count)) - set(room.casters)
    room.quiet()
    return room


@pytest.mark.parametrize(("count", "seeds"), [(2, 20), (3, 30), (4, 30), (5, 20), (7, 12)])
def test_the_same_items_between_the_same_changes(count: int, seeds: int) -> None:
    changes = items = 0
    for seed in range(seeds):
        room = disturbed(count, seed)
        logs = {me: epochs(caster.log) for me, caster in sorted(room.casters.items())}
        first = logs[min(logs)]
        assert all(log == first for log in logs.values()), f"count {count}, seed {seed}: {logs}"
        views = {caster.generic.open for caster in room.casters.values()}
        assert views == {tuple(sorted(room.casters))}, f"count {count}, seed {seed}: {views}"
        changes += len(first) // 2
        items += sum(len(part) for part in first[::2])
    assert items > 10 * seeds
    assert changes > seeds


def test_an_item_is_handed_up_after_two_delays_and_not_before_enough_hold_it() -> None:
    room = Room(4, 0)
    caster = room.casters[0]
    caster.say()
    room.step(0)
    assert not caster.log
    for target in (1, 2):
        room.step(target, *(Receive(0, body) for body in room.flight.pop((0, target))))
    room.step(0, *(Receive(1, body) for body in room.flight.pop((1, 0))))
    assert not caster.log, "two of four hold it; three must"
    room.step(0, *(Receive(2, body) for body in room.flight.pop((2, 0))))
    assert caster.log == [(0, 1)]


def test_a_stream_that_was_shut_goes_on_behind_what_the_others_completed() -> None:
    room = Room(4, 1)
    room.casters[3].generic.request_change((CLOSE, 3))
    room.casters[3].on_step_end = lambda: None  # type: ignore[method-assign]
    room.casters[1].generic.request_change((CLOSE, 3))
    room.step(1)
    while room.arrive():
        pass
    assert {caster.generic.open for me, caster in room.casters.items() if me != 3} == {(0, 1, 2)}
    for me in (0, 1, 2):
        for _ in range(5):
            room.casters[me].say()
        room.step(me)
    while room.arrive():
        pass
    del room.casters[3].on_step_end  # type: ignore[method-assign]
    room.step(3)
    room.quiet()
    assert {caster.generic.open for caster in room.casters.values()} == {(0, 1, 2, 3)}
    assert {caster.generic.base[3] for caster in room.casters.values()} == {5}


def test_a_snapshot_is_the_whole_process() -> None:
    room = disturbed(4, 5)
    for me, caster in room.casters.items():
        other = Caster(me, room.topology)
        other.restore(caster.snapshot())
        assert other.snapshot() == caster.snapshot()


def test_a_majority_remains() -> None:
    assert [faults_tolerated(count) for count in (1, 2, 3, 4, 6, 7, 9, 10, 12)] == [0, 0, 1, 1, 2, 3, 4, 4, 5]


def items(room: Room, source: int, target: int) -> list[Receive]:
    """The items that are on their way, which are taken from there; what else is goes lost."""
    return [Receive(source, body) for body in room.flight.pop((source, target), []) if isinstance(body, Item)]


def lose(room: Room, *lost: int) -> None:
    """These crash, and everybody knows; then nothing is left to happen."""
    for me in lost:
        room.crash(me)
    for caster in room.casters.values():
        caster.lost = set(lost)
    room.quiet()


def test_what_one_survivor_holds_belongs_to_the_epoch() -> None:
    room = Room(5, 0)
    for _ in range(2):
        room.casters[4].say()
    room.step(4)
    room.step(0, items(room, 4, 0)[0])
    room.step(3, *items(room, 4, 3))
    for pair in ((4, 1), (4, 2), (3, 0), (3, 1), (3, 2)):
        room.flight.pop(pair, None)
    lose(room, 3, 4)
    for caster in room.casters.values():
        assert caster.log == [(4, 1), ((CLOSE, 3), (CLOSE, 4))], "the second item reached nobody who is left"


class NamesTheLost(GenericBroadcast):
    """A decision names what somebody acknowledged, whether or not anybody else has it by now."""

    def _ends(self, reports: list[tuple[Tops, Tops]]) -> Tops | None:
        enough = len(reports) >= self.quorum
        return tuple(map(max, zip(*(tops for tops, _ in reports), strict=True))) if enough else None


@pytest.mark.parametrize("kind", [GenericBroadcast, NamesTheLost])
def test_what_only_the_dead_hold_keeps_nobody(kind: type[GenericBroadcast]) -> None:
    """Process 3 reports what it and process 4 alone hold, and crashes: the others' reports do without it."""
    room = Room(5, 0, kind)
    room.casters[4].say()
    room.step(4)
    room.step(3, *items(room, 4, 3))
    room.casters[3].generic.request_change((CLOSE, 4))
    room.step(3)
    for target in (0, 1, 2):
        room.flight.pop((4, target))
        room.step(target, *(Receive(3, body) for body in room.flight.pop((3, target))))
        assert room.casters[target].generic.is_frozen
    lose(room, 3, 4)
    views = {caster.generic.open for caster in room.casters.values()}
    assert (views == {(0, 1, 2)}) == (kind is GenericBroadcast), views
    assert all((4, 1) not in caster.log for caster in room.casters.values())
