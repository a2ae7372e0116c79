"""Sorts the deliveries of a large run, so that every row group holds one process, in order of position.

Recorders write events as they happen: all processes in one file. The order kernels read one process at a time. A task
sorts one stretch of a file and writes it to a scratch folder, with the two optional columns that the kernels need: from
the rows themselves, or looked up in the multicasts. A row that was recorded twice is written once.
"""

from itertools import pairwise
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from amcast.pipeline.kernels.fingerprints import hash_lists
from amcast.pipeline.rows.files import open_parquet, resolve_filesystem
from amcast.pipeline.rows.footers import RowGroup, read_written_row_groups
from amcast.pipeline.rows.sequences import split_lists, to_int64
from amcast.pipeline.rows.tables import MessageLookup, Table, refuse_contradictions
from amcast.trace.columns import TABLES
from amcast.trace.parquet import TYPES, iterate_canonical

STRETCH_ROWS: Final = 4_000_000
COLUMNS: Final = ["process", "position", "message", "at_ns", "multicast_ns", "destinations"]
SCHEMA: Final = pa.schema(
    [
        ("process", pa.int32()),
        ("position", pa.int64()),
        ("message", pa.int64()),
        ("at_ns", pa.int64()),
        ("multicast_ns", pa.int64()),
        ("destinations", pa.list_(pa.int32())),
    ]
)


def split_stretches(row_groups: list[RowGroup]) -> list[list[RowGroup]]:
    """The row groups, in order, in stretches that fit into a task's memory."""
    parts: list[list[RowGroup]] = []
    rows = STRETCH_ROWS
    for one in row_groups:
        if rows + one.rows > STRETCH_ROWS:
            parts.append([])
            rows = 0
        parts[-1].append(one)
        rows += one.rows
    return parts


def sort_stretch(stretch: list[RowGroup], multicasts: Table | None, out: str) -> list[RowGroup]:
    """Sorts some row groups by process and position into one file; with `multicasts`, looks up the missing columns, and
    refuses those that contradict them."""
    data = read_stretch(stretch)
    process, position, message, at = (to_int64(_single_chunk(data, name)) for name in COLUMNS[:4])
    stated_times, stated_groups = _single_chunk(data, "multicast_ns"), _single_chunk(data, "destinations")
    if multicasts is not None:
        known = MessageLookup.build([multicasts])
        refuse_contradictions(known, "deliveries", message, stated_groups, stated_times)
        offsets, values, sent = known.describe_places(known.find_places(message))
        destinations = pa.ListArray.from_arrays(offsets, values)
    else:
        sent, destinations = to_int64(stated_times), stated_groups
    words = hash_lists(*split_lists(destinations))
    order = np.lexsort((at, words, sent, message, position, process))
    is_first = np.ones(order.size, np.bool_)
    is_first[1:] = False
    # Rows that differ in what they state are both kept: the check then finds the contradiction.
    for column in (process, position, message, sent, words):
        is_first[1:] |= column[order][1:] != column[order][:-1]
    order = order[is_first]
    order = order[np.lexsort((message[order], at[order], position[order], process[order]))]
    columns = [process[order].astype(np.int32), position[order], message[order], at[order], sent[order]]
    arrays = [*(pa.array(column) for column in columns), _reorder_list_column(destinations, order)]
    return _write_sorted(pa.table(arrays, schema=SCHEMA), out)


def read_stretch(stretch: list[RowGroup]) -> pa.Table:
    """The rows of some row groups of deliveries, in canonical form, in one piece."""
    tables = [
        data
        for one in stretch
        for data in iterate_canonical("deliveries", one.path, open_parquet(one.path), COLUMNS, one.row_group)
    ]
    return pa.concat_tables(tables).select(COLUMNS).combine_chunks()


def refuse_stated(known: MessageLookup, row_groups: list[RowGroup]) -> None:
    """Refuses deliveries that contradict the multicasts of some messages."""
    for one in row_groups:
        file = open_parquet(one.path)
        for data in iterate_canonical("deliveries", one.path, file, COLUMNS[2:], one.row_group):
            whole = data.combine_chunks()
            stated = (_single_chunk(whole, "destinations"), _single_chunk(whole, "multicast_ns"))
            refuse_contradictions(known, "deliveries", to_int64(_single_chunk(whole, "message")), *stated)


def copy_columns(table: str, row_groups: list[RowGroup], columns: list[str], out: str) -> None:
    """Copies some columns of some row groups, in canonical form, to one file that Spark's own reader understands."""
    _copy(table, row_groups, columns, out)


def copy_run(table: str, row_groups: list[RowGroup], run: str, out: str) -> None:
    """Copies the rows of one run out of row groups that several runs share."""
    _copy(table, row_groups, [column.name for column in TABLES[table]], out, run)


def _copy(table: str, row_groups: list[RowGroup], columns: list[str], out: str, run: str | None = None) -> None:
    system, path = resolve_filesystem(out)
    schema = pa.schema([(column.name, TYPES[column.type]) for column in TABLES[table] if column.name in columns])
    with pq.ParquetWriter(path, schema, filesystem=system, compression="zstd") as writer:
        for one in row_groups:
            for data in iterate_canonical(table, one.path, open_parquet(one.path), columns, one.row_group):
                chosen = data if run is None else data.filter(pc.equal(data.column("run"), run))
                if len(chosen):
                    writer.write_table(chosen)


def _reorder_list_column(column: pa.Array, order: np.ndarray) -> pa.Array:
    offsets, values = split_lists(column)
    return pa.ListArray.from_arrays(offsets, values).take(pa.array(order))


def _single_chunk(data: pa.Table, name: str) -> pa.Array:
    return data.column(name).chunk(0)


def _write_sorted(table: pa.Table, out: str) -> list[RowGroup]:
    """Writes one row group per process; the file gets its name when it is complete."""
    system, path = resolve_filesystem(out)
    hidden = str(Path(path).with_name(f".{Path(path).name}"))
    delta = dict.fromkeys(("position", "message", "at_ns", "multicast_ns"), "DELTA_BINARY_PACKED")
    process = _single_chunk(table, "process").to_numpy()
    bounds = [0, *(np.nonzero(np.diff(process))[0] + 1).tolist(), process.size]
    with pq.ParquetWriter(
        hidden,
        SCHEMA,
        filesystem=system,
        compression="zstd",
        use_dictionary=["process", "destinations.list.element"],
        column_encoding=delta,
    ) as writer:
        for low, high in pairwise(bounds):
            writer.write_table(table.slice(low, high - low), row_group_size=high - low)
    system.move(hidden, path)
    return read_written_row_groups([out])
