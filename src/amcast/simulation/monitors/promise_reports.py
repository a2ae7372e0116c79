"""What members reported with their promises of a ballot, and whether a leader's choice follows from them.

A leader hears the promises of some majority, and a monitor does not know of which. So the question is whether any
majority of those that promised justifies what the leader chose. A promise does not count beside that of a member which
knows that the one who gave it has lost its memory since.
"""

from collections.abc import Collection, Hashable, Iterable, Mapping
from itertools import combinations, product
from typing import Final, NamedTuple

from amcast.kernel.statements import Slot

Votes = Mapping[Slot, tuple[int, Hashable]]
"""By slot: ballot and value of a member's vote."""
MAX_COMPARED: Final = 7
"""The most members of a domain in which all majorities are tried."""


class VoteReport(NamedTuple):
    """The votes of a member, for slots from `below` on."""

    below: Slot
    votes: Votes
    memory_losses: tuple[int, ...] = ()


class StateReport(NamedTuple):
    """The state of a member: the last ballot in which it took part with the length of that log, clock and content."""

    held: tuple[int, int]
    clock: int
    entries: Mapping[Slot, Hashable]
    memory_losses: tuple[int, ...] = ()


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

    def have_majority(self, ballot: int) -> bool:
        """Whether the promises of some majority count together."""
        reports = self._votes.get(ballot, {})
        return self._have_majority(
            {place: {report.memory_losses for report in answers} for place, answers in reports.items()}
        )

    def justify_value(self, ballot: int, slot: Slot, value: Hashable) -> bool:
        """Whether some majority reported, for this slot, either no vote at all, or this value as that of its highest
        vote; a member that knows a later slot to be decided justifies nothing."""
        reports = self._votes.get(ballot, {})
        highest = -1
        for answers in reports.values():
            for report in answers:
                vote = report.votes.get(slot)
                if vote is not None and vote[1] == value:
                    highest = max(highest, vote[0])
        return any(
            self._have_majority(
                {
                    place: {report.memory_losses for report in answers if _allows(report, slot, limit)}
                    for place, answers in reports.items()
                }
            )
            for limit in {-1, highest}
        )

    def justify_state(self, ballot: int, length: int, clock: int, entries: Mapping[Slot, Hashable]) -> bool:
        """Whether some majority justifies the state that a ballot begins with: its entries are those of the latest
        ballot, and of the longest log in it, that a member of the majority held, and no member's clock is higher."""
        reports = self._states.get(ballot, {})
        for held in sorted({report.held for answers in reports.values() for report in answers}, reverse=True):
            if held[1] != length:
                continue
            known: set[tuple[Slot, Hashable]] = set()
            losses: dict[int, set[tuple[int, ...]]] = {}
            for place, answers in reports.items():
                fitting = [report for report in answers if report.held <= held and report.clock <= clock]
                losses[place] = {report.memory_losses for report in fitting}
                for report in fitting:
                    if report.held == held:
                        known.update(report.entries.items())
            if self._have_majority(losses) and known.issuperset(entries.items()):
                return True
        return False

    def _have_majority(self, losses: Mapping[int, Collection[tuple[int, ...]]]) -> bool:
        return have_majority(self._quorum, losses)


def have_majority(quorum: int, losses: Mapping[int, Collection[tuple[int, ...]]]) -> bool:
    """Whether what a majority said counts together; `losses`: by place, the memory losses that the member reported each
    time when it said so."""
    fitting = {place: known for place, known in losses.items() if known}
    if len(fitting) < quorum:
        return False
    if len(set().union(*fitting.values())) == 1 or len(fitting) > MAX_COMPARED:
        return True
    return any(
        _is_consistent(zip(places, chosen, strict=True))
        for places in combinations(sorted(fitting), quorum)
        for chosen in product(*(fitting[place] for place in places))
    )


def _allows(report: VoteReport, slot: Slot, limit: int) -> bool:
    """Whether a member voted for the slot in no ballot above a limit."""
    vote = report.votes.get(slot)
    return report.below <= slot and (vote is None or vote[0] <= limit)


def _is_consistent(statements: Iterable[tuple[int, tuple[int, ...]]]) -> bool:
    """Whether none of these members, by place, knows of a loss of memory that another of them did not know itself."""
    listed = list(statements)
    return all(own[place] >= other[place] for place, own in listed if own for _, other in listed if other)
