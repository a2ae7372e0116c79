"""Logical, hybrid and quorum clocks."""

from hypothesis import given
from hypothesis import strategies as st

from amcast.parts.ordering.clocks import QuorumClock, next_hybrid, next_logical


@given(
    st.lists(
        st.one_of(st.tuples(st.just("next"), st.integers(-5, 50)), st.tuples(st.just("raise"), st.integers(0, 60)))
    )
)
def test_timestamps_rise_whatever_the_local_time_is(events: list[tuple[str, int]]) -> None:
    for next_timestamp in (next_logical, next_hybrid):
        clock = 0
        for what, value in events:
            if what == "raise":
                clock = max(clock, value)
                continue
            timestamp = next_timestamp(clock, value)
            assert timestamp > clock
            assert timestamp == (clock + 1 if next_timestamp is next_logical else max(clock + 1, value))
            clock = timestamp


def test_delivery_limit_needs_the_leaders_clock() -> None:
    clock = QuorumClock(3)
    clock.update(1, 9)
    clock.update(2, 8)
    assert clock.majority_value() == 8
    assert clock.delivery_limit(0) == 0, "the leader may still assign timestamp 1"
    clock.update(0, 7)
    assert clock.delivery_limit(7) == 7
    clock.update(1, 3)
    assert clock.majority_value() == 8, "clocks do not go back"
    clock.update(0, 20)
    assert clock.delivery_limit(20) == 9
    restored = QuorumClock(3)
    restored.restore(clock.snapshot())
    assert restored.delivery_limit(20) == 9
    restored.forget(1)
    assert restored.delivery_limit(20) == 8, "a member that lost its state has promised nothing"


def test_even_group_needs_more_than_half() -> None:
    clock = QuorumClock(4)
    for place, value in enumerate((5, 6, 7, 8)):
        clock.update(place, value)
    assert clock.majority_value() == 6, "three of four have reached it"
