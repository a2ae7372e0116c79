"""The delivery sequences of a run's processes, in memory or in sorted files: what the order kernels read.

    KeptSequences    a small run: one sort, then slices of arrays
    FiledSequences   a large run: row groups that hold one process each, sorted by position, read as needed

Both answer the same three questions: how far does a process go, what did it deliver at some positions, and to whom was
that addressed.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from amcast.pipeline.kernels.fingerprints import Ints, Small
from amcast.pipeline.kernels.replicas import Deliveries
from amcast.pipeline.rows import files
from amcast.pipeline.rows.files import Span


class Entries(NamedTuple):
    """Some consecutive entries of a process: messages, destinations (groups), and when each was multicast."""

    positions: Ints
    messages: Ints
    offsets: Small
    values: Small
    sent: Ints

    def after(self, skip: int) -> "Entries":
        """Without the first few."""
        return Entries(self.positions[skip:], self.messages[skip:], self.offsets[skip:], self.values, self.sent[skip:])

    def addressed_to(self, group: int) -> NDArray[np.bool_]:
        """Which of the entries are addressed to a group."""
        hits = np.concatenate([[0], np.cumsum(self.values == group)])
        found: NDArray[np.bool_] = hits[self.offsets[1:]] > hits[self.offsets[:-1]]
        return found


@dataclass(frozen=True)
class Extent:
    """How far one process goes: rows, and its last position + 1."""

    rows: int
    end: int


class Sequences(Protocol):
    """The sequences of a run's processes."""

    def extents(self) -> dict[int, Extent]: ...

    def rows(self, process: int, low: int, high: int) -> Iterator[Deliveries]:
        """Rows that include the positions low .. high - 1, in order; others may come along."""

    def entries(self, process: int, low: int, high: int) -> Iterator[Entries]:
        """Exactly the entries at positions low .. high - 1 with what they state about their messages."""


def listed(column: pa.Array) -> tuple[Small, Small]:
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


def longs(column: pa.Array) -> Ints:
    """An integer column without nulls as 64-bit numbers."""
    if column.type != pa.int64():
        column = column.cast(pa.int64())
    numbers: Ints = column.to_numpy(zero_copy_only=False)
    return numbers


class KeptSequences:
    """Sequences of a small run, from its deliveries in any order."""

    def __init__(self, processes: Ints, rows: Deliveries, offsets: Small, values: Small) -> None:
        order = np.lexsort((rows.at, rows.positions, processes))
        self._rows = Deliveries(*(column[order] for column in rows))
        self._offsets, self._values = gathered(offsets, values, order)
        names, first = np.unique(processes[order], return_index=True)
        ends = [*first[1:].tolist(), processes.size][: names.size]
        self._bounds = {int(name): (int(a), int(b)) for name, a, b in zip(names, first, ends, strict=True)}

    def extents(self) -> dict[int, Extent]:
        at = self._rows.positions
        return {process: Extent(high - low, int(at[high - 1]) + 1) for process, (low, high) in self._bounds.items()}

    def rows(self, process: int, low: int, high: int) -> Iterator[Deliveries]:
        first, last = self._bounds.get(process, (0, 0))
        yield Deliveries(*(column[first:last] for column in self._rows))

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


def gathered(offsets: Small, values: Small, order: NDArray[np.intp]) -> tuple[Small, Small]:
    """Lists in another order: for each value, where its list began plus its place inside the list."""
    lengths = np.diff(offsets)[order]
    fresh = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    places = np.repeat(offsets[:-1][order], lengths) + np.arange(int(fresh[-1])) - np.repeat(fresh[:-1], lengths)
    return fresh, values[places]


class FiledSequences:
    """Sequences of a large run, from row groups that hold one process each and do not overlap."""

    def __init__(self, spans: list[Span]) -> None:
        self._spans: dict[int, list[Span]] = {}
        for span in sorted(spans, key=lambda span: (span.first, span.low)):
            assert span.first == span.last, f"{span.path}: row group {span.row_group} mixes processes"
            self._spans.setdefault(span.first, []).append(span)

    def extents(self) -> dict[int, Extent]:
        return {
            process: Extent(sum(span.rows for span in spans), max(span.high for span in spans) + 1)
            for process, spans in self._spans.items()
        }

    def rows(self, process: int, low: int, high: int) -> Iterator[Deliveries]:
        for batch in self._batches(process, low, high, ["position", "message", "at_ns", "multicast_ns"], 1 << 18):
            yield Deliveries(*(longs(batch.column(name)) for name in ("position", "message", "at_ns", "multicast_ns")))

    def entries(self, process: int, low: int, high: int) -> Iterator[Entries]:
        columns = ["position", "message", "destinations", "multicast_ns"]
        for batch in self._batches(process, low, high, columns, 1 << 16):
            at = longs(batch.column("position"))
            first, last = int(np.searchsorted(at, low)), int(np.searchsorted(at, high))
            offsets, values = listed(batch.column("destinations"))
            yield Entries(
                at[first:last],
                longs(batch.column("message"))[first:last],
                offsets[first : last + 1],
                values,
                longs(batch.column("multicast_ns"))[first:last],
            )

    def _batches(self, process: int, low: int, high: int, columns: list[str], rows: int) -> Iterator[pa.RecordBatch]:
        for span in self._spans.get(process, []):
            if span.low < high and span.high >= low:
                yield from files.batches(span.path, [span.row_group], columns, rows)


def separate(spans: list[Span]) -> bool:
    """Can these row groups be read as sequences as they are: one process each, none overlapping another of it?"""
    last: dict[int, int] = {}
    for span in sorted(spans, key=lambda span: (span.first, span.low)):
        if span.first != span.last or last.get(span.first, -1) >= span.low:
            return False
        last[span.first] = span.high
    return True
