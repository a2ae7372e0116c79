"""Paxos for a group's log: many instances at once, one leader that skips phase 1 while it lasts.

    client      leader     member     member
      |--request-->|           |          |
      |            |--Accept-->|--------->|     phase 2a, to itself too
      |            |<-Accepted-|<---------|     phase 2b, from every member to every member
      |         decided     decided    decided

Source: Lamport, "The part-time parliament" (1998) and "Paxos made simple" (2001).

Promises and votes are durable before they are sent. Ballot 0 belongs to the first member from the start, so that a
group that boots needs no phase 1. A new leader collects from a majority the values that were accepted and are not known
to be decided, proposes them again, and fills gaps with no-ops.

A member that lost its state may have made promises and cast votes that it no longer knows. It runs phase 1 for a ballot
of its own with a majority of the OTHER members, which (a) stops every lower ballot in that majority and (b) reports
every value that its lost votes may have helped to decide. It adopts those as its own votes, catches up, and only then
votes again. Its lost promises do no harm either: the majority reports to every later candidate in which incarnation the
member lost its state (`memory_losses`), and promises from before that incarnation do not count.

A process outside the group may follow the log as a learner: it receives phases 2a and 2b and has no vote.
"""

from collections.abc import Sequence

from amcast.kernel.effects import About
from amcast.kernel.ids import MessageId, ProcessId
from amcast.kernel.message import Body, Record
from amcast.kernel.process import Process
from amcast.parts.consensus.log import Decided, Log
from amcast.parts.consensus.messages import (
    Accept,
    Accepted,
    CheckpointReady,
    Install,
    Learn,
    LogStatus,
    Nack,
    PaxosConfig,
    PaxosState,
    Prepare,
    Promise,
    Promised,
    SlotState,
    Snapshot,
    Value,
    Voted,
)
from amcast.parts.consensus.quorum import Tally, majority, next_ballot

TIMER = "paxos"


def message_ids(values: Sequence[Value]) -> About:
    """The ids of the messages that some values are about."""
    ids: dict[MessageId, None] = {}
    for value in values:
        for entry in value:
            ids[entry.id] = None
    if len(ids) == 1:
        return next(iter(ids))
    return tuple(ids) or None


class Slot:
    """An instance that is not decided here."""

    __slots__ = ("ballot", "tally", "value")

    def __init__(self) -> None:
        self.ballot = -1
        """The ballot under which `value` was proposed; -1 while only votes have arrived."""
        self.value: Value = ()
        self.tally = Tally()


class Paxos:
    """One process's part in a group's log. `role` is one of

    follower   votes, if it is a member; proposes nothing
    preparing  candidate: runs phase 1
    leading    proposes
    joining    lost its state: runs phase 1 to learn its possible votes; has no vote
    catching   knows its possible votes, and lacks values that were decided before them; has no vote
    """

    def __init__(
        self,
        owner: Process,
        members: tuple[ProcessId, ...],
        config: PaxosConfig,
        learners: tuple[ProcessId, ...] = (),
    ) -> None:
        self.owner = owner
        self.config = config
        self.members = members
        self.learners = learners or members
        """The processes that receive phases 2a and 2b, the members first."""
        own_group = () if owner.group is None else owner.topology.members(owner.group)
        self.catch_up_peers = tuple(p for p in dict.fromkeys((*members, *own_group)) if p != owner.me)
        """The processes that can send missing values. A checkpoint, which contains what a group has delivered, comes
        only from the owner's own group."""
        self.place = members.index(owner.me) if owner.me in members else -1
        self.quorum = majority(len(members))
        self._places = {member: place for place, member in enumerate(members)}
        self.role = "follower"
        self.incarnation = 0
        self.suggested_leader: ProcessId = members[0]
        """The member that the leader oracle named last."""
        self.promised = 0
        self.memory_losses = [0] * len(members)
        """By place: the last incarnation of the member that is known to have begun without its state."""
        self.log = Log(owner, config.keep, config.batch)
        self._pending_checkpoint: tuple[int, bytes] | None = None
        """A checkpoint of the owner that becomes the log's once everything delivered before it has left the outbox."""
        self._votes: dict[int, tuple[int, Value]] = {}
        """Accepted values that are not known to be decided, with their ballots."""
        self._slots: dict[int, Slot] = {}
        self.ballot = 0
        """This member's own ballot, of its last attempt to lead."""
        self._highest_refusal = 0
        """The highest ballot in a Nack."""
        self._promises: dict[int, Promise] = {}
        self.catch_up_until = 0
        """Every instance below must be decided here before a leader proposes values of its own, and before a joining
        member votes."""
        self.next_instance = 0
        """The first instance for which this member, as leader, has not proposed."""
        self._unsent_votes: list[tuple[int, int, Value]] = []
        """Votes of this step (ballot, instance, value), sent together at its end."""
        self._announced_ballot = 0
        """The last ballot that was announced to the learners as one whose leader knows every earlier proposal."""
        self._timer_set = False
        self._resend_below = 0
        """Undecided instances below it were undecided already when the timer was set."""
        self._catch_up_index = 0
        self._last_decided_until = -1
        """`log.decided_until` at the last timeout while catching up."""

    # Called by the owner

    def begin(self, records: Sequence[Record], incarnation: int) -> Decided:
        """Starts an incarnation and returns the values that the records prove to be decided."""
        self.incarnation = incarnation
        if incarnation == 0 and not records:
            if self.place == 0:
                self.role = "leading"
            if self.place >= 0:
                self.owner.persist(Promised(0, tuple(self.memory_losses)))
            return []
        ready: Decided = []
        for record in records:
            ready += self._replay(record)
        if not records and self.place >= 0:
            self._join()
        else:
            self.owner.note("replayed", value=float(len(records)))
            for teacher in self.catch_up_peers:
                self.log.send_status(teacher)
        return ready

    def can_propose(self) -> bool:
        """Whether this member leads and knows every earlier proposal."""
        return self.role == "leading" and self.log.decided_until >= self.catch_up_until

    def propose(self, value: Value) -> int:
        """Proposes a value in the next instance; only while `can_propose`."""
        assert self.role == "leading", f"process {self.owner.me} proposes and does not lead"
        instance = self.next_instance
        self.next_instance += 1
        self._propose(instance, value)
        return instance

    def receive(self, sender: ProcessId, body: Body) -> Decided:
        """Handles a body of PAXOS_BODIES and returns the values that it decides, in order."""
        match body:
            case Accepted(ballot, first, count):
                return self._handle_accepted(sender, ballot, first, count)
            case Accept(ballot, instance, value):
                return self._handle_accept(sender, ballot, instance, value)
            case Prepare(ballot, memory_loss):
                self._handle_prepare(sender, ballot, memory_loss)
            case Promise():
                return self._handle_promise(sender, body)
            case Nack(ballot):
                self._handle_nack(ballot)
            case LogStatus(decided_until, ballot):
                self._drop_slots_below(ballot)
                self.log.handle_status(sender, decided_until)
            case Learn():
                return self._handle_progress(self.log.handle_learn(sender, body))
            case Install(end, checkpoint, floor, values):
                ready = self.log.install(end, checkpoint, floor, values)
                self._handle_progress(ready)
                if ready and self._can_vote():
                    self._persist_snapshot()
                return ready
            case CheckpointReady(end):
                self._commit_checkpoint(end)
            case _:
                raise AssertionError(f"{body!r} is no body of Paxos")
        return []

    def handle_leader(self, leader: ProcessId) -> None:
        """Follows the leader oracle: starts phase 1, or steps down."""
        self.suggested_leader = leader
        if leader != self.owner.me:
            self._step_down()
        elif self.role == "follower":
            self._campaign()

    def handle_link_reset(self, peer: ProcessId) -> None:
        """Sends a peer again what the old link may have lost."""
        if peer == self.owner.me or peer not in self.learners:
            return
        self.log.send_status(peer)
        place = self._places.get(peer)
        if self.role == "leading":
            for instance in range(self.log.decided_until, self.next_instance):
                self._resend_proposal((peer,), instance)
        elif self.role in ("preparing", "joining") and place is not None and place not in self._promises:
            self.owner.send(peer, Prepare(self.ballot, self._memory_loss()))
        if self._can_vote():
            for instance, (ballot, value) in sorted(self._votes.items()):
                self.owner.send(peer, Accepted(ballot, instance), message_ids((value,)))

    def handle_timeout(self) -> None:
        """Retries what did not have its effect before the timer ran out."""
        self._timer_set = False
        contending = self.role == "follower" and self.suggested_leader == self.owner.me
        if contending or (self.role == "preparing" and len(self._valid_promises()) >= self.quorum):
            self._campaign()
        elif self.role == "preparing" or self.role == "joining":
            silent = [p for place, p in enumerate(self.members) if place not in self._promises]
            self._send_prepare(tuple(p for p in silent if self.role == "preparing" or p != self.owner.me))
        elif self.role == "catching":
            self._restart_join()
        elif self.role == "leading":
            first = self.log.decided_until
            for instance in range(first, min(self._resend_below, first + self.config.batch)):
                self._resend_proposal(self.learners, instance)
        is_late = self._resend_below > self.log.decided_until or self.log.is_behind() or self.role == "catching"
        if is_late and self.catch_up_peers:
            self._catch_up_index = (self._catch_up_index + 1) % len(self.catch_up_peers)
            self.log.send_status(self.catch_up_peers[self._catch_up_index])

    def flush(self) -> None:
        """Ends a step: sends its votes, and sets the timer while something is outstanding."""
        if self._unsent_votes:
            self._send_votes()
        if self._announced_ballot != self.ballot and self.can_propose():
            self._announced_ballot = self.ballot
            others = tuple(process for process in self.learners if process != self.owner.me)
            self.owner.send_all(others, LogStatus(self.log.decided_until, self.ballot))
        if not self._timer_set and self._is_waiting():
            self._timer_set = True
            self._resend_below = max(self._slots, default=self.log.decided_until) + 1
            self.owner.set_timer(TIMER, self.config.retry_ns)

    def checkpoint(self, state: bytes) -> None:
        """Accepts the owner's present state as a checkpoint. A message to itself delays it until everything delivered
        so far has left the outbox; a checkpoint that became durable earlier would make a restart skip those."""
        if self._pending_checkpoint is None:
            self._pending_checkpoint = (self.log.decided_until, state)
            self.owner.send(self.owner.me, CheckpointReady(self.log.decided_until))

    def needs_checkpoint(self) -> bool:
        return self._pending_checkpoint is None and self.log.needs_checkpoint()

    def has_joined(self) -> bool:
        """Whether this process has its group's decisions: it never lost its state, or has caught up since."""
        return self.role not in ("joining", "catching")

    def _is_waiting(self) -> bool:
        """Whether something is outstanding. The timer is not cancelled once it is not: under load the next proposal
        comes long before it runs out."""
        return (
            bool(self._slots)
            or self.role in ("preparing", "joining", "catching")
            or (self.role == "follower" and self.suggested_leader == self.owner.me)
            or self.log.is_behind()
        )

    # Voting

    def _can_vote(self) -> bool:
        return self.place >= 0 and self.role not in ("joining", "catching")

    def _handle_prepare(self, sender: ProcessId, ballot: int, memory_loss: int) -> None:
        if not self._can_vote():
            return
        if ballot < self.promised:
            self.owner.send(sender, Nack(self.promised))
            return
        if ballot > self.promised:
            self.promised = ballot
            place = self._places[sender]
            self.memory_losses[place] = max(self.memory_losses[place], memory_loss)
            self.owner.persist(Promised(ballot, tuple(self.memory_losses)))
            if self.ballot < ballot:
                self._step_down()
        votes = tuple((i, b, v) for i, (b, v) in sorted(self._votes.items()))
        self.owner.send(sender, Promise(ballot, self.log.decided_until, votes, tuple(self.memory_losses)))

    def _raise_promise(self, ballot: int) -> None:
        """Raises the promise to the ballot of a vote; the record of the vote implies it."""
        if self.promised < ballot:
            self.promised = ballot
            if self.ballot < ballot:
                self._step_down()

    def _handle_accept(self, sender: ProcessId, ballot: int, instance: int, value: Value) -> Decided:
        if instance < self.log.decided_until:
            if sender != self.owner.me:
                self.log.send_decided(sender, instance)
            return []
        if self._can_vote():
            if ballot < self.promised:
                self.owner.send(sender, Nack(self.promised))
            else:
                self._raise_promise(ballot)
                self._votes[instance] = (ballot, value)
                self.owner.persist(Voted(ballot, instance, value))
                self._unsent_votes.append((ballot, instance, value))
        return self._record_proposal(ballot, instance, value)

    def _send_votes(self) -> None:
        """Sends one Accepted for each run of instances under one ballot."""
        votes, self._unsent_votes = sorted(self._unsent_votes), []
        run = [votes[0]]
        for vote in [*votes[1:], (-1, -1, ())]:
            if vote[0] == run[-1][0] and vote[1] <= run[-1][1] + 1:
                run.append(vote)
                continue
            ballot, first, _ = run[0]
            count = run[-1][1] - first + 1
            about = message_ids([value for _, _, value in run])
            self.owner.send_all(self.learners, Accepted(ballot, first, count), about)
            run = [vote]

    # Learning

    def _slot(self, instance: int) -> Slot:
        slot = self._slots.get(instance)
        if slot is None:
            slot = self._slots[instance] = Slot()
        return slot

    def _record_proposal(self, ballot: int, instance: int, value: Value) -> Decided:
        if self.log.is_decided(instance):
            return []
        slot = self._slot(instance)
        if ballot >= slot.ballot:
            slot.ballot = ballot
            slot.value = value
        return self._decide_if_quorum(instance, slot)

    def _handle_accepted(self, sender: ProcessId, ballot: int, first: int, count: int) -> Decided:
        place = self._places[sender]
        ready: Decided = []
        for instance in range(first, first + count):
            if not self.log.is_decided(instance):
                slot = self._slot(instance)
                slot.tally.count(ballot, place)
                ready += self._decide_if_quorum(instance, slot)
        return ready

    def _decide_if_quorum(self, instance: int, slot: Slot) -> Decided:
        if slot.ballot != slot.tally.ballot or slot.tally.votes.bit_count() < self.quorum:
            return []
        self.log.decide(instance, slot.value)
        del self._slots[instance]
        if instance != self.log.decided_until:
            return []
        return self._handle_progress(self.log.collect_ready())

    def _handle_progress(self, ready: Decided) -> Decided:
        """Drops slots and votes of decided instances, and ends catching up once everything required is decided."""
        if not ready:
            return ready
        end = self.log.decided_until
        if type(ready[0][1]) is bytes or len(ready) > 1:
            for instance in [i for i in self._slots if i < end]:
                del self._slots[instance]
            for instance in [i for i in self._votes if i < end]:
                del self._votes[instance]
        else:
            self._slots.pop(end - 1, None)
            self._votes.pop(end - 1, None)
        if end >= self.catch_up_until:
            if self.role == "catching":
                self._finish_join()
            elif self.role == "preparing" and self._promises:
                self._finish_phase_1()
        return ready

    def _step_down(self) -> None:
        if self.role in ("leading", "preparing"):
            self.role = "follower"

    # Leading

    def _memory_loss(self) -> int:
        return self.incarnation if self.role == "joining" else self.memory_losses[self.place]

    def _send_prepare(self, targets: tuple[ProcessId, ...]) -> None:
        self.owner.send_all(targets, Prepare(self.ballot, self._memory_loss()))

    def _campaign(self) -> None:
        assert self.place >= 0, f"process {self.owner.me} is no member of {self.members}"
        self.role = "preparing"
        self.owner.note("campaign")
        self.ballot = next_ballot(max(self.promised, self.ballot, self._highest_refusal), self.incarnation, self.place)
        self._promises = {}
        self._send_prepare(self.members)

    def _handle_nack(self, ballot: int) -> None:
        """A member promised a higher ballot: step down; the timer tries again if the oracle still names this member."""
        if ballot <= self.ballot:
            return
        if self.role == "joining":
            self.ballot = next_ballot(ballot, self.incarnation, self.place)
            self._promises = {}
        elif ballot > self._highest_refusal:
            self._highest_refusal = ballot
            self._step_down()

    def _handle_promise(self, sender: ProcessId, body: Promise) -> Decided:
        if body.ballot == self.ballot and self.role in ("preparing", "joining"):
            self._promises[self._places[sender]] = body
            self.memory_losses = [max(pair) for pair in zip(self.memory_losses, body.memory_losses, strict=True)]
            self._finish_phase_1()
        return []

    def _valid_promises(self) -> list[Promise]:
        """Promises that their members have not lost since."""
        return [p for place, p in sorted(self._promises.items()) if p.memory_losses[place] >= self.memory_losses[place]]

    def _finish_phase_1(self) -> None:
        """Becomes leader, or adopts possible votes of its own, if a majority's promises are valid.

        A member reports its votes only above what it knows to be decided, so a leader must have every instance that
        any of them has before it proposes. If the member that has most crashes before it sends them, the next ballot
        finds those values among the votes of the others.
        """
        valid = self._valid_promises()
        if len(valid) < self.quorum:
            return
        self.catch_up_until = max(self.log.decided_until, max(promise.decided_until for promise in valid))
        if self.log.decided_until < self.catch_up_until:
            furthest = max(self._promises, key=lambda place: (self._promises[place].decided_until, place))
            self.log.send_status(self.members[furthest])
            if self.role == "preparing":
                return
        best: dict[int, tuple[int, Value]] = {}
        for promise in valid:
            for instance, ballot, value in promise.votes:
                if instance >= self.catch_up_until and ballot > best.get(instance, (-1, ()))[0]:
                    best[instance] = (ballot, value)
        self._promises = {}
        if self.role == "preparing":
            self._become_leader(best)
            return
        self._votes = best
        self.role = "catching"
        self._last_decided_until = -1
        if self.log.decided_until >= self.catch_up_until:
            self._finish_join()

    def _become_leader(self, best: dict[int, tuple[int, Value]]) -> None:
        self.role = "leading"
        first = self.catch_up_until
        self.next_instance = self.catch_up_until = max(best, default=first - 1) + 1
        self.owner.note("led", value=float(self.ballot))
        for instance in range(first, self.next_instance):
            self._propose(instance, best.get(instance, (0, ()))[1])

    def _propose(self, instance: int, value: Value) -> None:
        slot = self._slot(instance)
        slot.ballot = self.ballot
        slot.value = value
        self.owner.send_all(self.learners, Accept(self.ballot, instance, value), message_ids((value,)))

    def _resend_proposal(self, targets: tuple[ProcessId, ...], instance: int) -> None:
        slot = self._slots.get(instance)
        if slot is not None and slot.ballot == self.ballot:
            self.owner.send_all(targets, Accept(self.ballot, instance, slot.value), message_ids((slot.value,)))

    def _drop_slots_below(self, ballot: int) -> None:
        """Drops proposals of lower ballots that a new leader, which knows them all, did not propose again."""
        for instance in [i for i, s in self._slots.items() if max(s.ballot, s.tally.ballot) < ballot]:
            del self._slots[instance]

    # Rejoining after the loss of state

    def _join(self) -> None:
        self.role = "joining"
        self.memory_losses[self.place] = self.incarnation
        self.ballot = next_ballot(0, self.incarnation, self.place)
        self.owner.note("forgot")
        self._send_prepare(tuple(member for member in self.members if member != self.owner.me))

    def _restart_join(self) -> None:
        """Runs phase 1 again if nothing was learned since the last timeout. The member that reported the furthest
        decision may have crashed and forgotten it, while its vote and those of the others remain; without this member's
        vote there may be no leader to decide them again. What the members report now replaces what they reported."""
        if self._last_decided_until < self.log.decided_until:
            self._last_decided_until = self.log.decided_until
            return
        self.role = "joining"
        self._promises = {}
        self.owner.note("asked anew")
        self._send_prepare(tuple(member for member in self.members if member != self.owner.me))

    def _finish_join(self) -> None:
        self.role = "follower"
        self.promised = max(self.promised, self.ballot)
        self.owner.note("admitted")
        self._persist_snapshot()

    # Durable state

    def _replay(self, record: Record) -> Decided:
        match record:
            case Promised(ballot, memory_losses):
                self.promised = max(self.promised, ballot)
                self.memory_losses = [max(pair) for pair in zip(self.memory_losses, memory_losses, strict=True)]
            case Voted(ballot, instance, value):
                self.promised = max(self.promised, ballot)
                if instance >= self.log.decided_until:
                    self._votes[instance] = (ballot, value)
            case Snapshot(end, checkpoint, floor, decided, promised, memory_losses, votes):
                self.promised = promised
                self.memory_losses = list(memory_losses)
                self._votes = {instance: (ballot, value) for instance, ballot, value in votes}
                ready = self.log.install(end, checkpoint, floor, decided)
                return ready or self.log.learn(decided)
            case _:
                raise AssertionError(f"{record!r} is no record of Paxos")
        return []

    def _persist_snapshot(self) -> None:
        log = self.log
        votes = tuple((i, b, v) for i, (b, v) in sorted(self._votes.items()))
        floor, retained = log.retained_values()
        record = Snapshot(
            log.checkpoint_end,
            log.checkpoint,
            floor,
            retained + log.values_after_checkpoint(),
            self.promised,
            tuple(self.memory_losses),
            votes,
        )
        self.owner.persist(record, replaces=True)

    def _commit_checkpoint(self, end: int) -> None:
        if self._pending_checkpoint is None or self._pending_checkpoint[0] != end:
            return
        self.log.compact(*self._pending_checkpoint)
        self._pending_checkpoint = None
        if self._can_vote() or self.place < 0:
            self._persist_snapshot()

    def snapshot(self) -> PaxosState:
        slots = (
            SlotState(i, slot.ballot, slot.value, slot.tally.ballot, slot.tally.votes)
            for i, slot in sorted(self._slots.items())
        )
        return PaxosState(
            self.role,
            self.incarnation,
            self.suggested_leader,
            self.promised,
            tuple(self.memory_losses),
            self.log.snapshot(),
            self._pending_checkpoint,
            tuple((i, b, v) for i, (b, v) in sorted(self._votes.items())),
            tuple(slots),
            self.ballot,
            self._highest_refusal,
            tuple(sorted(self._promises.items())),
            self.catch_up_until,
            self.next_instance,
            self._announced_ballot,
            self._timer_set,
            self._resend_below,
            self._catch_up_index,
            self._last_decided_until,
        )

    def restore(self, state: PaxosState) -> None:
        self.role = state.role
        self.incarnation = state.incarnation
        self.suggested_leader = state.suggested_leader
        self.promised = state.promised
        self.memory_losses = list(state.memory_losses)
        self.log.restore(state.log)
        self._pending_checkpoint = state.pending_checkpoint
        self._votes = {instance: (ballot, value) for instance, ballot, value in state.votes}
        self._slots = {}
        for saved in state.slots:
            slot = self._slot(saved.instance)
            slot.ballot = saved.ballot
            slot.value = saved.value
            slot.tally.ballot = saved.voted_ballot
            slot.tally.votes = saved.votes
        self.ballot = state.ballot
        self._highest_refusal = state.highest_refusal
        self._promises = dict(state.promises)
        self.catch_up_until = state.catch_up_until
        self.next_instance = state.next_instance
        self._announced_ballot = state.announced_ballot
        self._unsent_votes = []
        self._timer_set = state.timer_set
        self._resend_below = state.resend_below
        self._catch_up_index = state.catch_up_index
        self._last_decided_until = state.last_decided_until
