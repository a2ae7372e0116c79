"""The set of delivered messages: members, window, snapshots, merging, forgetting, adding many at once."""

from hypothesis import given, settings
from hypothesis import strategies as st

from amcast.kernel.ids import MESSAGES_PER_SENDER, message_id
from amcast.kernel.message import Message
from amcast.parts.ordering.delivered_set import DeliveredSet
from amcast.parts.ordering.messages import WINDOW

ids = st.builds(message_id, st.integers(0, 2), st.integers(0, 2 * WINDOW))


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


@settings(deadline=None)
@given(st.lists(ids), st.lists(ids))
def test_merged_set_contains_both_sets_within_the_window(one: list[int], other: list[int]) -> None:
    left, right = DeliveredSet(), DeliveredSet()
    for id in one:
        left.add(id)
    for id in other:
        right.add(id)
    merged = DeliveredSet()
    merged.restore(left.snapshot())
    merged.merge(right.snapshot())
    for id in {*one, *other}:
        assert id in merged
    for sender in range(3):
        newest = max(
            (id % MESSAGES_PER_SENDER for id in (*one, *other) if id // MESSAGES_PER_SENDER == sender), default=-1
        )
        for sequence in range(max(0, newest - WINDOW + 1), newest + 1):
            id = message_id(sender, sequence)
            assert (id in merged) == (id in one or id in other)


def test_forgotten_message_is_new_again() -> None:
    delivered = DeliveredSet()
    for sequence in (1, 2, 3):
        delivered.add(message_id(1, sequence))
    delivered.forget(message_id(1, 3))
    delivered.forget(message_id(2, 3))
    assert message_id(1, 3) not in delivered
    assert message_id(1, 2) in delivered
    assert delivered.add(message_id(1, 3))
    assert not delivered.add(message_id(1, 3))


def test_add_all_equals_add_for_each() -> None:
    senders_and_sequences = ((1, 0), (2, 5), (1, 1), (1, 1), (2, 4), (1, 3), (1, 2), (2, 5))
    messages = [Message(message_id(sender, n), sender, (0, 1)) for sender, n in senders_and_sequences]
    one, other = DeliveredSet(), DeliveredSet()
    duplicates = one.add_all(messages)
    assert duplicates == tuple(i for i, message in enumerate(messages) if not other.add(message.id)) == (3, 7)
    assert one.snapshot() == other.snapshot()
