"""The set of delivered messages, compared with a plain set."""

from hypothesis import given, settings
from hypothesis import strategies as st

from amcast.kernel.ids import message_id
from amcast.parts.ordering.delivered_set import DeliveredSet
from amcast.parts.ordering.messages import WINDOW


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 60)), max_size=80))
def test_delivered_set_equals_a_set_within_the_window(messages: list[tuple[int, int]]) -> None:
    delivered, model = DeliveredSet(), set()
    for sender, sequence in messages:
        id = message_id(sender, sequence)
        assert (id in delivered) == (id in model)
        assert delivered.has_any([message_id(5, 0), id]) == (id in model)
        assert delivered.add(id) == (id not in model)
        model.add(id)
    restored = DeliveredSet()
    restored.restore(delivered.snapshot())
    assert all((message_id(s, n) in restored) == (message_id(s, n) in model) for s in range(4) for n in range(61))
    assert restored.snapshot() == delivered.snapshot()


runs = st.lists(st.tuples(st.booleans(), st.integers(-30, 30), st.integers(1, 900)), max_size=12)


@settings(deadline=None, max_examples=50)
@given(runs)
def test_runs_and_gaps_equal_messages_added_one_by_one(runs: list[tuple[bool, int, int]]) -> None:
    """Adds runs of any length after jumps in both directions, and forgets some messages restored. The result, and its
    snapshot, equal those of a set that is restored from a snapshot first, which has no run outside its bits."""
    delivered, restored, model = DeliveredSet(), DeliveredSet(), set()
    newest = -1
    for forgets, jump, length in runs:
        first = max(newest + jump, 0)
        for sequence in range(first, first + length):
            id = message_id(3, sequence)
            known = id in model or sequence <= newest - WINDOW
            edge = sequence in (first, first + 1, first + length - 1)
            if edge:
                restored.restore(delivered.snapshot())
                assert restored.add(id) != known
            assert (id in delivered) == known
            assert delivered.add(id) != known
            model.add(id)
            newest = max(newest, sequence)
            assert not edge or restored.snapshot() == delivered.snapshot()
        if forgets and first + length // 2 > newest - WINDOW:
            forgotten = message_id(3, first + length // 2)
            delivered.forget(forgotten)
            model.discard(forgotten)


def test_messages_older_than_the_window_count_as_delivered() -> None:
    delivered = DeliveredSet()
    assert delivered.add(message_id(7, 3 * WINDOW))
    assert message_id(7, 2 * WINDOW) in delivered
    assert message_id(7, 2 * WINDOW + 1) not in delivered
    assert not delivered.add(message_id(7, 0))
    assert len(delivered.snapshot()[0].bits) <= WINDOW // 8
