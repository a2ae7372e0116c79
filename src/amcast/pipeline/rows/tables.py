"""The tables of one run as batches of rows, in memory or in files, and the lookup of messages in the multicasts.

MemoryTable   a table of a small run
FileTable     a table of a large run: row groups of Parquet files, read as needed
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from amcast.kernel.errors import UsageError
from amcast.pipeline.kernels.fingerprints import Int32Array, Int64Array, select_in_buckets
from amcast.pipeline.rows import files
from amcast.pipeline.rows.files import TraceFolder
from amcast.pipeline.rows.sequences import reorder_lists, split_lists, to_int64
from amcast.trace.columns import TABLES, Column
from amcast.trace.meta import META_FILE
from amcast.trace.parquet import TYPES, check_schema, to_canonical

BATCH_ROWS: Final = 1 << 17
LOOKUP_MESSAGES: Final = 4_000_000
"""Messages that one task looks up in memory."""
NULL_INT: Final = np.iinfo(np.int64).min
"""Stands for null in columns of 64-bit numbers."""


class Table(Protocol):
    """The rows of one table of one run, in file order."""

    @property
    def rows(self) -> int: ...

    def batches(self, columns: list[str]) -> Iterator[pa.RecordBatch]: ...

    def split(self, rows: int) -> "list[Table]":
        """The same rows as several tables of about this many rows each, in order."""


@dataclass(frozen=True)
class MemoryTable:
    """A table in memory."""

    data: pa.Table

    @property
    def rows(self) -> int:
        return int(self.data.num_rows)

    def batches(self, columns: list[str]) -> Iterator[pa.RecordBatch]:
        present = [name for name in columns if name in self.data.column_names]
        yield from self.data.select(present).combine_chunks().to_batches(BATCH_ROWS)

    def split(self, rows: int) -> list[Table]:
        return [self]


@dataclass(frozen=True)
class FileTable:
    """A table in files: (path, row group, rows) in order."""

    pieces: tuple[tuple[str, int, int], ...]

    @property
    def rows(self) -> int:
        return sum(piece[2] for piece in self.pieces)

    def batches(self, columns: list[str]) -> Iterator[pa.RecordBatch]:
        for path, row_group, _ in self.pieces:
            yield from files.read_batches(path, [row_group], columns, BATCH_ROWS)

    def split(self, rows: int) -> list[Table]:
        parts: list[Table] = []
        begun, count = 0, 0
        for at, piece in enumerate(self.pieces, start=1):
            count += piece[2]
            if count >= rows or at == len(self.pieces):
                parts.append(FileTable(self.pieces[begun:at]))
                begun, count = at, 0
        return parts


class MulticastBatch(NamedTuple):
    """A batch of multicasts."""

    messages: Int64Array
    senders: Int64Array
    offsets: Int32Array
    values: Int32Array
    at: Int64Array
    sessions: Int64Array
    """NULL_INT where a message has none."""
    sequences: Int64Array


def read_multicasts(table: Table) -> Iterator[MulticastBatch]:
    """The rows of the multicasts, in batches."""
    names = ["message", "sender", "destinations", "at_ns", "session", "sequence"]
    for batch in table.batches(names):
        offsets, values = split_lists(batch.column("destinations"))
        sessions, sequences = _read_optional(batch, "session"), _read_optional(batch, "sequence")
        yield MulticastBatch(
            to_int64(batch.column("message")),
            to_int64(batch.column("sender")),
            offsets,
            values,
            to_int64(batch.column("at_ns")),
            np.where(sequences == NULL_INT, NULL_INT, sessions),
            sequences,
        )


def _read_optional(batch: pa.RecordBatch, name: str) -> Int64Array:
    if name not in batch.schema.names:
        return np.full(batch.num_rows, NULL_INT, np.int64)
    column = batch.column(name)
    if pa.types.is_null(column.type):
        return np.full(batch.num_rows, NULL_INT, np.int64)
    return to_int64(column.fill_null(NULL_INT) if column.null_count else column)


@dataclass(frozen=True)
class MessageLookup:
    """The multicasts of some messages, sorted by message."""

    messages: Int64Array
    senders: Int64Array
    offsets: Int32Array
    values: Int32Array
    sent: Int64Array
    """The earliest multicast of each message."""
    sessions: Int64Array
    sequences: Int64Array

    @staticmethod
    def build(tables: list[Table], chosen: NDArray[np.bool_] | None = None) -> "MessageLookup":
        """Builds the lookup from multicasts; only of messages in the chosen buckets, if given."""
        found: list[
            tuple[Int64Array, Int64Array, NDArray[np.int32], NDArray[np.int32], Int64Array, Int64Array, Int64Array]
        ] = []
        for table in tables:
            for rows in read_multicasts(table):
                keep = np.arange(rows.messages.size)
                if chosen is not None:
                    keep = np.nonzero(select_in_buckets(rows.messages, chosen))[0]
                offsets, values = reorder_lists(rows.offsets, rows.values, keep)
                lengths = np.diff(offsets)
                columns = (rows.messages, rows.senders, rows.at, rows.sessions, rows.sequences)
                message, sender, at, session, sequence = (column[keep] for column in columns)
                found.append((message, sender, lengths, values, at, session, sequence))
        if not found:
            empty = np.zeros(0, np.int64)
            none = np.zeros(0, np.int32)
            return MessageLookup(empty, empty, np.zeros(1, np.int32), none, empty, empty, empty)
        message, sender, length, value, at, session, sequence = (
            np.concatenate([part[place] for part in found]) for place in range(7)
        )
        offsets = np.concatenate([[0], np.cumsum(length)]).astype(np.int32)
        order = np.lexsort((at, message))
        first = np.ones(order.size, np.bool_)
        first[1:] = message[order][1:] != message[order][:-1]
        order = order[first]
        offsets, value = reorder_lists(offsets, value, order)
        return MessageLookup(message[order], sender[order], offsets, value, at[order], session[order], sequence[order])

    def find_places(self, messages: Int64Array) -> NDArray[np.intp]:
        """The place of each message; -1 for one that was never multicast."""
        found = np.searchsorted(self.messages, messages)
        inside = found < self.messages.size
        known = np.zeros(messages.size, np.bool_)
        known[inside] = self.messages[found[inside]] == messages[inside]
        return np.where(known, found, -1)

    def describe_places(self, places: NDArray[np.intp]) -> tuple[Int32Array, Int32Array, Int64Array]:
        """(offsets, values, time of multicast) of messages by place; empty and 0 for unknown messages."""
        if not self.messages.size:
            return np.zeros(places.size + 1, np.int32), self.values, np.zeros(places.size, np.int64)
        known = places >= 0
        lengths = np.where(known, np.diff(self.offsets)[places], 0)
        fresh = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        starts = np.where(known, self.offsets[:-1][places], 0)
        inside = np.repeat(starts, lengths) + np.arange(int(fresh[-1])) - np.repeat(fresh[:-1], lengths)
        return fresh, self.values[inside], np.where(known, self.sent[places], 0)


def load_table(source: TraceFolder, table: str) -> pa.Table:
    """A whole table, in memory, with every column that it may have."""
    parts = []
    for path in source.tables.get(table, ()):
        file = files.open_parquet(path)
        known = check_schema(table, Path(path), file.schema_arrow)
        try:
            data = file.read(columns=known, use_threads=False)
        except (pa.ArrowException, OSError) as error:
            line = str(error).splitlines()[0]
            raise UsageError(f"{path}: {line}; expected a whole Parquet file") from None
        data = to_canonical(table, Path(path), data)
        runs = [meta.run for meta in source.metas]
        for name in pc.unique(data.column("run")).to_pylist():
            if name not in runs:
                raise UsageError(f"{path}: rows of run {name!r}; expected only {runs[:5]}, as {META_FILE} says")
        parts.append(data)
    return pa.concat_tables(parts) if parts else arrow_schema(table).empty_table()


def arrow_schema(table: str) -> pa.Schema:
    """The schema of `load_table`: every column that a table may have."""
    return pa.schema([(column.name, TYPES[column.type]) for column in TABLES[table]])


def index_table(source: TraceFolder, table: str, run: str) -> FileTable:
    """The row groups of a table; refuses nulls and rows of other runs as far as footers show them."""
    pieces: list[tuple[str, int, int]] = []
    for path in source.tables[table]:
        meta = files.open_parquet(path).metadata
        places = {meta.schema.column(place).path: place for place in range(meta.num_columns)}
        for number in range(meta.num_row_groups):
            group = meta.row_group(number)
            for column in TABLES[table]:
                if column.name in places and not column.nullable:
                    _refuse_nulls(group.column(places[column.name]).statistics, path, column)
            _refuse_other_runs(group.column(places["run"]).statistics, path, run)
            if group.num_rows:
                pieces.append((path, number, group.num_rows))
    return FileTable(tuple(pieces))


def _refuse_nulls(statistics: Any, path: str, column: Column) -> None:
    if statistics is not None and statistics.has_null_count and statistics.null_count and not column.optional:
        raise UsageError(
            f"{path}: column {column.name} has {statistics.null_count} nulls; expected {column.type}, never null"
        )


def _refuse_other_runs(statistics: Any, path: str, run: str) -> None:
    if statistics is not None and statistics.has_min_max:
        for name in (statistics.min, statistics.max):
            if name != run:
                raise UsageError(f"{path}: rows of run {name!r}; expected only {[run]}, as {META_FILE} says")
