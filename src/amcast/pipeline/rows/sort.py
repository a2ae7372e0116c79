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
import pyarrow.parquet as pq

from amcast.pipeline.rows import files
from amcast.pipeline.rows.files import RowGroup, read_row_groups, resolve_filesystem
from amcast.pipeline.rows.sequences import split_lists, to_int64
from amcast.pipeline.rows.tables import MessageLookup, Table

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


def split_stretches(groups: list[RowGroup]) -> list[list[tuple[str, int]]]:
    """The row groups, in order, in stretches that fit into a task's memory."""
    parts: list[list[tuple[str, int]]] = []
    rows = STRETCH_ROWS
    for span in groups:
        if rows + span.rows > STRETCH_ROWS:
            parts.append([])
            rows = 0
        parts[-1].append((span.path, span.row_group))
        rows += span.rows
    return parts


def sort_stretch(pieces: list[tuple[str, int]], multicasts: Table | None, run: str, out: str) -> list[RowGroup]:
    """Sorts some row groups by process and position into one file; with `multicasts`, looks up the missing columns."""
    tables = []
    for path, row_group in pieces:
        file = files.open_parquet(path)
        present = [name for name in (*COLUMNS, "run") if name in file.schema_arrow.names]
        tables.append(file.read_row_group(row_group, columns=present, use_threads=False))
    data = pa.concat_tables(tables, promote_options="default").combine_chunks()
    names = data.column("run").to_numpy(zero_copy_only=False)
    if (names != run).any():
        data = data.filter(pa.array(names == run)).combine_chunks()
    if not data.num_rows:
        return []
    process, position, message, at = (to_int64(_single_chunk(data, name)) for name in COLUMNS[:4])
    order = np.lexsort((at, message, position, process))
    is_first = np.ones(order.size, np.bool_)
    is_first[1:] = False
    for column in (process, position, message):
        is_first[1:] |= column[order][1:] != column[order][:-1]
    order = order[is_first]
    if multicasts is not None:
        known = MessageLookup.build([multicasts])
        offsets, values, sent = known.describe_places(known.find_places(message[order]))
        destinations = pa.ListArray.from_arrays(offsets, values)
    else:
        sent = to_int64(_single_chunk(data, "multicast_ns"))[order]
        destinations = _reorder_list_column(_single_chunk(data, "destinations"), order)
    columns = [process[order].astype(np.int32), position[order], message[order], at[order], sent, destinations]
    return _write_sorted(pa.table([pa.array(column) for column in columns], schema=SCHEMA), out)


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
    return read_row_groups((out,))
