"""Leader groups, tested with the smallest protocol that has a leader: it orders no messages."""

from collections.abc import Sequence
from typing import Any

import pytest

from amcast.kernel.effects import Note, Persist, Send, SetTimer
from amcast.kernel.events import Leader, Started, Timer
from amcast.kernel.ids import ProcessId
from amcast.kernel.message import Body, Message, Record, State
from amcast.kernel.topology import Topology
from amcast.parts.consensus.quorum import place_of
from amcast.parts.groups.leader_group import (
    MAX_REQUESTS,
    REPAIR_TIMER,
    LeaderGroupMember,
    PendingMessage,
    find_new_losses,
)
from amcast.parts.groups.leader_group_messages import (
    AdmissionVote,
    DeliveredPrefix,
    JoinRequest,
    LeaderGroupConfig,
    LeaderGroupState,
    Nack,
)

FIVE = Topology.grid(1, 5)


class Position(Body, frozen=True):
    epoch: int
    full: bool


class RequestPromise(Body, frozen=True):
    ballot: int


class EpochState(Body, frozen=True):
    ballot: int
    memory_losses: tuple[int, ...]


class RequestMessage(Body, frozen=True):
    id: int


class Promised(Record, frozen=True):
    promised: int


class Item(PendingMessage):
    def __init__(self, id: int) -> None:
        self.id = id
        self.is_overdue = False


class ToyMember(LeaderGroupMember[Item]):
    """Changes leaders and does nothing else."""

    def __init__(self, me: ProcessId) -> None:
        super().__init__(me, FIVE, LeaderGroupConfig(), "leader")
        self.discarded: list[int] = []

    def on_request(self, message: Message) -> None:
        self._pending[message.id] = Item(message.id)

    def on_receive(self, sender: ProcessId, body: Body) -> None:
        match body:
            case RequestPromise(ballot):
                if self._promise_candidate(sender, ballot):
                    self.send(sender, Position(self._epoch, True))
            case EpochState(ballot, memory_losses):
                if self._role != "joining":
                    self._enter_epoch(ballot, 0, memory_losses)
                elif self._may_admit(ballot, memory_losses):
                    self._complete_admission()
                    self._enter_epoch(ballot, 0, memory_losses)
            case Nack(ballot):
                self._handle_nack(ballot)
            case JoinRequest():
                if self._handle_join_request(sender, body) and self._role == "leader":
                    self._send_after_persist((sender,), EpochState(self._epoch, self._memory_losses))
            case AdmissionVote():
                self._handle_admission_vote(sender, body)

    def on_step_end(self) -> None:
        for targets, body, about in self._sends_after_persist:
            self.send_all(targets, body, about)
        self._sends_after_persist = []
        self._arm_repair_timer()

    def on_start(self, records: Sequence[Record], incarnation: int) -> None:
        for record in records:
            assert isinstance(record, Promised)
            self._promised = record.promised
        super().on_start(records, incarnation)
        if incarnation == 0:
            self.persist(Promised(self._promised))

    def _sync_request(self, full: bool) -> Body:
        return Position(-1 if self._role == "joining" else self._epoch, full)

    def _send_candidacy(self, members: tuple[ProcessId, ...]) -> None:
        self._send_after_persist(members, RequestPromise(self._promised))

    def _discard_votes(self, place: int) -> None:
        self.discarded.append(place)

    def on_timer(self, name: str) -> None:
        helper, overdue = self._repair_membership(name)
        if helper is not None:
            self._send_after_persist((helper,), self._sync_request(True))
        for item in overdue:
            self._send_after_persist(self._other_members, RequestMessage(item.id), item.id)

    def snapshot(self) -> State:
        return self._snapshot_member()

    def restore(self, state: State) -> None:
        assert isinstance(state, LeaderGroupState)
        self._restore_member(state)


def start_member(me: ProcessId, incarnation: int = 0, *records: Record) -> tuple[ToyMember, list[Any]]:
    member = ToyMember(me)
    return member, member.step([Started(records, incarnation)], 0)


def receive(member: ToyMember, sender: ProcessId, body: Body) -> list[Body]:
    """The bodies that a member sends in reply."""
    member.on_receive(sender, body)
    return sent_bodies(member.step((), 0))


def sent_bodies(effects: list[Any]) -> list[Body]:
    return [effect.body for effect in effects if isinstance(effect, Send)]


def notes(effects: list[Any]) -> list[str]:
    return [effect.name for effect in effects if isinstance(effect, Note)]


def test_first_incarnation_persists_a_record() -> None:
    _, effects = start_member(1)
    assert [effect.record for effect in effects if isinstance(effect, Persist)] == [Promised(0)]
    member, effects = start_member(1, 1, Promised(2048))
    assert sent_bodies(effects) == [Position(0, True)]
    assert member._promised == 2048
    member, effects = start_member(1, 1)
    assert sent_bodies(effects) == [JoinRequest(1, -1)]
    assert member._role == "joining"


def test_rejected_candidate_campaigns_higher_while_suggested() -> None:
    member, _ = start_member(1)
    [first] = sent_bodies(member.step([Leader(0, 1)], 0))
    assert isinstance(first, RequestPromise)
    assert place_of(first.ballot) == 1
    [second] = receive(member, 2, Nack(first.ballot + 10**9))
    assert isinstance(second, RequestPromise)
    assert second.ballot > first.ballot + 10**9
    assert not receive(member, 2, Nack(second.ballot - 1)), "a stale rejection"
    member.step([Leader(0, 3)], 0)
    assert not receive(member, 2, Nack(second.ballot + 10**9)), "the oracle suggests another member"
    assert not sent_bodies(member.step([Leader(0, 99)], 0)), "no member of the group"


def test_member_rejects_lower_ballots_than_promised() -> None:
    member, _ = start_member(4)
    assert receive(member, 2, RequestPromise(2048 + 2)) == [Position(0, True)]
    assert receive(member, 2, RequestPromise(2048 + 2)) == [Position(0, True)], "a repeated request is promised again"
    assert receive(member, 1, RequestPromise(1024 + 1)) == [Nack(2048 + 2)]
    receive(member, 2, EpochState(2048 + 2, (0,) * 5))
    assert not receive(member, 2, RequestPromise(2048 + 2)), "the member is in that epoch already"


def test_leader_of_a_left_epoch_is_rejected() -> None:
    member, _ = start_member(4)
    receive(member, 2, RequestPromise(2048 + 2))
    member._reject_stale_leader(1, 0)
    member._reject_stale_leader(0, -1)
    assert not sent_bodies(member.step((), 0)), "not the leader of that epoch; no epoch"
    member._reject_stale_leader(0, 0)
    assert sent_bodies(member.step((), 0)) == [Nack(2048 + 2)]


def test_member_without_memory_needs_votes_and_a_recent_epoch() -> None:
    member, _ = start_member(4, 1)
    memory_losses = (0, 0, 0, 0, 1)
    receive(member, 0, AdmissionVote(1, 0, 10))
    receive(member, 1, AdmissionVote(0, 0, 90))  # a vote for an earlier incarnation
    receive(member, 1, AdmissionVote(1, 2048 + 2, 30))
    receive(member, 1, AdmissionVote(1, 2048 + 2, 30))
    receive(member, 2, EpochState(2048 + 2, memory_losses))
    assert member._role == "joining", "two votes of five may miss a majority that the member was part of"
    assert receive(member, 2, AdmissionVote(1, 0, 20)) == [Position(-1, True)], "the member requests the leader's state"
    assert member._clock == 30
    receive(member, 0, EpochState(0, memory_losses))
    receive(member, 2, EpochState(2048 + 2, (0,) * 5))
    assert member._role == "joining", "a left epoch; a leader that does not know of the loss"
    member.on_receive(2, EpochState(2048 + 2, memory_losses))
    assert notes(member.step((), 0)) == ["admitted", "adopted"]
    assert (member._role, member._epoch) == ("member", 2048 + 2)


def test_joining_former_leader_asks_another_member_to_lead() -> None:
    member, _ = start_member(0, 1)
    receive(member, 1, AdmissionVote(1, 0, 0))
    receive(member, 2, AdmissionVote(1, 0, 0))
    [request] = receive(member, 3, AdmissionVote(1, 0, 0))
    assert isinstance(request, JoinRequest)
    assert request.helper in (1, 2, 3, 4)
    helper, _ = start_member(request.helper)
    vote, candidacy = receive(helper, 0, request)
    assert vote == AdmissionVote(1, 0, 0)
    assert isinstance(candidacy, RequestPromise)
    assert helper.discarded == [0]
    assert helper._memory_losses == (1, 0, 0, 0, 0)


def test_only_the_leader_sends_state_and_joining_members_do_not_vote() -> None:
    leader, _ = start_member(0)
    assert receive(leader, 3, JoinRequest(2, -1)) == [AdmissionVote(2, 0, 0), EpochState(0, (0, 0, 0, 2, 0))]
    follower, _ = start_member(1)
    assert receive(follower, 3, JoinRequest(2, -1)) == [AdmissionVote(2, 0, 0)]
    lost, _ = start_member(1, 1)
    assert not receive(lost, 3, JoinRequest(2, -1))


def test_memory_losses_only_rise_and_discard_votes_once() -> None:
    member, _ = start_member(1)
    member._merge_memory_losses((2, 0, 0, 1, 0))
    member._merge_memory_losses((1, 0, 0, 1, 3))
    assert member._memory_losses == (2, 0, 0, 1, 3)
    assert member.discarded == [0, 3, 4]
    with pytest.raises(ValueError, match="shorter"):
        find_new_losses((0, 0), (1,))


def test_repair_timer_runs_while_messages_are_pending_and_requests_overdue_ones() -> None:
    member, effects = start_member(1)
    assert not any(isinstance(effect, SetTimer) for effect in effects)
    for id in range(MAX_REQUESTS + 1):
        member.on_request(Message(id, 5, (0,)))
    assert any(isinstance(effect, SetTimer) for effect in member.step((), 0))
    first, *requests = sent_bodies(member.step([Timer(REPAIR_TIMER)], 0))
    assert first == Position(0, True)
    assert requests == [RequestMessage(id) for id in range(MAX_REQUESTS)]
    helpers = set()
    for _ in member._other_members:
        effects = member.step([Timer(REPAIR_TIMER)], 0)
        helpers |= {e.targets for e in effects if isinstance(e, Send) and isinstance(e.body, Position)}
    assert helpers == {(0,), (2,), (3,), (4,)}, "every member is asked in turn"
    member._pending.clear()
    assert not any(isinstance(effect, SetTimer) for effect in member.step([Timer(REPAIR_TIMER)], 0))


def test_repair_requests_what_was_pending_when_its_timer_was_set() -> None:
    member, _ = start_member(1)
    member.on_request(Message(0, 5, (0,)))
    member.step((), 0)
    member.on_request(Message(1, 5, (0,)))
    member.step((), 0)
    _, *requests = sent_bodies(member.step([Timer(REPAIR_TIMER)], 0))
    assert requests == [RequestMessage(0)]
    _, *requests = sent_bodies(member.step([Timer(REPAIR_TIMER)], 0))
    assert requests == [RequestMessage(0), RequestMessage(1)]


def test_adopted_prefix_replaces_obligations_and_needs_a_checkpoint() -> None:
    member, _ = start_member(1)
    member._obligations.add(1, 1, 1, (1,))
    member._adopt_prefix(40, DeliveredPrefix(17, 3, (), ()))
    assert (member.position, member._history_start, member._clock, member._checkpoint_due) == (40, 40, 17, True)
    assert not member._obligations.list_all()
    member._persist_checkpoint(Promised(0))
    [checkpoint] = [effect for effect in member.step((), 0) if isinstance(effect, Persist)]
    assert checkpoint.replaces
    assert not member._checkpoint_due


def test_snapshot_restores_an_equal_member() -> None:
    member, _ = start_member(4, 3)
    receive(member, 0, AdmissionVote(3, 1024 + 1, 10))
    member.step([Leader(0, 2), Timer(REPAIR_TIMER)], 5)
    other = ToyMember(4)
    other.restore(member.snapshot())
    assert other.snapshot() == member.snapshot()
    assert other._admission_votes == member._admission_votes
    assert (other._incarnation, other._role, other._suggested_leader) == (3, "joining", 2)
