"""Compares the replicas of a group, position by position.

Every replica of a group must have delivered a prefix of one sequence. The positions are cut into slices, so that a task
holds one slice of the sequence and never a whole one. Replicas may have holes (an installed snapshot, a lost tail of a
trace): a position that several replicas recorded must hold the same message in all of them, and the holes are counted.
The result is exact: no hashing.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from amcast.pipeline.kernels.fingerprints import Int64Array, compile_kernel

SLICE_POSITIONS: Final = 1 << 21
MAX_HOLES: Final = 1024
_NEXT, _ROWS, _CONFLICT, _DISORDER, _EARLY, _UNLIKE = range(6)


class DeliveryRows(NamedTuple):
    """Some rows of one process, in order."""

    positions: Int64Array
    messages: Int64Array
    at: Int64Array
    sent: Int64Array
    """When each message was multicast."""
    groups: Int64Array
    """One word for the set of its destinations."""


@dataclass(frozen=True)
class ReplicaComparison:
    """What the rows of one replica in a slice show. A position is -1 where nothing was found."""

    process: int
    rows: int
    conflict: int
    """The first position at which another replica recorded another message."""
    disorder: int
    """The first position that does not come after the one before it."""
    early: int
    """The first position that was delivered before its message was multicast."""
    unlike: int
    """The first position for which another replica states another time of multicast, or other destinations."""
    holes: tuple[tuple[int, int], ...]
    """Ranges low .. high - 1 of positions that are missing below its last one; the last of MAX_HOLES may
    include rows.
    """

    @property
    def is_clean(self) -> bool:
        """Whether no row needs an exact check."""
        return self.conflict < 0 and self.disorder < 0 and self.early < 0 and self.unlike < 0


@compile_kernel
def _absorb(
    positions: Any,
    messages: Any,
    at: Any,
    sent: Any,
    groups: Any,
    low: Any,
    reference: Any,
    times: Any,
    sets: Any,
    taken: Any,
    state: Any,
    holes: Any,
) -> Any:
    expected = state[0]
    count = 0
    for row in range(positions.size):
        position = positions[row]
        if position < expected:
            if state[3] < 0:
                state[3] = position
            continue
        if position > expected and count < holes.shape[0]:
            holes[count, 0], holes[count, 1] = expected, position
            count += 1
        expected = position + 1
        place = position - low
        if not taken[place]:
            taken[place] = True
            reference[place] = messages[row]
            times[place] = sent[row]
            sets[place] = groups[row]
        else:
            if reference[place] != messages[row] and state[2] < 0:
                state[2] = position
            if (times[place] != sent[row] or sets[place] != groups[row]) and state[5] < 0:
                state[5] = position
        if at[row] < sent[row] and state[4] < 0:
            state[4] = position
    state[0] = expected
    state[1] += positions.size
    return count


class PositionSlice:
    """The positions low .. high - 1 of one group's sequence."""

    def __init__(self, low: int, high: int) -> None:
        assert 0 <= low < high, f"slice {low} .. {high} is empty"
        self.low = low
        self.high = high
        self.reference: Int64Array = np.zeros(high - low, np.int64)
        self.sent: Int64Array = np.zeros(high - low, np.int64)
        self.groups: Int64Array = np.zeros(high - low, np.int64)
        self.taken: NDArray[np.bool_] = np.zeros(high - low, np.bool_)

    def absorb(self, process: int, batches: Iterable[DeliveryRows], end: int) -> ReplicaComparison:
        """Compares one replica's rows, in order, with those of the others so far; its sequence ends before `end`."""
        state = np.array([self.low, 0, -1, -1, -1, -1], np.int64)
        missing: list[tuple[int, int]] = []
        holes = np.zeros((MAX_HOLES, 2), np.int64)
        for rows in batches:
            rows = self._inside(rows)
            count = _absorb(*rows, self.low, self.reference, self.sent, self.groups, self.taken, state, holes)
            missing += [(int(a), int(b)) for a, b in holes[:count]]
        last = min(end, self.high)
        if state[_NEXT] < last:
            missing.append((int(state[_NEXT]), last))
        if len(missing) >= MAX_HOLES:
            # Too many holes to keep: from here on no position counts as recorded without a hole.
            missing[MAX_HOLES - 1 :] = [(missing[MAX_HOLES - 1][0], last)]
        return ReplicaComparison(
            process,
            int(state[_ROWS]),
            int(state[_CONFLICT]),
            int(state[_DISORDER]),
            int(state[_EARLY]),
            int(state[_UNLIKE]),
            tuple(missing),
        )

    def _inside(self, rows: DeliveryRows) -> DeliveryRows:
        at = rows.positions
        if not at.size or (at.min() >= self.low and at.max() < self.high):
            return rows
        inside: NDArray[np.bool_] = (at >= self.low) & (at < self.high)
        return DeliveryRows(*(column[inside] for column in rows))
