"""The tables of one run as batches of rows, in memory or in files, and the lookup of messages in the multicasts.

MemoryTable   a table of a small run
FileTable     a table of a large run: row groups of Parquet files, read as needed
TableParts    several of these
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from amcast.check.evidence import contradiction_error
from amcast.pipeline.kernels.fingerprints import Int32Array, Int64Array, hash_lists, select_in_buckets
from amcast.pipeline.kernels.message_index import MessageIndex
from amcast.pipeline.rows import files
from amcast.pipeline.rows.files import TraceFolder
from amcast.pipeline.rows.footers import TIMES, Footers, Range, refuse_other_runs
from amcast.pipeline.rows.sequences import reorder_lists, split_lists, to_int64
from amcast.trace.columns import TABLES
from amcast.trace.parquet import TYPES, check_schema, iterate_canonical, to_canonical, unreadable_file_error

BATCH_ROWS: Final = 1 << 17
LOOKUP_MESSAGES: Final = 10_000_000
"""Messages that one task looks up in memory."""


class Table(Protocol):
    """The rows of one table of one run, in file order."""

    @property
    def rows(self) -> int: ...

    def batches(self, columns: list[str]) -> Iterator[pa.RecordBatch]: ...

    def split(self, rows: int) -> "list[Table]":
        """The same rows as several tables of about equally many rows each, about this many at most, in order."""

    @property
    def span(self) -> Range | None:
        """The first and the last time of its rows, if that is known without reading them."""

    def restrict(self, low: int, high: int) -> "Table":
        """At least the rows of some time."""


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

    @property
    def span(self) -> Range | None:
        return None

    def restrict(self, low: int, high: int) -> Table:
        return self


@dataclass(frozen=True)
class FileTable:
    """A table in files: (path, row group, rows) in order."""

    pieces: tuple[tuple[str, int, int], ...]
    table: str | None = None
    """The name of the table; None for one that is no table of a trace."""
    spans: tuple[Range | None, ...] = ()
    """The first and the last time of each piece, where the footers say it; empty if they were not asked."""

    @property
    def rows(self) -> int:
        return sum(piece[2] for piece in self.pieces)

    @property
    def span(self) -> Range | None:
        known = [span for span in self.spans if span is not None]
        if not known or len(known) < len(self.pieces):
            return None
        return min(low for low, _ in known), max(high for _, high in known)

    def restrict(self, low: int, high: int) -> "Table":
        chosen = [at for at, span in enumerate(self.spans) if span is None or (span[0] <= high and span[1] >= low)]
        return self._choose(chosen) if self.spans else self

    def batches(self, columns: list[str]) -> Iterator[pa.RecordBatch]:
        for path, row_group, _ in self.pieces:
            file = files.open_parquet(path)
            if self.table is None:
                yield from file.iter_batches(BATCH_ROWS, row_groups=[row_group], columns=columns, use_threads=False)
                continue
            for data in iterate_canonical(self.table, path, file, columns, row_group, BATCH_ROWS):
                yield from data.to_batches()

    def split(self, rows: int) -> list[Table]:
        parts: list[Table] = []
        begun, count, rows = 0, 0, -(-self.rows // max(1, -(-self.rows // rows)))
        for at, piece in enumerate(self.pieces, start=1):
            count += piece[2]
            if count >= rows or at == len(self.pieces):
                parts.append(self._choose(range(begun, at)))
                begun, count = at, 0
        return parts

    def _choose(self, places: Sequence[int]) -> "FileTable":
        spans = tuple(self.spans[at] for at in places) if self.spans else ()
        return FileTable(tuple(self.pieces[at] for at in places), self.table, spans)


@dataclass(frozen=True)
class TableParts:
    """Tables one after the other, which are never split together: each may have a row about the same message."""

    parts: tuple[Table, ...]

    @property
    def rows(self) -> int:
        return sum(part.rows for part in self.parts)

    def batches(self, columns: list[str]) -> Iterator[pa.RecordBatch]:
        for part in self.parts:
            yield from part.batches(columns)

    def split(self, rows: int) -> list[Table]:
        return [piece for part in self.parts if part.rows for piece in part.split(rows)]

    @property
    def span(self) -> Range | None:
        return None

    def restrict(self, low: int, high: int) -> Table:
        return self


class MulticastBatch(NamedTuple):
    """A batch of multicasts."""

    messages: Int64Array
    senders: Int64Array
    offsets: Int32Array
    values: Int32Array
    at: Int64Array
    in_session: NDArray[np.bool_]
    """Whether a message has a session and a number in it."""
    sessions: Int64Array
    """0 where a message has none."""
    sequences: Int64Array


def read_multicasts(table: Table) -> Iterator[MulticastBatch]:
    """The rows of the multicasts, in batches."""
    names = ["message", "sender", "destinations", "at_ns", "session", "sequence"]
    for batch in table.batches(names):
        offsets, values = split_lists(batch.column("destinations"))
        session, sequence = batch.column("session"), batch.column("sequence")
        yield MulticastBatch(
            to_int64(batch.column("message")),
            to_int64(batch.column("sender")),
            offsets,
            values,
            to_int64(batch.column("at_ns")),
            pc.and_(session.is_valid(), sequence.is_valid()).to_numpy(zero_copy_only=False),
            to_int64(session.fill_null(0)),
            to_int64(sequence.fill_null(0)),
        )


@dataclass(frozen=True)
class MessageLookup:
    """The multicasts of some messages, each once."""

    messages: Int64Array
    senders: Int64Array
    offsets: Int32Array
    values: Int32Array
    sent: Int64Array
    """The earliest multicast of each message."""

    @staticmethod
    def build(tables: list[Table], chosen: NDArray[np.bool_] | None = None) -> "MessageLookup":
        """Builds the lookup from multicasts; only of messages in the chosen buckets, if given."""
        found: list[tuple[Int64Array, Int64Array, NDArray[np.int32], NDArray[np.int32], Int64Array]] = []
        for table in tables:
            for rows in read_multicasts(table):
                message, sender, at = rows.messages, rows.senders, rows.at
                offsets, values = rows.offsets, rows.values[rows.offsets[0] : rows.offsets[-1]]
                if chosen is not None and not chosen.all():
                    keep = np.nonzero(select_in_buckets(rows.messages, chosen))[0]
                    offsets, values = reorder_lists(rows.offsets, rows.values, keep)
                    message, sender, at = (column[keep] for column in (message, sender, at))
                lengths = np.diff(offsets)
                found.append((message, sender, lengths, values, at))
        if not found:
            empty = np.zeros(0, np.int64)
            none = np.zeros(0, np.int32)
            return MessageLookup(empty, empty, np.zeros(1, np.int32), none, empty)
        message, sender, length, value, at = (np.concatenate([part[place] for part in found]) for place in range(5))
        offsets = np.concatenate([[0], np.cumsum(length)]).astype(np.int32)
        every = MessageLookup(message, sender, offsets, value, at)
        if every._index.is_unique:
            return every
        order = np.lexsort((at, message))
        first = np.ones(order.size, np.bool_)
        first[1:] = message[order][1:] != message[order][:-1]
        order = order[first]
        offsets, value = reorder_lists(offsets, value, order)
        return MessageLookup(message[order], sender[order], offsets, value, at[order])

    def find_places(self, messages: Int64Array) -> Int32Array:
        """The place of each message; -1 for one that was never multicast."""
        return self._index.find(messages)

    @cached_property
    def _index(self) -> MessageIndex:
        return MessageIndex(self.messages)

    @cached_property
    def words(self) -> Int64Array:
        """One word for the set of destinations of each message."""
        return hash_lists(self.offsets, self.values)

    def describe_places(self, places: Int32Array) -> tuple[Int32Array, Int32Array, Int64Array]:
        """(offsets, values, time of multicast) of messages by place; empty and 0 for unknown messages."""
        if not self.messages.size:
            return np.zeros(places.size + 1, np.int32), self.values, np.zeros(places.size, np.int64)
        known = places >= 0
        lengths = np.where(known, self.offsets[1:][places] - self.offsets[:-1][places], 0)
        fresh = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        starts = np.where(known, self.offsets[:-1][places], 0)
        inside = np.repeat(starts, lengths) + np.arange(int(fresh[-1])) - np.repeat(fresh[:-1], lengths)
        return fresh, self.values[inside], np.where(known, self.sent[places], 0)


def load_table(source: TraceFolder, table: str) -> pa.Table:
    """A whole table, in memory, with every column that it may have."""
    parts = []
    for path in source.tables.get(table, ()):
        file = files.open_parquet(path)
        known = check_schema(table, path, file.schema_arrow)
        try:
            data = file.read(columns=known, use_threads=False)
        except (pa.ArrowException, OSError) as error:
            raise unreadable_file_error(path, error) from None
        data = to_canonical(table, path, data)
        refuse_other_runs(data.column("run"), path, [meta.run for meta in source.metas])
        parts.append(data)
    return pa.concat_tables(parts) if parts else arrow_schema(table).empty_table()


def arrow_schema(table: str) -> pa.Schema:
    """The schema of `load_table`: every column that a table may have."""
    return pa.schema([(column.name, TYPES[column.type]) for column in TABLES[table]])


def index_table(footers: Footers, table: str) -> FileTable:
    """The rows of a table in files."""
    row_groups = footers.get(table, ())
    spans = tuple(one.ranges.get(TIMES[table]) if table in TIMES else None for one in row_groups)
    return FileTable(tuple((one.path, one.row_group, one.rows) for one in row_groups), table, spans)


def refuse_contradictions(
    known: MessageLookup,
    table: str,
    messages: Int64Array,
    destinations: pa.Array,
    times: pa.Array | None = None,
    senders: pa.Array | None = None,
    places: Int32Array | None = None,
) -> None:
    """Refuses rows of another table that state another sender, other destinations or another time of multicast than the
    multicasts. Null states nothing; a message that was never multicast cannot be contradicted. `places` are those of
    the messages, if they are known already."""
    places = known.find_places(messages) if places is None else places
    if senders is not None:
        _refuse_other_numbers(table, "sender", messages, places, senders, known.senders)
    offsets, values = split_lists(destinations)
    if destinations.null_count < len(destinations):
        stated = (places >= 0) & destinations.is_valid().to_numpy(zero_copy_only=False)
        wrong = np.nonzero(stated)[0]
        wrong = wrong[hash_lists(offsets, values)[wrong] != known.words[places[wrong]]]
        if wrong.size:
            row, place = int(wrong[0]), int(places[wrong[0]])
            groups = sorted(set(known.values[known.offsets[place] : known.offsets[place + 1]].tolist()))
            subject, found = f"message {messages[row]}", values[offsets[row] : offsets[row + 1]].tolist()
            raise contradiction_error("destinations", subject, found, groups, stating=table)
    if times is not None:
        _refuse_other_numbers(table, "multicast_ns", messages, places, times, known.sent)


def _refuse_other_numbers(
    table: str, column: str, messages: Int64Array, places: Int32Array, stated: pa.Array, known: Int64Array
) -> None:
    if stated.null_count == len(stated):
        return
    there = np.nonzero((places >= 0) & stated.is_valid().to_numpy(zero_copy_only=False))[0]
    found = to_int64(stated.fill_null(0))
    wrong = there[found[there] != known[places[there]]]
    if wrong.size:
        row = int(wrong[0])
        subject, expected = f"message {messages[row]}", int(known[places[row]])
        raise contradiction_error(column, subject, int(found[row]), expected, stating=table)
