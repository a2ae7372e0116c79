"""Paxos as a part: one group, one log, every way to lose it tried."""

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
ALONE = Topology.grid(1, 3, 1)


class Keeper(Process):
    """The smallest owner of a log: it keeps what was decided."""

    kind: type[Paxos] = Paxos

    def __init__(self, me: ProcessId, keep: int = 256) -> None:
        super().__init__(me, ALONE)
        self.paxos = self.kind(self, ALONE.members(0), PaxosConfig(keep=keep))
        self.kept: list[tuple[int, Value | bytes]] = []

    def on_start(self, records: Sequence[Record], incarnation: int) -> None:
        self.kept += self.paxos.begin(records, incarnation)

    def on_request(self, message: Message) -> None:
        raise AssertionError

    def on_submit(self, message: Message) -> None:
        self.paxos.propose(value_of(message.id))

    def on_receive(self, sender: ProcessId, body: Body) -> None:
        self.kept += self.paxos.receive(sender, body)

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
    """Three keepers and what is in flight between them, delivered in order of sending; disks at once."""

    def __init__(self, kind: type[Paxos] = Paxos, keep: int = 256) -> None:
        self.keep = keep
        self.make = type("K", (Keeper,), {"kind": kind})
        self.flight: list[tuple[ProcessId, ProcessId, Body]] = []
        self.records: dict[ProcessId, list[Record]] = {p: [] for p in range(3)}
        self.timers: dict[ProcessId, set[str]] = {p: set() for p in range(3)}
        self.incarnations = [0, 0, 0]
        self.up: dict[ProcessId, Keeper] = {}
        for process in range(3):
            self.start(process)

    def start(self, process: ProcessId) -> None:
        self.up[process] = self.make(process, self.keep)
        self.tell(process, Started(tuple(self.records[process]), self.incarnations[process]))

    def tell(self, process: ProcessId, event: object) -> None:
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
        self.tell(process, Submit(Message(number, 3, (0,))))

    def settle(self, lost: Sequence[tuple[type[Body], ProcessId]] = ()) -> None:
        """Deliver everything in flight but bodies of these kinds to these targets."""
        for _ in range(10_000):
            if not self.flight:
                return
            source, target, body = self.flight.pop(0)
            if target in self.up and source in self.up and (type(body), target) not in lost:
                self.tell(target, Receive(source, body))
        raise AssertionError("the group never falls silent")

    def crash(self, process: ProcessId, amnesia: bool = False) -> None:
        del self.up[process]
        self.timers[process].clear()
        self.flight = [packet for packet in self.flight if process not in packet[:2]]
        self.incarnations[process] += 1
        if amnesia:
            self.records[process].clear()

    def tick(self, process: ProcessId) -> None:
        assert TIMER in self.timers[process], f"process {process} waits for nothing"
        self.timers[process].discard(TIMER)
        self.tell(process, Timer(TIMER))

    def values(self, process: ProcessId) -> list[int]:
        """What a keeper kept, no-ops left out; a state stands as its length, negative."""
        return [v[0].id if not isinstance(v, bytes) else -at for at, v in self.up[process].kept if v]


@pytest.mark.parametrize("kind", KINDS)
def test_values_are_decided_in_order_at_every_member(kind: type[Paxos]) -> None:
    group = Group(kind)
    for number in range(5):
        group.propose(number)
    group.settle()
    assert all(group.values(process) == [0, 1, 2, 3, 4] for process in range(3))
    for process in range(3):
        if group.timers[process]:
            group.tick(process)
    assert not group.flight, "what the timers were set for has happened"
    assert all(not timers for timers in group.timers.values()), "a silent group waits for nothing"


@pytest.mark.parametrize("kind", KINDS)
def test_votes_are_durable_before_they_are_told(kind: type[Paxos]) -> None:
    group = Group(kind)
    group.propose(7)
    group.settle()
    for process in range(3):
        assert [r for r in group.records[process] if isinstance(r, Voted)] == [Voted(0, 0, value_of(7))]
        assert group.records[process][0] == Promised(0, (0, 0, 0)), (
            "the first record tells memory_loss from lost memory"
        )


def test_votes_of_one_step_are_told_together() -> None:
    keeper = Keeper(1)
    keeper.step((Started(),), 0)
    effects = keeper.step([Receive(0, Accept(0, i, value_of(i))) for i in (0, 1, 2, 5)], 0)
    told = [effect for effect in effects if isinstance(effect, Send)]
    assert [effect.body for effect in told] == [Accepted(0, 0, 3), Accepted(0, 5)]
    assert [effect.about for effect in told] == [(0, 1, 2), 5]


def test_a_new_leader_finds_what_may_have_been_decided_and_fills_gaps() -> None:
    group = Group()
    for number in range(3):
        group.propose(number)
    # Instance 0 and 2 reach member 1, instance 1 reaches nobody.
    group.flight = [(s, t, b) for s, t, b in group.flight if t == 1 and isinstance(b, Accept) and b.instance != 1]
    group.settle()
    group.crash(0)
    group.tell(2, Leader(0, 2))
    group.settle()
    assert group.values(2) == [0, 2]
    assert group.up[2].kept[1] == (1, ()), "a gap is filled with nothing"
    group.propose(9, 2)
    group.settle()
    assert group.values(1) == group.values(2) == [0, 2, 9]


def test_two_leaders_the_lower_one_is_refused_and_tries_again_only_later() -> None:
    group = Group()
    group.tell(1, Leader(0, 1))
    group.settle()
    assert group.up[0].paxos.role == "follower"
    assert TIMER in group.timers[0], "it still believes to lead"
    group.propose(4, 1)
    group.settle()
    group.tick(0)
    group.settle()
    assert (group.up[0].paxos.role, group.up[1].paxos.role) == ("leading", "follower")
    group.propose(5, 0)
    group.settle()
    assert all(group.values(process) == [4, 5] for process in range(3))


def test_an_old_ballot_is_refused_by_name() -> None:
    keeper = Keeper(1)
    keeper.step((Started(),), 0)
    high = next_ballot(0, 0, 2)
    keeper.step((Receive(2, Prepare(high, 0)),), 0)
    for body in (Accept(0, 0, value_of(1)), Prepare(next_ballot(0, 0, 0), 0)):
        effects = keeper.step((Receive(0, body),), 0)
        assert [e.body for e in effects if isinstance(e, Send)] == [Nack(high)], body


@pytest.mark.parametrize("kind", KINDS)
def test_a_restarted_member_keeps_its_word(kind: type[Paxos]) -> None:
    group = Group(kind)
    group.propose(3)
    group.settle()
    for process in range(3):
        group.crash(process)
    for process in range(3):
        group.start(process)
    group.settle()
    group.tell(1, Leader(0, 1))
    group.settle()
    assert all(group.values(process) == [3] for process in range(3))


def test_a_restarted_leader_uses_a_ballot_that_no_earlier_incarnation_used() -> None:
    group = Group()
    group.tell(1, Leader(0, 1))
    group.settle()
    used = group.up[1].paxos.ballot
    group.crash(1, amnesia=True)
    group.start(1)
    assert group.up[1].paxos.ballot != used
    group.settle()
    group.tell(1, Leader(0, 1))
    group.settle()
    assert group.up[1].paxos.ballot > used


def test_who_lost_its_memory_does_not_vote_until_the_others_told_it_what_it_may_have_voted_for() -> None:
    """Members 0 and 1 decide; 1 forgets; 0 is down. 1 and 2 are a majority, but must not decide anything else."""
    group = Group()
    group.propose(3)
    group.settle(lost=[(Accept, 2), (Accepted, 2)])
    assert group.values(0) == [3]
    group.crash(0)
    group.crash(1, amnesia=True)
    group.start(1)
    group.tell(2, Leader(0, 2))
    group.settle()
    for _ in range(3):
        group.tick(1)
        group.tick(2)
        group.settle()
    assert group.up[1].paxos.role == "joining"
    assert group.up[2].paxos.role == "preparing"
    group.start(0)
    group.settle()
    for _ in range(4):
        for process in range(3):
            if TIMER in group.timers[process]:
                group.tick(process)
            group.settle()
    assert group.up[1].paxos.role == "follower", "admitted again"
    assert group.up[1].paxos.memory_losses == [0, 1, 0]
    assert all(group.values(process) == [3] for process in range(3))
    assert any(isinstance(record, Snapshot) for record in group.records[1]), "from now on it has a memory again"


@pytest.mark.parametrize("kind", KINDS)
def test_who_lost_its_memory_does_not_wait_for_what_a_crashed_member_has_forgotten(kind: type[Paxos]) -> None:
    """Member 1 alone knows that 3 is decided, says so to member 0, which forgot everything, and crashes before it
    teaches it: votes are on disks, that they are enough is not. The oracle names 0, so 0 must come back."""
    group = Group(kind)
    group.propose(3)
    group.settle(lost=[(Accepted, 2), (Accepted, 0), *([(RingAccept, 2)] if kind is RingPaxos else [])])
    assert group.values(1) == [3]
    group.crash(0, amnesia=True)
    group.start(0)
    group.settle(lost=[(LogStatus, 1), (Learn, 0), (LogStatus, 0)])
    assert group.up[0].paxos.role == "catching"
    for process in (1, 2):
        group.crash(process)
        group.start(process)
    group.settle()
    assert group.up[0].paxos.role == "catching"
    for _ in range(4):
        for process in range(3):
            if TIMER in group.timers[process]:
                group.tick(process)
            group.settle()
    assert group.up[0].paxos.role == "leading"
    assert all(group.values(process) == [3] for process in range(3))


def test_a_promise_from_before_the_memory_was_lost_does_not_count() -> None:
    """Member 1 promised, then forgot; member 0 knows. Candidate 2 must not count that promise beside member 0's."""
    keeper = Keeper(2)
    keeper.step((Started(),), 0)
    keeper.step((Leader(0, 2),), 0)
    ballot = keeper.paxos.ballot
    keeper.step((Receive(1, Promise(ballot, 0, (), (0, 0, 0))),), 0)
    keeper.step((Receive(0, Promise(ballot, 0, (), (0, 1, 0))),), 0)
    assert keeper.paxos.role == "preparing"
    keeper.step((Receive(1, Promise(ballot, 0, (), (0, 1, 0))),), 0)
    assert keeper.paxos.role == "leading"


def test_a_leader_does_not_propose_before_it_knows_what_its_promisers_know() -> None:
    keeper = Keeper(2)
    keeper.step((Started(), Leader(0, 2)), 0)
    ballot = keeper.paxos.ballot
    keeper.step((Receive(0, Promise(ballot, 1, (), (0, 0, 0))), Receive(1, Promise(ballot, 0, (), (0, 0, 0)))), 0)
    assert keeper.paxos.role == "preparing"
    keeper.step((Receive(0, Learn(0, (value_of(8),), 1)),), 0)
    assert keeper.paxos.can_propose()
    assert keeper.kept == [(0, value_of(8))]


@pytest.mark.parametrize("kind", KINDS)
def test_a_laggard_is_taught_and_who_is_too_far_behind_gets_the_state(kind: type[Paxos]) -> None:
    group = Group(kind, keep=4)
    group.crash(2)
    for number in range(3):
        group.propose(number)
        group.settle()
        for _ in range(2):  # a timer repeats what was open already when it was set
            if group.timers[0]:
                group.tick(0)
            group.settle()
    group.start(2)
    group.settle()
    assert group.values(2) == [0, 1, 2]
    group.crash(2)
    for number in range(3, 30):
        group.propose(number)
        group.settle()
        for _ in range(2):  # a timer repeats what was open already when it was set
            if group.timers[0]:
                group.tick(0)
            group.settle()
    group.start(2)
    group.settle()
    assert min(group.values(2)) < 0, "it was sent a state"
    assert group.values(2)[-1] == group.values(0)[-1] == 29
    assert group.up[0].paxos.log.floor > 0
    assert len(group.records[0]) < 12, "the disk is cut back too"


def test_a_state_becomes_durable_only_after_what_it_covers_was_handed_over() -> None:
    keeper = Keeper(0, keep=1)
    keeper.step((Started(),), 0)
    keeper.step((Submit(Message(1, 3, (0,))),), 0)
    keeper.step((Receive(0, Accept(0, 0, value_of(1))),), 0)
    keeper.step((Receive(1, Accepted(0, 0)),), 0)
    effects = keeper.step((Receive(0, Accepted(0, 0)),), 0)
    assert keeper.kept
    assert not [e for e in effects if isinstance(e, Persist)]
    assert [e.body for e in effects if isinstance(e, Send)] == [CheckpointReady(1)]
    effects = keeper.step((Receive(0, CheckpointReady(1)),), 0)
    record = next(e for e in effects if isinstance(e, Persist))
    assert record.replaces
    assert isinstance(record.record, Snapshot)
    assert record.record.state == b"state at 1"


def test_a_link_that_begins_anew_is_told_everything_open() -> None:
    group = Group()
    group.propose(5)
    keeper = group.up[0]
    keeper.paxos.handle_link_reset(2)
    bodies = [effect.body for effect in keeper.step((), 0) if isinstance(effect, Send)]
    assert LogStatus(0) in bodies
    assert Accept(0, 0, value_of(5)) in bodies


def test_a_state_of_the_past_is_ignored() -> None:
    group = Group()
    group.propose(5)
    group.settle()
    group.tell(1, Receive(0, Install(0, b"old", 0, ())))
    assert group.values(1) == [5]


@pytest.mark.parametrize("kind", KINDS)
def test_snapshots_are_complete(kind: type[Paxos]) -> None:
    group = Group(kind, keep=2)
    for number in range(5):
        group.propose(number)
        group.flight = group.flight[: number + 2]
        group.settle()
        for process in range(3):
            state = group.up[process].snapshot()
            again = group.make(process, 2)
            again.restore(state)
            assert again.snapshot() == state
