"""Exhaustive search of small scopes: every pattern of destinations, every interleaving of each.

The order that is checked does not depend on the names of messages, so patterns that differ only in the order of
messages are one.

Real-time order (P9) is judged with an auditor: one client multicasts two messages, the second when the first is
answered. A cycle of P9 has one edge of time (docs/MODEL.md), and that is the order of these two: it is checked as the
order of one more group.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations, combinations_with_replacement, product
from typing import Final

from amcast.check.incremental import check_chains
from amcast.kernel.ids import GroupId, MessageId, ProcessId, sender_of
from amcast.kernel.message import State
from amcast.lab.runs import PreparedRun
from amcast.parts.client.messages import ClientSessionState
from amcast.simulation.schedulers.explore import explore
from amcast.simulation.schedulers.scope import Budget, Counterexample, Scope, Verdict

Pattern = tuple[tuple[GroupId, ...], ...]
AUDIT: Final = -1
"""The number of the group that stands for an auditor."""


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


def list_audits(groups: Sequence[GroupId], messages: int) -> Iterator[Pattern]:
    """All ways to address the two messages of an auditor, in their order, and those of others."""
    sets = [subset for size in range(1, len(groups) + 1) for subset in combinations(groups, size)]
    for others in combinations_with_replacement(sets, messages - 2):
        yield from ((*pair, *others) for pair in product(sets, repeat=2))


def search_patterns(
    prepared: PreparedRun,
    chosen: Sequence[Pattern],
    budget: Budget,
    max_states: int,
    reduced: bool = True,
    progress: Callable[[int], None] = lambda states: None,
    most_each: int | None = None,
    audits: bool = False,
) -> SearchResult:
    """Explores patterns until one fails, all are explored, or the user interrupts. `max_states` limits all of them
    together; `most_each`, if given, each one: a larger pattern is abandoned for the next. With `audits` the first two
    messages of a pattern are an auditor's, and P9 is judged."""
    result = SearchResult(chosen=len(chosen), goals=dict.fromkeys(prepared.spec.goals, False))
    for pattern in chosen:
        left = max_states - result.states
        if left <= 0:
            more = len(chosen) - result.patterns
            result.limits.append(f"{max_states} states were seen; {more} of {len(chosen)} patterns were not begun")
            break
        scope = _scope(prepared, pattern, budget, min(left, most_each or left), reduced, audits)
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


def _scope(
    prepared: PreparedRun, pattern: Pattern, budget: Budget, max_states: int, reduced: bool, audits: bool
) -> Scope:
    """The scope of one pattern: each message has a client of its own, so that no order of sending is left out; but for
    those of an auditor."""
    topology = prepared.topology
    groups = {process: topology.group_of(process) for process in topology.servers}
    senders = (topology.clients[0], *topology.clients) if audits else topology.clients

    def always(
        history: Mapping[ProcessId, Sequence[MessageId]], destinations: Mapping[MessageId, tuple[GroupId, ...]]
    ) -> str | None:
        if audits:
            return _check_audit(history, destinations, groups, senders[0])
        return check_chains(history, destinations, groups)

    return Scope(
        topology=topology,
        make=prepared.make,
        messages=tuple(zip(senders, pattern, strict=False)),
        always=always,
        claims=prepared.spec.claims,
        links=prepared.network.links,
        budget=budget,
        goals=prepared.spec.goals,
        max_states=max_states,
        reduced=reduced,
        is_answered=_is_answered if audits else None,
        monitoring=prepared.monitoring,
    )


def _is_answered(state: State, message: MessageId) -> bool:
    assert isinstance(state, ClientSessionState), "only clients of nodes get answers"
    return all(pending.id != message for pending, *_ in state.pending)


def _check_audit(
    history: Mapping[ProcessId, Sequence[MessageId]],
    destinations: Mapping[MessageId, tuple[GroupId, ...]],
    groups: Mapping[ProcessId, GroupId | None],
    auditor: ProcessId,
) -> str | None:
    """Checks order, and what the auditor sent one after the other as the order of one more group."""
    sent = sorted(message for message in destinations if sender_of(message) == auditor)
    story = check_chains(
        {**history, auditor: sent},
        {message: (*known, AUDIT) if message in sent else known for message, known in destinations.items()},
        {**groups, auditor: AUDIT},
    )
    if story is None:
        return None
    pattern = rf"process {auditor} delivered (\d+) at position 0, before (\d+) at position 1"
    return re.sub(pattern, rf"client {auditor} had the answer to \1 before it multicast \2", story)


def _shown(pattern: Pattern) -> str:
    return " ".join("{" + ",".join(str(group) for group in groups) + "}" for groups in pattern)
