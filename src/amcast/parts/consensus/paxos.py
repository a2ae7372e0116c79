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

from amcast.kernel.ids import ProcessId
from amcast.kernel.message import Body, Record
from amcast.parts.consensus.log import Decided
from amcast.parts.consensus.messages import (
    Accept,
    Accepted,
    DecidedUntil,
    Install,
    Learn,
    Nack,
    Prepare,
    Promise,
    Promised,
    Status,
    Value,
)
from amcast.parts.consensus.quorum import next_ballot
from amcast.parts.consensus.voter import Voter, about

TIMER = "paxos"
RESENDS = 64
"""How many open instances are proposed again at a time."""


class Paxos(Voter):
    """One process' share in a group's log. `role` is one of

    follower   votes, if it is a member; proposes nothing
    preparing  asks for promises
    leading    proposes
    joining    lost its memory: asks the others what it may have voted for; has no vote
    catching   knows what it may have voted for, not yet everything that was decided before; has no vote
    """

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
            for teacher in self.teachers:
                self.log.tell(teacher)
        return ready

    def ready(self) -> bool:
        """I lead, and know everything that was proposed before."""
        return self.role == "leading" and self.log.chosen >= self.start

    def propose(self, value: Value) -> int:
        """Propose in the next instance; only when `ready`."""
        assert self.role == "leading", f"process {self.owner.me} proposes and does not lead"
        instance = self.next
        self.next += 1
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
            case Status(chosen, ballot):
                self._drop_below(ballot)
                self.log.hear(sender, chosen)
            case Learn():
                return self._advance(self.log.learn(sender, body))
            case Install(upto, state, floor, values):
                ready = self.log.install(upto, state, floor, values)
                self._advance(ready)
                if ready and self._voting():
                    self._save()
                return ready
            case DecidedUntil(upto):
                self._keep_mark(upto)
            case _:
                raise AssertionError(f"a Paxos group does not say {body!r}")
        return []

    def hear_leader(self, leader: ProcessId) -> None:
        """The oracle spoke."""
        self.believed = leader
        if leader != self.owner.me:
            if self.role in ("leading", "preparing"):
                self.role = "follower"
        elif self.role == "follower":
            self._campaign()

    def meet(self, peer: ProcessId) -> None:
        """A link begins anew: say again what the peer may have lost."""
        if peer == self.owner.me or peer not in self.audience:
            return
        self.log.tell(peer)
        place = self._places.get(peer)
        if self.role == "leading":
            for instance in range(self.log.chosen, self.next):
                self._repeat((peer,), instance)
        elif self.role in ("preparing", "joining") and place is not None and place not in self._promises:
            self.owner.send(peer, Prepare(self.ballot, self._memory_loss()))
        if self._voting():
            for instance, (ballot, value) in sorted(self._votes.items()):
                self.owner.send(peer, Accepted(ballot, instance), about((value,)))

    def tick(self) -> None:
        """The timer ran out: something that should have happened did not."""
        self._armed = False
        contending = self.role == "follower" and self.believed == self.owner.me
        if contending or (self.role == "preparing" and len(self._valid()) >= self.quorum):
            self._campaign()
        elif self.role == "preparing" or self.role == "joining":
            waiting = [p for place, p in enumerate(self.members) if place not in self._promises]
            self._ask(tuple(p for p in waiting if self.role == "preparing" or p != self.owner.me))
        elif self.role == "catching":
            self._ask_anew()
        elif self.role == "leading":
            for instance in range(self.log.chosen, min(self._resend, self.log.chosen + RESENDS)):
                self._repeat(self.audience, instance)
        if (self._resend > self.log.chosen or self.log.behind() or self.role == "catching") and self.teachers:
            self._turn = (self._turn + 1) % len(self.teachers)
            self.log.tell(self.teachers[self._turn])

    def flush(self) -> None:
        """At the end of every step: tell this step's votes, watch over what is open."""
        if self._acks:
            self._tell_votes()
        if self._announced != self.ballot and self.ready():
            self._announced = self.ballot
            others = tuple(process for process in self.audience if process != self.owner.me)
            self.owner.send_all(others, Status(self.log.chosen, self.ballot))
        if not self._armed and self._waits():
            self._armed = True
            self._resend = max(self._slots, default=self.log.chosen) + 1
            self.owner.set_timer(TIMER, self.config.retry_ns)

    def _waits(self) -> bool:
        """Whether something should happen soon. The timer is not cancelled when it has: the next thing to wait for
        comes long before it runs out."""
        return (
            bool(self._slots)
            or self.role in ("preparing", "joining", "catching")
            or (self.role == "follower" and self.believed == self.owner.me)
            or self.log.behind()
        )

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
        self.start = max(self.log.chosen, max(promise.chosen for promise in valid))
        if self.log.chosen < self.start:
            teacher = max(self._promises, key=lambda place: (self._promises[place].chosen, place))
            self.log.tell(self.members[teacher])
            if self.role == "preparing":
                return
        best: dict[int, tuple[int, Value]] = {}
        for promise in valid:
            for instance, ballot, value in promise.votes:
                if instance >= self.start and ballot > best.get(instance, (-1, ()))[0]:
                    best[instance] = (ballot, value)
        self._promises = {}
        if self.role == "preparing":
            self._lead(best)
            return
        self._votes = best
        self.role = "catching"
        self._reached = -1
        if self.log.chosen >= self.start:
            self._admit_myself()

    def _lead(self, best: dict[int, tuple[int, Value]]) -> None:
        self.role = "leading"
        first = self.start
        self.next = self.start = max(best, default=first - 1) + 1
        self.owner.note("led", value=float(self.ballot))
        for instance in range(first, self.next):
            self._propose(instance, best.get(instance, (0, ()))[1])

    def _propose(self, instance: int, value: Value) -> None:
        slot = self._slot(instance)
        slot.ballot = self.ballot
        slot.value = value
        self.owner.send_all(self.audience, Accept(self.ballot, instance, value), about((value,)))

    def _repeat(self, targets: tuple[ProcessId, ...], instance: int) -> None:
        slot = self._slots.get(instance)
        if slot is not None and slot.ballot == self.ballot:
            self.owner.send_all(targets, Accept(self.ballot, instance, slot.value), about((slot.value,)))

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
        if self._reached < self.log.chosen:
            self._reached = self.log.chosen
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

    def _advance(self, ready: Decided) -> Decided:
        super()._advance(ready)
        if ready and self.log.chosen >= self.start:
            if self.role == "catching":
                self._admit_myself()
            elif self.role == "preparing" and self._promises:
                self._conclude()
        return ready
