"""Confirmations between groups: batches, remembered timestamps, overdue confirmations."""

from amcast.parts.groups.timestamp_confirmations import CONFIRMATION_BATCHES, OVERDUE_BATCHES, Confirmations


def test_full_batch_of_one_group_is_due() -> None:
    confirmations = Confirmations(batch=3)
    assert confirmations.add(1, 10, 7) == ()
    assert confirmations.add(2, 10, 7) == ()
    assert confirmations.add(1, 11, 8) == ()
    assert confirmations.add(1, 12, 9) == (1,)
    assert confirmations.pop_batch(1) == (10, 11, 12)
    assert confirmations.unsent == {2: [10]}
    assert confirmations.unsent_count == 1


def test_batches_of_all_groups_are_due_when_many_wait_in_total() -> None:
    confirmations = Confirmations(batch=2)
    groups = range(2 * CONFIRMATION_BATCHES)
    due = [confirmations.add(group, 10, 7) for group in groups]
    assert due[-1] == tuple(groups)
    assert not any(due[:-1])


def test_timestamp_is_remembered_until_the_group_confirms() -> None:
    confirmations = Confirmations(batch=64)
    confirmations.add(1, 10, 7)
    confirmations.add(2, 10, None)
    assert confirmations.get_timestamp(1, 10) == 7
    assert confirmations.get_timestamp(2, 10) is None, "group 2 has confirmed before"
    confirmations.confirm(1, 10)
    confirmations.confirm(3, 10)
    assert confirmations.get_timestamp(1, 10) is None


def test_oldest_timestamps_are_overdue_once_per_batch() -> None:
    batch = 3
    confirmations = Confirmations(batch)
    overdue = []
    for id in range((OVERDUE_BATCHES + 1) * batch):
        confirmations.add(1, id, 100 + id)
        overdue.append(confirmations.list_overdue(1))
    oldest = [(0, 100), (1, 101), (2, 102)]
    expected = {OVERDUE_BATCHES * batch - 1: oldest, (OVERDUE_BATCHES + 1) * batch - 1: oldest}
    assert {id: listed for id, listed in enumerate(overdue) if listed} == expected


def test_restored_confirmations_equal_the_original() -> None:
    confirmations = Confirmations(batch=4)
    for id in range(3):
        confirmations.add(1, id, id)
        confirmations.add(2, id, None)
    restored = Confirmations(batch=4)
    restored.restore(
        tuple((group, tuple(pairs.items())) for group, pairs in confirmations.timestamps.items()),
        tuple((group, tuple(ids)) for group, ids in confirmations.unsent.items()),
    )
    assert (restored.timestamps, restored.unsent) == (confirmations.timestamps, confirmations.unsent)
    assert restored.unsent_count == confirmations.unsent_count == 6
