"""P9 real-time order: a message that was complete before another was multicast never comes after it, in any way.

m precedes m' in time if m was complete before m' was multicast. Complete is answered to its sender, where the run has
answers, else delivered by a process of every destination group. Together with |-> this must have no cycle.

If |-> itself has none, a cycle has one edge of time (docs/MODEL.md): m was complete, then m2 was multicast, and m2
precedes m by |->, directly or over other messages. So one walk along the order of the merge decides: it carries, for
each message, the latest multicast among the message and all that precede it, and compares it with the completion. On a
chain that time only grows, so the search for the shortest cycle looks at a short stretch of each chain.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain as concatenate
from typing import Final, NamedTuple

from amcast.check.chains import ChainSet, DeliveryChain
from amcast.check.cycles import Edge
from amcast.check.evidence import Evidence

SEARCH_LIMIT: Final = 20_000_000
"""Chain entries that the search for a shortest cycle may visit, once it has found one."""


class TimeEdge(NamedTuple):
    """`message` was complete before `next` was multicast."""

    message: int
    next: int
    completed_ns: int
    multicast_ns: int


@dataclass(frozen=True)
class TimedCycle:
    """A message, another that was multicast after it was complete, and the path of |-> from there back."""

    time: TimeEdge
    path: tuple[Edge, ...]
    exhaustive: bool
    """Whether no shorter cycle exists."""


def find_completions(evidence: Evidence) -> dict[int, int]:
    """When each complete message was complete; never before it was multicast."""
    answers = evidence.run.answers
    found: dict[int, int] = {}
    if answers is not None:
        for message, at_ns in zip(answers["message"], answers["at_ns"], strict=True):
            if message in evidence.multicast_ns:
                found[message] = min(at_ns, found.get(message, at_ns))
    else:
        found = _find_delivered(evidence)
    return {message: max(at_ns, evidence.multicast_ns[message]) for message, at_ns in found.items()}


def _find_delivered(evidence: Evidence) -> dict[int, int]:
    """When the last destination group of each message had a process that had delivered it."""
    first: dict[int, dict[int, int]] = {}
    for process, sequence in evidence.sequences.items():
        group = evidence.group_of.get(process)
        if group is None:
            continue
        own = first.setdefault(group, {})
        for _, message, at_ns in sequence.entries:
            # A snapshot has no time: what it stands for is complete by the deliveries of others.
            if at_ns is not None and at_ns < own.get(message, at_ns + 1):
                own[message] = at_ns
    found: dict[int, int] = {}
    for message, groups in evidence.destinations.items():
        times = [first[group][message] for group in groups if group in first and message in first[group]]
        if len(times) == len(groups):
            found[message] = max(times)
    return found


def list_clock_hosts(evidence: Evidence) -> list[str]:
    """The hosts whose clocks the judgement compares: of senders and, if nobody records answers, of members. Empty if
    no process states its host: all read one clock.
    """
    table = evidence.run.processes
    host_of = dict(zip(table["process"], table["host"], strict=True))
    if not any(host_of.values()):
        return []
    compared = set(evidence.sender.values())
    if evidence.run.answers is None:
        compared.update(concatenate.from_iterable(evidence.members.values()))
    return sorted({host_of.get(process) or "an unknown host" for process in compared})


def has_unknown_clocks(evidence: Evidence) -> bool:
    """Whether times were read on several hosts, and nothing says how far their clocks differ."""
    return evidence.run.meta.clock_bound_ns is None and len(list_clock_hosts(evidence)) > 1


class RealTimeCheck:
    """The walk along the order of a merge that removed every message."""

    def __init__(self, evidence: Evidence, chains: ChainSet, order: Sequence[int], completed: dict[int, int]) -> None:
        self._multicast_ns = evidence.multicast_ns
        self._clock_bound_ns = evidence.run.meta.clock_bound_ns or 0
        self._chains = chains
        self._completed = completed
        self._index: list[dict[int, int] | None] = [None] * len(chains.chains)
        self._latest: list[list[int]] = [[] for _ in chains.chains]
        """By entry of each chain: the latest multicast among it and all that precede it."""
        self._late = self._walk(order)
        """Messages that were complete before the multicast of a message that precedes them, by completion."""

    def find_shortest_cycle(self, work: int = SEARCH_LIMIT) -> TimedCycle | None:
        """The shortest cycle, as far as the work allows; None if there is none."""
        best: list[Edge] | None = None
        for message in self._late:
            path, visited = self._find_path(message, len(best) - 1 if best is not None else None)
            work -= visited
            best = path if path is not None else best
            assert best is not None, "a late message has a path to it"
            if len(best) == 1 or work < 0:
                return self._make_cycle(best, len(best) == 1 or message == self._late[-1])
        return None if best is None else self._make_cycle(best, True)

    def _walk(self, order: Sequence[int]) -> list[int]:
        chains, addressed, latest_of = self._chains.chains, self._chains.addressed, self._latest
        late: list[int] = []
        for message in order:
            latest = self._multicast_ns[message]
            inside = []
            for place in addressed[message]:
                chain, entries = chains[place], latest_of[place]
                at = len(entries)
                if at < len(chain.messages) and chain.messages[at] == message:
                    inside.append(entries)
                else:
                    at = chain.certain  # the chain lacks it: only what comes before the gap is known to precede it
                if at and entries[at - 1] > latest:
                    latest = entries[at - 1]
            for entries in inside:
                entries.append(latest)
            if message in self._completed and self._threshold(message) < latest:
                late.append(message)
        return sorted(late, key=lambda message: (self._completed[message], message))

    def _threshold(self, message: int) -> int:
        """The time after which multicasts are known to follow the completion of a message."""
        return self._completed[message] + self._clock_bound_ns

    def _count_predecessors(self, place: int, message: int) -> int:
        index = self._index[place]
        if index is None:
            messages = self._chains.chains[place].messages
            index = self._index[place] = {message: at for at, message in enumerate(messages)}
        return index.get(message, self._chains.chains[place].certain)

    def _find_path(self, last: int, limit: int | None) -> tuple[list[Edge] | None, int]:
        """The shortest path of |->, of at most `limit` edges, to a message from one that was multicast after its
        completion; and the number of entries visited. Breadth-first from the end.
        """
        threshold = self._threshold(last)
        chains = self._chains.chains
        low = [bisect_right(latest, threshold) for latest in self._latest]
        """By chain: the entries before it are visited, or preceded by nothing that was multicast after the time."""
        leads_to: dict[int, tuple[int, int]] = {}
        front, visited, depth = [last], 0, 0
        while front and (limit is None or depth < limit):
            depth += 1
            reached: list[int] = []
            for message in front:
                for place in self._chains.addressed[message]:
                    end = self._count_predecessors(place, message)
                    before = chains[place].messages[low[place] : end]
                    low[place] = max(low[place], end)
                    visited += len(before) + 1
                    for earlier in before:
                        if earlier in leads_to or earlier == last:
                            continue
                        leads_to[earlier] = (message, place)
                        if self._multicast_ns[earlier] > threshold:
                            return self._make_path(earlier, last, leads_to), visited
                        reached.append(earlier)
            front = reached
        return None, visited

    def _make_path(self, message: int, last: int, leads_to: dict[int, tuple[int, int]]) -> list[Edge]:
        path: list[Edge] = []
        while message != last:
            after, place = leads_to[message]
            path.append(_make_edge(self._chains.chains[place], message, after))
            message = after
        return path

    def _make_cycle(self, path: list[Edge], exhaustive: bool) -> TimedCycle:
        first, last = path[0].message, path[-1].next
        return TimedCycle(
            TimeEdge(last, first, self._completed[last], self._multicast_ns[first]), tuple(path), exhaustive
        )


def _make_edge(chain: DeliveryChain, message: int, after: int) -> Edge:
    at = chain.messages.index(message)
    then = chain.positions[chain.messages.index(after)] if after in chain.messages else None
    return Edge(message, after, chain.process, chain.positions[at], then)
