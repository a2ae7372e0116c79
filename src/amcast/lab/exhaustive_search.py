"""Exhaustive search of small scopes: every pattern of destinations, every interleaving of each.

The order that is checked does not depend on the names of messages, so patterns that differ only in the order of
messages are one.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations, combinations_with_replacement

from amcast.check.incremental import check_chains
from amcast.kernel.ids import GroupId, MessageId, ProcessId
from amcast.lab.runs import PreparedRun
from amcast.simulation.schedulers.explore import explore
from amcast.simulation.schedulers.scope import Budget, Counterexample, Scope, Verdict

Pattern = tuple[tuple[GroupId, ...], ...]


@dataclass
class SearchResult:
    """The result over all patterns, and how far the search looked."""

    chosen: int = 0
    """Patterns that the search was asked for."""
    patterns: int = 0
    """Patterns that were begun."""
    exhausted: int = 0
    """Patterns whose interleavings were all explored."""
    states: int = 0
    transitions: int = 0
    deepest: int = 0
    endings: int = 0
    """Different outcomes: the deliveries of all processes, in order."""
    limits: list[str] = field(default_factory=list)
    unspent: int = 0
    goals: dict[str, bool] = field(default_factory=dict)
    failed: Pattern | None = None
    counterexample: Counterexample | None = None

    @property
    def missed_goals(self) -> list[str]:
        return [goal for goal, reached in self.goals.items() if not reached]

    @property
    def share(self) -> float:
        """The share of patterns that was exhausted."""
        return self.exhausted / self.chosen if self.chosen else 0.0

    @property
    def verdict(self) -> Verdict:
        """Holds only if no pattern was left out and every goal was reached."""
        if self.counterexample is not None:
            return "violated"
        return "unknown" if self.limits or self.missed_goals else "holds"


def list_patterns(groups: Sequence[GroupId], messages: int) -> Iterator[Pattern]:
    """All ways to address some messages, up to renaming of messages; small ones first."""
    sets = [subset for size in range(1, len(groups) + 1) for subset in combinations(groups, size)]
    yield from combinations_with_replacement(sets, messages)


def search_patterns(
    prepared: PreparedRun,
    chosen: Sequence[Pattern],
    budget: Budget,
    max_states: int,
    reduced: bool = True,
    progress: Callable[[int], None] = lambda states: None,
    most_each: int | None = None,
) -> SearchResult:
    """Explores patterns until one fails, all are explored, or the user interrupts. `max_states` limits all of them
    together; `most_each`, if given, each one: a larger pattern is abandoned for the next."""
    result = SearchResult(chosen=len(chosen), goals=dict.fromkeys(prepared.spec.goals, False))
    for pattern in chosen:
        left = max_states - result.states
        if left <= 0:
            more = len(chosen) - result.patterns
            result.limits.append(f"{max_states} states were seen; {more} of {len(chosen)} patterns were not begun")
            break
        scope = _scope(prepared, pattern, budget, min(left, most_each or left), reduced)
        before = result.states
        try:
            found = explore(scope, lambda states, waiting, before=before: progress(before + states))  # type: ignore[misc]
        except KeyboardInterrupt:
            result.limits.append(
                f"interrupted; {len(chosen) - result.patterns} of {len(chosen)} patterns were not seen"
            )
            break
        result.patterns += 1
        result.states += found.states
        result.transitions += found.transitions
        result.deepest = max(result.deepest, found.deepest)
        result.endings += len(found.endings)
        result.unspent += found.unspent
        for goal, reached in found.goals.items():
            result.goals[goal] = result.goals[goal] or reached
        if found.counterexample is not None:
            result.failed = pattern
            result.counterexample = found.counterexample
            break
        if found.limit is not None:
            result.limits.append(f"destinations {_shown(pattern)}: {found.limit}")
        else:
            result.exhausted += 1
    return result


def _scope(prepared: PreparedRun, pattern: Pattern, budget: Budget, max_states: int, reduced: bool) -> Scope:
    """The scope of one pattern: each message has a client of its own, so that no order of sending is left out."""
    topology = prepared.topology
    groups = {process: topology.group_of(process) for process in topology.servers}

    def always(
        history: Mapping[ProcessId, Sequence[MessageId]], destinations: Mapping[MessageId, tuple[GroupId, ...]]
    ) -> str | None:
        return check_chains(history, destinations, groups)

    return Scope(
        topology=topology,
        make=prepared.make,
        messages=tuple(zip(topology.clients, pattern, strict=False)),
        always=always,
        claims=prepared.spec.claims,
        links=prepared.network.links,
        budget=budget,
        goals=prepared.spec.goals,
        max_states=max_states,
        reduced=reduced,
        monitoring=prepared.monitoring,
    )


def _shown(pattern: Pattern) -> str:
    return " ".join("{" + ",".join(str(group) for group in groups) + "}" for groups in pattern)
