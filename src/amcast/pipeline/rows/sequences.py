"""The delivery sequences of a run's processes, in memory or in sorted files: the input of the order kernels.

    MemorySequences   of a small run: one sort, then slices of arrays
    FileSequences     of a large run: row groups of one process each, sorted by position, read as needed
    ValidSequences    other sequences without the deliveries that integrity does not allow

All answer the same three questions: how long is the sequence of a process, what did it deliver at some positions, and
to which groups was that addressed.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from amcast.pipeline.kernels.fingerprints import Int32Array, Int64Array
from amcast.pipeline.kernels.replicas import DeliveryRows
from amcast.pipeline.rows import files
from amcast.pipeline.rows.files import RowGroup


class Entries(NamedTuple):
    """Some consecutive entries of a process: messages, destinations (groups), and when each was multicast."""

    positions: Int64Array
    messages: Int64Array
    offsets: Int32Array
    values: Int32Array
    sent: Int64Array

    def skip(self, count: int) -> "Entries":
        """The entries without the first `count`."""
        return Entries(
            self.positions[count:], self.messages[count:], self.offsets[count:], self.values, self.sent[count:]
        )

    def addressed_to(self, group: int) -> NDArray[np.bool_]:
        """Which of the entries are addressed to a group."""
        hits = np.concatenate([[0], np.cumsum(self.values == group)])
        found: NDArray[np.bool_] = hits[self.offsets[1:]] > hits[self.offsets[:-1]]
        return found


@dataclass(frozen=True)
class Extent:
    """The length of one process' sequence: its rows, and its last position + 1."""

    rows: int
    end: int


class Sequences(Protocol):
    """The sequences of a run's processes."""

    def extents(self) -> dict[int, Extent]: ...

    def rows(self, process: int, low: int, high: int) -> Iterator[DeliveryRows]:
        """Rows that include the positions low .. high - 1, in order; it may include others."""

    def entries(self, process: int, low: int, high: int) -> Iterator[Entries]:
        """Exactly the entries at positions low .. high - 1, with their destinations and times of multicast."""


def split_lists(column: pa.Array) -> tuple[Int32Array, Int32Array]:
    """A list column as offsets and flat values; a null list is empty."""
    if column.null_count:
        column = column.fill_null(pa.scalar([], column.type))
    values = column.values
    if values.type != pa.int32():
        values = values.cast(pa.int32())
    offsets = column.offsets
    if offsets.type != pa.int32():
        offsets = offsets.cast(pa.int32())
    return offsets.to_numpy(), values.to_numpy(zero_copy_only=False)


def to_int64(column: pa.Array) -> Int64Array:
    """An integer column without nulls as 64-bit numbers."""
    if column.type != pa.int64():
        column = column.cast(pa.int64())
    numbers: Int64Array = column.to_numpy(zero_copy_only=False)
    return numbers


class MemorySequences:
    """Sequences of a small run, from its deliveries in any order."""

    def __init__(self, processes: Int64Array, rows: DeliveryRows, offsets: Int32Array, values: Int32Array) -> None:
        order = np.lexsort((rows.at, rows.positions, processes))
        self._rows = DeliveryRows(*(column[order] for column in rows))
        self._offsets, self._values = reorder_lists(offsets, values, order)
        names, first = np.unique(processes[order], return_index=True)
        ends = [*first[1:].tolist(), processes.size][: names.size]
        self._bounds = {int(name): (int(a), int(b)) for name, a, b in zip(names, first, ends, strict=True)}

    def extents(self) -> dict[int, Extent]:
        at = self._rows.positions
        return {process: Extent(high - low, int(at[high - 1]) + 1) for process, (low, high) in self._bounds.items()}

    def rows(self, process: int, low: int, high: int) -> Iterator[DeliveryRows]:
        first, last = self._bounds.get(process, (0, 0))
        yield DeliveryRows(*(column[first:last] for column in self._rows))

    def entries(self, process: int, low: int, high: int) -> Iterator[Entries]:
        first, last = self._bounds.get(process, (0, 0))
        at = self._rows.positions[first:last]
        first, last = first + int(np.searchsorted(at, low)), first + int(np.searchsorted(at, high))
        rows = self._rows
        yield Entries(
            rows.positions[first:last],
            rows.messages[first:last],
            self._offsets[first : last + 1],
            self._values,
            rows.sent[first:last],
        )


def reorder_lists(offsets: Int32Array, values: Int32Array, order: NDArray[np.intp]) -> tuple[Int32Array, Int32Array]:
    """Lists in another order: a value's new place is where its list begins plus its place inside the list."""
    lengths = np.diff(offsets)[order]
    fresh = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    places = np.repeat(offsets[:-1][order], lengths) + np.arange(int(fresh[-1])) - np.repeat(fresh[:-1], lengths)
    return fresh, values[places]


class FileSequences:
    """Sequences of a large run, from row groups that hold one process each and do not overlap."""

    def __init__(self, spans: list[RowGroup]) -> None:
        self._spans: dict[int, list[RowGroup]] = {}
        for span in sorted(spans, key=lambda span: (span.first, span.low)):
            assert span.first == span.last, f"{span.path}: row group {span.row_group} mixes processes"
            self._spans.setdefault(span.first, []).append(span)

    def extents(self) -> dict[int, Extent]:
        return {
            process: Extent(sum(span.rows for span in spans), max(span.high for span in spans) + 1)
            for process, spans in self._spans.items()
        }

    def rows(self, process: int, low: int, high: int) -> Iterator[DeliveryRows]:
        for batch in self._batches(process, low, high, ["position", "message", "at_ns", "multicast_ns"], 1 << 18):
            yield DeliveryRows(
                *(to_int64(batch.column(name)) for name in ("position", "message", "at_ns", "multicast_ns"))
            )

    def entries(self, process: int, low: int, high: int) -> Iterator[Entries]:
        columns = ["position", "message", "destinations", "multicast_ns"]
        for batch in self._batches(process, low, high, columns, 1 << 16):
            at = to_int64(batch.column("position"))
            first, last = int(np.searchsorted(at, low)), int(np.searchsorted(at, high))
            offsets, values = split_lists(batch.column("destinations"))
            yield Entries(
                at[first:last],
                to_int64(batch.column("message"))[first:last],
                offsets[first : last + 1],
                values,
                to_int64(batch.column("multicast_ns"))[first:last],
            )

    def _batches(self, process: int, low: int, high: int, columns: list[str], rows: int) -> Iterator[pa.RecordBatch]:
        for span in self._spans.get(process, []):
            if span.low < high and span.high >= low:
                yield from files.read_batches(span.path, [span.row_group], columns, rows)


class ValidSequences:
    """Other sequences without some positions of some processes, numbered again: order is checked on these.

    A message that was delivered twice or not addressed violates P1; left in, it would shift everything after it.
    """

    def __init__(self, base: Sequences, dropped: dict[int, list[int]]) -> None:
        self._base = base
        self._dropped: dict[int, Int64Array] = {p: np.array(sorted(at), np.int64) for p, at in dropped.items()}
        self._extents = base.extents()

    def extents(self) -> dict[int, Extent]:
        return {
            process: Extent(
                extent.rows - self._dropped_positions(process).size, extent.end - self._dropped_positions(process).size
            )
            for process, extent in self._extents.items()
        }

    def rows(self, process: int, low: int, high: int) -> Iterator[DeliveryRows]:
        dropped = self._dropped_positions(process)
        for rows in self._base.rows(process, *self._widen(process, low, high)):
            keep = ~np.isin(rows.positions, dropped)
            positions, *others = (column[keep] for column in rows)
            yield DeliveryRows(positions - np.searchsorted(dropped, positions), *others)

    def entries(self, process: int, low: int, high: int) -> Iterator[Entries]:
        dropped = self._dropped_positions(process)
        for rows in self._base.entries(process, *self._widen(process, low, high)):
            fresh = rows.positions - np.searchsorted(dropped, rows.positions)
            keep = np.nonzero(~np.isin(rows.positions, dropped) & (fresh >= low) & (fresh < high))[0]
            offsets, values = reorder_lists(rows.offsets, rows.values, keep)
            yield Entries(fresh[keep], rows.messages[keep], offsets, values, rows.sent[keep])

    def renumber(self, process: int, position: int) -> int:
        """The new number of a position, without the dropped ones below it."""
        return position - int(np.searchsorted(self._dropped_positions(process), position))

    def _dropped_positions(self, process: int) -> Int64Array:
        return self._dropped.get(process, np.zeros(0, np.int64))

    def _widen(self, process: int, low: int, high: int) -> tuple[int, int]:
        """Old positions that surely include the new ones low .. high - 1."""
        return low, high + int(self._dropped_positions(process).size)


def are_separated(spans: list[RowGroup]) -> bool:
    """Whether these row groups are sequences already: one process each, none overlapping another of it."""
    last: dict[int, int] = {}
    for span in sorted(spans, key=lambda span: (span.first, span.low)):
        if span.first != span.last or last.get(span.first, -1) >= span.low:
            return False
        last[span.first] = span.high
    return True
