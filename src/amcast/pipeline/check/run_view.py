"""One run as the kernels see it: its membership, multicasts, delivery sequences and packets.

A view of a small run holds its tables in memory. A view of a large run holds only where the rows are: it is small
enough to travel to every task, which then reads its share. Both answer the same questions.
"""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from math import isfinite
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from amcast.check.evidence import collect_evidence, contradiction_error
from amcast.pipeline.kernels.fingerprints import hash_lists
from amcast.pipeline.kernels.replicas import DeliveryRows
from amcast.pipeline.rows.files import TraceFolder
from amcast.pipeline.rows.footers import Footers
from amcast.pipeline.rows.sequences import MemorySequences, Sequences, to_int64
from amcast.pipeline.rows.tables import (
    MemoryTable,
    MessageLookup,
    Table,
    arrow_schema,
    index_table,
    load_table,
    refuse_contradictions,
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
    answers: Table | None
    host_of: dict[int, str | None]
    folder: str
    is_sorted: bool = True
    """Whether the rows of each process are known to be sorted by position."""


# A small run, in memory


def load_runs(source: TraceFolder) -> Iterator[tuple[Meta, dict[str, pa.Table]]]:
    """The runs of a folder with their tables, in memory."""
    tables = {table: load_table(source, table) for table in TABLES}
    for meta in source.metas:
        yield meta, {table: _select_run(data, meta.run, len(source.metas) > 1) for table, data in tables.items()}


def to_plain_run(meta: Meta, tables: dict[str, pa.Table], present: Collection[str]) -> Run:
    """The same run in the form that the plain checker reads. `present`: the tables that its folder has."""
    columns = {
        table: {column.name: data.column(column.name).to_pylist() for column in TABLES[table][1:]}
        for table, data in tables.items()
    }
    packets = ColumnPackets(columns.pop("packets"))
    answers = columns.pop("answers")
    return Run(
        meta,
        **columns,
        packets=packets if "packets" in present else None,
        answers=answers if "answers" in present else None,
    )


class ColumnPackets:
    """Some packets in memory, in the form that the plain checker reads."""

    def __init__(self, columns: Columns) -> None:
        self._columns = columns

    def __len__(self) -> int:
        return len(self._columns["source"])

    def batches(self, *names: str) -> Iterator[Columns]:
        yield {name: self._columns[name] for name in names or self._columns}


def build_memory_view(meta: Meta, tables: dict[str, pa.Table], present: Collection[str], folder: str = "") -> RunView:
    """A view of tables in memory. `present`: the tables that the run has."""
    multicasts = MemoryTable(tables["multicasts"])
    known = MessageLookup.build([multicasts])
    membership = read_membership(meta, tables["processes"], tables["notes"])
    pairs = tables["deliveries"].select(["process", "group"]).group_by(["process", "group"]).aggregate([])
    stated = zip(pairs.column("process").to_pylist(), pairs.column("group").to_pylist(), strict=True)
    refuse_other_groups(stated, membership["group_of"])
    return RunView(
        meta,
        **membership,
        sequences=_build_sequences(tables["deliveries"], known),
        multicasts=multicasts,
        packets=MemoryTable(tables["packets"]) if "packets" in present else None,
        answers=MemoryTable(tables["answers"]) if "answers" in present else None,
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
        "host_of": dict(zip(columns["process"], columns["host"], strict=True)),
        "notes": notes_of_process,
    }


def refuse_other_groups(stated: Iterable[tuple[int, int]], group_of: dict[int, int | None]) -> None:
    """Refuses deliveries of a member that state another group than its own."""
    for process, group in sorted(stated):
        known = group_of.get(process)
        if known is not None and known != group:
            raise contradiction_error("group", f"process {process}", group, known, "processes")


def _select_run(data: pa.Table, run: str, shared: bool) -> pa.Table:
    return data.filter(pc.equal(data.column("run"), run)) if shared else data


def _build_sequences(deliveries: pa.Table, known: "MessageLookup") -> MemorySequences:
    data = deliveries.combine_chunks()
    names = ("process", "position", "message", "at_ns")
    process, position, message, at = (to_int64(_single_chunk(data, name)) for name in names)
    refuse_contradictions(
        known, "deliveries", message, _single_chunk(data, "destinations"), _single_chunk(data, "multicast_ns")
    )
    # A row that was recorded twice (a tail recorded again after a crash) counts once.
    order = np.lexsort((at, message, position, process))
    same = np.zeros(order.size, np.bool_)
    for column in (process, position, message):
        same[1:] |= column[order][1:] != column[order][:-1]
    same[:1] = True
    keep = np.sort(order[same])
    place = known.find_places(message[keep])
    offsets, values, sent = known.describe_places(place)
    rows = DeliveryRows(position[keep], message[keep], at[keep], sent, hash_lists(offsets, values))
    return MemorySequences(process[keep], rows, offsets, values)


def _single_chunk(data: pa.Table, name: str) -> pa.Array:
    column = data.column(name)
    return column.chunk(0) if column.num_chunks else pa.array([], column.type)


# A large run, in files


def build_file_view(
    source: TraceFolder, footers: Footers, meta: Meta, sequences: Sequences, is_sorted: bool
) -> RunView:
    """A view that only knows where the rows are. The caller provides the sequences and is responsible for
    their layout.
    """
    return RunView(
        meta,
        **read_membership(meta, load_table(source, "processes"), _read_gap_notes(footers)),
        sequences=sequences,
        multicasts=index_table(footers, "multicasts"),
        packets=index_table(footers, "packets") if "packets" in source.tables else None,
        answers=index_table(footers, "answers") if "answers" in source.tables else None,
        folder=source.folder,
        is_sorted=is_sorted,
    )


def _read_gap_notes(footers: Footers) -> pa.Table:
    wanted, names = pa.array(["installed", "trace-gap"]), ["process", "name", "value"]
    found = [arrow_schema("notes").empty_table().select(names)]
    for batch in index_table(footers, "notes").batches(names):
        part = pa.Table.from_batches([batch])
        found.append(part.filter(pc.is_in(part["name"], wanted)))
    return pa.concat_tables(found)
