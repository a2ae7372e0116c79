"""Exhaustive search of small scopes: every pattern of destinations, every interleaving of each.

The order that is checked does not depend on the names of messages, so patterns that differ only in the order of
messages are one.

Real-time order (P9) is judged with an auditor: one client multicasts two messages, the second when the first is
answered. A cycle of P9 has one edge of time (docs/MODEL.md), and that is the order of these two: it is checked as the
order of one more group.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations, combinations_with_replacement, product
from typing import Any, Final, NamedTuple

from amcast.check.incremental import check_chains
from amcast.kernel.ids import GroupId, MessageId, ProcessId, sender_of
from amcast.kernel.message import State
from amcast.lab.runs import PreparedRun, prepare_run
from amcast.parts.client.messages import ClientSessionState
from amcast.simulation.exploration.partition import list_mappings, split_scope
from amcast.simulation.exploration.symmetry import Permutation, list_candidates
from amcast.simulation.inputs.plan import Plan
from amcast.simulation.schedulers.explore import explore
from amcast.simulation.schedulers.scope import Budget, Counterexample, Exploration, Scope, Verdict

Pattern = tuple[tuple[GroupId, ...], ...]
AUDIT: Final = -1
"""The number of the group that stands for an auditor."""


class PartOfSearch(NamedTuple):
    """What one call searches: the part of a pattern, in a process that prepares the run anew."""

    plan: Plan
    pattern: Pattern
    budget: Budget
    part: int
    max_states: int
    reduced: bool
    audits: bool


RunCalls = Callable[[list[Any]], Iterable[Exploration]]
"""Makes calls, each a function with its arguments, perhaps side by side; the answers come in the order of the calls."""


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
    parts: int = 0
    """Parts of patterns that were searched (`simulation/exploration/partition.py`)."""
    mapped_parts: int = 0
    """Parts that a symmetry maps to one that was searched."""
    symmetries: int = 1
    """The most permutations under which states were one."""
    chosen_states: int = 0
    """States where some moves stood for all."""
    expanded_again: int = 0
    """States where it turned out that they did not."""
    steps: int = 0
    """Different steps of single processes."""
    omission: float = 0.0
    """A bound on the probability that any state was left out because another one had the same digest."""
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
    run_calls: RunCalls | None = None,
) -> SearchResult:
    """Explores patterns until one fails, all are explored, or the user interrupts. `max_states` limits all of them
    together; `most_each`, if given, each one: a larger pattern is abandoned for the next. With `audits` the first two
    messages of a pattern are an auditor's, and P9 is judged. With `run_calls` the parts of a pattern are searched by
    other processes, each up to the limit that is left."""
    result = SearchResult(chosen=len(chosen), goals=dict.fromkeys(prepared.spec.goals, False))
    for pattern in chosen:
        left = max_states - result.states
        if left <= 0:
            more = len(chosen) - result.patterns
            result.limits.append(f"{max_states} states were seen; {more} of {len(chosen)} patterns were not begun")
            break
        scope = make_scope(prepared, pattern, budget, min(left, most_each or left), reduced, audits)
        before = result.states

        def report(states: int, before: int = before) -> None:
            progress(before + states)

        try:
            if run_calls is None:
                limit = _search_here(scope, result, report)
            else:
                search = PartOfSearch(prepared.plan, pattern, budget, 0, scope.max_states, reduced, audits)
                limit = _search_there(scope, search, result, run_calls, progress)
        except KeyboardInterrupt:
            result.limits.append(
                f"interrupted; {len(chosen) - result.patterns} of {len(chosen)} patterns were not seen"
            )
            break
        result.patterns += 1
        if result.counterexample is not None:
            result.failed = pattern
            break
        if limit is not None:
            result.limits.append(f"destinations {_shown(pattern)}: {limit}")
        else:
            result.exhausted += 1
    return result


def _search_here(scope: Scope, result: SearchResult, progress: Callable[[int], None]) -> str | None:
    """Searches the parts of a scope one after the other; returns the first limit that was reached."""
    parts = split_scope(scope)
    found: dict[int, Exploration] = {}
    left = scope.max_states
    for number, mappings in enumerate(list_mappings(parts, list_candidates(scope))):
        if _is_mapped(mappings, found):
            result.mapped_parts += 1
            continue
        before = scope.max_states - left
        part = replace(parts[number], max_states=max(left, 1))
        found[number] = explore(part, lambda states, depth: progress(before + states))  # noqa: B023
        left -= found[number].states
        _add(result, found[number])
        if result.counterexample is not None or found[number].limit is not None:
            return _describe_limit(found[number], number + 1, len(parts))
    return None


def _search_there(
    scope: Scope,
    search: PartOfSearch,
    result: SearchResult,
    run_calls: RunCalls,
    progress: Callable[[int], None],
) -> str | None:
    """The same with calls, as many parts at a time as no symmetry can map to each other."""
    parts = split_scope(scope)
    mappings = list_mappings(parts, list_candidates(scope))
    found: dict[int, Exploration] = {}
    limit: str | None = None
    while wave := _choose_wave(mappings, found):
        calls = [(search_part, (search._replace(part=number),)) for number in wave]
        for number, one in zip(wave, run_calls(calls), strict=True):
            found[number] = one
            _add(result, one)
            progress(result.states)
            if one.counterexample is not None:
                return None
            limit = limit or _describe_limit(one, number + 1, len(parts))
    result.mapped_parts += len(parts) - len(found)
    return limit


def _is_mapped(mappings: dict[int, set[Permutation]], found: dict[int, Exploration]) -> bool:
    """Whether a symmetry maps a part that was searched to this one."""
    return any(
        number in found and permutations - set(found[number].refuted) for number, permutations in mappings.items()
    )


def _choose_wave(mappings: list[dict[int, set[Permutation]]], found: dict[int, Exploration]) -> list[int]:
    """The parts that can be searched side by side: none of them, as far as is known, is the image of another one."""
    refuted = {one for exploration in found.values() for one in exploration.refuted}
    wave: list[int] = []
    for number, earlier in enumerate(mappings):
        if number in found or _is_mapped(earlier, found):
            continue
        if not any(other in wave and permutations - refuted for other, permutations in earlier.items()):
            wave.append(number)
    return wave


def _describe_limit(found: Exploration, number: int, parts: int) -> str | None:
    if found.limit is None or parts == 1:
        return found.limit
    return f"part {number} of {parts}: {found.limit}"


def search_part(search: PartOfSearch) -> Exploration:
    """Searches one part in a process of its own."""
    prepared = prepare_run(search.plan)
    scope = make_scope(prepared, search.pattern, search.budget, search.max_states, search.reduced, search.audits)
    return explore(split_scope(scope)[search.part])


def _add(result: SearchResult, found: Exploration) -> None:
    """Adds the result of a part."""
    result.parts += 1
    result.states += found.states
    result.transitions += found.transitions
    result.deepest = max(result.deepest, found.deepest)
    result.endings += len(found.endings)
    result.unspent += found.unspent
    result.symmetries = max(result.symmetries, found.symmetries)
    result.chosen_states += found.chosen
    result.expanded_again += found.again
    result.steps += found.steps
    result.omission = min(1.0, result.omission + found.omission)
    for goal, reached in found.goals.items():
        result.goals[goal] = result.goals[goal] or reached
    result.counterexample = result.counterexample or found.counterexample


def make_scope(
    prepared: PreparedRun,
    pattern: Pattern,
    budget: Budget,
    max_states: int,
    reduced: bool = True,
    audits: bool = False,
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
