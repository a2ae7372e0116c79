"""DeliveredSet: merging sets, forgetting messages, and adding many at once."""

from hypothesis import given, settings
from hypothesis import strategies as st

from amcast.kernel.ids import MESSAGES_PER_SENDER, message_id
from amcast.kernel.message import Message
from amcast.parts.ordering.delivered_set import DeliveredSet
from amcast.parts.ordering.messages import WINDOW

ids = st.builds(message_id, st.integers(0, 2), st.integers(0, 2 * WINDOW))


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
