"""Paxos for a group's log: many instances at once, one leader that skips phase 1 while it lasts.

    client      leader     member     member
      |--request-->|           |          |
      |            |--Accept-->|--------->|     phase 2a, to itself too
      |            |<-Accepted-|<---------|     phase 2b, from everybody to everybody
      |         decided     decided    decided

Source: Lamport, "The part-time parliament" (1998) and "Paxos made simple" (2001).

What must not be forgotten is made durable before it is said: promises and votes. Ballot 0 belongs to the first member
from the start, so that a group that boots needs no phase 1. A new leader asks a majority what it accepted above what
it knows to be decided, proposes that again, and fills gaps with no-ops.

A member that lost its memory may have promised and voted for things it no longer knows of. It runs phase 1 for a
ballot of its own with a majority of the OTHERS, which (a) stops every lower ballot in that majority, (b) shows every
value that its own lost votes may have helped to choose; it takes those for its own, catches up, and votes again only
then. Its lost promises cannot hurt either: the majority tells every later candidate in which incarnation the member
lost its memory (`memory_losses`), and promises from before that incarnation do not count.

A process outside the group may follow the log as a learner: it gets phases 2a and 2b, and has no vote.
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
RESEND_BATCH = 64
"""How many open instances are proposed again at a time."""


def message_ids(values: Sequence[Value]) -> About:
    """The messages that some values are about."""
    ids: dict[MessageId, None] = {}
    for value in values:
        for entry in value:
            ids[entry.id] = None
    if len(ids) == 1:
        return next(iter(ids))
    return tuple(ids) or None


class Slot:
    """An instance that is not decided here yet."""

    __slots__ = ("ballot", "tally", "value")

    def __init__(self) -> None:
        self.ballot = -1
        """Under which the value was proposed; -1 while only votes were heard."""
        self.value: Value = ()
        self.tally = Tally()


class Paxos:
    """One process' share in a group's log. `role` is one of

    follower   votes, if it is a member; proposes nothing
    preparing  asks for promises
    leading    proposes
    joining    lost its memory: asks the others what it may have voted for; has no vote
    catching   knows what it may have voted for, not yet everything that was decided before; has no vote
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
        """Who gets phases 2a and 2b: the members first of all."""
        fellows = () if owner.group is None else owner.topology.members(owner.group)
        self.catch_up_peers = tuple(p for p in dict.fromkeys((*members, *fellows)) if p != owner.me)
        """Whom to ask for what was missed. A learner's fellows alone can give it a state, which says what the group
        has delivered; the members can give it values."""
        self.place = members.index(owner.me) if owner.me in members else -1
        self.quorum = majority(len(members))
        self._places = {member: place for place, member in enumerate(members)}
        self.role = "follower"
        self.incarnation = 0
        self.suggested_leader: ProcessId = members[0]
        """Whom the oracle named last."""
        self.promised = 0
        self.memory_losses = [0] * len(members)
        """Per member: the incarnation that began without memory, as far as I heard."""
        self.log = Log(owner, config.keep)
        self._marked: tuple[int, bytes] | None = None
        """A state of the owner that becomes the log's when everything delivered before it was handed over."""
        self._votes: dict[int, tuple[int, Value]] = {}
        """What I accepted and do not know to be decided."""
        self._slots: dict[int, Slot] = {}
        self.ballot = 0
        """Mine, of the last time I tried to lead."""
        self._seen = 0
        """The highest that somebody refused me for."""
        self._promises: dict[int, Promise] = {}
        self.catch_up_until = 0
        """A leader may propose its own values once everything below is decided; a joiner may vote."""
        self.next_instance = 0
        """The first instance that I, leading, have not proposed for."""
        self._acks: list[tuple[int, int, Value]] = []
        """Votes of this step, to be told together."""
        self._announced = 0
        """The ballot in which I last told everybody that I know all that was proposed before it."""
        self._armed = False
        self._resend = 0
        """Instances below it were open already when the timer was set."""
        self._turn = 0
        self._reached = -1
        """How far I, catching up, was when the timer ran out last."""

    # What the owner calls

    def begin(self, records: Sequence[Record], incarnation: int) -> Decided:
        """An incarnation begins; what the records decide is handed up."""
        self.incarnation = incarnation
        if incarnation == 0 and not records:
            if self.place == 0:
                self.role = "leading"
            if self.place >= 0:
                self.owner.persist(Promised(0, tuple(self.memory_losses)))
            return []
        ready: Decided = []
        for record in records:
            ready += self._remember(record)
        if not records and self.place >= 0:
            self._join()
        else:
            for teacher in self.catch_up_peers:
                self.log.send_status(teacher)
        return ready

    def can_propose(self) -> bool:
        """I lead, and know everything that was proposed before."""
        return self.role == "leading" and self.log.decided_until >= self.catch_up_until

    def propose(self, value: Value) -> int:
        """Propose in the next instance; only when `ready`."""
        assert self.role == "leading", f"process {self.owner.me} proposes and does not lead"
        instance = self.next_instance
        self.next_instance += 1
        self._propose(instance, value)
        return instance

    def receive(self, sender: ProcessId, body: Body) -> Decided:
        """Handle a body of `bodies.paxos.BODIES`; what is decided by it, in order."""
        match body:
            case Accepted(ballot, first, count):
                return self._count(sender, ballot, first, count)
            case Accept(ballot, instance, value):
                return self._accept(sender, ballot, instance, value)
            case Prepare(ballot, memory_loss):
                self._promise(sender, ballot, memory_loss)
            case Promise():
                return self._gather(sender, body)
            case Nack(ballot):
                self._yield_to(ballot)
            case LogStatus(chosen, ballot):
                self._drop_below(ballot)
                self.log.handle_status(sender, chosen)
            case Learn():
                return self._advance(self.log.handle_learn(sender, body))
            case Install(upto, state, floor, values):
                ready = self.log.install(upto, state, floor, values)
                self._advance(ready)
                if ready and self._voting():
                    self._save()
                return ready
            case CheckpointReady(upto):
                self._keep_mark(upto)
            case _:
                raise AssertionError(f"a Paxos group does not say {body!r}")
        return []

    def handle_leader(self, leader: ProcessId) -> None:
        """The oracle spoke."""
        self.suggested_leader = leader
        if leader != self.owner.me:
            if self.role in ("leading", "preparing"):
                self.role = "follower"
        elif self.role == "follower":
            self._campaign()

    def handle_link_reset(self, peer: ProcessId) -> None:
        """A link begins anew: say again what the peer may have lost."""
        if peer == self.owner.me or peer not in self.learners:
            return
        self.log.send_status(peer)
        place = self._places.get(peer)
        if self.role == "leading":
            for instance in range(self.log.decided_until, self.next_instance):
                self._repeat((peer,), instance)
        elif self.role in ("preparing", "joining") and place is not None and place not in self._promises:
            self.owner.send(peer, Prepare(self.ballot, self._memory_loss()))
        if self._voting():
            for instance, (ballot, value) in sorted(self._votes.items()):
                self.owner.send(peer, Accepted(ballot, instance), message_ids((value,)))

    def handle_timeout(self) -> None:
        """The timer ran out: something that should have happened did not."""
        self._armed = False
        contending = self.role == "follower" and self.suggested_leader == self.owner.me
        if contending or (self.role == "preparing" and len(self._valid()) >= self.quorum):
            self._campaign()
        elif self.role == "preparing" or self.role == "joining":
            waiting = [p for place, p in enumerate(self.members) if place not in self._promises]
            self._ask(tuple(p for p in waiting if self.role == "preparing" or p != self.owner.me))
        elif self.role == "catching":
            self._ask_anew()
        elif self.role == "leading":
            for instance in range(self.log.decided_until, min(self._resend, self.log.decided_until + RESEND_BATCH)):
                self._repeat(self.learners, instance)
        if (
            self._resend > self.log.decided_until or self.log.is_behind() or self.role == "catching"
        ) and self.catch_up_peers:
            self._turn = (self._turn + 1) % len(self.catch_up_peers)
            self.log.send_status(self.catch_up_peers[self._turn])

    def flush(self) -> None:
        """At the end of every step: tell this step's votes, watch over what is open."""
        if self._acks:
            self._tell_votes()
        if self._announced != self.ballot and self.can_propose():
            self._announced = self.ballot
            others = tuple(process for process in self.learners if process != self.owner.me)
            self.owner.send_all(others, LogStatus(self.log.decided_until, self.ballot))
        if not self._armed and self._waits():
            self._armed = True
            self._resend = max(self._slots, default=self.log.decided_until) + 1
            self.owner.set_timer(TIMER, self.config.retry_ns)

    def checkpoint(self, state: bytes) -> None:
        """The owner's state now, which the log may be cut back to. The way over the own link makes sure that what was
        delivered up to here has left the outbox before the state is durable; else a restart would skip it."""
        if self._marked is None:
            self._marked = (self.log.decided_until, state)
            self.owner.send(self.owner.me, CheckpointReady(self.log.decided_until))

    def needs_checkpoint(self) -> bool:
        return self._marked is None and self.log.needs_checkpoint()

    def has_joined(self) -> bool:
        """I hold what my group has decided: I never lost it, or was given it again."""
        return self.role not in ("joining", "catching")

    def _waits(self) -> bool:
        """Whether something should happen soon. The timer is not cancelled when it has: the next thing to wait for
        comes long before it runs out."""
        return (
            bool(self._slots)
            or self.role in ("preparing", "joining", "catching")
            or (self.role == "follower" and self.suggested_leader == self.owner.me)
            or self.log.is_behind()
        )

    # Voting

    def _voting(self) -> bool:
        return self.place >= 0 and self.role not in ("joining", "catching")

    def _promise(self, sender: ProcessId, ballot: int, memory_loss: int) -> None:
        if not self._voting():
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

    def _promise_to(self, ballot: int) -> None:
        """A vote is also a promise; the record of the vote keeps both."""
        if self.promised < ballot:
            self.promised = ballot
            if self.ballot < ballot:
                self._step_down()

    def _accept(self, sender: ProcessId, ballot: int, instance: int, value: Value) -> Decided:
        if instance < self.log.decided_until:
            if sender != self.owner.me:
                self.log.send_decided(sender, instance)
            return []
        if self._voting():
            if ballot < self.promised:
                self.owner.send(sender, Nack(self.promised))
            else:
                self._promise_to(ballot)
                self._votes[instance] = (ballot, value)
                self.owner.persist(Voted(ballot, instance, value))
                self._acks.append((ballot, instance, value))
        return self._hear_value(ballot, instance, value)

    def _tell_votes(self) -> None:
        """One Accepted for each run of instances under one ballot."""
        acks, self._acks = sorted(self._acks), []
        run = [acks[0]]
        for ack in [*acks[1:], (-1, -1, ())]:
            if ack[0] == run[-1][0] and ack[1] <= run[-1][1] + 1:
                run.append(ack)
                continue
            ballot, first, _ = run[0]
            count = run[-1][1] - first + 1
            self.owner.send_all(
                self.learners, Accepted(ballot, first, count), message_ids([value for _, _, value in run])
            )
            run = [ack]

    # Learning

    def _slot(self, instance: int) -> Slot:
        slot = self._slots.get(instance)
        if slot is None:
            slot = self._slots[instance] = Slot()
        return slot

    def _hear_value(self, ballot: int, instance: int, value: Value) -> Decided:
        if self.log.is_decided(instance):
            return []
        slot = self._slot(instance)
        if ballot >= slot.ballot:
            slot.ballot = ballot
            slot.value = value
        return self._judge(instance, slot)

    def _count(self, sender: ProcessId, ballot: int, first: int, count: int) -> Decided:
        place = self._places[sender]
        ready: Decided = []
        for instance in range(first, first + count):
            if not self.log.is_decided(instance):
                slot = self._slot(instance)
                slot.tally.count(ballot, place)
                ready += self._judge(instance, slot)
        return ready

    def _judge(self, instance: int, slot: Slot) -> Decided:
        if slot.ballot != slot.tally.ballot or slot.tally.votes.bit_count() < self.quorum:
            return []
        self.log.decide(instance, slot.value)
        del self._slots[instance]
        if instance != self.log.decided_until:
            return []
        return self._advance(self.log.collect_ready())

    def _advance(self, ready: Decided) -> Decided:
        """The log grew: what is open shrinks with it."""
        if not ready:
            return ready
        chosen = self.log.decided_until
        if type(ready[0][1]) is bytes or len(ready) > 1:
            for instance in [i for i in self._slots if i < chosen]:
                del self._slots[instance]
            for instance in [i for i in self._votes if i < chosen]:
                del self._votes[instance]
        else:
            self._slots.pop(chosen - 1, None)
            self._votes.pop(chosen - 1, None)
        if chosen >= self.catch_up_until:
            if self.role == "catching":
                self._admit_myself()
            elif self.role == "preparing" and self._promises:
                self._conclude()
        return ready

    def _step_down(self) -> None:
        if self.role in ("leading", "preparing"):
            self.role = "follower"

    # Leading

    def _memory_loss(self) -> int:
        return self.incarnation if self.role == "joining" else self.memory_losses[self.place]

    def _ask(self, targets: tuple[ProcessId, ...]) -> None:
        self.owner.send_all(targets, Prepare(self.ballot, self._memory_loss()))

    def _campaign(self) -> None:
        assert self.place >= 0, f"process {self.owner.me} is no member of {self.members}"
        self.role = "preparing"
        self.owner.note("campaign")
        self.ballot = next_ballot(max(self.promised, self.ballot, self._seen), self.incarnation, self.place)
        self._promises = {}
        self._ask(self.members)

    def _yield_to(self, ballot: int) -> None:
        """Somebody promised more than my ballot: try again later, if the oracle still wants me."""
        if ballot <= self.ballot:
            return
        if self.role == "joining":
            self.ballot = next_ballot(ballot, self.incarnation, self.place)
            self._promises = {}
        elif ballot > self._seen:
            self._seen = ballot
            self._step_down()

    def _gather(self, sender: ProcessId, body: Promise) -> Decided:
        if body.ballot == self.ballot and self.role in ("preparing", "joining"):
            self._promises[self._places[sender]] = body
            self.memory_losses = [max(pair) for pair in zip(self.memory_losses, body.memory_losses, strict=True)]
            self._conclude()
        return []

    def _valid(self) -> list[Promise]:
        """Promises that their members remember."""
        return [p for place, p in sorted(self._promises.items()) if p.memory_losses[place] >= self.memory_losses[place]]

    def _conclude(self) -> None:
        """Do the promises make me leader, or tell me what I may have voted for?

        Who promised has reported its votes above what it knows to be decided. So a leader must know as much as each of
        them before it proposes. Should the one that knows most crash before it taught me, the next ballot will find
        what it knew among the votes of the others.
        """
        valid = self._valid()
        if len(valid) < self.quorum:
            return
        self.catch_up_until = max(self.log.decided_until, max(promise.chosen for promise in valid))
        if self.log.decided_until < self.catch_up_until:
            teacher = max(self._promises, key=lambda place: (self._promises[place].chosen, place))
            self.log.send_status(self.members[teacher])
            if self.role == "preparing":
                return
        best: dict[int, tuple[int, Value]] = {}
        for promise in valid:
            for instance, ballot, value in promise.votes:
                if instance >= self.catch_up_until and ballot > best.get(instance, (-1, ()))[0]:
                    best[instance] = (ballot, value)
        self._promises = {}
        if self.role == "preparing":
            self._lead(best)
            return
        self._votes = best
        self.role = "catching"
        self._reached = -1
        if self.log.decided_until >= self.catch_up_until:
            self._admit_myself()

    def _lead(self, best: dict[int, tuple[int, Value]]) -> None:
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

    def _repeat(self, targets: tuple[ProcessId, ...], instance: int) -> None:
        slot = self._slots.get(instance)
        if slot is not None and slot.ballot == self.ballot:
            self.owner.send_all(targets, Accept(self.ballot, instance, slot.value), message_ids((slot.value,)))

    def _drop_below(self, ballot: int) -> None:
        """A leader said that it knows what was proposed under lower ballots: what it did not take up is void."""
        for instance in [i for i, s in self._slots.items() if max(s.ballot, s.tally.ballot) < ballot]:
            del self._slots[instance]

    # Memory lost

    def _join(self) -> None:
        self.role = "joining"
        self.memory_losses[self.place] = self.incarnation
        self.ballot = next_ballot(0, self.incarnation, self.place)
        self.owner.note("forgot")
        self._ask(tuple(member for member in self.members if member != self.owner.me))

    def _ask_anew(self) -> None:
        """Who knew what I must learn may have crashed and forgotten that it was decided: its vote and those of the
        others remain, and nobody may be able to lead without mine. If nothing came since the last time, the members
        are asked again, what they say now counts, and nothing that one of them only knew earlier is waited for."""
        if self._reached < self.log.decided_until:
            self._reached = self.log.decided_until
            return
        self.role = "joining"
        self._promises = {}
        self.owner.note("asked anew")
        self._ask(tuple(member for member in self.members if member != self.owner.me))

    def _admit_myself(self) -> None:
        self.role = "follower"
        self.promised = max(self.promised, self.ballot)
        self.owner.note("admitted")
        self._save()

    # Memory

    def _remember(self, record: Record) -> Decided:
        match record:
            case Promised(ballot, memory_losses):
                self.promised = max(self.promised, ballot)
                self.memory_losses = [max(pair) for pair in zip(self.memory_losses, memory_losses, strict=True)]
            case Voted(ballot, instance, value):
                self.promised = max(self.promised, ballot)
                if instance >= self.log.decided_until:
                    self._votes[instance] = (ballot, value)
            case Snapshot(upto, state, floor, decided, promised, memory_losses, votes):
                self.promised = promised
                self.memory_losses = list(memory_losses)
                self._votes = {instance: (ballot, value) for instance, ballot, value in votes}
                ready = self.log.install(upto, state, floor, decided)
                return ready or self.log.learn(decided)
            case _:
                raise AssertionError(f"a Paxos group does not keep {record!r}")
        return []

    def _save(self) -> None:
        log = self.log
        votes = tuple((i, b, v) for i, (b, v) in sorted(self._votes.items()))
        floor, held = log.retained_values()
        record = Snapshot(
            log.checkpoint_end,
            log.checkpoint,
            floor,
            held + log.values_after_checkpoint(),
            self.promised,
            tuple(self.memory_losses),
            votes,
        )
        self.owner.persist(record, replaces=True)

    def _keep_mark(self, upto: int) -> None:
        if self._marked is None or self._marked[0] != upto:
            return
        self.log.compact(*self._marked)
        self._marked = None
        if self._voting() or self.place < 0:
            self._save()

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
            self._marked,
            tuple((i, b, v) for i, (b, v) in sorted(self._votes.items())),
            tuple(slots),
            self.ballot,
            self._seen,
            tuple(sorted(self._promises.items())),
            self.catch_up_until,
            self.next_instance,
            self._announced,
            self._armed,
            self._resend,
            self._turn,
            self._reached,
        )

    def restore(self, state: PaxosState) -> None:
        self.role = state.role
        self.incarnation = state.incarnation
        self.suggested_leader = state.believed
        self.promised = state.promised
        self.memory_losses = list(state.memory_losses)
        self.log.restore(state.log)
        self._marked = state.marked
        self._votes = {instance: (ballot, value) for instance, ballot, value in state.votes}
        self._slots = {}
        for kept in state.slots:
            slot = self._slot(kept.instance)
            slot.ballot = kept.ballot
            slot.value = kept.value
            slot.tally.ballot = kept.voted_ballot
            slot.tally.votes = kept.votes
        self.ballot = state.ballot
        self._seen = state.seen
        self._promises = dict(state.promises)
        self.catch_up_until = state.start
        self.next_instance = state.next
        self._announced = state.announced
        self._acks = []
        self._armed = state.armed
        self._resend = state.resend
        self._turn = state.turn
        self._reached = state.reached
