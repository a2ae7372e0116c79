"""Delivery in the order of final timestamps."""

from hypothesis import given
from hypothesis import strategies as st

from amcast.parts.ordering.delivery_queue import DeliveryQueue


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 5)), min_size=1, max_size=30), st.randoms())
def test_messages_leave_in_the_order_of_final_ranks(messages: list[tuple[int, int]], random) -> None:
    """Each message is (lower bound, distance to its final timestamp); finals are fixed in random order."""
    queue = DeliveryQueue()
    finals = {}
    for id, (bound, more) in enumerate(messages):
        queue.add(bound, id)
        finals[id] = bound + more
    order = list(finals)
    random.shuffle(order)
    out: list[int] = []
    for id in order:
        queue.fix(id, finals[id])
        while (first := queue.pop_first(1000)) is not None:
            out.append(first)
    assert out == sorted(finals, key=lambda id: (finals[id], id))
    assert len(queue) == 0


def test_pop_first_waits_for_the_limit_and_for_unfixed_messages() -> None:
    queue = DeliveryQueue()
    queue.add(1, 10)
    queue.add(2, 11)
    queue.fix(11, 2)
    assert queue.pop_first(9) is None, "message 10 may still be ordered before 11"
    queue.fix(10, 5)
    assert queue.pop_first(9) == 11
    assert queue.pop_first(4) is None, "another message may still get timestamp 5"
    queue.drop(10)
    assert queue.pop_first(9) is None
