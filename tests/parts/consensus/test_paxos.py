"""Paxos and Ring Paxos in one group: order, leader change, recovery, loss of state, truncation."""

from collections.abc import Sequence

import pytest

from amcast.kernel.effects import Persist, Send
from amcast.kernel.events import Leader, Receive, Started, Submit, Timer
from amcast.kernel.ids import ProcessId
from amcast.kernel.message import Body, Message, Record, State
from amcast.kernel.process import Process
from amcast.kernel.topology import Topology
from amcast.parts.consensus.messages import (
    Accept,
    Accepted,
    CheckpointReady,
    Entry,
    Install,
    Learn,
    LogStatus,
    Nack,
    PaxosConfig,
    Prepare,
    Promise,
    Promised,
    RingAccept,
    Snapshot,
    Value,
    Voted,
)
from amcast.parts.consensus.paxos import TIMER, Paxos
from amcast.parts.consensus.quorum import next_ballot
from amcast.parts.consensus.ring_paxos import RingPaxos

KINDS = (Paxos, RingPaxos)
TOPOLOGY = Topology.grid(1, 3, 1)


class LogOwner(Process):
    """The smallest owner of a log: it records the decided values."""

    kind: type[Paxos] = Paxos

    def __init__(self, me: ProcessId, keep: int = 256) -> None:
        super().__init__(me, TOPOLOGY)
        self.paxos = self.kind(self, TOPOLOGY.members(0), PaxosConfig(keep=keep))
        self.decided: list[tuple[int, Value | bytes]] = []

    def on_start(self, records: Sequence[Record], incarnation: int) -> None:
        self.decided += self.paxos.begin(records, incarnation)

    def on_request(self, message: Message) -> None:
        raise AssertionError

    def on_submit(self, message: Message) -> None:
        self.paxos.propose(value_of(message.id))

    def on_receive(self, sender: ProcessId, body: Body) -> None:
        self.decided += self.paxos.receive(sender, body)

    def on_leader(self, group: int, leader: ProcessId) -> None:
        self.paxos.handle_leader(leader)

    def on_timer(self, name: str) -> None:
        self.paxos.handle_timeout()

    def on_step_end(self) -> None:
        self.paxos.flush()
        if self.paxos.needs_checkpoint():
            self.paxos.checkpoint(b"state at %d" % self.paxos.log.decided_until)

    def snapshot(self) -> State:
        return self.paxos.snapshot()

    def restore(self, state: State) -> None:
        self.paxos.restore(state)  # type: ignore[arg-type]


def value_of(number: int) -> Value:
    return (Entry(0, number),)


class Group:
    """Three log owners and the bodies in flight between them, received in order of sending; writes are immediate."""

    def __init__(self, kind: type[Paxos] = Paxos, keep: int = 256) -> None:
        self.keep = keep
        self.make = type("K", (LogOwner,), {"kind": kind})
        self.flight: list[tuple[ProcessId, ProcessId, Body]] = []
        self.records: dict[ProcessId, list[Record]] = {p: [] for p in range(3)}
        self.timers: dict[ProcessId, set[str]] = {p: set() for p in range(3)}
        self.incarnations = [0, 0, 0]
        self.up: dict[ProcessId, LogOwner] = {}
        for process in range(3):
            self.start(process)

    def start(self, process: ProcessId) -> None:
        self.up[process] = self.make(process, self.keep)
        self.handle(process, Started(tuple(self.records[process]), self.incarnations[process]))

    def handle(self, process: ProcessId, event: object) -> None:
        for effect in self.up[process].step((event,), 0):  # type: ignore[arg-type]
            match effect:
                case Send(targets, body):
                    self.flight += [(process, target, body) for target in targets]
                case Persist(record, replaces):
                    if replaces:
                        self.records[process].clear()
                    self.records[process].append(record)
                case _ if type(effect).__name__ == "SetTimer":
                    self.timers[process].add(effect.name)  # type: ignore[attr-defined]
                case _ if type(effect).__name__ == "CancelTimer":
                    self.timers[process].discard(effect.name)  # type: ignore[attr-defined]

    def propose(self, number: int, process: ProcessId = 0) -> None:
        self.handle(process, Submit(Message(number, 3, (0,))))

    def run(self, lost: Sequence[tuple[type[Body], ProcessId]] = ()) -> None:
        """Lets every body in flight arrive, except these kinds at these targets."""
        for _ in range(10_000):
            if not self.flight:
                return
            source, target, body = self.flight.pop(0)
            if target in self.up and source in self.up and (type(body), target) not in lost:
                self.handle(target, Receive(source, body))
        raise AssertionError("the group still sends after 10000 bodies")

    def crash(self, process: ProcessId, amnesia: bool = False) -> None:
        del self.up[process]
        self.timers[process].clear()
        self.flight = [packet for packet in self.flight if process not in packet[:2]]
        self.incarnations[process] += 1
        if amnesia:
            self.records[process].clear()

    def time_out(self, process: ProcessId) -> None:
        assert TIMER in self.timers[process], f"process {process} has no timer set"
        self.timers[process].discard(TIMER)
        self.handle(process, Timer(TIMER))

    def values(self, process: ProcessId) -> list[int]:
        """The decided values of a process without no-ops; a checkpoint appears as its negative end."""
        return [v[0].id if not isinstance(v, bytes) else -at for at, v in self.up[process].decided if v]


@pytest.mark.parametrize("kind", KINDS)
def test_values_are_decided_in_order_at_every_member(kind: type[Paxos]) -> None:
    group = Group(kind)
    for number in range(5):
        group.propose(number)
    group.run()
    assert all(group.values(process) == [0, 1, 2, 3, 4] for process in range(3))
    for process in range(3):
        if group.timers[process]:
            group.time_out(process)
    assert not group.flight, "a timer of a finished group sends nothing"
    assert all(not timers for timers in group.timers.values()), "a finished group sets no timer"


@pytest.mark.parametrize("kind", KINDS)
def test_every_member_has_a_record_of_its_vote(kind: type[Paxos]) -> None:
    group = Group(kind)
    group.propose(7)
    group.run()
    for process in range(3):
        assert [r for r in group.records[process] if isinstance(r, Voted)] == [Voted(0, 0, value_of(7))]
        assert group.records[process][0] == Promised(0, (0, 0, 0)), "a member without any record has lost its state"


@pytest.mark.parametrize(
    ("kind", "proposal", "vote"),
    [
        (Paxos, Accept(0, 0, value_of(7)), Accepted(0, 0)),
        (RingPaxos, RingAccept(0, 0, value_of(7), 1, 2), RingAccept(0, 0, value_of(7), 3, 1)),
        (RingPaxos, Accept(0, 0, value_of(7)), Accepted(0, 0)),
    ],
    ids=["paxos", "ring", "ring fallback"],
)
def test_votes_are_durable_before_they_are_sent(kind: type[Paxos], proposal: Body, vote: Body) -> None:
    owner = Group(kind).make(1)
    owner.step((Started(),), 0)
    effects = owner.step((Receive(0, proposal),), 0)
    assert [effect for effect in effects if isinstance(effect, Persist)] == [Persist(Voted(0, 0, value_of(7)))]
    sent = next(place for place, effect in enumerate(effects) if isinstance(effect, Send) and effect.body == vote)
    assert any(isinstance(effect, Persist) for effect in effects[:sent]), "nothing behind a Persist leaves before it"


@pytest.mark.parametrize("kind", KINDS)
def test_promises_are_durable_before_they_are_sent(kind: type[Paxos]) -> None:
    owner = Group(kind).make(1)
    owner.step((Started(),), 0)
    ballot = next_ballot(0, 0, 2)
    persisted, sent = owner.step((Receive(2, Prepare(ballot, 0)),), 0)[:2]
    assert persisted == Persist(Promised(ballot, (0, 0, 0)))
    assert isinstance(sent, Send)
    assert sent.body == Promise(ballot, 0, (), (0, 0, 0))


def test_votes_of_one_step_are_sent_together() -> None:
    owner = LogOwner(1)
    owner.step((Started(),), 0)
    effects = owner.step([Receive(0, Accept(0, i, value_of(i))) for i in (0, 1, 2, 5)], 0)
    sends = [effect for effect in effects if isinstance(effect, Send)]
    assert [effect.body for effect in sends] == [Accepted(0, 0, 3), Accepted(0, 5)]
    assert [effect.about for effect in sends] == [(0, 1, 2), 5]


def test_new_leader_proposes_accepted_values_again_and_fills_gaps() -> None:
    group = Group()
    for number in range(3):
        group.propose(number)
    # Instances 0 and 2 reach member 1, instance 1 reaches no member.
    group.flight = [(s, t, b) for s, t, b in group.flight if t == 1 and isinstance(b, Accept) and b.instance != 1]
    group.run()
    group.crash(0)
    group.handle(2, Leader(0, 2))
    group.run()
    assert group.values(2) == [0, 2]
    assert group.up[2].decided[1] == (1, ()), "a gap is filled with a no-op"
    group.propose(9, 2)
    group.run()
    assert group.values(1) == group.values(2) == [0, 2, 9]


def test_refused_leader_steps_down_and_retries_on_timeout() -> None:
    group = Group()
    group.handle(1, Leader(0, 1))
    group.run()
    assert group.up[0].paxos.role == "follower"
    assert TIMER in group.timers[0], "the oracle still names it"
    group.propose(4, 1)
    group.run()
    group.time_out(0)
    group.run()
    assert (group.up[0].paxos.role, group.up[1].paxos.role) == ("leading", "follower")
    group.propose(5, 0)
    group.run()
    assert all(group.values(process) == [4, 5] for process in range(3))


def test_member_refuses_lower_ballot_with_its_promise() -> None:
    owner = LogOwner(1)
    owner.step((Started(),), 0)
    high = next_ballot(0, 0, 2)
    owner.step((Receive(2, Prepare(high, 0)),), 0)
    for body in (Accept(0, 0, value_of(1)), Prepare(next_ballot(0, 0, 0), 0)):
        effects = owner.step((Receive(0, body),), 0)
        assert [e.body for e in effects if isinstance(e, Send)] == [Nack(high)], body


@pytest.mark.parametrize("kind", KINDS)
def test_restarted_members_keep_promises_and_votes(kind: type[Paxos]) -> None:
    group = Group(kind)
    group.propose(3)
    group.run()
    for process in range(3):
        group.crash(process)
    for process in range(3):
        group.start(process)
    group.run()
    group.handle(1, Leader(0, 1))
    group.run()
    assert all(group.values(process) == [3] for process in range(3))


def test_restarted_leader_never_reuses_a_ballot() -> None:
    group = Group()
    group.handle(1, Leader(0, 1))
    group.run()
    used = group.up[1].paxos.ballot
    group.crash(1, amnesia=True)
    group.start(1)
    assert group.up[1].paxos.ballot != used
    group.run()
    group.handle(1, Leader(0, 1))
    group.run()
    assert group.up[1].paxos.ballot > used


def test_member_without_state_votes_only_after_learning_its_possible_votes() -> None:
    """Members 0 and 1 decide; 1 loses its state; 0 is down. Members 1 and 2 are a majority, but must not decide another
    value."""
    group = Group()
    group.propose(3)
    group.run(lost=[(Accept, 2), (Accepted, 2)])
    assert group.values(0) == [3]
    group.crash(0)
    group.crash(1, amnesia=True)
    group.start(1)
    group.handle(2, Leader(0, 2))
    group.run()
    for _ in range(3):
        group.time_out(1)
        group.time_out(2)
        group.run()
    assert group.up[1].paxos.role == "joining"
    assert group.up[2].paxos.role == "preparing"
    group.start(0)
    group.run()
    for _ in range(4):
        for process in range(3):
            if TIMER in group.timers[process]:
                group.time_out(process)
            group.run()
    assert group.up[1].paxos.role == "follower", "admitted again"
    assert group.up[1].paxos.memory_losses == [0, 1, 0]
    assert all(group.values(process) == [3] for process in range(3))
    assert any(isinstance(record, Snapshot) for record in group.records[1]), "its state is durable again"


@pytest.mark.parametrize("kind", KINDS)
def test_joining_member_restarts_if_the_reported_decision_was_forgotten(kind: type[Paxos]) -> None:
    """Member 1 alone knows that 3 is decided, reports so to member 0, which lost its state, and crashes before it sends
    the value: the votes are durable, the decision is not. The oracle names member 0, so it must be admitted again."""
    group = Group(kind)
    group.propose(3)
    group.run(lost=[(Accepted, 2), (Accepted, 0), *([(RingAccept, 2)] if kind is RingPaxos else [])])
    assert group.values(1) == [3]
    group.crash(0, amnesia=True)
    group.start(0)
    group.run(lost=[(LogStatus, 1), (Learn, 0), (LogStatus, 0)])
    assert group.up[0].paxos.role == "catching"
    for process in (1, 2):
        group.crash(process)
        group.start(process)
    group.run()
    assert group.up[0].paxos.role == "catching"
    for _ in range(4):
        for process in range(3):
            if TIMER in group.timers[process]:
                group.time_out(process)
            group.run()
    assert group.up[0].paxos.role == "leading"
    assert all(group.values(process) == [3] for process in range(3))


def test_promise_from_before_the_loss_of_state_does_not_count() -> None:
    """Member 1 promised, then lost its state; member 0 reports it. Candidate 2 must not count the lost promise."""
    owner = LogOwner(2)
    owner.step((Started(),), 0)
    owner.step((Leader(0, 2),), 0)
    ballot = owner.paxos.ballot
    owner.step((Receive(1, Promise(ballot, 0, (), (0, 0, 0))),), 0)
    owner.step((Receive(0, Promise(ballot, 0, (), (0, 1, 0))),), 0)
    assert owner.paxos.role == "preparing"
    owner.step((Receive(1, Promise(ballot, 0, (), (0, 1, 0))),), 0)
    assert owner.paxos.role == "leading"


def test_leader_catches_up_with_its_quorum_before_it_proposes() -> None:
    owner = LogOwner(2)
    owner.step((Started(), Leader(0, 2)), 0)
    ballot = owner.paxos.ballot
    owner.step((Receive(0, Promise(ballot, 1, (), (0, 0, 0))), Receive(1, Promise(ballot, 0, (), (0, 0, 0)))), 0)
    assert owner.paxos.role == "preparing"
    owner.step((Receive(0, Learn(0, (value_of(8),), 1)),), 0)
    assert owner.paxos.can_propose()
    assert owner.decided == [(0, value_of(8))]


@pytest.mark.parametrize("kind", KINDS)
def test_lagging_member_gets_values_or_a_checkpoint(kind: type[Paxos]) -> None:
    group = Group(kind, keep=4)
    group.crash(2)
    for number in range(3):
        group.propose(number)
        group.run()
        for _ in range(2):  # a timeout repeats only what was open when the timer was set
            if group.timers[0]:
                group.time_out(0)
            group.run()
    group.start(2)
    group.run()
    assert group.values(2) == [0, 1, 2]
    group.crash(2)
    for number in range(3, 30):
        group.propose(number)
        group.run()
        for _ in range(2):  # a timeout repeats only what was open when the timer was set
            if group.timers[0]:
                group.time_out(0)
            group.run()
    group.start(2)
    group.run()
    assert min(group.values(2)) < 0, "it was sent a checkpoint"
    assert group.values(2)[-1] == group.values(0)[-1] == 29
    assert group.up[0].paxos.log.floor > 0
    assert len(group.records[0]) < 12, "records are truncated too"


def test_checkpoint_is_durable_only_after_its_deliveries_left_the_outbox() -> None:
    owner = LogOwner(0, keep=1)
    owner.step((Started(),), 0)
    owner.step((Submit(Message(1, 3, (0,))),), 0)
    owner.step((Receive(0, Accept(0, 0, value_of(1))),), 0)
    owner.step((Receive(1, Accepted(0, 0)),), 0)
    effects = owner.step((Receive(0, Accepted(0, 0)),), 0)
    assert owner.decided
    assert not [e for e in effects if isinstance(e, Persist)]
    assert [e.body for e in effects if isinstance(e, Send)] == [CheckpointReady(1)]
    effects = owner.step((Receive(0, CheckpointReady(1)),), 0)
    record = next(e for e in effects if isinstance(e, Persist))
    assert record.replaces
    assert isinstance(record.record, Snapshot)
    assert record.record.checkpoint == b"state at 1"


def test_link_reset_resends_status_and_open_proposals() -> None:
    group = Group()
    group.propose(5)
    owner = group.up[0]
    owner.paxos.handle_link_reset(2)
    bodies = [effect.body for effect in owner.step((), 0) if isinstance(effect, Send)]
    assert LogStatus(0) in bodies
    assert Accept(0, 0, value_of(5)) in bodies


def test_member_behind_a_broken_ring_learns_what_its_leader_was_taught() -> None:
    group = Group(RingPaxos)
    group.propose(7)
    group.run(lost=[(RingAccept, 2)])
    assert group.up[1].decided
    assert not group.up[0].decided
    group.handle(0, Receive(1, LogStatus(1)))  # before the leader's timer runs out and it proposes to every member
    group.run()
    assert [owner.decided for owner in group.up.values()] == [[(0, value_of(7))]] * 3


def test_outdated_checkpoint_is_ignored() -> None:
    group = Group()
    group.propose(5)
    group.run()
    group.handle(1, Receive(0, Install(0, b"old", 0, ())))
    assert group.values(1) == [5]


@pytest.mark.parametrize("kind", KINDS)
def test_restored_snapshot_equals_the_original(kind: type[Paxos]) -> None:
    group = Group(kind, keep=2)
    for number in range(5):
        group.propose(number)
        group.flight = group.flight[: number + 2]
        group.run()
        for process in range(3):
            state = group.up[process].snapshot()
            restored = group.make(process, 2)
            restored.restore(state)
            assert restored.snapshot() == state


def test_restored_log_retains_the_values_that_the_original_retains() -> None:
    group = Group(keep=2)
    group.up[0].paxos.log.retain_from = 0
    restored = group.make(0, 2)
    restored.restore(group.up[0].snapshot())
    group.up[0] = restored
    for number in range(5):
        group.propose(number)
        group.run()
    assert restored.paxos.log.floor == 0
    assert group.up[1].paxos.log.floor > 0, "another member, which retains nothing, has truncated its log"


def test_checkpoint_of_a_member_that_retains_more_fills_what_an_earlier_one_left_out() -> None:
    values = [value_of(number) for number in range(6)]
    log = LogOwner(2).paxos.log
    log.retain_from = 0
    assert log.install(5, b"five", 4, (values[4],)) == [(5, b"five")]
    assert log.install(6, b"six", 2, tuple(values[2:])) == [(6, b"six")]
    assert log.retained_values() == (2, tuple(values[2:]))
    assert not log.is_behind()
