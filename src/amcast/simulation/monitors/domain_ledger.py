"""What the members of one domain have said: proposals, votes, promises, clocks, and what follows from them."""

from collections.abc import Hashable
from typing import Any

from amcast.kernel.ids import MessageId
from amcast.kernel.statements import Domain, Slot
from amcast.simulation.monitors.promise_reports import PromiseReports, have_majority
from amcast.simulation.monitors.timestamp_limit import TimestampLimit


class MemberWords:
    """What one member has said since it last lost its memory."""

    # fmt: off
    __slots__ = (
        "campaign", "clock", "frozen", "held", "known_losses", "promised", "reached", "reported", "reported_below",
        "voted", "votes",
    )
    # fmt: on

    def __init__(self) -> None:
        self.campaign = (-1, -1)
        """Incarnation and ballot of its last campaign."""
        self.promised = -1
        self.clock = 0
        self.held = (0, 0)
        self.votes: dict[Slot, int] = {}
        """By slot: the highest ballot of a vote."""
        self.voted = -1
        """The highest ballot of any vote."""
        self.reported: set[Slot] = set()
        """Slots for which a promise reported a vote."""
        self.reported_below = 0
        self.reached: dict[str, Any] = {}
        self.known_losses: dict[int, int] = {}
        """By place of a member that it voted to admit: the incarnation that began without memory."""
        self.frozen: tuple[int, tuple[int, ...]] = (-1, ())
        """Epoch and numbers of the last report of a process that froze."""

    def find_promise(self) -> int:
        """The ballot below which the member may make no promise: a vote implies one."""
        return max(self.promised, self.voted, self.held[0])


class DomainLedger:
    """Everything said by the members of a domain. What they said before they lost their memory still counts for
    majorities, clocks apart: whoever admits them again must preserve it."""

    def __init__(self, domain: Domain, configuration: int = 0) -> None:
        self.domain = domain
        self.configuration = configuration
        """The configuration whose members these are."""
        self.words = [MemberWords() for _ in domain.members]
        self.proposals: dict[tuple[int, Slot], tuple[Hashable, MessageId | None]] = {}
        self._votes: dict[tuple[int, Slot], int] = {}
        """By ballot and slot: the members that voted, as bits by place."""
        self._lengths: dict[int, list[int]] = {}
        """By ballot, then by place: the length of the log that the member holds."""
        self._chosen_lengths: dict[int, int] = {}
        self.chosen: dict[Slot, tuple[int, Hashable, MessageId | None]] = {}
        """By slot: the lowest known ballot in which a majority voted, the value, and the message it is about."""
        self.timestamps: dict[MessageId, Hashable] = {}
        """By message: its chosen value."""
        self.clocks: dict[int, list[int]] = {}
        """By ballot, then by place: the highest clock that the member published since it lost its memory last."""
        self.passed: dict[int, int] = {}
        """By ballot: the clock that a majority had published up to it when some member lost its memory."""
        self.reached: dict[str, list[Any]] = {}
        """By measure, then by place: how far the member ever was."""
        self.reports = PromiseReports(domain.quorum)
        self.joins: dict[int, dict[int, int]] = {}
        """By place of a member that lost its memory, then by ballot: the members that have promised it the ballot
        since, as bits by place."""
        self.losses: dict[int, tuple[int, int]] = {}
        """By ballot of a candidate that has once lost its memory: its place, and the incarnation of its last loss."""
        self.leader_losses: dict[int, tuple[int, ...]] = {}
        """By ballot: the losses of memory of which its leader is known to have heard."""
        self.started: set[int] = set()
        """Ballots whose leader has sent their state."""
        self.acknowledged: dict[int, list[tuple[int, ...]]] = {}
        """By epoch of a generic broadcast, then by place: the numbers that the member acknowledged, by stream."""
        self.ends: dict[int, dict[int, int]] = {}
        """By epoch, then by place of the stream: the lowest number at which somebody proposed to end the epoch."""
        self.limit = TimestampLimit(len(domain.members), domain.quorum)
        self._losses_of_votes: dict[Slot, dict[int, dict[int, set[tuple[int, ...]]]]] = {}
        """By slot, ballot and place: the losses of memory that the member knew when it voted."""
        self._admissions: dict[int, tuple[int, dict[int, int]]] = {}
        """By place of a member that lost its memory: the loss for which others have voted last to admit it, and by the
        places of these the lowest clock that they told it."""
        self._stood: dict[int, int] = {}
        """By ballot: how often its candidate had lost its memory when it first asked for promises."""
        self._loss_counts = [0] * len(domain.members)
        """By place: how often the member lost its memory."""

    def forget(self, place: int) -> None:
        """A member lost its memory. What it said still counts, but it may contradict itself from now on. Whoever
        admits it again gives it the log that it held, and a clock that its majorities had passed."""
        held = self.words[place].held
        self.words[place] = MemberWords()
        self.words[place].held = held
        self.words[place].clock = self.find_last_majority_clock()
        self.joins[place] = {}
        self._admissions[place] = (0, {})
        self._loss_counts[place] += 1
        self.forget_clocks(place)

    def admit(self, place: int, voter: int, loss: int, clock: int) -> None:
        """A member votes for the admission of another."""
        if place in self._admissions:
            known, clocks = self._admissions[place]
            if loss > known:
                clocks = {}
            if loss >= known:
                clocks[voter] = min(clock, clocks.get(voter, clock))
                self._admissions[place] = (loss, clocks)

    def find_admission_clock(self, place: int) -> int | None:
        """The least clock that a member has which lost its memory, after votes of so many others that every majority
        that it was part of contains one of them; 0 if it lost nothing, None if there are not so many."""
        if place not in self._admissions:
            return 0
        clocks = sorted(self._admissions[place][1].values())
        needed = len(self.domain.members) - self.domain.quorum + 1
        return clocks[needed - 1] if len(clocks) >= needed else None

    def stand(self, place: int, ballot: int) -> bool:
        """Whether a candidate has made up its ballot with the memory that it has now."""
        return self._stood.setdefault(ballot, self._loss_counts[place]) == self._loss_counts[place]

    def add_vote_with_losses(self, place: int, ballot: int, slot: Slot, memory_losses: tuple[int, ...]) -> None:
        by_place = self._losses_of_votes.setdefault(slot, {}).setdefault(ballot, {})
        by_place.setdefault(place, set()).add(memory_losses)

    def have_votes(self, slot: Slot) -> bool:
        """Whether the votes of a majority for a slot, in one ballot, count together."""
        ballots = self._losses_of_votes.get(slot, {})
        return any(have_majority(self.domain.quorum, by_place) for by_place in ballots.values())

    def has_voted(self, place: int, ballot: int, slot: Slot, loss: int) -> bool:
        """Whether a member voted for a slot in a ballot since a loss of its memory."""
        voted = self._losses_of_votes.get(slot, {}).get(ballot, {}).get(place, ())
        return any(losses[place] >= loss for losses in voted)

    def count_vote(self, place: int, ballot: int, slot: Slot) -> bool:
        """Counts a vote; whether it makes the slot's value chosen."""
        key = (ballot, slot)
        votes = self._votes.get(key, 0) | 1 << place
        self._votes[key] = votes
        return votes.bit_count() == self.domain.quorum

    def list_chosen_by(self, place: int, ballot: int) -> list[tuple[Slot, int]]:
        """The chosen slots for which a member has voted, with the ballots below the given one in which they were
        chosen: whatever it lost since, it must know of them."""
        return [
            (slot, chosen)
            for slot, (chosen, _, _) in self.chosen.items()
            if chosen < ballot and self._votes.get((chosen, slot), 0) >> place & 1
        ]

    def has_majority(self, ballot: int, slot: Slot) -> bool:
        """Whether a majority has voted for a slot in a ballot, or holds a log of the ballot that contains it."""
        if self._votes.get((ballot, slot), 0).bit_count() >= self.domain.quorum:
            return True
        length = self._chosen_lengths.get(ballot)
        return length is not None and slot < length

    def count_length(self, place: int, ballot: int, length: int) -> range:
        """Counts a prefix of a ballot's log; returns the slots that it makes chosen."""
        lengths = self._lengths.get(ballot)
        if lengths is None:
            lengths = self._lengths[ballot] = [0] * len(self.domain.members)
        if length <= lengths[place]:
            return range(0)
        lengths[place] = length
        before = self._chosen_lengths.get(ballot, 0)
        after = sorted(lengths)[-self.domain.quorum]
        if after <= before:
            return range(0)
        self._chosen_lengths[ballot] = after
        return range(before, after)

    def acknowledge(self, place: int, epoch: int, tops: tuple[int, ...]) -> None:
        acknowledged = self.acknowledged.get(epoch)
        if acknowledged is None:
            acknowledged = self.acknowledged[epoch] = [(0,) * len(tops)] * len(self.domain.members)
        acknowledged[place] = tuple(map(max, acknowledged[place], tops))

    def find_acknowledged(self, epoch: int, stream: int) -> int:
        """The number of a stream that a majority has acknowledged in an epoch."""
        tops = self.acknowledged.get(epoch)
        return 0 if tops is None else sorted(top[stream] for top in tops)[-self.domain.quorum]

    def publish_clock(self, place: int, ballot: int, clock: int) -> None:
        clocks = self.clocks.get(ballot)
        if clocks is None:
            clocks = self.clocks[ballot] = [0] * len(self.domain.members)
        if clock > clocks[place]:
            clocks[place] = clock

    def find_majority_clock(self, ballot: int) -> int:
        """The clock that a majority reached in ballots below this one: every later ballot must know it, because a
        member of that majority promised it."""
        if len(self.clocks) < 2 and ballot in self.clocks:
            return 0
        highest = [0] * len(self.domain.members)
        for earlier, clocks in self.clocks.items():
            if earlier < ballot:
                highest = list(map(max, highest, clocks))
        passed = max((clock for earlier, clock in self.passed.items() if earlier < ballot), default=0)
        return max(sorted(highest)[-self.domain.quorum], passed)

    def find_last_majority_clock(self) -> int:
        """The clock that a majority reached in any ballot."""
        ballots = (*self.clocks, *self.passed)
        return self.find_majority_clock(max(ballots) + 1) if ballots else 0

    def forget_clocks(self, place: int) -> None:
        """A member lost its memory. What a majority has published by now stays passed. Its old clocks do not count
        together with later ones of others: these state that it lost its memory, and nobody relies on both."""
        for ballot in sorted(self.clocks):
            self.passed[ballot] = self.find_majority_clock(ballot + 1)
        for clocks in self.clocks.values():
            clocks[place] = 0

    def find_majority_reach(self, measure: str) -> Any:
        """How far a majority has come; None if no majority has said anything."""
        values = sorted(value for value in self.reached.get(measure, ()) if value is not None)
        return values[-self.domain.quorum] if len(values) >= self.domain.quorum else None

    def reach(self, place: int, measure: str, value: Any) -> None:
        reached = self.reached.get(measure)
        if reached is None:
            reached = self.reached[measure] = [None] * len(self.domain.members)
        if reached[place] is None or value > reached[place]:
            reached[place] = value
