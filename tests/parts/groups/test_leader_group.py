"""A member of a group with a leader, seen through the smallest protocol that has one: it orders nothing."""

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
from amcast.parts.groups.messages import AdmissionVote, JoinRequest, LeaderGroupConfig, LeaderGroupState, Nack

FIVE = Topology.grid(1, 5)


class Here(Body, frozen=True):
    epoch: int
    full: bool


class Follow(Body, frozen=True):
    ballot: int


class Holding(Body, frozen=True):
    ballot: int
    memory_losses: tuple[int, ...]


class Asked(Body, frozen=True):
    id: int


class Kept(Record, frozen=True):
    promised: int


class Item(PendingMessage):
    def __init__(self, id: int) -> None:
        self.id = id
        self.is_overdue = False


class Toy(LeaderGroupMember[Item]):
    """Leaders change, and that is all."""

    def __init__(self, me: ProcessId) -> None:
        super().__init__(me, FIVE, LeaderGroupConfig(), "leader")
        self.forgotten: list[int] = []

    def on_request(self, message: Message) -> None:
        self._pending[message.id] = Item(message.id)

    def on_receive(self, sender: ProcessId, body: Body) -> None:
        match body:
            case Follow(ballot):
                if self._promise_candidate(sender, ballot):
                    self.send(sender, Here(self._epoch, True))
            case Holding(ballot, memory_losses):
                if self._role != "joining":
                    self._enter_epoch(ballot, 0, memory_losses)
                elif self._may_admit(ballot, memory_losses):
                    self._complete_admission()
                    self._enter_epoch(ballot, 0, memory_losses)
            case Nack(ballot):
                self._handle_nack(ballot)
            case JoinRequest():
                if self._handle_join_request(sender, body) and self._role == "leader":
                    self._send_after_persist((sender,), Holding(self._epoch, self._memory_losses))
            case AdmissionVote():
                self._handle_admission_vote(sender, body)

    def on_step_end(self) -> None:
        for targets, body, about in self._sends_after_persist:
            self.send_all(targets, body, about)
        self._sends_after_persist = []
        self._arm_repair_timer()

    def on_start(self, records: Sequence[Record], incarnation: int) -> None:
        for record in records:
            assert isinstance(record, Kept)
            self._promised = record.promised
        super().on_start(records, incarnation)

    def _sync_request(self, full: bool) -> Body:
        return Here(-1 if self._role == "joining" else self._epoch, full)

    def _persist_progress(self) -> None:
        self.persist(Kept(self._promised))

    def _send_candidacy(self, members: tuple[ProcessId, ...]) -> None:
        self._send_after_persist(members, Follow(self._promised))

    def _discard_votes(self, place: int) -> None:
        self.forgotten.append(place)

    def _request_missing(self, helper: ProcessId | None, overdue: list[Item]) -> None:
        if helper is not None:
            self._send_after_persist((helper,), self._sync_request(True))
        for item in overdue:
            self._send_after_persist(self._other_members, Asked(item.id), item.id)

    def snapshot(self) -> State:
        return self._snapshot_member()

    def restore(self, state: State) -> None:
        assert isinstance(state, LeaderGroupState)
        self._restore_member(state)


def started(me: ProcessId, incarnation: int = 0, *records: Record) -> tuple[Toy, list[Any]]:
    toy = Toy(me)
    return toy, toy.step([Started(records, incarnation)], 0)


def heard(toy: Toy, sender: ProcessId, body: Body) -> list[Body]:
    """What a member answers."""
    toy.on_receive(sender, body)
    return said(toy.step((), 0))


def said(effects: list[Any]) -> list[Body]:
    return [effect.body for effect in effects if isinstance(effect, Send)]


def notes(effects: list[Any]) -> list[str]:
    return [effect.name for effect in effects if isinstance(effect, Note)]


def test_a_first_incarnation_writes_so_that_an_empty_disk_means_lost_memory() -> None:
    _, effects = started(1)
    assert [effect.record for effect in effects if isinstance(effect, Persist)] == [Kept(0)]
    toy, effects = started(1, 1, Kept(2048))
    assert said(effects) == [Here(0, True)]
    assert toy._promised == 2048
    toy, effects = started(1, 1)
    assert said(effects) == [JoinRequest(1, -1)]
    assert toy._role == "joining"


def test_who_is_refused_goes_above_while_the_oracle_means_it() -> None:
    toy, _ = started(1)
    [first] = said(toy.step([Leader(0, 1)], 0))
    assert isinstance(first, Follow)
    assert place_of(first.ballot) == 1
    [second] = heard(toy, 2, Nack(first.ballot + 10**9))
    assert isinstance(second, Follow)
    assert second.ballot > first.ballot + 10**9
    assert not heard(toy, 2, Nack(second.ballot - 1)), "an old refusal"
    toy.step([Leader(0, 3)], 0)
    assert not heard(toy, 2, Nack(second.ballot + 10**9)), "whoever the oracle means now will"
    assert not said(toy.step([Leader(0, 99)], 0)), "no member of the group"


def test_a_promise_is_kept() -> None:
    toy, _ = started(4)
    assert heard(toy, 2, Follow(2048 + 2)) == [Here(0, True)]
    assert heard(toy, 2, Follow(2048 + 2)) == [Here(0, True)], "asked again, promised again"
    assert heard(toy, 1, Follow(1024 + 1)) == [Nack(2048 + 2)]
    heard(toy, 2, Holding(2048 + 2, (0,) * 5))
    assert not heard(toy, 2, Follow(2048 + 2)), "I am there already"


def test_a_leader_hears_that_its_epoch_was_left() -> None:
    toy, _ = started(4)
    heard(toy, 2, Follow(2048 + 2))
    toy._reject_stale_leader(1, 0)
    toy._reject_stale_leader(0, -1)
    assert not said(toy.step((), 0)), "not its leader; no epoch at all"
    toy._reject_stale_leader(0, 0)
    assert said(toy.step((), 0)) == [Nack(2048 + 2)]


def test_a_member_without_memory_is_admitted_by_enough_and_by_none_too_early() -> None:
    toy, _ = started(4, 1)
    memory_losses = (0, 0, 0, 0, 1)
    heard(toy, 0, AdmissionVote(1, 0, 10))
    heard(toy, 1, AdmissionVote(0, 0, 90))  # an answer to an earlier incarnation
    heard(toy, 1, AdmissionVote(1, 2048 + 2, 30))
    heard(toy, 1, AdmissionVote(1, 2048 + 2, 30))
    heard(toy, 2, Holding(2048 + 2, memory_losses))
    assert toy._role == "joining", "two of five may miss a majority that I was part of"
    assert heard(toy, 2, AdmissionVote(1, 0, 20)) == [Here(-1, True)], "the leader is asked for its state"
    assert toy._clock == 30
    heard(toy, 0, Holding(0, memory_losses))
    heard(toy, 2, Holding(2048 + 2, (0,) * 5))
    assert toy._role == "joining", "a left epoch; a leader that does not know of my loss"
    toy.on_receive(2, Holding(2048 + 2, memory_losses))
    assert notes(toy.step((), 0)) == ["admitted", "adopted"]
    assert (toy._role, toy._epoch) == ("member", 2048 + 2)


def test_a_member_that_led_asks_a_fellow_to_lead() -> None:
    toy, _ = started(0, 1)
    heard(toy, 1, AdmissionVote(1, 0, 0))
    heard(toy, 2, AdmissionVote(1, 0, 0))
    [ask] = heard(toy, 3, AdmissionVote(1, 0, 0))
    assert isinstance(ask, JoinRequest)
    assert ask.helper in (1, 2, 3, 4)
    helper, _ = started(ask.helper)
    welcome, follow = heard(helper, 0, ask)
    assert welcome == AdmissionVote(1, 0, 0)
    assert isinstance(follow, Follow)
    assert helper.forgotten == [0]
    assert helper._memory_losses == (1, 0, 0, 0, 0)


def test_only_who_leads_shares_and_who_is_lost_itself_says_nothing() -> None:
    leader, _ = started(0)
    assert heard(leader, 3, JoinRequest(2, -1)) == [AdmissionVote(2, 0, 0), Holding(0, (0, 0, 0, 2, 0))]
    follower, _ = started(1)
    assert heard(follower, 3, JoinRequest(2, -1)) == [AdmissionVote(2, 0, 0)]
    lost, _ = started(1, 1)
    assert not heard(lost, 3, JoinRequest(2, -1))


def test_memory_losses_only_rise_and_are_forgotten_once() -> None:
    toy, _ = started(1)
    toy._merge_memory_losses((2, 0, 0, 1, 0))
    toy._merge_memory_losses((1, 0, 0, 1, 3))
    assert toy._memory_losses == (2, 0, 0, 1, 3)
    assert toy.forgotten == [0, 3, 4]
    with pytest.raises(ValueError, match="shorter"):
        find_new_losses((0, 0), (1,))


def test_the_timer_runs_while_something_is_open_and_asks_for_what_is_old() -> None:
    toy, effects = started(1)
    assert not any(isinstance(effect, SetTimer) for effect in effects)
    for number in range(MAX_REQUESTS + 1):
        toy.on_request(Message(number, 5, (0,)))
    assert any(isinstance(effect, SetTimer) for effect in toy.step((), 0))
    assert not said(toy.step([Timer(REPAIR_TIMER)], 0)), "it came after the timer was set"
    first, *asked = said(toy.step([Timer(REPAIR_TIMER)], 0))
    assert first == Here(0, True)
    assert asked == [Asked(number) for number in range(MAX_REQUESTS)]
    helpers = set()
    for _ in toy._other_members:
        effects = toy.step([Timer(REPAIR_TIMER)], 0)
        helpers |= {e.targets for e in effects if isinstance(e, Send) and isinstance(e.body, Here)}
    assert helpers == {(0,), (2,), (3,), (4,)}, "everybody is asked in turn"
    toy._pending.clear()
    assert not any(isinstance(effect, SetTimer) for effect in toy.step([Timer(REPAIR_TIMER)], 0))


def test_a_leap_leaves_nothing_owed_and_writes_a_checkpoint() -> None:
    toy, _ = started(1)
    toy._obligations.add(1, 1, 1, (1,))
    toy._adopt_position(40, (17, 3), ())
    assert (toy.position, toy._history_start, toy._clock, toy._checkpoint_due) == (40, 40, 17, True)
    assert not toy._obligations.list_all()
    toy._persist_checkpoint(Kept(0))
    [kept] = [effect for effect in toy.step((), 0) if isinstance(effect, Persist)]
    assert kept.replaces
    assert not toy._checkpoint_due


def test_a_snapshot_can_be_taken_over() -> None:
    toy, _ = started(4, 3)
    heard(toy, 0, AdmissionVote(3, 1024 + 1, 10))
    toy.step([Leader(0, 2), Timer(REPAIR_TIMER)], 5)
    other = Toy(4)
    other.restore(toy.snapshot())
    assert other.snapshot() == toy.snapshot()
    assert other._admission_votes == toy._admission_votes
    assert (other._incarnation, other._role, other._suggested_leader) == (3, "joining", 2)
