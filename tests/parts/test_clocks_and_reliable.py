"""Clocks that never go back, and multicast that reaches all or none."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amcast.kernel.effects import Send
from amcast.kernel.events import Receive, Submit
from amcast.kernel.ids import ProcessId, message_id
from amcast.kernel.message import Body, Message, State
from amcast.kernel.process import Process
from amcast.kernel.topology import Topology
from amcast.parts.bodies.reliable import Carry
from amcast.parts.clocks import QuorumClock, hybrid, logical
from amcast.parts.reliable import Reliable

TOPOLOGY = Topology.grid(2, 2)


@given(
    st.lists(
        st.one_of(st.tuples(st.just("stamp"), st.integers(-5, 50)), st.tuples(st.just("hear"), st.integers(0, 60)))
    )
)
def test_stamps_only_rise_whatever_the_local_time_does(happenings: list[tuple[str, int]]) -> None:
    for stamping in (logical, hybrid):
        clock = 0
        for what, value in happenings:
            if what == "hear":
                clock = max(clock, value)
                continue
            stamp = stamping(clock, value)
            assert stamp > clock
            assert stamp == (clock + 1 if stamping is logical else max(clock + 1, value))
            clock = stamp


def test_a_quorum_clock_waits_for_the_leader() -> None:
    clock = QuorumClock(3)
    clock.hear(1, 9)
    clock.hear(2, 8)
    assert clock.passed() == 8
    assert clock.reached(0) == 0, "the leader may still stamp 1"
    clock.hear(0, 7)
    assert clock.reached(7) == 7
    clock.hear(1, 3)
    assert clock.passed() == 8, "clocks do not go back"
    clock.hear(0, 20)
    assert clock.reached(20) == 9
    again = QuorumClock(3)
    again.restore(clock.snapshot())
    assert again.reached(20) == 9
    again.forget(1)
    assert again.reached(20) == 8, "who lost its memory promised nothing"


def test_an_even_group_needs_more_than_half() -> None:
    clock = QuorumClock(4)
    for place, value in enumerate((5, 6, 7, 8)):
        clock.hear(place, value)
    assert clock.passed() == 6, "three of four are there"


class End(Process):
    """The smallest owner: it keeps what is delivered. Submitted messages go to their destinations reliably."""

    def __init__(self, me: ProcessId) -> None:
        super().__init__(me, TOPOLOGY)
        self.reliable = Reliable(self)
        self.delivered: list[int] = []

    def on_multicast(self, message: Message) -> None:
        self.reliable.multicast(self.topology.addressed(message.destinations), message)

    def on_submit(self, message: Message) -> None:
        raise AssertionError

    def on_receive(self, sender: ProcessId, body: Body) -> None:
        self.delivered += [message.id for message in self.reliable.receive(sender, body)]

    def on_step_end(self) -> None:
        self.reliable.flush()

    def snapshot(self) -> State:
        return self.reliable.snapshot()

    def restore(self, state: State) -> None:
        self.reliable.restore(state)  # type: ignore[arg-type]


class Ends:
    """Four of them, and packets that arrive in any order a test likes."""

    def __init__(self) -> None:
        self.up = {process: End(process) for process in TOPOLOGY.servers}
        self.flight: list[tuple[ProcessId, ProcessId, Body]] = []

    def take(self, process: ProcessId, *events: object) -> None:
        for effect in self.up[process].step(events, 0):  # type: ignore[arg-type]
            if isinstance(effect, Send):
                self.flight += [(process, target, effect.body) for target in effect.targets]

    def multicast(self, process: ProcessId, sequence: int, *destinations: int) -> int:
        message = Message(message_id(process, sequence), process, destinations)
        self.take(process, Submit(message))
        return message.id

    def settle(self, random: Random | None = None) -> None:
        while self.flight:
            source, target, body = self.flight.pop(random.randrange(len(self.flight)) if random else 0)
            if target in self.up:
                self.take(target, Receive(source, body))


@pytest.mark.parametrize("seed", range(20))
def test_everybody_delivers_everything_in_the_order_of_each_origin(seed: int) -> None:
    ends, random = Ends(), Random(seed)
    sent: dict[int, list[tuple[int, tuple[int, ...]]]] = {0: [], 3: []}
    for sequence in range(12):
        for origin, list_ in sent.items():
            destinations = random.choice([(0,), (1,), (0, 1)])
            list_.append((ends.multicast(origin, sequence, *destinations), destinations))
    ends.settle(random)
    for process, end in ends.up.items():
        for origin, list_ in sent.items():
            mine = [id for id, destinations in list_ if TOPOLOGY.group_of(process) in destinations]
            assert [id for id in end.delivered if id // 10**9 == origin] == mine
        assert not end.reliable._unstable, "the origin forgets what all have"
        assert not any(end.reliable._kept.values()), "and so do the targets"


def test_what_one_target_got_reaches_all_when_the_origin_dies() -> None:
    ends = Ends()
    first = ends.multicast(0, 0, 0, 1)
    second = ends.multicast(0, 1, 0, 1)
    ends.flight = [packet for packet in ends.flight if packet[1] == 2]
    ends.settle()
    del ends.up[0]
    assert ends.up[2].delivered == [first, second]
    assert ends.up[1].delivered == ends.up[3].delivered == []
    ends.up[2].reliable.suspect(0)
    ends.take(2)
    ends.flight.reverse()
    ends.settle()
    assert ends.up[1].delivered == ends.up[3].delivered == [first, second]


def test_a_new_link_is_told_what_was_not_acknowledged_and_nothing_comes_twice() -> None:
    ends = Ends()
    first = ends.multicast(0, 0, 1)
    ends.flight = [packet for packet in ends.flight if packet[1] != 3]
    ends.settle()
    ends.up[0].reliable.meet(3)
    ends.up[0].reliable.meet(2)
    ends.take(0)
    assert [(target, type(body)) for _, target, body in ends.flight] == [(3, Carry)]
    ends.settle()
    assert ends.up[2].delivered == ends.up[3].delivered == [first]


def test_a_snapshot_is_complete() -> None:
    ends = Ends()
    for sequence in range(4):
        ends.multicast(0, sequence, 0, 1)
    ends.flight = ends.flight[3:]
    ends.settle()
    for process, end in ends.up.items():
        again = End(process)
        again.restore(end.snapshot())
        assert again.snapshot() == end.snapshot()
