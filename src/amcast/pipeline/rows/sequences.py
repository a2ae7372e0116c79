"""The delivery sequences of a run's processes, in memory or in sorted files: the input of the order kernels.

    MemorySequences   of a small run: one sort, then slices of arrays
    FileSequences     of a large run: row groups of one process each, sorted by position, read as needed
    ValidSequences    other sequences without the deliveries that integrity does not allow

All answer the same three questions: how long is the sequence of a process, what did it deliver at some positions, and
to which groups was that addressed.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from amcast.pipeline.kernels.fingerprints import Int32Array, Int64Array, hash_lists
from amcast.pipeline.kernels.replicas import DeliveryRows
from amcast.pipeline.rows.files import open_parquet
from amcast.pipeline.rows.footers import RowGroup
from amcast.trace.columns import LIMIT
from amcast.trace.parquet import iterate_canonical

SPARSE: Final = 64
"""A row group with more positions than this for each of its rows is read to see where the rows are."""


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

    def only(self, processes: Iterable[int], low: int = 0, high: int = LIMIT + 1) -> "Sequences":
        """At least the positions low .. high - 1 of some processes: a call carries only what it reads."""

    def slices(self, process: int, width: int) -> set[int]:
        """The slices of this many positions in which a process may have rows."""

    def rows(self, process: int, low: int, high: int) -> Iterator[DeliveryRows]:
        """Rows that include the positions low .. high - 1, in order; it may include others."""

    def messages(self, process: int, low: int, high: int) -> Iterator[Int64Array]:
        """The messages of `rows`."""

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

    def only(self, processes: Iterable[int], low: int = 0, high: int = LIMIT + 1) -> "MemorySequences":
        return self

    def slices(self, process: int, width: int) -> set[int]:
        first, last = self._bounds.get(process, (0, 0))
        return set(np.unique(self._rows.positions[first:last] // width).tolist())

    def extents(self) -> dict[int, Extent]:
        at = self._rows.positions
        return {process: Extent(high - low, int(at[high - 1]) + 1) for process, (low, high) in self._bounds.items()}

    def rows(self, process: int, low: int, high: int) -> Iterator[DeliveryRows]:
        first, last = self._bounds.get(process, (0, 0))
        yield DeliveryRows(*(column[first:last] for column in self._rows))

    def messages(self, process: int, low: int, high: int) -> Iterator[Int64Array]:
        for rows in self.rows(process, low, high):
            yield rows.messages

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

    def __init__(self, row_groups: list[RowGroup]) -> None:
        self._row_groups: dict[int, list[RowGroup]] = {}
        for one in sorted(row_groups, key=lambda one: (one.process, one.position)):
            assert one.process[0] == one.process[1], f"{one.path}: row group {one.row_group} mixes processes"
            self._row_groups.setdefault(one.process[0], []).append(one)

    def only(self, processes: Iterable[int], low: int = 0, high: int = LIMIT + 1) -> "FileSequences":
        return self.restrict(dict.fromkeys(processes, (low, high)))

    def restrict(self, ranges: Mapping[int, tuple[int, int]]) -> "FileSequences":
        """At least the positions low .. high - 1 of each process."""
        return FileSequences(
            [
                one
                for process, (low, high) in ranges.items()
                for one in self._row_groups.get(process, [])
                if one.position[0] < high and one.position[1] >= low
            ]
        )

    def find_time(self, process: int, position: int) -> int | None:
        """About when a process delivered at a position, by footers; None if they do not say it."""
        for one in self._row_groups.get(process, []):
            if one.position[1] >= position and "at_ns" in one.ranges:
                (low, high), (begin, end) = one.position, one.ranges["at_ns"]
                return begin + (end - begin) * max(0, position - low) // max(1, high - low)
        return None

    def find_around(self, processes: Iterable[int], at_ns: int) -> "FileSequences":
        """The row groups of each process around a time, by footers: the one that reaches it and its neighbours."""
        found = []
        for process in processes:
            own = self._row_groups.get(process, [])
            reaching = (at for at, one in enumerate(own) if one.ranges.get("at_ns", (0, at_ns))[1] >= at_ns)
            place = next(reaching, len(own))
            found += own[max(0, place - 1) : place + 2]
        return FileSequences(found)

    def moments(self, process: int) -> tuple[Int64Array, Int64Array, Int64Array]:
        """The positions, messages and times of all rows of a process."""
        columns: list[list[Int64Array]] = [[np.zeros(0, np.int64)] for _ in range(3)]
        for one in self._row_groups.get(process, []):
            for batch in self._read(one, ["position", "message", "at_ns"], 1 << 18):
                for column, name in zip(columns, ("position", "message", "at_ns"), strict=True):
                    column.append(to_int64(batch.column(name)))
        position, message, at = (np.concatenate(column) for column in columns)
        return position, message, at

    def extents(self) -> dict[int, Extent]:
        return {
            process: Extent(sum(one.rows for one in own), max(one.position[1] for one in own) + 1)
            for process, own in self._row_groups.items()
        }

    def slices(self, process: int, width: int) -> set[int]:
        found: set[int] = set()
        for one in self._row_groups.get(process, []):
            low, high = one.position
            if high - low < SPARSE * one.rows + width:
                found.update(range(low // width, high // width + 1))
            else:
                # So many positions for so few rows: only the rows say which slices they are in.
                for batch in self._read(one, ["position"], 1 << 18):
                    found.update(np.unique(to_int64(batch.column("position")) // width).tolist())
        return found

    def rows(self, process: int, low: int, high: int) -> Iterator[DeliveryRows]:
        columns = ["position", "message", "at_ns", "multicast_ns", "destinations"]
        for batch in self._batches(process, low, high, columns, 1 << 18):
            position, message, at, sent = (to_int64(batch.column(name)) for name in columns[:4])
            yield DeliveryRows(position, message, at, sent, hash_lists(*split_lists(batch.column("destinations"))))

    def messages(self, process: int, low: int, high: int) -> Iterator[Int64Array]:
        for batch in self._batches(process, low, high, ["message"], 1 << 18):
            yield to_int64(batch.column("message"))

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
        for one in self._row_groups.get(process, []):
            if one.position[0] < high and one.position[1] >= low:
                yield from self._read(one, columns, rows)

    @staticmethod
    def _read(one: RowGroup, columns: list[str], rows: int) -> Iterator[pa.RecordBatch]:
        file = open_parquet(one.path)
        for data in iterate_canonical("deliveries", one.path, file, columns, one.row_group, rows):
            yield from data.to_batches()


class ValidSequences:
    """Other sequences without some positions of some processes, numbered again: order is checked on these.

    A message that was delivered twice or not addressed violates P1; left in, it would shift everything after it.
    """

    def __init__(self, base: Sequences, dropped: dict[int, list[int]]) -> None:
        self._base = base
        self._dropped: dict[int, Int64Array] = {p: np.array(sorted(at), np.int64) for p, at in dropped.items()}
        self._extents = base.extents()

    def only(self, processes: Iterable[int], low: int = 0, high: int = LIMIT + 1) -> "ValidSequences":
        chosen = set(processes)
        dropped = {process: at.tolist() for process, at in self._dropped.items() if process in chosen}
        most = max((len(at) for at in dropped.values()), default=0)
        return ValidSequences(self._base.only(chosen, low, high + most), dropped)

    def slices(self, process: int, width: int) -> set[int]:
        # Positions only become lower, by at most as many as are dropped.
        back = -(-int(self._dropped_positions(process).size) // width)
        old = self._base.slices(process, width)
        return {at for slice in old for at in range(max(0, slice - back), slice + 1)}

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

    def messages(self, process: int, low: int, high: int) -> Iterator[Int64Array]:
        for rows in self.rows(process, low, high):
            yield rows.messages

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


def are_separated(row_groups: list[RowGroup]) -> bool:
    """Whether these row groups are sequences already: one process each, none overlapping another of it."""
    last: dict[int, int] = {}
    for one in sorted(row_groups, key=lambda one: (one.process, one.position)):
        process = one.process[0]
        if process != one.process[1] or last.get(process, -1) >= one.position[0]:
            return False
        last[process] = one.position[1]
    return True
