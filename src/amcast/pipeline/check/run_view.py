"""One run as the kernels see it: who is there, what was multicast, what each process delivered, who sent packets.

A view of a small run holds its tables in memory. A view of a large run holds only where the rows are: it is small
enough to travel to every task, which then reads its share. Both answer the same questions.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from amcast.check.evidence import evidence_of
from amcast.kernel.errors import UsageError
from amcast.pipeline.kernels.fingerprints import Ints, Small
from amcast.pipeline.kernels.replicas import Deliveries
from amcast.pipeline.rows import files
from amcast.pipeline.rows.files import Source
from amcast.pipeline.rows.sequences import KeptSequences, Sequences, gathered, listed, longs
from amcast.trace.columns import TABLES, Column
from amcast.trace.meta import META_FILE, Meta
from amcast.trace.parquet import TYPES, canonical, checked
from amcast.trace.run import Columns, Run

BATCH_ROWS: Final = 1 << 17
LOOKUP_MESSAGES: Final = 4_000_000
"""Messages that one task looks up in memory."""


class Table(Protocol):
    """The rows of one table of one run, in file order."""

    @property
    def rows(self) -> int: ...

    def batches(self, columns: list[str]) -> Iterator[pa.RecordBatch]: ...

    def split(self, rows: int) -> "list[Table]":
        """The same rows as several tables of about so many rows each, in order."""


@dataclass(frozen=True)
class KeptTable:
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
class FiledTable:
    """A table in files: (path, row group, rows) in order."""

    pieces: tuple[tuple[str, int, int], ...]

    @property
    def rows(self) -> int:
        return sum(piece[2] for piece in self.pieces)

    def batches(self, columns: list[str]) -> Iterator[pa.RecordBatch]:
        for path, row_group, _ in self.pieces:
            yield from files.batches(path, [row_group], columns, BATCH_ROWS)

    def split(self, rows: int) -> list[Table]:
        parts: list[Table] = []
        begun, count = 0, 0
        for at, piece in enumerate(self.pieces, start=1):
            count += piece[2]
            if count >= rows or at == len(self.pieces):
                parts.append(FiledTable(self.pieces[begun:at]))
                begun, count = at, 0
        return parts


class Multicasts(NamedTuple):
    """A batch of multicasts."""

    messages: Ints
    senders: Ints
    offsets: Small
    values: Small
    at: Ints
    sessions: Ints
    """-1 where a message has none."""
    sequences: Ints


@dataclass(frozen=True)
class View:
    """One run, ready for kernels."""

    meta: Meta
    group_of: dict[int, int | None]
    crashed: dict[int, int]
    members: dict[int, tuple[int, ...]]
    notes: dict[int, list[tuple[str, float | None]]]
    """Only those that say something about the trace itself: installed, trace-gap."""
    sequences: Sequences
    multicasts: Table
    packets: Table | None
    folder: str
    in_order: bool = True
    """Are the rows of each process known to be sorted by position?"""
    stated: bool = False
    """Does every packet about a message state that message's sender and destinations?"""
    about_all: bool = False
    """Is every packet about a message?"""


def multicasts_in(table: Table) -> Iterator[Multicasts]:
    names = ["message", "sender", "destinations", "at_ns", "session", "sequence"]
    for batch in table.batches(names):
        offsets, values = listed(batch.column("destinations"))
        sessions, sequences = _optional(batch, "session"), _optional(batch, "sequence")
        yield Multicasts(
            longs(batch.column("message")),
            longs(batch.column("sender")),
            offsets,
            values,
            longs(batch.column("at_ns")),
            np.where(sequences == NONE, NONE, sessions),
            sequences,
        )


NONE: Final = np.iinfo(np.int64).min
"""Stands for null in columns of 64-bit numbers."""


def _optional(batch: pa.RecordBatch, name: str) -> Ints:
    if name not in batch.schema.names:
        return np.full(batch.num_rows, NONE, np.int64)
    column = batch.column(name)
    if pa.types.is_null(column.type):
        return np.full(batch.num_rows, NONE, np.int64)
    return longs(column.fill_null(NONE) if column.null_count else column)


# A small run, in memory


def kept_tables(source: Source) -> Iterator[tuple[Meta, dict[str, pa.Table]]]:
    """The runs of a folder with their tables, in memory."""
    tables = {table: loaded(source, table) for table in TABLES}
    for meta in source.metas:
        yield meta, {table: _only(data, meta.run, len(source.metas) > 1) for table, data in tables.items()}


def plain_run(meta: Meta, tables: dict[str, pa.Table], has_packets: bool) -> Run:
    """The same run as the plain checker reads it."""
    columns = {
        table: {column.name: data.column(column.name).to_pylist() for column in TABLES[table][1:]}
        for table, data in tables.items()
    }
    packets = KeptColumns(columns.pop("packets"))
    return Run(meta, **columns, packets=packets if has_packets else None)


class KeptColumns:
    """Some packets, in memory, as the plain checker reads them."""

    def __init__(self, columns: Columns) -> None:
        self._columns = columns

    def __len__(self) -> int:
        return len(self._columns["source"])

    def batches(self, *names: str) -> Iterator[Columns]:
        yield {name: self._columns[name] for name in names or self._columns}


def kept_view(meta: Meta, tables: dict[str, pa.Table], has_packets: bool, folder: str = "") -> View:
    """A view from tables in memory."""
    multicasts = KeptTable(tables["multicasts"])
    known = Lookup.of([multicasts])
    return View(
        meta,
        **standing(meta, tables["processes"], tables["notes"]),
        sequences=_sequences(tables["deliveries"], known),
        multicasts=multicasts,
        packets=KeptTable(tables["packets"]) if has_packets else None,
        folder=folder,
    )


def standing(meta: Meta, processes: pa.Table, notes: pa.Table) -> dict[str, Any]:
    """Who is there and who crashed, read (and refused) as the plain checker does; notes about the trace itself."""
    columns = {name: processes.column(name).to_pylist() for name in processes.column_names}
    none: dict[str, dict[str, list[Any]]] = {
        table: {column.name: [] for column in TABLES[table]} for table in ("multicasts", "deliveries", "notes")
    }
    seen = evidence_of(Run(meta, columns, none["multicasts"], none["deliveries"], none["notes"], None))
    said: dict[int, list[tuple[str, float | None]]] = {}
    telling = notes.filter(pc.is_in(notes.column("name"), pa.array(["installed", "trace-gap"])))
    for process, name, value in zip(*(telling[c].to_pylist() for c in ("process", "name", "value")), strict=True):
        known = value is not None and isfinite(value)
        said.setdefault(process, []).append((name, value if known else None))
    return {"group_of": seen.group_of, "crashed": seen.crashed, "members": seen.members, "notes": said}


def loaded(source: Source, table: str) -> pa.Table:
    """A whole table, in memory, with every column that it may have."""
    parts = []
    for path in source.tables.get(table, ()):
        file = files.opened(path)
        known = checked(table, Path(path), file.schema_arrow)
        try:
            data = file.read(columns=known, use_threads=False)
        except (pa.ArrowException, OSError) as error:
            line = str(error).splitlines()[0]
            raise UsageError(f"{path}: {line}; expected a whole Parquet file") from None
        data = canonical(table, Path(path), data)
        runs = [meta.run for meta in source.metas]
        for name in pc.unique(data.column("run")).to_pylist():
            if name not in runs:
                raise UsageError(f"{path}: rows of run {name!r}; expected only {runs[:5]}, as {META_FILE} says")
        parts.append(data)
    return pa.concat_tables(parts) if parts else schema_of(table).empty_table()


def schema_of(table: str) -> pa.Schema:
    """What `loaded` gives: every column that a table may have."""
    return pa.schema([(column.name, TYPES[column.type]) for column in TABLES[table]])


def _only(data: pa.Table, run: str, shared: bool) -> pa.Table:
    return data.filter(pc.equal(data.column("run"), run)) if shared else data


def _sequences(deliveries: pa.Table, known: "Lookup") -> KeptSequences:
    data = deliveries.combine_chunks()
    names = ("process", "position", "message", "at_ns")
    process, position, message, at = (longs(_whole(data, name)) for name in names)
    # The same fact told twice (a tail that was recorded again after a crash) counts once.
    order = np.lexsort((at, message, position, process))
    same = np.zeros(order.size, np.bool_)
    for column in (process, position, message):
        same[1:] |= column[order][1:] != column[order][:-1]
    same[:1] = True
    keep = np.sort(order[same])
    place = known.places(message[keep])
    offsets, values, sent = known.of_places(place)
    rows = Deliveries(position[keep], message[keep], at[keep], sent)
    return KeptSequences(process[keep], rows, offsets, values)


def _whole(data: pa.Table, name: str) -> pa.Array:
    column = data.column(name)
    return column.chunk(0) if column.num_chunks else pa.array([], column.type)


@dataclass(frozen=True)
class Lookup:
    """What the multicasts say about some messages, sorted by message."""

    messages: Ints
    senders: Ints
    offsets: Small
    values: Small
    sent: Ints
    """The earliest multicast of each message."""
    sessions: Ints
    sequences: Ints

    @staticmethod
    def of(tables: list[Table], chosen: NDArray[np.bool_] | None = None) -> "Lookup":
        """From multicasts; only messages in the chosen buckets, if given."""
        from amcast.pipeline.kernels.fingerprints import in_buckets

        found: list[tuple[Ints, Ints, NDArray[np.int32], NDArray[np.int32], Ints, Ints, Ints]] = []
        for table in tables:
            for rows in multicasts_in(table):
                keep = np.arange(rows.messages.size)
                if chosen is not None:
                    keep = np.nonzero(in_buckets(rows.messages, chosen))[0]
                offsets, values = gathered(rows.offsets, rows.values, keep)
                lengths = np.diff(offsets)
                columns = (rows.messages, rows.senders, rows.at, rows.sessions, rows.sequences)
                message, sender, at, session, sequence = (column[keep] for column in columns)
                found.append((message, sender, lengths, values, at, session, sequence))
        if not found:
            empty = np.zeros(0, np.int64)
            none = np.zeros(0, np.int32)
            return Lookup(empty, empty, np.zeros(1, np.int32), none, empty, empty, empty)
        message, sender, length, value, at, session, sequence = (
            np.concatenate([part[place] for part in found]) for place in range(7)
        )
        offsets = np.concatenate([[0], np.cumsum(length)]).astype(np.int32)
        order = np.lexsort((at, message))
        first = np.ones(order.size, np.bool_)
        first[1:] = message[order][1:] != message[order][:-1]
        order = order[first]
        offsets, value = gathered(offsets, value, order)
        return Lookup(message[order], sender[order], offsets, value, at[order], session[order], sequence[order])

    def places(self, messages: Ints) -> NDArray[np.intp]:
        """The place of each message; -1 for one that nobody multicast."""
        found = np.searchsorted(self.messages, messages)
        inside = found < self.messages.size
        known = np.zeros(messages.size, np.bool_)
        known[inside] = self.messages[found[inside]] == messages[inside]
        return np.where(known, found, -1)

    def of_places(self, places: NDArray[np.intp]) -> tuple[Small, Small, Ints]:
        """(offsets, values, time of multicast) of messages by place; nothing and 0 for the unknown."""
        if not self.messages.size:
            return np.zeros(places.size + 1, np.int32), self.values, np.zeros(places.size, np.int64)
        known = places >= 0
        lengths = np.where(known, np.diff(self.offsets)[places], 0)
        fresh = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        starts = np.where(known, self.offsets[:-1][places], 0)
        inside = np.repeat(starts, lengths) + np.arange(int(fresh[-1])) - np.repeat(fresh[:-1], lengths)
        return fresh, self.values[inside], np.where(known, self.sent[places], 0)


# A large run, in files


def filed_view(source: Source, meta: Meta, sequences: Sequences, in_order: bool) -> View:
    """A view that only knows where the rows are. The sequences are given: their layout is the caller's care."""
    processes = _only(loaded(source, "processes"), meta.run, len(source.metas) > 1)
    packets = filed_table(source, "packets", meta.run) if "packets" in source.tables else None
    return View(
        meta,
        **standing(meta, processes, _telling_notes(source, meta.run)),
        sequences=sequences,
        multicasts=filed_table(source, "multicasts", meta.run),
        packets=packets,
        folder=source.folder,
        in_order=in_order,
        stated=packets is not None and _stated(source),
        about_all=packets is not None and _about_all(source),
    )


def filed_table(source: Source, table: str, run: str) -> FiledTable:
    """The row groups of a table, after refusing what their footers already tell."""
    pieces: list[tuple[str, int, int]] = []
    for path in source.tables[table]:
        meta = files.opened(path).metadata
        places = {meta.schema.column(place).path: place for place in range(meta.num_columns)}
        for number in range(meta.num_row_groups):
            group = meta.row_group(number)
            for column in TABLES[table]:
                if column.name in places and not column.nullable:
                    _refuse_nulls(group.column(places[column.name]).statistics, path, column)
            _refuse_strangers(group.column(places["run"]).statistics, path, run)
            if group.num_rows:
                pieces.append((path, number, group.num_rows))
    return FiledTable(tuple(pieces))


def _refuse_nulls(statistics: Any, path: str, column: Column) -> None:
    if statistics is not None and statistics.has_null_count and statistics.null_count and not column.optional:
        raise UsageError(
            f"{path}: column {column.name} has {statistics.null_count} nulls; expected {column.type}, never null"
        )


def _refuse_strangers(statistics: Any, path: str, run: str) -> None:
    if statistics is not None and statistics.has_min_max:
        for name in (statistics.min, statistics.max):
            if name != run:
                raise UsageError(f"{path}: rows of run {name!r}; expected only {[run]}, as {META_FILE} says")


def _telling_notes(source: Source, run: str) -> pa.Table:
    wanted = pa.array(["installed", "trace-gap"])
    found = [schema_of("notes").empty_table().select(["run", "process", "name", "value"])]
    for path in source.tables.get("notes", ()):
        file = files.opened(path)
        for batch in file.iter_batches(BATCH_ROWS, columns=["run", "process", "name", "value"], use_threads=False):
            part = pa.Table.from_batches([batch]).cast(found[0].schema)
            found.append(part.filter(pc.and_(pc.is_in(part["name"], wanted), pc.equal(part["run"], run))))
    return pa.concat_tables(found)


def _stated(source: Source) -> bool:
    """Do the footers prove that every packet about a message states its sender and destinations?"""
    for path in source.tables["packets"]:
        meta = files.opened(path).metadata
        places = {meta.schema.column(place).path.split(".")[0]: place for place in range(meta.num_columns)}
        if "sender" not in places or "destinations" not in places:
            return False
        for number in range(meta.num_row_groups):
            group = meta.row_group(number)
            if "messages" in places and _nulls(group, places["messages"]) != group.num_rows:
                return False
            if _nulls(group, places["sender"]) != _nulls(group, places["message"]):
                return False
            if _nulls(group, places["destinations"]) != _nulls(group, places["message"]):
                return False
    return True


def _about_all(source: Source) -> bool:
    """Do the footers prove that every packet is about a message?"""
    for path in source.tables["packets"]:
        meta = files.opened(path).metadata
        place = next(at for at in range(meta.num_columns) if meta.schema.column(at).path == "message")
        if any(_nulls(meta.row_group(number), place) != 0 for number in range(meta.num_row_groups)):
            return False
    return True


def _nulls(group: Any, place: int) -> int:
    statistics = group.column(place).statistics
    return int(statistics.null_count) if statistics is not None and statistics.has_null_count else -1
