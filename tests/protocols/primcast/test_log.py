"""The group log, and what is known of members' acknowledgements of it."""

from amcast.kernel.message import Message
from amcast.kernel.topology import Topology
from amcast.parts.groups.leader_group_messages import Entry
from amcast.protocols.primcast.log import GroupLog
from amcast.protocols.primcast.progress import GroupProgress, PendingMulticast

MESSAGES = [Message(9 * 10**9 + number, 9, (0,)) for number in range(4)]


def pending_of(message: Message) -> PendingMulticast:
    pending = PendingMulticast(message.id)
    pending.message = message
    return pending


def log_of(*delivered_at: int) -> GroupLog:
    """A log of messages that are delivered at these positions (-1: not delivered), with timestamps 1, 2 ..."""
    log = GroupLog()
    for index, (message, position) in enumerate(zip(MESSAGES, delivered_at, strict=False)):
        pending = pending_of(message)
        pending.delivered_at = position
        assert log.append(pending, index + 1) == index
    log.decided = log.length
    return log


def test_trim_stops_at_the_first_undelivered_entry() -> None:
    log = log_of(0, 1, -1, 2)
    log.trim(delivered=3)
    assert (log.base, log.floor, log.length, len(log)) == (2, 2, 4, 2)
    assert log.list_undelivered() == [log.entries[2]]


def test_trim_keeps_entries_that_no_majority_has_delivered() -> None:
    log = log_of(0, 1, 2)
    log.trim(delivered=1)
    assert (log.base, log.floor) == (1, 1)


def test_trim_keeps_undecided_entries() -> None:
    log = log_of(0, 1, 2)
    log.decided = 1
    log.trim(delivered=3)
    assert log.base == 1


def test_floor_is_above_every_trimmed_delivery() -> None:
    log = log_of(2, 0, 1)
    log.trim(delivered=3)
    assert (log.base, log.floor, len(log)) == (3, 3, 0)


def test_list_entries_from_an_index_on() -> None:
    log = log_of(-1, -1, -1)
    assert log.list_entries(1) == (Entry(MESSAGES[1], 2), Entry(MESSAGES[2], 3))
    assert log.list_entries(3) == ()


def test_next_entry_after_clear_and_skip_has_the_given_index() -> None:
    log = log_of(-1, -1)
    log.clear(7, 5)
    assert (log.base, log.length, log.decided, log.floor) == (7, 7, 7, 5)
    assert log.append(pending_of(MESSAGES[0]), 9) == 7
    log.skip_to(12)
    assert (log.entries, log.base, log.length, log.floor) == ({}, 12, 12, 5)


def test_acknowledged_length_counts_one_epoch_only() -> None:
    progress = GroupProgress(0, Topology.grid(1, 3))
    progress.epochs, progress.lengths = [4, 4, 3], [5, 2, 9]
    assert progress.acknowledged_length(4) == 2
    assert progress.acknowledged_length(3) == 0, "a minority"
    assert progress.has_quorum(4)
    assert not progress.has_quorum(3)
    progress.epochs = [4, 4, 4]
    assert progress.acknowledged_length(4) == 5


def test_majority_rank_is_reached_by_a_majority() -> None:
    progress = GroupProgress(0, Topology.grid(1, 3))
    progress.delivered_ranks = [(5, 1), (2, 7), (9, 3)]
    assert progress.majority_rank() == (5, 1)
