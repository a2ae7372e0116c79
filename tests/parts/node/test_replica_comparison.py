"""Replicas that deliver the same agree, however they restart; replicas that do not find it out, and who is wrong."""

from itertools import pairwise

import pytest

from amcast.kernel.bundle import gateway_sender, make_bundle
from amcast.kernel.effects import Deliver
from amcast.kernel.message import Message
from amcast.parts.node.messages import ChainRecord
from amcast.parts.node.replica_comparison import (
    MAX_POINTS,
    MAX_UNCHAINED,
    OFFER_HEARTBEATS,
    ORIGIN_HEARTBEATS,
    REPEAT_HEARTBEATS,
    ReplicaComparison,
)

GATEWAY = gateway_sender(0, 0)


class Group:
    """Replicas of one group that send each other heartbeats."""

    def __init__(self, count: int = 3) -> None:
        self.members = tuple(range(count))
        self.replicas = [ReplicaComparison(me, self.members) for me in self.members]
        self.incarnations = [0] * count

    def deliver(self, *texts: str, first: int = 0, to: tuple[int, ...] = ()) -> None:
        for member in to or self.members:
            for delivery in deliver_all(*texts, first=first):
                self.replicas[member].record(delivery)

    def exchange(self, *senders: int, rounds: int = 2) -> None:
        """These members, by default all, send heartbeats to each other."""
        senders = senders or self.members
        for _ in range(rounds):
            reports = {sender: self.replicas[sender].make_report() for sender in senders}
            for receiver in senders:
                for sender, report in reports.items():
                    if sender != receiver and report is not None:
                        self.replicas[receiver].receive(sender, self.incarnations[sender], report)

    def restart(self, member: int, record: ChainRecord | None = None) -> ReplicaComparison:
        self.incarnations[member] += 1
        replica = self.replicas[member] = ReplicaComparison(member, self.members)
        replica.start(record)
        return replica

    @property
    def outcomes(self) -> list[str]:
        return [replica.outcome for replica in self.replicas]


def message(text: str) -> Message:
    return Message(10**9 + sum(byte << 8 * i for i, byte in enumerate(text.encode())), 1, (0,), text.encode())


def deliver_all(*texts: str, first: int = 0) -> list[Deliver]:
    return [Deliver(message(text), position) for position, text in enumerate(texts, first)]


def deliver_bundle(*texts: str, first: int = 0) -> Deliver:
    return Deliver(
        make_bundle(GATEWAY, first, (0,), [message(text) for text in texts]), first, message_count=len(texts)
    )


def numbers(first: int, end: int) -> list[str]:
    return [str(number) for number in range(first, end)]


def test_unchanged_report_is_sent_with_every_fifth_heartbeat_and_on_demand() -> None:
    replica = ReplicaComparison(0, (0, 1, 2))
    first = replica.make_report()
    assert first is not None
    later = [replica.make_report() for _ in range(2 * REPEAT_HEARTBEATS)]
    assert later == [*[None] * (REPEAT_HEARTBEATS - 1), first] * 2
    replica.repeat_report()
    assert replica.make_report() == first
    replica.record(Deliver(message("a"), 0))
    changed = replica.make_report()
    assert changed is not None
    assert changed != first


def test_equal_replicas_agree() -> None:
    group = Group()
    group.deliver(*numbers(0, 3000))
    group.exchange()
    assert group.outcomes == ["equal"] * 3
    assert group.replicas[0].describe() == ""
    assert group.replicas[0].describe_compared() == (
        "from position 0: process 1: equal before position 3000, process 2: equal before position 3000"
    )


@pytest.mark.parametrize("wrong", [("a", "c", "b", "d"), ("a", "c", "d", "e"), ("a", "b", "C", "d")])
def test_minority_finds_that_it_is_wrong(wrong: tuple[str, ...]) -> None:
    """Two messages in another order, one that is missing, one with another content."""
    group = Group()
    group.deliver("a", "b", "c", "d", to=(0, 1))
    group.deliver(*wrong, to=(2,))
    group.exchange()
    assert group.outcomes == ["majority", "majority", "minority"]
    assert "process 2 is wrong: a majority agrees with process 0" in group.replicas[0].describe()
    assert "this replica, which has stopped" in group.replicas[2].describe()
    assert [replica.is_sound for replica in group.replicas] == [True, True, False]


def test_corrupted_payload_is_found() -> None:
    group = Group()
    for replica, payload in zip(group.replicas, (b"same", b"same", b"sane"), strict=True):
        replica.record(Deliver(Message(5 * 10**9, 5, (0,), payload), 0))
    group.exchange()
    assert group.outcomes == ["majority", "majority", "minority"]


def test_two_replicas_that_differ_both_stop_taking_messages() -> None:
    group = Group(2)
    group.deliver("a", "b", to=(0,))
    group.deliver("b", "a", to=(1,))
    group.exchange()
    assert group.outcomes == ["split", "split"]
    assert not any(replica.is_sound for replica in group.replicas)
    text = group.replicas[0].describe()
    assert "deliveries before position 2: process 0 holds" in text
    assert "no majority is known to agree with either" in text


def test_split_is_decided_when_the_third_member_is_compared() -> None:
    group = Group()
    for member, texts in enumerate((("a", "b"), ("b", "a"), ("a", "b"))):
        group.deliver(*texts, to=(member,))
    group.exchange(0, 1)
    assert group.outcomes == ["split", "split", "equal"]
    group.exchange()
    assert group.outcomes == ["majority", "minority", "majority"]


def test_bundle_equals_its_messages_delivered_one_by_one() -> None:
    group = Group(2)
    group.replicas[0].record(deliver_bundle("a", "b", "c"))
    group.deliver("a", "b", "c", to=(1,))
    group.exchange()
    assert group.outcomes == ["equal", "equal"]
    assert "equal before position 3" in group.replicas[0].describe_compared()


def test_position_inside_a_bundle_that_comes_later_is_compared() -> None:
    """The first member tells its chain behind b, before the other one delivers a, b and c as one."""
    group = Group(2)
    group.deliver("a", "b", to=(0,))
    group.exchange()
    group.replicas[1].record(deliver_bundle("a", "X", "c"))
    group.exchange(rounds=1)
    assert group.outcomes == ["split", "split"]
    assert "before position 2" in group.replicas[1].describe()


def test_member_that_is_far_behind_is_compared_when_it_gets_there() -> None:
    group = Group(2)
    texts = numbers(0, 5 * MAX_POINTS)
    for first, end in pairwise(range(0, len(texts) + 1, MAX_POINTS // 2)):
        group.deliver(*texts[first:end], first=first, to=(0,))
        group.exchange(rounds=1)
    group.deliver(*texts, to=(1,))
    group.exchange()
    assert group.outcomes == ["equal", "equal"]
    assert f"equal before position {len(texts)}" in group.replicas[1].describe_compared()


def test_restart_continues_the_chain_from_its_record() -> None:
    group = Group()
    group.deliver("a", "b", "c", to=(0, 1))
    group.deliver("a", "X", "c", to=(2,))
    record = group.replicas[2].make_record()
    replica = group.restart(2, record)
    replica.skip_to(1)
    for delivery in deliver_all("X", "c", "d", first=1):
        replica.record(delivery)
    group.deliver("d", first=3, to=(0, 1))
    group.exchange()
    assert group.outcomes == ["majority", "majority", "minority"]


def test_restart_repeats_deliveries_without_harm() -> None:
    group = Group(2)
    group.deliver("a", "b", "c")
    replica = group.restart(1, group.replicas[1].make_record())
    for delivery in (deliver_bundle("a", "b"), deliver_bundle("c", "d", first=2)):
        replica.record(delivery)
    group.deliver("d", first=3, to=(0,))
    group.exchange()
    assert group.outcomes == ["equal", "equal"]
    assert "equal before position 4" in replica.describe_compared()


def test_replica_that_installs_a_state_takes_over_the_chain_of_the_others() -> None:
    group = Group()
    group.deliver(*numbers(0, 100), to=(0, 1))
    replica = group.restart(2)
    replica.skip_to(90)
    assert replica.make_record() is None
    assert replica.describe_compared().startswith("not compared")
    for delivery in deliver_all(*numbers(90, 100), first=90):
        replica.record(delivery)
    group.exchange()
    assert group.outcomes == ["equal"] * 3
    assert replica.since == 100
    group.deliver("d", first=100, to=(0, 1))
    group.deliver("X", first=100, to=(2,))
    group.exchange()
    assert group.outcomes == ["majority", "majority", "minority"]


def test_difference_after_the_chain_was_taken_over_in_the_past_is_found() -> None:
    """The others told their chain at a position that the replica had passed; what followed there is compared, too."""
    group = Group()
    group.deliver(*numbers(0, 50), to=(0, 1))
    reports = [group.replicas[member].make_report() for member in (0, 1)]
    replica = group.restart(2)
    replica.skip_to(40)
    replica.record(deliver_bundle(*numbers(40, 48), first=40))
    replica.record(deliver_bundle("48", "49", "X", first=48))
    for member, report in enumerate(reports):
        replica.receive(member, 0, report)
    assert replica.since == 50
    group.deliver("50", first=50, to=(0, 1))
    group.exchange()
    assert group.outcomes == ["majority", "majority", "minority"]


def test_replica_waits_a_little_for_the_chains_of_all_others() -> None:
    group = Group()
    group.deliver("a", "b", to=(0, 1))
    replica = group.restart(2)
    replica.skip_to(2)
    group.exchange(0, 2, rounds=OFFER_HEARTBEATS - 1)
    assert replica.make_record() is None
    group.exchange(0, 2)
    assert replica.make_record() is not None


def test_replica_takes_no_side_where_the_others_differ() -> None:
    group = Group()
    group.deliver("a", "b", to=(0,))
    group.deliver("b", "a", to=(1,))
    replica = group.restart(2)
    replica.skip_to(2)
    group.exchange(rounds=OFFER_HEARTBEATS + 3)
    assert group.outcomes == ["split"] * 3
    assert replica.make_record() is None
    assert "process 0 holds" in replica.describe()


def test_chain_begins_anew_where_nobody_knows_it() -> None:
    group = Group()
    for member in group.members:
        group.restart(member).skip_to(100 + member)
    group.deliver(*numbers(100, 110), first=100)
    group.exchange(rounds=ORIGIN_HEARTBEATS + 3)
    group.deliver("a", first=110)
    group.exchange()
    assert group.outcomes == ["equal"] * 3
    assert "equal before position 111" in group.replicas[1].describe_compared()
    group.deliver("b", first=111, to=(0, 1))
    group.deliver("X", first=111, to=(2,))
    group.exchange()
    assert group.outcomes == ["majority", "majority", "minority"]


def test_chain_with_the_lower_origin_is_taken_over() -> None:
    group = Group(2)
    group.deliver(*numbers(0, 20), to=(0,))
    replica = group.restart(1)
    replica.skip_to(10)
    for _ in range(ORIGIN_HEARTBEATS):
        replica.make_report()
    record = replica.make_record()
    assert record is not None
    assert record.point.origin == 10
    group.deliver(*numbers(10, 20), first=10, to=(1,))
    group.exchange(rounds=OFFER_HEARTBEATS + 2)
    record = replica.make_record()
    assert record is not None
    assert record.point.origin == 0
    assert group.outcomes == ["equal", "equal"]


def test_chains_of_different_origins_are_not_called_equal() -> None:
    group = Group(2)
    group.deliver("a", "b", to=(0,))
    replica = group.restart(1)
    replica.skip_to(1)
    for _ in range(ORIGIN_HEARTBEATS):
        replica.make_report()
    replica.repeat_report()
    report = replica.make_report()
    assert report is not None
    group.replicas[0].receive(1, 1, report)
    assert group.replicas[0].describe_compared() == "from position 0: process 1: not compared"


def test_kept_deliveries_are_bounded() -> None:
    replica = Group().replicas[0]
    replica.skip_to(10)
    for delivery in deliver_all(*numbers(0, 3 * MAX_UNCHAINED), first=10):
        replica.record(delivery)
    assert len(replica.snapshot().unchained) == MAX_UNCHAINED


def test_states_of_applications_are_compared() -> None:
    group = Group()
    group.deliver(*numbers(0, 8))
    for member, replica in enumerate(group.replicas):
        replica.record_state(4, 1)
        replica.record_state(8, 2 + (member == 1))
    group.exchange()
    assert group.outcomes == ["majority", "minority", "majority"]
    assert "the application's state before position 8" in group.replicas[0].describe()


def test_state_of_a_slower_application_is_compared_when_it_is_taken() -> None:
    group = Group(2)
    group.replicas[0].record_state(4, 1)
    group.exchange()
    group.replicas[0].record_state(8, 5)
    group.exchange()
    group.replicas[1].record_state(4, 2)
    assert group.replicas[1].outcome == "split"


def test_snapshot_keeps_chain_findings_and_claims() -> None:
    group = Group(2)
    group.deliver(*numbers(0, 20), to=(0,))
    group.deliver(*numbers(1, 15), to=(1,))
    group.exchange()
    group.replicas[0].record_state(4, 1)
    for me, replica in enumerate(group.replicas):
        restored = ReplicaComparison(me, group.members)
        restored.restore(replica.snapshot())
        assert restored.snapshot() == replica.snapshot()
        assert restored.outcome == replica.outcome
