"""Clocks that never go back, and multicast that reaches all or none."""

from hypothesis import given
from hypothesis import strategies as st

from amcast.kernel.topology import Topology
from amcast.parts.ordering.clocks import QuorumClock, next_hybrid, next_logical

TOPOLOGY = Topology.grid(2, 2)


@given(
    st.lists(
        st.one_of(st.tuples(st.just("stamp"), st.integers(-5, 50)), st.tuples(st.just("hear"), st.integers(0, 60)))
    )
)
def test_stamps_only_rise_whatever_the_local_time_does(happenings: list[tuple[str, int]]) -> None:
    for stamping in (next_logical, next_hybrid):
        clock = 0
        for what, value in happenings:
            if what == "hear":
                clock = max(clock, value)
                continue
            stamp = stamping(clock, value)
            assert stamp > clock
            assert stamp == (clock + 1 if stamping is next_logical else max(clock + 1, value))
            clock = stamp


def test_a_quorum_clock_waits_for_the_leader() -> None:
    clock = QuorumClock(3)
    clock.update(1, 9)
    clock.update(2, 8)
    assert clock.majority_value() == 8
    assert clock.delivery_limit(0) == 0, "the leader may still stamp 1"
    clock.update(0, 7)
    assert clock.delivery_limit(7) == 7
    clock.update(1, 3)
    assert clock.majority_value() == 8, "clocks do not go back"
    clock.update(0, 20)
    assert clock.delivery_limit(20) == 9
    again = QuorumClock(3)
    again.restore(clock.snapshot())
    assert again.delivery_limit(20) == 9
    again.forget(1)
    assert again.delivery_limit(20) == 8, "who lost its memory promised nothing"


def test_an_even_group_needs_more_than_half() -> None:
    clock = QuorumClock(4)
    for place, value in enumerate((5, 6, 7, 8)):
        clock.update(place, value)
    assert clock.majority_value() == 6, "three of four are there"
