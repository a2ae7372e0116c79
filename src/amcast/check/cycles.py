"""The shortest circle of messages that precede each other, among those that a merge could not take away.

First the core: what is left after also taking away, from the other end, every message that precedes nothing. One
mistake in the middle of a long run blocks everything after it, but its core is only the circle and what ties in with
it. Then circles of two, pair by pair of chains; then longer ones, breadth-first from every message of the core.

Every edge belongs to a chain, and on a chain "precedes" is a matter of thresholds: u precedes v if u's index is below
v's (or, when v is not in the chain, below the chain's certain length). So a circle that uses a chain twice can be cut
short, and a search need never look at an entry of a chain twice.
"""

from bisect import bisect_left
from collections import deque
from dataclasses import dataclass
from itertools import combinations
from typing import Final, NamedTuple

from amcast.check.chains import ChainSet

SEARCH_LIMIT: Final = 20_000_000
"""Entries of chains that the search for a circle longer than two may look at, once it has found one."""


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
    never: list[int]
    index: dict[int, int]

    def need(self, message: int) -> int:
        """How many entries precede a message here."""
        return self.index.get(message, self.certain)

    def edge(self, message: int, after: int) -> Edge:
        at, then = self.index[message], self.index.get(after)
        return Edge(message, after, self.process, self.positions[at], None if then is None else self.positions[then])


@dataclass
class Core:
    links: list[CoreChain]
    addressed: dict[int, tuple[int, ...]]
    """message -> indices of links, sorted by message."""


def compute_core(all_chains: ChainSet, blocked: set[int]) -> Core:
    """Take away, from the end, what precedes nothing that is left."""
    links = _restrict_chains(all_chains, blocked)
    addressed = {message: all_chains.addressed[message] for message in sorted(blocked)}
    precedes = {message: sum(message in links[i].index for i in where) for message, where in addressed.items()}
    left = [len(link.never) for link in links]
    back = [len(link.messages) - 1 for link in links]
    freed = [len(link.messages) for link in links]
    ready: list[int] = []

    def settle(i: int) -> None:
        at = back[i]
        if 0 <= at < freed[i] and (at >= links[i].certain or left[i] == 0):
            freed[i] = at
            message = links[i].messages[at]
            precedes[message] -= 1
            if precedes[message] == 0:
                ready.append(message)

    for i in range(len(links)):
        settle(i)
    gone: set[int] = set()
    while ready:
        message = ready.pop()
        gone.add(message)
        for i in addressed[message]:
            if message in links[i].index:
                back[i] -= 1
            else:
                left[i] -= 1
            settle(i)
    kept = blocked - gone
    assert kept, "a merge that is stuck has a cycle"
    return Core(_restrict_chains(all_chains, kept), {m: where for m, where in addressed.items() if m in kept})


def _restrict_chains(all_chains: ChainSet, kept: set[int]) -> list[CoreChain]:
    links = []
    for chain in all_chains.chains:
        places = [at for at, message in enumerate(chain.messages) if message in kept]
        messages = [chain.messages[at] for at in places]
        links.append(
            CoreChain(
                chain.process,
                messages,
                [chain.positions[at] for at in places],
                bisect_left(places, chain.certain),
                sorted(message for message in chain.never if message in kept),
                {message: at for at, message in enumerate(messages)},
            )
        )
    return links


def find_pair_cycle(found: Core) -> Cycle | None:
    """A circle of two messages: the merge of two chains alone, restricted to what is addressed to both, gets stuck."""
    for one, other in combinations(range(len(found.links)), 2):
        p, q = found.links[one], found.links[other]
        ours = [message for message in p.messages if other in found.addressed[message]]
        theirs = [message for message in q.messages if one in found.addressed[message]]
        i = j = 0
        # A message may be taken if nothing that is left of the other chain precedes it there.
        while i < len(ours) and j < len(theirs):
            a, b = ours[i], theirs[j]
            if a == b:
                i, j = i + 1, j + 1
            elif q.need(a) <= q.index[b]:
                i += 1
            elif p.need(b) <= p.index[a]:
                j += 1
            else:
                return [p.edge(a, b), q.edge(b, a)]
    return None


def find_shortest_cycle(found: Core, work: int = SEARCH_LIMIT) -> tuple[Cycle, bool]:
    """The shortest circle, and whether the search was exhaustive."""
    best: Cycle | None = None
    for source in found.addressed:
        cycle, looked = _find_cycle_through(found, source, len(best) - 1 if best is not None else None)
        work -= looked
        if cycle is not None:
            best = cycle
        if best is not None and (work < 0 or len(best) <= 2):
            return best, len(best) <= 2
    assert best is not None, "a core has a cycle"
    return best, True


def _find_cycle_through(found: Core, source: int, limit: int | None) -> tuple[Cycle | None, int]:
    """The shortest circle through one message, of at most `limit` edges; and how many entries were looked at."""
    came: dict[int, tuple[int, int]] = {}
    low = [len(link.messages) for link in found.links]
    fresh = [True] * len(found.links)
    queue = deque([(source, 0)])
    looked = 0
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
            if fresh[i] and at < link.certain:
                fresh[i] = False
                reached = reached + link.never
            looked += len(reached) + 1
            for after in reached:
                if after not in came:
                    came[after] = (message, i)
                    if after == source:
                        return _reconstruct_cycle(found, source, came), looked
                    queue.append((after, depth + 1))
    return None, looked


def _reconstruct_cycle(found: Core, source: int, came: dict[int, tuple[int, int]]) -> Cycle:
    cycle: Cycle = []
    after = source
    while True:
        message, i = came[after]
        cycle.append(found.links[i].edge(message, after))
        if message == source:
            return cycle[::-1]
        after = message
