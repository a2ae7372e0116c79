"""Generic broadcast alone: all processes deliver the same items between the same changes, whatever is lost.

Every process is its own group and owns one stream. The tests have a small random simulation: FIFO links, timers when
nothing else can happen, link resets, f crashes.
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
from amcast.parts.broadcast.messages import CLOSE, OPEN, Ack, Item, Tops

RETRY = (1000, 1000)


class Member(Process):
    """Records every event in a list, and leads if the test sets `leading`."""

    def __init__(self, me: int, topology: Topology, kind: type[GenericBroadcast] = GenericBroadcast) -> None:
        super().__init__(me, topology)
        self.generic = kind(self, RETRY)
        self.log: list[Any] = []
        self.sent_count = 0
        self.leading = me == 0
        self.lost: set[int] = set()

    def on_start(self, records: Any, incarnation: int) -> None:
        self.generic.begin()

    def multicast(self) -> None:
        self.sent_count += 1
        message = Message(self.me * 1000 + self.sent_count, self.me, (0,))
        self.generic.add_item(self.me, self.sent_count, (message,))
        self.send_all(self.generic.others, Item(self.me, self.sent_count, (message,)))

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


class Simulation:
    """All processes, the bodies in flight between them, and a random generator."""

    def __init__(self, count: int, seed: int, kind: type[GenericBroadcast] = GenericBroadcast) -> None:
        self.random = Random(seed)
        self.topology = Topology.grid(count, 1)
        self.members = {me: Member(me, self.topology, kind) for me in range(count)}
        self.flight: dict[tuple[int, int], list[Body]] = {}
        self.timers: set[tuple[int, str]] = set()
        for me in range(count):
            self.step(me, Started())

    def step(self, me: int, *events: Event) -> None:
        self.execute(me, self.members[me].step(events, 0))

    def execute(self, me: int, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Send(targets, body):
                    for target in targets:
                        if target in self.members:
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
        del self.members[me]
        self.flight = {pair: bodies for pair, bodies in self.flight.items() if me not in pair}
        self.timers = {timer for timer in self.timers if timer[0] != me}
        self.members[min(self.members)].leading = True

    def reset_link(self) -> None:
        one, other = self.random.sample(sorted(self.members), 2)
        self.flight.pop((one, other), None)
        self.flight.pop((other, one), None)
        self.step(one, LinkReset(other, 0))
        self.step(other, LinkReset(one, 0))

    def receive_one(self) -> bool:
        pairs = sorted(pair for pair, bodies in self.flight.items() if bodies)
        if not pairs:
            return False
        source, target = self.random.choice(pairs)
        self.step(target, Receive(source, self.flight[(source, target)].pop(0)))
        return True

    def run_until_quiet(self) -> None:
        """Lets all bodies receive_one, then all timers fire, many times: nothing changes any more."""
        for _ in range(60):
            for _ in range(20_000):
                if not self.receive_one():
                    break
            else:
                raise AssertionError("the processes still send after 20000 bodies")
            for me, name in sorted(self.timers):
                self.timers.discard((me, name))
                self.step(me, Timer(name))
            for me in sorted(self.members):
                self.step(me, Timer("ask"))


def epochs(log: list[Any]) -> list[Any]:
    """Alternating sets of items and the changes between them."""
    parts: list[Any] = [set()]
    for event in log:
        if len(event) == 2 and isinstance(event[0], int):
            parts[-1].add(event)
        else:
            parts += [event, set()]
    return parts


def run_randomly(count: int, seed: int, kind: type[GenericBroadcast] = GenericBroadcast) -> Simulation:
    simulation = Simulation(count, seed, kind)
    random = simulation.random
    may_crash = faults_tolerated(count)
    for _ in range(400):
        chance = random.random()
        up = sorted(simulation.members)
        if chance < 0.10:
            sender = random.choice(up)
            simulation.members[sender].multicast()
            simulation.step(sender)
        elif chance < 0.13:
            member = simulation.members[random.choice(up)]
            member.generic.request_change((CLOSE, random.randrange(count)))
            simulation.step(member.me)
        elif chance < 0.15:
            simulation.reset_link()
        elif chance < 0.155 and may_crash:
            may_crash -= 1
            simulation.crash(random.choice(up))
        elif chance < 0.2:
            member = simulation.members[random.choice(up)]
            member.leading = not member.leading
        else:
            simulation.receive_one()
    for me, member in simulation.members.items():
        member.leading = me == min(simulation.members)
        simulation.step(me)
        member.lost = set(range(count)) - set(simulation.members)
    simulation.run_until_quiet()
    return simulation


@pytest.mark.parametrize(("count", "seeds"), [(2, 20), (3, 30), (4, 30), (5, 20), (7, 12)])
def test_all_processes_deliver_the_same_items_between_the_same_changes(count: int, seeds: int) -> None:
    changes = items = 0
    for seed in range(seeds):
        simulation = run_randomly(count, seed)
        logs = {me: epochs(member.log) for me, member in sorted(simulation.members.items())}
        first = logs[min(logs)]
        assert all(log == first for log in logs.values()), f"count {count}, seed {seed}: {logs}"
        views = {member.generic.open for member in simulation.members.values()}
        assert views == {tuple(sorted(simulation.members))}, f"count {count}, seed {seed}: {views}"
        changes += len(first) // 2
        items += sum(len(part) for part in first[::2])
    assert items > 10 * seeds
    assert changes > seeds


def test_item_is_delivered_once_a_majority_holds_it() -> None:
    simulation = Simulation(4, 0)
    member = simulation.members[0]
    member.multicast()
    simulation.step(0)
    assert not member.log
    for target in (1, 2):
        simulation.step(target, *(Receive(0, body) for body in simulation.flight.pop((0, target))))
    simulation.step(0, *(Receive(1, body) for body in simulation.flight.pop((1, 0))))
    assert not member.log, "two of four hold it; a majority is three"
    simulation.step(0, *(Receive(2, body) for body in simulation.flight.pop((2, 0))))
    assert member.log == [(0, 1)]


def test_reopened_stream_continues_after_what_the_others_completed() -> None:
    simulation = Simulation(4, 1)
    simulation.members[3].generic.request_change((CLOSE, 3))
    simulation.members[3].on_step_end = lambda: None  # type: ignore[method-assign]
    simulation.members[1].generic.request_change((CLOSE, 3))
    simulation.step(1)
    while simulation.receive_one():
        pass
    assert {member.generic.open for me, member in simulation.members.items() if me != 3} == {(0, 1, 2)}
    for me in (0, 1, 2):
        for _ in range(5):
            simulation.members[me].multicast()
        simulation.step(me)
    while simulation.receive_one():
        pass
    del simulation.members[3].on_step_end  # type: ignore[method-assign]
    simulation.step(3)
    simulation.run_until_quiet()
    assert {member.generic.open for member in simulation.members.values()} == {(0, 1, 2, 3)}
    assert {member.generic.base[3] for member in simulation.members.values()} == {5}


def test_items_that_an_installed_state_covers_are_acknowledged() -> None:
    """Nobody sends them any more; without them a later item would never count as held."""
    simulation = Simulation(3, 0)
    member = simulation.members[0]
    member.generic.install_progress(0, (0, 2, 0))
    member.generic.add_item(1, 3, ())
    simulation.step(0)
    assert simulation.flight[0, 2][-1] == Ack(0, (0, 3, 0))


def test_restored_process_equals_the_original() -> None:
    simulation = run_randomly(4, 5)
    for me, member in simulation.members.items():
        other = Member(me, simulation.topology)
        other.restore(member.snapshot())
        assert other.snapshot() == member.snapshot()


def test_faults_tolerated_leave_a_majority() -> None:
    assert [faults_tolerated(count) for count in (1, 2, 3, 4, 6, 7, 9, 10, 12)] == [0, 0, 1, 1, 2, 3, 4, 4, 5]


def take_items(simulation: Simulation, source: int, target: int) -> list[Receive]:
    """Removes the bodies in flight between two processes, and returns the items among them."""
    return [Receive(source, body) for body in simulation.flight.pop((source, target), []) if isinstance(body, Item)]


def lose(simulation: Simulation, *lost: int) -> None:
    """Crashes processes, lets the others suspect them, and runs until nothing changes."""
    for me in lost:
        simulation.crash(me)
    for member in simulation.members.values():
        member.lost = set(lost)
    simulation.run_until_quiet()


def test_item_held_by_one_survivor_belongs_to_the_epoch() -> None:
    simulation = Simulation(5, 0)
    for _ in range(2):
        simulation.members[4].multicast()
    simulation.step(4)
    simulation.step(0, take_items(simulation, 4, 0)[0])
    simulation.step(3, *take_items(simulation, 4, 3))
    for pair in ((4, 1), (4, 2), (3, 0), (3, 1), (3, 2)):
        simulation.flight.pop(pair, None)
    lose(simulation, 3, 4)
    for member in simulation.members.values():
        assert member.log == [(4, 1), ((CLOSE, 3), (CLOSE, 4))], "the second item reached no survivor"


class DecidesLostItems(GenericBroadcast):
    """A decision contains every acknowledged item, whether or not a majority holds it."""

    def _find_ends(self, reports: list[tuple[Tops, Tops]]) -> Tops | None:
        enough = len(reports) >= self.quorum
        return tuple(map(max, zip(*(tops for tops, _ in reports), strict=True))) if enough else None


@pytest.mark.parametrize("kind", [GenericBroadcast, DecidesLostItems])
def test_items_of_crashed_processes_do_not_block_the_decision(kind: type[GenericBroadcast]) -> None:
    """Process 3 reports an item that only it and process 4 hold, and crashes; the others' reports suffice."""
    simulation = Simulation(5, 0, kind)
    simulation.members[4].multicast()
    simulation.step(4)
    simulation.step(3, *take_items(simulation, 4, 3))
    simulation.members[3].generic.request_change((CLOSE, 4))
    simulation.step(3)
    for target in (0, 1, 2):
        simulation.flight.pop((4, target))
        simulation.step(target, *(Receive(3, body) for body in simulation.flight.pop((3, target))))
        assert simulation.members[target].generic.is_frozen
    lose(simulation, 3, 4)
    views = {member.generic.open for member in simulation.members.values()}
    assert (views == {(0, 1, 2)}) == (kind is GenericBroadcast), views
    assert all((4, 1) not in member.log for member in simulation.members.values())
