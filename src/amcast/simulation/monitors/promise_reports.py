"""What members reported with their promises of a ballot, and whether a leader's choice follows from them.

A leader hears the promises of some majority, and a monitor does not know of which. So the question is whether any
majority of those that promised justifies what the leader chose.
"""

from collections.abc import Hashable, Mapping
from typing import NamedTuple

from amcast.kernel.statements import Slot

Votes = Mapping[Slot, tuple[int, Hashable]]
"""By slot: ballot and value of a member's vote."""


class VoteReport(NamedTuple):
    """The votes of a member, for slots from `below` on."""

    below: Slot
    votes: Votes


class StateReport(NamedTuple):
    """The state of a member: the last ballot in which it took part with the length of that log, clock and content."""

    held: tuple[int, int]
    clock: int
    entries: Mapping[Slot, Hashable]


class PromiseReports:
    """The reports of one domain, by ballot and then by place. A member may answer a candidate more than once."""

    def __init__(self, quorum: int) -> None:
        self._quorum = quorum
        self._votes: dict[int, dict[int, list[VoteReport]]] = {}
        self._states: dict[int, dict[int, list[StateReport]]] = {}

    def add_votes(self, ballot: int, place: int, report: VoteReport) -> None:
        self._votes.setdefault(ballot, {}).setdefault(place, []).append(report)

    def add_state(self, ballot: int, place: int, report: StateReport) -> None:
        self._states.setdefault(ballot, {}).setdefault(place, []).append(report)

    def justify_value(self, ballot: int, slot: Slot, value: Hashable) -> bool:
        """Whether some majority reported, for this slot, either no vote at all, or this value as that of its highest
        vote; a member that knows a later slot to be decided justifies nothing."""
        reports = list(self._votes.get(ballot, {}).values())
        highest = -1
        for answers in reports:
            for report in answers:
                vote = report.votes.get(slot)
                if vote is not None and vote[1] == value:
                    highest = max(highest, vote[0])
        return any(
            sum(any(_allows(report, slot, limit) for report in answers) for answers in reports) >= self._quorum
            for limit in {-1, highest}
        )

    def justify_state(self, ballot: int, length: int, clock: int, entries: Mapping[Slot, Hashable]) -> bool:
        """Whether some majority justifies the state that a ballot begins with: its entries are those of the latest
        ballot, and of the longest log in it, that a member of the majority held, and no member's clock is higher."""
        reports = list(self._states.get(ballot, {}).values())
        for held in sorted({report.held for answers in reports for report in answers}, reverse=True):
            if held[1] != length:
                continue
            known: set[tuple[Slot, Hashable]] = set()
            count = 0
            for answers in reports:
                fitting = [report for report in answers if report.held <= held and report.clock <= clock]
                count += bool(fitting)
                for report in fitting:
                    if report.held == held:
                        known.update(report.entries.items())
            if count >= self._quorum and known.issuperset(entries.items()):
                return True
        return False


def _allows(report: VoteReport, slot: Slot, limit: int) -> bool:
    """Whether a member voted for the slot in no ballot above a limit."""
    vote = report.votes.get(slot)
    return report.below <= slot and (vote is None or vote[0] <= limit)
