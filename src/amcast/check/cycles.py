"""Finds the shortest cycle of messages that precede each other, among those that a merge could not remove.

First the core is computed: what remains after also removing, from the other end, every message that precedes nothing.
One mistake in the middle of a long run blocks everything after it, but its core is only the cycle and what is connected
with it. Then cycles of two are searched, pair by pair of chains; then longer ones, breadth-first from every message of
the core.

Every edge belongs to a chain, and on a chain "precedes" is a matter of thresholds: u precedes v if u's index is below
v's (or, when v is not in the chain, below the chain's certain length). So a cycle that uses a chain twice can be
shortened, and a search visits an entry of a chain at most once.
"""

from bisect import bisect_left
from collections import deque
from dataclasses import dataclass
from itertools import combinations
from typing import Final, NamedTuple

from amcast.check.chains import ChainSet

SEARCH_LIMIT: Final = 20_000_000
"""Chain entries that the search for a cycle longer than two may visit, once it has found one."""


class Edge(NamedTuple):
    """`process` delivered `message` while it had not delivered `next`."""

    message: int
    next: int
    process: int
    position: int
    next_position: int | None


Cycle = list[Edge]


@dataclass
class CoreChain:
    """A chain, restricted to the core."""

    process: int
    messages: list[int]
    positions: list[int]
    certain: int
    undelivered: list[int]
    index: dict[int, int]

    def count_predecessors(self, message: int) -> int:
        """The number of entries that precede a message in this chain."""
        return self.index.get(message, self.certain)

    def make_edge(self, message: int, after: int) -> Edge:
        at, then = self.index[message], self.index.get(after)
        return Edge(message, after, self.process, self.positions[at], None if then is None else self.positions[then])


@dataclass
class Core:
    """The chains of the core, and the chains that each of its messages is addressed to."""

    links: list[CoreChain]
    addressed: dict[int, tuple[int, ...]]
    """message -> indices of links, sorted by message."""


def compute_core(all_chains: ChainSet, blocked: set[int]) -> Core:
    """Removes, from the end, every message that precedes nothing that is left."""
    links = _restrict_chains(all_chains, blocked)
    addressed = {message: all_chains.addressed[message] for message in sorted(blocked)}
    precedes = {message: sum(message in links[i].index for i in where) for message, where in addressed.items()}
    left = [len(link.undelivered) for link in links]
    back = [len(link.messages) - 1 for link in links]
    released = [len(link.messages) for link in links]
    ready: list[int] = []

    def release(i: int) -> None:
        at = back[i]
        if 0 <= at < released[i] and (at >= links[i].certain or left[i] == 0):
            released[i] = at
            message = links[i].messages[at]
            precedes[message] -= 1
            if precedes[message] == 0:
                ready.append(message)

    for i in range(len(links)):
        release(i)
    removed: set[int] = set()
    while ready:
        message = ready.pop()
        removed.add(message)
        for i in addressed[message]:
            if message in links[i].index:
                back[i] -= 1
            else:
                left[i] -= 1
            release(i)
    remaining = blocked - removed
    assert remaining, "a merge that is stuck has a cycle"
    return Core(_restrict_chains(all_chains, remaining), {m: where for m, where in addressed.items() if m in remaining})


def _restrict_chains(all_chains: ChainSet, remaining: set[int]) -> list[CoreChain]:
    links = []
    for chain in all_chains.chains:
        places = [at for at, message in enumerate(chain.messages) if message in remaining]
        messages = [chain.messages[at] for at in places]
        links.append(
            CoreChain(
                chain.process,
                messages,
                [chain.positions[at] for at in places],
                bisect_left(places, chain.certain),
                sorted(message for message in chain.undelivered if message in remaining),
                {message: at for at, message in enumerate(messages)},
            )
        )
    return links


def find_pair_cycle(found: Core) -> Cycle | None:
    """Finds a cycle of two messages: the merge of two chains, restricted to messages addressed to both, gets stuck."""
    for one, other in combinations(range(len(found.links)), 2):
        p, q = found.links[one], found.links[other]
        ours = [message for message in p.messages if other in found.addressed[message]]
        theirs = [message for message in q.messages if one in found.addressed[message]]
        i = j = 0
        # A message may be removed if nothing that is left of the other chain precedes it there.
        while i < len(ours) and j < len(theirs):
            a, b = ours[i], theirs[j]
            if a == b:
                i, j = i + 1, j + 1
            elif q.count_predecessors(a) <= q.index[b]:
                i += 1
            elif p.count_predecessors(b) <= p.index[a]:
                j += 1
            else:
                return [p.make_edge(a, b), q.make_edge(b, a)]
    return None


def find_shortest_cycle(found: Core, work: int = SEARCH_LIMIT) -> tuple[Cycle, bool]:
    """The shortest cycle, and whether the search was exhaustive."""
    best: Cycle | None = None
    for source in found.addressed:
        cycle, visited = _find_cycle_through(found, source, len(best) - 1 if best is not None else None)
        work -= visited
        if cycle is not None:
            best = cycle
        if best is not None and (work < 0 or len(best) <= 2):
            return best, len(best) <= 2
    assert best is not None, "a core has a cycle"
    return best, True


def _find_cycle_through(found: Core, source: int, limit: int | None) -> tuple[Cycle | None, int]:
    """The shortest cycle through one message, of at most `limit` edges; and the number of entries visited."""
    reached_from: dict[int, tuple[int, int]] = {}
    low = [len(link.messages) for link in found.links]
    unvisited = [True] * len(found.links)
    queue = deque([(source, 0)])
    visited = 0
    while queue:
        message, depth = queue.popleft()
        if limit is not None and depth >= limit:
            break
        for i in found.addressed[message]:
            link = found.links[i]
            at = link.index.get(message)
            if at is None:
                continue
            reached = link.messages[at + 1 : low[i]]
            low[i] = min(low[i], at + 1)
            if unvisited[i] and at < link.certain:
                unvisited[i] = False
                reached = reached + link.undelivered
            visited += len(reached) + 1
            for after in reached:
                if after not in reached_from:
                    reached_from[after] = (message, i)
                    if after == source:
                        return _reconstruct_cycle(found, source, reached_from), visited
                    queue.append((after, depth + 1))
    return None, visited


def _reconstruct_cycle(found: Core, source: int, reached_from: dict[int, tuple[int, int]]) -> Cycle:
    cycle: Cycle = []
    after = source
    while True:
        message, i = reached_from[after]
        cycle.append(found.links[i].make_edge(message, after))
        if message == source:
            return cycle[::-1]
        after = message
