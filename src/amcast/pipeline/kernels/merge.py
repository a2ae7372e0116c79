"""Decides whether one order exists that agrees with all groups' sequences: a streaming k-way merge.

Each group is a chain: the messages it delivered, in order. The merge removes, again and again, a message that is at the
head of every chain it is addressed to; a chain that has ended counts as passed, because its group delivers the message
after everything it delivered so far, or never. If every message can be removed, the order of removal is a total order
that every chain follows, so "delivered before" has no cycle. If no message can be removed and chains are left, every
head waits for another head, and following "waits for" must come back: a cycle.

A chain may have a gap: entries are missing, and it is unknown which. Before the gap the chain is exact. After it only
recorded entries are certain: a message that is not among the entries after the gap waits for the entries before it, but
not for those after it, because it may have been delivered in the gap.

The state is one position per chain plus a buffer that is refilled from sorted files, so memory does not grow with the
trace (except for the ids of the entries after a gap). Destinations are lists of chain numbers, so there may be any
number of groups.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from amcast.pipeline.kernels.fingerprints import Int32Array, Int64Array, compile_kernel

BUFFER_ENTRIES: Final = 1 << 20
"""Rows buffered over all chains together."""


class ChainRows(NamedTuple):
    """Some consecutive entries of a chain: messages, and their destinations as one flat list with offsets."""

    messages: Int64Array
    offsets: Int32Array
    values: Int32Array
    """Chain numbers; -1 for a destination that has no chain."""


class ChainGap(NamedTuple):
    """The gap of a chain: the number of entries before it, and the messages of the entries after it, sorted."""

    certain: int
    late: Int64Array


@dataclass(frozen=True)
class BlockedHead:
    """An entry at which the merge stopped."""

    chain: int
    index: int
    message: int
    destinations: tuple[int, ...]


@dataclass(frozen=True)
class MergeResult:
    """The number of removed messages, and the heads at which the merge stopped (none: acyclic)."""

    removed: int
    heads: tuple[BlockedHead, ...]


@compile_kernel
def _contains(late: Any, low: Any, high: Any, message: Any) -> Any:
    """Whether the message is between these places of a sorted list."""
    end = high
    while low < high:
        middle = (low + high) // 2
        if late[middle] < message:
            low = middle + 1
        else:
            high = middle
    return low < end and late[low] == message


@compile_kernel
def advance(
    messages: Any,
    offsets: Any,
    values: Any,
    index: Any,
    end: Any,
    done: Any,
    stack: Any,
    queued: Any,
    certain: Any,
    late: Any,
    bounds: Any,
) -> Any:
    """Removes messages until a chain's buffer is empty, its gap is reached, or no message can be removed.

    Returns the number of removed messages. `certain` is the index, in its buffer, of each chain's first entry after a
    gap; `late` has the sorted messages after the gaps, those of a chain between its `bounds`.
    """
    chains = index.size
    removed = 0
    top = 0
    for chain in range(chains):
        queued[chain] = not done[chain]
        if not done[chain]:
            stack[top] = chain
            top += 1
    while top > 0:
        top -= 1
        chain = stack[top]
        queued[chain] = False
        row = index[chain]
        message = messages[chain, row]
        low, high = offsets[chain, row], offsets[chain, row + 1]
        ready = True
        for place in range(low, high):
            other = values[chain, place]
            if other < 0 or done[other] or messages[other, index[other]] == message:
                continue
            if index[other] < certain[other] or _contains(late, bounds[other], bounds[other + 1], message):
                ready = False
                break
        if not ready:
            continue
        removed += 1
        must_stop = False
        is_addressed = False
        for place in range(low, high):
            other = values[chain, place]
            if other < 0 or done[other] or messages[other, index[other]] != message:
                continue
            is_addressed = is_addressed or other == chain
            index[other] += 1
            if index[other] == end[other] or index[other] == certain[other]:
                must_stop = True
            elif not queued[other]:
                queued[other] = True
                stack[top] = other
                top += 1
        if not is_addressed:
            # The chain delivered a message that is not addressed to it: integrity reports that, the merge goes on.
            index[chain] += 1
            must_stop = must_stop or index[chain] == end[chain] or index[chain] == certain[chain]
            if not must_stop and not queued[chain]:
                queued[chain] = True
                stack[top] = chain
                top += 1
        if must_stop:
            return removed
    return removed


NO_GAP: Final = np.iinfo(np.int64).max
"""The index of the gap of a chain that has none."""


class _ChainBuffers:
    """The next rows of every chain, in arrays that the compiled loop reads."""

    def __init__(self, sources: Sequence[Iterator[ChainRows]], holes: Mapping[int, ChainGap]) -> None:
        count = len(sources)
        self.sources = sources
        lists = [holes[chain].late if chain in holes else np.zeros(0, np.int64) for chain in range(count)]
        self.late: Int64Array = np.concatenate(lists)
        self.bounds: Int64Array = np.concatenate([[0], np.cumsum([part.size for part in lists])]).astype(np.int64)
        first = [holes[chain].certain if chain in holes else NO_GAP for chain in range(count)]
        self.certain: Int64Array = np.array(first, np.int64)
        """By index in the buffer: it decreases as the chain advances."""
        self.limit = max(64, min(1 << 16, BUFFER_ENTRIES // max(1, count)))
        self.rest: list[ChainRows | None] = [None] * count
        """Rows that were read from a source and did not fit into its buffer yet."""
        self.messages: NDArray[np.int64] = np.zeros((count, self.limit), np.int64)
        self.offsets: NDArray[np.int32] = np.zeros((count, self.limit + 1), np.int32)
        self.values: NDArray[np.int32] = np.zeros((count, 4 * self.limit), np.int32)
        self.index: NDArray[np.int64] = np.zeros(count, np.int64)
        self.end: NDArray[np.int64] = np.zeros(count, np.int64)
        self.done: NDArray[np.bool_] = np.zeros(count, np.bool_)
        self.passed: NDArray[np.int64] = np.zeros(count, np.int64)
        """Entries of each chain that are no longer in its buffer."""

    def refill(self) -> bool:
        """Gives every empty chain its next rows; False when no chain was empty."""
        was_empty = False
        for chain in np.nonzero((self.index == self.end) & ~self.done)[0]:
            was_empty = True
            rows = self._next(int(chain))
            if rows is None:
                self.done[chain] = True
            else:
                self._fill(int(chain), rows)
        return was_empty

    def _next(self, chain: int) -> ChainRows | None:
        rows = self.rest[chain]
        self.rest[chain] = None
        while rows is None or rows.messages.size == 0:
            rows = next(self.sources[chain], None)
            if rows is None:
                return None
        if rows.messages.size > self.limit:
            limit = self.limit
            self.rest[chain] = ChainRows(rows.messages[limit:], rows.offsets[limit:], rows.values)
            rows = ChainRows(rows.messages[:limit], rows.offsets[: limit + 1], rows.values)
        return rows

    def _fill(self, chain: int, rows: ChainRows) -> None:
        size = rows.messages.size
        low, high = int(rows.offsets[0]), int(rows.offsets[-1])
        if high - low > self.values.shape[1]:
            grown = np.zeros((self.values.shape[0], 2 * (high - low)), np.int32)
            grown[:, : self.values.shape[1]] = self.values
            self.values = grown
        self.passed[chain] += self.end[chain]
        if self.certain[chain] != NO_GAP:
            self.certain[chain] -= self.end[chain]
        self.messages[chain, :size] = rows.messages
        self.offsets[chain, : size + 1] = rows.offsets - low
        self.values[chain, : high - low] = rows.values[low:high]
        self.index[chain] = 0
        self.end[chain] = size

    def head(self, chain: int) -> BlockedHead:
        row = int(self.index[chain])
        low, high = self.offsets[chain, row], self.offsets[chain, row + 1]
        return BlockedHead(
            chain,
            int(self.passed[chain]) + row,
            int(self.messages[chain, row]),
            tuple(int(value) for value in self.values[chain, low:high]),
        )


def merge(sources: Sequence[Iterator[ChainRows]], holes: Mapping[int, ChainGap] | None = None) -> MergeResult:
    """Merges the chains. Each source yields the rows of one chain in order; `holes` has the gaps of chains that have
    one.
    """
    if not sources:
        return MergeResult(0, ())
    buffers = _ChainBuffers(sources, holes or {})
    stack = np.zeros(len(sources), np.int64)
    queued = np.zeros(len(sources), np.bool_)
    removed = 0
    buffers.refill()
    while not buffers.done.all():
        newly_removed = int(
            advance(
                buffers.messages,
                buffers.offsets,
                buffers.values,
                buffers.index,
                buffers.end,
                buffers.done,
                stack,
                queued,
                buffers.certain,
                buffers.late,
                buffers.bounds,
            )
        )
        removed += newly_removed
        if not buffers.refill() and not newly_removed:
            return MergeResult(removed, tuple(buffers.head(int(chain)) for chain in np.nonzero(~buffers.done)[0]))
    return MergeResult(removed, ())


def find_head_cycle(heads: Sequence[BlockedHead]) -> tuple[BlockedHead, ...]:
    """A shortest cycle among the heads at which a merge stopped: each waits for the next, the last for the first."""
    at = {head.chain: head for head in heads}
    waits = {
        head.chain: [
            other for other in sorted(set(head.destinations)) if other in at and at[other].message != head.message
        ]
        for head in heads
    }
    best: tuple[int, ...] = ()
    for start in sorted(waits):
        found = _find_shortest_cycle(waits, start, len(best))
        if found and (not best or len(found) < len(best)):
            best = found
        if len(best) == 2:
            break
    return tuple(at[chain] for chain in best)


def _find_shortest_cycle(waits: dict[int, list[int]], start: int, bound: int) -> tuple[int, ...]:
    """The shortest path from a chain back to itself, breadth-first; empty if it would not be shorter than `bound`."""
    before: dict[int, int] = {}
    front, depth = [start], 0
    while front and (not bound or depth + 1 < bound):
        depth += 1
        reached: list[int] = []
        for chain in front:
            for other in waits[chain]:
                if other == start:
                    path = [chain]
                    while path[-1] != start:
                        path.append(before[path[-1]])
                    return tuple(reversed(path))
                if other not in before:
                    before[other] = chain
                    reached.append(other)
        front = reached
    return ()
