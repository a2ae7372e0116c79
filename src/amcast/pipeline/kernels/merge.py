"""Decides whether one order exists that agrees with all groups' sequences: a streaming k-way merge.

Each group is a chain: the messages it delivered, in order. The merge removes, again and again, a message that is at the
head of every chain it is addressed to; a chain that has ended counts as passed, because its group delivers the message
after everything it delivered so far, or never. If every message can be removed, the order of removal is a total order
that every chain follows, so "delivered before" has no cycle. If no message can be removed and chains are left, every
head waits for another head, and following "waits for" must come back: a cycle.

A chain may have a gap: entries are missing, and it is unknown which. Before the gap the chain is exact. After it only
recorded entries are certain: a message that is not among the entries after the gap waits for the entries before it, but
not for those after it, because it may have been delivered in the gap.

On its way the merge carries the latest time of multicast among what precedes each entry, which decides P9
(docs/MODEL.md). On a chain that time never decreases, so one number per chain is enough.

The state is one position per chain plus a buffer that is refilled from sorted files, so memory does not grow with the
trace (except for the ids of the entries after a gap). Destinations are lists of chain numbers, so there may be any
number of groups.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from amcast.pipeline.kernels.fingerprints import Int32Array, Int64Array, compile_kernel

BUFFER_ENTRIES: Final = 1 << 20
"""Rows buffered over all chains together."""


class ChainRows(NamedTuple):
    """Some consecutive entries of a chain: messages, their destinations as one flat list with offsets, and when each
    was multicast, where that matters."""

    messages: Int64Array
    offsets: Int32Array
    values: Int32Array
    """Chain numbers; -1 for a destination that has no chain."""
    sent: Int64Array | None = None


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
    latest: tuple[int, ...] = ()
    """By chain: the latest multicast among what precedes a message that the chain lacks; NEVER if nothing does."""
    passed: tuple[int, ...] = ()
    """By chain: how often a message that is addressed to it was removed after its end."""
    is_settled: bool = False
    """Whether the merge was ended because its watch had settled."""


class LatestWalk(NamedTuple):
    """What the merge carries along about times of multicast. Empty arrays: nothing."""

    sent: NDArray[np.int64]
    """By chain and row of its buffer: when the entry was multicast."""
    latest: Int64Array
    """By chain: the latest multicast among its removed entries and what precedes them."""
    before_gap: Int64Array
    """The same up to the gap of the chain, if it has one."""
    groups: Int64Array
    """The group of each chain."""
    found: NDArray[np.int64]
    """Columns of the messages to report: message, its time of multicast, the latest, number of its groups."""
    state: Int64Array
    """How many are reported in `found`; and the time that the latest multicast of a message must exceed to be reported
    (NEVER: the message's own)."""
    passed: Int64Array
    """By chain: messages addressed to it that were removed after its end."""


NEVER: Final = np.iinfo(np.int64).min
NO_GAP: Final = np.iinfo(np.int64).max
"""The index of the gap of a chain that has none."""


def build_idle_walk(chains: int) -> LatestWalk:
    """A walk that carries nothing."""
    none: Int64Array = np.zeros(0, np.int64)
    empty: NDArray[np.int64] = np.zeros((chains, 0), np.int64)
    return LatestWalk(empty, none, none, none, empty, np.zeros(2, np.int64), np.zeros(chains, np.int64))


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
def _is_ready(
    messages: Any,
    offsets: Any,
    values: Any,
    index: Any,
    done: Any,
    certain: Any,
    late: Any,
    bounds: Any,
    chain: Any,
) -> Any:
    """Whether no chain holds back the head of a chain."""
    row = index[chain]
    message = messages[chain, row]
    for place in range(offsets[chain, row], offsets[chain, row + 1]):
        other = values[chain, place]
        if other < 0 or done[other] or messages[other, index[other]] == message:
            continue
        if index[other] < certain[other] or _contains(late, bounds[other], bounds[other + 1], message):
            return False
    return True


@compile_kernel
def _find_latest(
    walk: Any, messages: Any, offsets: Any, values: Any, index: Any, done: Any, certain: Any, chain: Any
) -> Any:
    """The latest multicast among the head of a chain, which can be removed, and everything that precedes it; the head
    is reported if that is late."""
    row = index[chain]
    message, sent = messages[chain, row], walk.sent[chain, row]
    latest = sent
    low, high = offsets[chain, row], offsets[chain, row + 1]
    groups = 0
    for place in range(low, high):
        other = values[chain, place]
        if other < 0:
            continue
        is_new = True
        for earlier in range(low, place):
            if values[chain, earlier] >= 0 and walk.groups[values[chain, earlier]] == walk.groups[other]:
                is_new = False
        groups += is_new
        if certain[other] == NO_GAP or (not done[other] and messages[other, index[other]] == message):
            latest = max(latest, walk.latest[other])
        else:
            latest = max(latest, walk.before_gap[other])
    bound = sent if walk.state[1] == NEVER else walk.state[1]
    if latest > bound:
        count = walk.state[0]
        walk.found[0, count], walk.found[1, count] = message, sent
        walk.found[2, count], walk.found[3, count] = latest, groups
        walk.state[0] = count + 1
    return latest


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
    walk: Any,
) -> Any:
    """Removes messages until a chain's buffer is empty, its gap is reached, or no message can be removed.

    Returns the number of removed messages. `certain` is the index, in its buffer, of each chain's first entry after a
    gap; `late` has the sorted messages after the gaps, those of a chain between its `bounds`.
    """
    is_timed = walk.latest.size > 0
    latest = 0
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
        if not _is_ready(messages, offsets, values, index, done, certain, late, bounds, chain):
            continue
        removed += 1
        if is_timed:
            latest = _find_latest(walk, messages, offsets, values, index, done, certain, chain)
        must_stop = False
        is_addressed = False
        for place in range(low, high):
            other = values[chain, place]
            if other >= 0 and done[other]:
                walk.passed[other] += 1
            if other < 0 or done[other] or messages[other, index[other]] != message:
                continue
            is_addressed = is_addressed or other == chain
            index[other] += 1
            if is_timed:
                walk.latest[other] = latest
                if index[other] == certain[other]:
                    walk.before_gap[other] = latest
            if index[other] == end[other] or index[other] == certain[other]:
                must_stop = True
            elif not queued[other]:
                queued[other] = True
                stack[top] = other
                top += 1
        if not is_addressed:
            # The chain delivered a message that is not addressed to it: integrity reports that, the merge goes on.
            index[chain] += 1
            if is_timed and index[chain] == certain[chain]:
                walk.before_gap[chain] = walk.latest[chain]
            must_stop = must_stop or index[chain] == end[chain] or index[chain] == certain[chain]
            if not must_stop and not queued[chain]:
                queued[chain] = True
                stack[top] = chain
                top += 1
        if must_stop:
            return removed
    return removed


class _ChainBuffers:
    """The next rows of every chain, in arrays that the compiled loop reads."""

    def __init__(
        self, sources: Sequence[Iterator[ChainRows]], holes: Mapping[int, ChainGap], watch: "LateWatch | None"
    ) -> None:
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
        self.walk = build_idle_walk(count) if watch is None else watch.build_walk(count, self.limit)

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
            sent = rows.sent
            self.rest[chain] = ChainRows(
                rows.messages[limit:], rows.offsets[limit:], rows.values, None if sent is None else sent[limit:]
            )
            rows = ChainRows(
                rows.messages[:limit], rows.offsets[: limit + 1], rows.values, None if sent is None else sent[:limit]
            )
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
        if self.walk.latest.size and rows.sent is not None:
            self.walk.sent[chain, :size] = rows.sent
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


class LateWatch:
    """Reports messages that are preceded by a message that was multicast late: later than themselves, or than a given
    time. `absorb` gets them in columns (message, time of its multicast, the latest, number of its groups), in order of
    their removal; it returns False to end the merge."""

    def __init__(
        self,
        groups: Sequence[int],
        absorb: Callable[[NDArray[np.int64]], bool],
        later_than: int = NEVER,
        begun: Sequence[int] | None = None,
    ) -> None:
        """`begun` has, by chain, the latest multicast among what precedes the first entry. A merge that begins so ends
        when everything that is still to come is preceded by something later than all of these."""
        self.absorb = absorb
        self._groups = groups
        self._later_than = later_than
        self._begun = begun

    def is_settled(self, latest: Int64Array) -> bool:
        """Whether what came before the first entries does not matter any more."""
        return self._begun is not None and bool((latest > max(self._begun)).all())

    def build_walk(self, chains: int, rows: int) -> LatestWalk:
        return LatestWalk(
            np.zeros((chains, rows), np.int64),
            np.full(chains, NEVER, np.int64) if self._begun is None else np.array(self._begun, np.int64),
            np.full(chains, NEVER, np.int64),
            np.array(self._groups, np.int64),
            np.zeros((4, chains * rows), np.int64),
            np.array([0, self._later_than], np.int64),
            np.zeros(chains, np.int64),
        )


def merge(
    sources: Sequence[Iterator[ChainRows]],
    holes: Mapping[int, ChainGap] | None = None,
    watch: LateWatch | None = None,
) -> MergeResult:
    """Merges the chains. Each source yields the rows of one chain in order; `holes` has the gaps of chains that have
    one. With `watch`, rows must state times of multicast.
    """
    if not sources:
        return MergeResult(0, ())
    buffers = _ChainBuffers(sources, holes or {}, watch)
    walk = buffers.walk
    stack = np.zeros(len(sources), np.int64)
    queued = np.zeros(len(sources), np.bool_)
    removed, is_settled = 0, False
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
                walk,
            )
        )
        removed += newly_removed
        if watch is not None and walk.state[0]:
            goes_on = watch.absorb(walk.found[:, : walk.state[0]].copy())
            walk.state[0] = 0
            if not goes_on:
                break
        if watch is not None and watch.is_settled(walk.latest):
            is_settled = True
            break
        if not buffers.refill() and not newly_removed:
            return MergeResult(removed, tuple(buffers.head(int(chain)) for chain in np.nonzero(~buffers.done)[0]))
    latest = np.where(buffers.certain == NO_GAP, walk.latest, walk.before_gap) if watch is not None else walk.latest
    return MergeResult(removed, (), tuple(latest.tolist()), tuple(walk.passed.tolist()), is_settled)


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
