"""What the members of a group found when they compared one subject, and which of them are right.

Each member compares itself with each other one, pair by pair and at positions that both know, and sends its findings to
all. From the findings of all members each one decides the same question: members i and j differ at position x; on whose
side is a majority?

    side of i at x = i, and every member k that was found equal to i at a position of x or later

The chain of deliveries never becomes equal again, so a member that equals i at x or later equalled i at x: it differs
from j there. States of applications are compared at the same positions by all, and what counts is the latest.

- A majority is on the side of i: j is wrong.
- A majority is on neither side (others are not compared yet, or are split, too): nobody can tell.

A member that was not compared is on no side. Two sides cannot both have a majority: a member of both would have been
equal to i and to j. (One that restarted meanwhile may appear on both; then neither side counts.)
"""

from collections.abc import Iterator
from operator import attrgetter
from typing import Literal

from amcast.kernel.ids import ProcessId
from amcast.parts.consensus.quorum import majority
from amcast.parts.node.messages import NO_FINDINGS, Difference, Findings, ResultsState

Outcome = Literal["equal", "majority", "split", "minority"]
"""equal: no difference is known. majority: some members differ, and a majority does not contradict this one. split:
some differ, and no side has a majority. minority: a majority contradicts this member."""


class ComparisonResults:
    """The findings of one member, and those that it received from the others, about one subject."""

    __slots__ = ("_differing", "_equal", "_me", "_members", "_received", "_subject")

    def __init__(self, subject: str, me: ProcessId, members: tuple[ProcessId, ...]) -> None:
        """`subject` names what is compared, in sentences."""
        self._subject = subject
        self._me = me
        self._members = members
        self._equal: dict[ProcessId, int] = {}
        """By member: the last position at which it was equal."""
        self._differing: dict[ProcessId, Difference] = {}
        """By member: the first difference that was found."""
        self._received: dict[ProcessId, Findings] = {}
        """By member: its own findings."""

    # What this member finds

    def add_equal(self, member: ProcessId, position: int) -> None:
        self._equal[member] = max(position, self._equal.get(member, position))
        known = self._differing.get(member)
        if known is not None and known.position < position:
            del self._differing[member]

    def add_difference(self, difference: Difference) -> None:
        known = self._differing.get(difference.member)
        if known is None or difference.position < known.position:
            self._differing[difference.member] = difference

    def find_own(self) -> Findings:
        """The findings of this member, for the others."""
        return Findings(
            tuple(sorted(self._equal.items())), tuple(found for _, found in sorted(self._differing.items()))
        )

    # What others find

    def receive(self, member: ProcessId, findings: Findings) -> None:
        self._received[member] = findings

    def forget(self, member: ProcessId) -> None:
        """Forgets what is known of a member: it has begun a new incarnation, perhaps with another state."""
        for table in (self._equal, self._differing, self._received):
            table.pop(member, None)

    def forget_own(self) -> None:
        """Forgets what this member found: it has got another state."""
        self._equal = {}
        self._differing = {}

    def follow_members(self, members: tuple[ProcessId, ...]) -> None:
        """Follows a reconfiguration."""
        for gone in [member for member in self._members if member not in members]:
            self.forget(gone)
        self._members = members

    # What follows

    @property
    def has_difference(self) -> bool:
        return bool(self._differing) or any(findings.differing for findings in self._received.values())

    def decide(self) -> Outcome:
        """What all findings together mean for this member. It takes itself for wrong only by a comparison of its own:
        the findings of others may be about an earlier incarnation of it."""
        if not self.has_difference:
            return "equal"
        outcome: Outcome = "equal"
        for finder, found in self._differences():
            wrong = self._find_wrong(finder, found)
            if wrong == self._me == finder:
                return "minority"
            if wrong is None or wrong == self._me:
                outcome = "split"
            elif outcome == "equal":
                outcome = "majority"
        return outcome

    def list_wrong(self) -> tuple[ProcessId, ...]:
        """The members that a majority contradicts."""
        wrong = {self._find_wrong(finder, found) for finder, found in self._differences()}
        return tuple(sorted(member for member in wrong if member is not None))

    def describe_differences(self) -> list[str]:
        """A sentence for each difference, for operators: who holds what, and on whose side a majority is."""
        sentences = []
        for finder, found in self._differences():
            wrong = self._find_wrong(finder, found)
            side = "no majority is known to agree with either"
            if wrong is not None:
                right = finder if wrong == found.member else found.member
                side = f"process {wrong} is wrong: a majority agrees with process {right}"
            sentences.append(
                f"{self._subject} before position {found.position}: process {finder} holds {found.own:08x}, process"
                f" {found.member} holds {found.other:08x}; {side}"
            )
        return sentences

    def describe_compared(self) -> str:
        """How far this member was compared with the others, for operators."""
        others = [member for member in self._members if member != self._me]
        return ", ".join(
            f"process {member}: differs before position {self._differing[member].position}"
            if member in self._differing
            else f"process {member}: equal before position {self._equal[member]}"
            if member in self._equal
            else f"process {member}: not compared"
            for member in others
        )

    def _differences(self) -> Iterator[tuple[ProcessId, Difference]]:
        """Every difference between two members, once, with the member that found it; those of this member first."""
        seen = set()
        for finder in (self._me, *self._members):
            differing = self._differing.values() if finder == self._me else self._findings_of(finder).differing
            for found in sorted(differing, key=attrgetter("member")):
                pair = frozenset((finder, found.member))
                if found.member in self._members and pair not in seen:
                    seen.add(pair)
                    yield finder, found

    def _findings_of(self, member: ProcessId) -> Findings:
        if member == self._me:
            return self.find_own()
        return self._received.get(member, NO_FINDINGS)

    def _find_wrong(self, finder: ProcessId, found: Difference) -> ProcessId | None:
        """The member of a differing pair that a majority contradicts; None if nobody can tell."""
        one = self._has_majority(finder, found.position)
        other = self._has_majority(found.member, found.position)
        return None if one == other else found.member if one else finder

    def _has_majority(self, member: ProcessId, position: int) -> bool:
        side = {member}
        side.update(other for other, until in self._findings_of(member).equal if until >= position)
        for other in self._members:
            if any(one == member and until >= position for one, until in self._findings_of(other).equal):
                side.add(other)
        return len(side.intersection(self._members)) >= majority(len(self._members))

    # Snapshots

    def snapshot(self) -> ResultsState:
        return ResultsState(self._members, self.find_own(), tuple(sorted(self._received.items())))

    def restore(self, state: ResultsState) -> None:
        self._members = state.members
        self._equal = dict(state.own.equal)
        self._differing = {found.member: found for found in state.own.differing}
        self._received = dict(state.received)
