"""Replicas that deliver the same agree; replicas that do not find it out, and who is wrong."""

from amcast.kernel.effects import Deliver
from amcast.kernel.message import Message
from amcast.parts.node.replica_comparison import BLOCK, MAX_SAMPLES, ReplicaComparison

MEMBERS = (0, 1, 2)


def deliver(replica: ReplicaComparison, *ids: int, first: int = 0) -> None:
    for position, id in enumerate(ids, first):
        replica.record(Deliver(Message(id, 9, (0,)), position))


def exchange(*replicas: ReplicaComparison, rounds: int = 2) -> None:
    """Every member sends its heartbeat to every other one."""
    for _ in range(rounds):
        samples = [replica.take_samples() for replica in replicas]
        for number, replica in enumerate(replicas):
            for sender, sent in enumerate(samples):
                if sender != number:
                    replica.compare(sender, sent)


def make_group(count: int = 3) -> list[ReplicaComparison]:
    return [ReplicaComparison(me, MEMBERS[:count]) for me in range(count)]


def test_equal_replicas_agree() -> None:
    group = make_group()
    for replica in group:
        deliver(replica, *range(100, 100 + 3 * BLOCK))
    exchange(*group)
    assert [replica.describe() for replica in group] == ["", "", ""]


def test_swapped_deliveries_make_the_minority_diverge() -> None:
    group = make_group()
    deliver(group[0], 11, 12, 13)
    deliver(group[1], 11, 12, 13)
    deliver(group[2], 11, 13, 12)
    exchange(*group)
    assert [replica.is_diverged for replica in group] == [False, False, True]
    assert not any(replica.is_disputed for replica in group)
    assert group[0].differing == group[1].differing == (2,)
    assert "wrong are the replicas [2]" in group[0].describe()


def test_other_message_in_an_earlier_block_is_found() -> None:
    group = make_group()
    ids = list(range(100, 100 + 2 * BLOCK))
    for replica in group:
        deliver(replica, *([99, *ids[1:]] if replica is group[1] else ids))
    exchange(*group)
    assert group[1].is_diverged


def test_two_replicas_that_differ_both_stop_taking_messages() -> None:
    group = make_group(2)
    deliver(group[0], 11, 12)
    deliver(group[1], 12, 11)
    exchange(*group)
    assert all(replica.is_disputed and not replica.is_diverged for replica in group)
    assert "no majority agrees" in group[0].describe()


def test_dispute_is_decided_when_the_third_member_is_heard() -> None:
    group = make_group()
    for replica, ids in zip(group, ((11, 12), (12, 11), (11, 12)), strict=True):
        deliver(replica, *ids)
    exchange(group[0], group[1])
    assert group[0].is_disputed
    exchange(*group)
    assert (group[0].is_disputed, group[1].is_diverged) == (False, True)


def test_replica_that_installed_a_prefix_compares_from_the_next_block_on() -> None:
    group = make_group()
    ids = list(range(100, 102 + 2 * BLOCK))
    deliver(group[0], *ids)
    deliver(group[1], *ids)
    deliver(group[2], *ids[10:], first=10)
    exchange(*group)
    assert group[2].describe() == ""
    deliver(group[0], 7, first=len(ids))
    deliver(group[1], 7, first=len(ids))
    deliver(group[2], 8, first=len(ids))
    exchange(*group)
    assert group[2].is_diverged


def test_bundles_count_as_their_messages() -> None:
    group = make_group(2)
    for replica in group:
        replica.record(Deliver(Message(5, 9, (0,)), 0, message_count=BLOCK + 10))
        replica.record(Deliver(Message(6, 9, (0,)), BLOCK + 10, message_count=0))
        replica.record(Deliver(Message(7, 9, (0,)), BLOCK + 10, message_count=2))
    exchange(*group)
    assert group[0].describe() == ""
    group[0].record(Deliver(Message(8, 9, (0,)), BLOCK + 12, message_count=1))
    group[1].record(Deliver(Message(9, 9, (0,)), BLOCK + 12, message_count=1))
    exchange(*group)
    assert group[0].is_disputed


def test_heartbeat_is_bounded() -> None:
    replica = make_group()[0]
    deliver(replica, *range(100, 100 + 40 * BLOCK))
    assert len(replica.take_samples()) <= MAX_SAMPLES + 1
    assert len(replica.take_samples()) == 1


def test_snapshot_keeps_digests_and_disputes() -> None:
    group = make_group(2)
    deliver(group[0], *range(100, 1200))
    deliver(group[1], *range(101, 1201))
    exchange(*group)
    restored = ReplicaComparison(0, MEMBERS[:2])
    restored.restore(group[0].snapshot())
    assert restored.snapshot() == group[0].snapshot()
    assert restored.describe() == group[0].describe() != ""
    assert restored.is_disputed
