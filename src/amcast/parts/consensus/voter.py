"""A member's vote and memory in Paxos: what it promised, what it accepted, what it learns, what survives a crash.

What must not be forgotten is made durable before it is said: promises and votes. `parts/consensus/paxos.py` adds
leading.
"""

from collections.abc import Sequence

from amcast.kernel.effects import About
from amcast.kernel.ids import MessageId, ProcessId
from amcast.kernel.message import Record
from amcast.kernel.process import Process
from amcast.parts.consensus.log import Decided, Log
from amcast.parts.consensus.messages import (
    Accepted,
    DecidedUntil,
    Nack,
    PaxosConfig,
    PaxosState,
    Promise,
    Promised,
    SlotState,
    Snapshot,
    Value,
    Voted,
)
from amcast.parts.consensus.quorum import Tally, majority


def about(values: Sequence[Value]) -> About:
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


class Voter:
    """Everything that one process knows of a group's log; `Paxos` says what it does about it."""

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
        self.audience = learners or members
        """Who gets phases 2a and 2b: the members first of all."""
        fellows = () if owner.group is None else owner.topology.members(owner.group)
        self.teachers = tuple(p for p in dict.fromkeys((*members, *fellows)) if p != owner.me)
        """Whom to ask for what was missed. A learner's fellows alone can give it a state, which says what the group
        has delivered; the members can give it values."""
        self.place = members.index(owner.me) if owner.me in members else -1
        self.quorum = majority(len(members))
        self._places = {member: place for place, member in enumerate(members)}
        self.role = "follower"
        self.incarnation = 0
        self.believed: ProcessId = members[0]
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
        self.start = 0
        """A leader may propose its own values once everything below is decided; a joiner may vote."""
        self.next = 0
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

    def mark(self, state: bytes) -> None:
        """The owner's state now, which the log may be cut back to. The way over the own link makes sure that what was
        delivered up to here has left the outbox before the state is durable; else a restart would skip it."""
        if self._marked is None:
            self._marked = (self.log.chosen, state)
            self.owner.send(self.owner.me, DecidedUntil(self.log.chosen))

    def wants_mark(self) -> bool:
        return self._marked is None and self.log.full()

    def joined(self) -> bool:
        """I hold what my group has decided: I never lost it, or was given it again."""
        return self.role not in ("joining", "catching")

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
        self.owner.send(sender, Promise(ballot, self.log.chosen, votes, tuple(self.memory_losses)))

    def _promise_to(self, ballot: int) -> None:
        """A vote is also a promise; the record of the vote keeps both."""
        if self.promised < ballot:
            self.promised = ballot
            if self.ballot < ballot:
                self._step_down()

    def _accept(self, sender: ProcessId, ballot: int, instance: int, value: Value) -> Decided:
        if instance < self.log.chosen:
            if sender != self.owner.me:
                self.log.teach(sender, instance)
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
            self.owner.send_all(self.audience, Accepted(ballot, first, count), about([value for _, _, value in run]))
            run = [ack]

    # Learning

    def _slot(self, instance: int) -> Slot:
        slot = self._slots.get(instance)
        if slot is None:
            slot = self._slots[instance] = Slot()
        return slot

    def _hear_value(self, ballot: int, instance: int, value: Value) -> Decided:
        if self.log.knows(instance):
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
            if not self.log.knows(instance):
                slot = self._slot(instance)
                slot.tally.count(ballot, place)
                ready += self._judge(instance, slot)
        return ready

    def _judge(self, instance: int, slot: Slot) -> Decided:
        if slot.ballot != slot.tally.ballot or slot.tally.votes.bit_count() < self.quorum:
            return []
        self.log.decide(instance, slot.value)
        del self._slots[instance]
        if instance != self.log.chosen:
            return []
        return self._advance(self.log.take())

    def _advance(self, ready: Decided) -> Decided:
        """The log grew: what is open shrinks with it."""
        if not ready:
            return ready
        chosen = self.log.chosen
        if type(ready[0][1]) is bytes or len(ready) > 1:
            for instance in [i for i in self._slots if i < chosen]:
                del self._slots[instance]
            for instance in [i for i in self._votes if i < chosen]:
                del self._votes[instance]
        else:
            self._slots.pop(chosen - 1, None)
            self._votes.pop(chosen - 1, None)
        return ready

    def _step_down(self) -> None:
        if self.role in ("leading", "preparing"):
            self.role = "follower"

    # Memory

    def _remember(self, record: Record) -> Decided:
        match record:
            case Promised(ballot, memory_losses):
                self.promised = max(self.promised, ballot)
                self.memory_losses = [max(pair) for pair in zip(self.memory_losses, memory_losses, strict=True)]
            case Voted(ballot, instance, value):
                self.promised = max(self.promised, ballot)
                if instance >= self.log.chosen:
                    self._votes[instance] = (ballot, value)
            case Snapshot(upto, state, floor, decided, promised, memory_losses, votes):
                self.promised = promised
                self.memory_losses = list(memory_losses)
                self._votes = {instance: (ballot, value) for instance, ballot, value in votes}
                ready = self.log.install(upto, state, floor, decided)
                return ready or self.log.learn_all(decided)
            case _:
                raise AssertionError(f"a Paxos group does not keep {record!r}")
        return []

    def _save(self) -> None:
        log = self.log
        votes = tuple((i, b, v) for i, (b, v) in sorted(self._votes.items()))
        floor, held = log.held()
        record = Snapshot(
            log.upto, log.state, floor, held + log.since(), self.promised, tuple(self.memory_losses), votes
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
            self.believed,
            self.promised,
            tuple(self.memory_losses),
            self.log.snapshot(),
            self._marked,
            tuple((i, b, v) for i, (b, v) in sorted(self._votes.items())),
            tuple(slots),
            self.ballot,
            self._seen,
            tuple(sorted(self._promises.items())),
            self.start,
            self.next,
            self._announced,
            self._armed,
            self._resend,
            self._turn,
            self._reached,
        )

    def restore(self, state: PaxosState) -> None:
        self.role = state.role
        self.incarnation = state.incarnation
        self.believed = state.believed
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
        self.start = state.start
        self.next = state.next
        self._announced = state.announced
        self._acks = []
        self._armed = state.armed
        self._resend = state.resend
        self._turn = state.turn
        self._reached = state.reached
