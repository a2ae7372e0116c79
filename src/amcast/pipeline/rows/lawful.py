"""Sequences without the rows that integrity does not allow, counted anew: order is judged on these.

A message that was delivered twice or not addressed is P1's matter; left in, it would shift everything after it.
"""

from collections.abc import Iterator

import numpy as np

from amcast.pipeline.kernels.fingerprints import Ints
from amcast.pipeline.kernels.replicas import Deliveries
from amcast.pipeline.rows.sequences import Entries, Extent, Sequences, gathered


class LawfulSequences:
    """Other sequences, minus some positions of some processes."""

    def __init__(self, base: Sequences, dropped: dict[int, list[int]]) -> None:
        self._base = base
        self._dropped: dict[int, Ints] = {p: np.array(sorted(at), np.int64) for p, at in dropped.items()}
        self._extents = base.extents()

    def extents(self) -> dict[int, Extent]:
        return {
            process: Extent(extent.rows - self._gone(process).size, extent.end - self._gone(process).size)
            for process, extent in self._extents.items()
        }

    def rows(self, process: int, low: int, high: int) -> Iterator[Deliveries]:
        gone = self._gone(process)
        for rows in self._base.rows(process, *self._wide(process, low, high)):
            keep = ~np.isin(rows.positions, gone)
            positions, *others = (column[keep] for column in rows)
            yield Deliveries(positions - np.searchsorted(gone, positions), *others)

    def entries(self, process: int, low: int, high: int) -> Iterator[Entries]:
        gone = self._gone(process)
        for rows in self._base.entries(process, *self._wide(process, low, high)):
            fresh = rows.positions - np.searchsorted(gone, rows.positions)
            keep = np.nonzero(~np.isin(rows.positions, gone) & (fresh >= low) & (fresh < high))[0]
            offsets, values = gathered(rows.offsets, rows.values, keep)
            yield Entries(fresh[keep], rows.messages[keep], offsets, values, rows.sent[keep])

    def anew(self, process: int, position: int) -> int:
        """What a position is when the dropped ones below it do not count."""
        return position - int(np.searchsorted(self._gone(process), position))

    def _gone(self, process: int) -> Ints:
        return self._dropped.get(process, np.zeros(0, np.int64))

    def _wide(self, process: int, low: int, high: int) -> tuple[int, int]:
        """Old positions that surely include the new ones low .. high - 1."""
        return low, high + int(self._gone(process).size)
