"""One run as the kernels see it: its membership, multicasts, delivery sequences and packets.

A view of a small run holds its tables in memory. A view of a large run holds only where the rows are: it is small
enough to travel to every task, which then reads its share. Both answer the same questions.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import isfinite
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from amcast.check.evidence import collect_evidence
from amcast.pipeline.kernels.replicas import DeliveryRows
from amcast.pipeline.rows import files
from amcast.pipeline.rows.files import TraceFolder
from amcast.pipeline.rows.sequences import MemorySequences, Sequences, to_int64
from amcast.pipeline.rows.tables import (
    BATCH_ROWS,
    MemoryTable,
    MessageLookup,
    Table,
    arrow_schema,
    index_table,
    load_table,
)
from amcast.trace.columns import TABLES
from amcast.trace.meta import Meta
from amcast.trace.run import Columns, Run


@dataclass(frozen=True)
class RunView:
    """One run, prepared for the kernels."""

    meta: Meta
    group_of: dict[int, int | None]
    crashed: dict[int, int]
    members: dict[int, tuple[int, ...]]
    notes: dict[int, list[tuple[str, float | None]]]
    """Only notes about the trace itself: installed, trace-gap."""
    sequences: Sequences
    multicasts: Table
    packets: Table | None
    folder: str
    is_sorted: bool = True
    """Whether the rows of each process are known to be sorted by position."""
    packets_state_all: bool = False
    """Whether every packet about a message states that message's sender and destinations."""
    packets_have_messages: bool = False
    """Whether every packet is about a message."""


# A small run, in memory


def load_runs(source: TraceFolder) -> Iterator[tuple[Meta, dict[str, pa.Table]]]:
    """The runs of a folder with their tables, in memory."""
    tables = {table: load_table(source, table) for table in TABLES}
    for meta in source.metas:
        yield meta, {table: _select_run(data, meta.run, len(source.metas) > 1) for table, data in tables.items()}


def to_plain_run(meta: Meta, tables: dict[str, pa.Table], has_packets: bool) -> Run:
    """The same run in the form that the plain checker reads."""
    columns = {
        table: {column.name: data.column(column.name).to_pylist() for column in TABLES[table][1:]}
        for table, data in tables.items()
    }
    packets = ColumnPackets(columns.pop("packets"))
    return Run(meta, **columns, packets=packets if has_packets else None)


class ColumnPackets:
    """Some packets in memory, in the form that the plain checker reads."""

    def __init__(self, columns: Columns) -> None:
        self._columns = columns

    def __len__(self) -> int:
        return len(self._columns["source"])

    def batches(self, *names: str) -> Iterator[Columns]:
        yield {name: self._columns[name] for name in names or self._columns}


def build_memory_view(meta: Meta, tables: dict[str, pa.Table], has_packets: bool, folder: str = "") -> RunView:
    """A view of tables in memory."""
    multicasts = MemoryTable(tables["multicasts"])
    known = MessageLookup.build([multicasts])
    return RunView(
        meta,
        **read_membership(meta, tables["processes"], tables["notes"]),
        sequences=_build_sequences(tables["deliveries"], known),
        multicasts=multicasts,
        packets=MemoryTable(tables["packets"]) if has_packets else None,
        folder=folder,
    )


def read_membership(meta: Meta, processes: pa.Table, notes: pa.Table) -> dict[str, Any]:
    """Groups and crashes, read (and refused) as the plain checker does; and the notes about the trace itself."""
    columns = {name: processes.column(name).to_pylist() for name in processes.column_names}
    none: dict[str, dict[str, list[Any]]] = {
        table: {column.name: [] for column in TABLES[table]} for table in ("multicasts", "deliveries", "notes")
    }
    evidence = collect_evidence(Run(meta, columns, none["multicasts"], none["deliveries"], none["notes"], None))
    notes_of_process: dict[int, list[tuple[str, float | None]]] = {}
    gap_notes = notes.filter(pc.is_in(notes.column("name"), pa.array(["installed", "trace-gap"])))
    for process, name, value in zip(*(gap_notes[c].to_pylist() for c in ("process", "name", "value")), strict=True):
        known = value is not None and isfinite(value)
        notes_of_process.setdefault(process, []).append((name, value if known else None))
    return {
        "group_of": evidence.group_of,
        "crashed": evidence.crashed,
        "members": evidence.members,
        "notes": notes_of_process,
    }


def _select_run(data: pa.Table, run: str, shared: bool) -> pa.Table:
    return data.filter(pc.equal(data.column("run"), run)) if shared else data


def _build_sequences(deliveries: pa.Table, known: "MessageLookup") -> MemorySequences:
    data = deliveries.combine_chunks()
    names = ("process", "position", "message", "at_ns")
    process, position, message, at = (to_int64(_single_chunk(data, name)) for name in names)
    # A row that was recorded twice (a tail recorded again after a crash) counts once.
    order = np.lexsort((at, message, position, process))
    same = np.zeros(order.size, np.bool_)
    for column in (process, position, message):
        same[1:] |= column[order][1:] != column[order][:-1]
    same[:1] = True
    keep = np.sort(order[same])
    place = known.find_places(message[keep])
    offsets, values, sent = known.describe_places(place)
    rows = DeliveryRows(position[keep], message[keep], at[keep], sent)
    return MemorySequences(process[keep], rows, offsets, values)


def _single_chunk(data: pa.Table, name: str) -> pa.Array:
    column = data.column(name)
    return column.chunk(0) if column.num_chunks else pa.array([], column.type)


# A large run, in files


def build_file_view(source: TraceFolder, meta: Meta, sequences: Sequences, is_sorted: bool) -> RunView:
    """A view that only knows where the rows are. The caller provides the sequences and is responsible for
    their layout.
    """
    processes = _select_run(load_table(source, "processes"), meta.run, len(source.metas) > 1)
    packets = index_table(source, "packets", meta.run) if "packets" in source.tables else None
    return RunView(
        meta,
        **read_membership(meta, processes, _read_gap_notes(source, meta.run)),
        sequences=sequences,
        multicasts=index_table(source, "multicasts", meta.run),
        packets=packets,
        folder=source.folder,
        is_sorted=is_sorted,
        packets_state_all=packets is not None and _packets_state_all(source),
        packets_have_messages=packets is not None and _packets_have_messages(source),
    )


def _read_gap_notes(source: TraceFolder, run: str) -> pa.Table:
    wanted = pa.array(["installed", "trace-gap"])
    found = [arrow_schema("notes").empty_table().select(["run", "process", "name", "value"])]
    for path in source.tables.get("notes", ()):
        file = files.open_parquet(path)
        for batch in file.iter_batches(BATCH_ROWS, columns=["run", "process", "name", "value"], use_threads=False):
            part = pa.Table.from_batches([batch]).cast(found[0].schema)
            found.append(part.filter(pc.and_(pc.is_in(part["name"], wanted), pc.equal(part["run"], run))))
    return pa.concat_tables(found)


def _packets_state_all(source: TraceFolder) -> bool:
    """Whether the footers prove that every packet about a message states its sender and destinations."""
    for path in source.tables["packets"]:
        meta = files.open_parquet(path).metadata
        places = {meta.schema.column(place).path.split(".")[0]: place for place in range(meta.num_columns)}
        if "sender" not in places or "destinations" not in places:
            return False
        for number in range(meta.num_row_groups):
            group = meta.row_group(number)
            if "messages" in places and _count_nulls(group, places["messages"]) != group.num_rows:
                return False
            if _count_nulls(group, places["sender"]) != _count_nulls(group, places["message"]):
                return False
            if _count_nulls(group, places["destinations"]) != _count_nulls(group, places["message"]):
                return False
    return True


def _packets_have_messages(source: TraceFolder) -> bool:
    """Whether the footers prove that every packet is about a message."""
    for path in source.tables["packets"]:
        meta = files.open_parquet(path).metadata
        place = next(at for at in range(meta.num_columns) if meta.schema.column(at).path == "message")
        if any(_count_nulls(meta.row_group(number), place) != 0 for number in range(meta.num_row_groups)):
            return False
    return True


def _count_nulls(group: Any, place: int) -> int:
    statistics = group.column(place).statistics
    return int(statistics.null_count) if statistics is not None and statistics.has_null_count else -1
