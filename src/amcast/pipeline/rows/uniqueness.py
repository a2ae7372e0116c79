"""Rows that were recorded again: a retried multicast, a delivery recorded twice after a crash. Each counts once.

The rows of most writers are in order, which proves without sorting that none occurs twice. Where that is not so, the
earliest row counts.
"""

from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from amcast.pipeline.check.runner import Call, Runner
from amcast.pipeline.kernels.fingerprints import Int64Array
from amcast.pipeline.kernels.unique_ids import AscendingIds
from amcast.pipeline.rows.files import open_parquet
from amcast.pipeline.rows.footers import Footers, RowGroup, split_row_groups
from amcast.pipeline.rows.sequences import to_int64
from amcast.trace.parquet import iterate_canonical

KEYS: Final = {"multicasts": ("message",), "deliveries": ("process", "position", "message")}
"""The columns that say what a row is about, besides its run. Rows that agree in them are one, at the earliest time."""

Ends = dict[int, tuple[int, int]]
"""process -> its first and its last position."""


def drop_repeated(table: str, data: pa.Table) -> pa.Table:
    """The rows of a table in memory without repeated ones, in their order."""
    if table not in KEYS or not len(data):
        return data
    keys = [pc.index_in(data.column("run"), pc.unique(data.column("run")))]
    columns = [to_int64(column.combine_chunks()) for column in (*keys, *(data.column(name) for name in KEYS[table]))]
    order = np.lexsort((to_int64(data.column("at_ns").combine_chunks()), *reversed(columns)))
    first: NDArray[np.bool_] = np.zeros(order.size, np.bool_)
    first[:1] = True
    for column in columns:
        first[1:] |= column[order][1:] != column[order][:-1]
    return data if first.all() else data.take(pa.array(np.sort(order[first])))


def find_repeated_tables(runner: Runner, footers: Footers) -> list[str]:
    """The tables of a run of which order does not prove that no row is repeated."""
    shares = [(table, share) for table in KEYS for share in split_row_groups(footers.get(table, ()))]
    calls: list[Call] = [(read_order, (table, share)) for table, share in shares]
    answers = runner(calls)
    found = []
    for table in KEYS:
        own = [answer for (name, _), answer in zip(shares, answers, strict=True) if name == table]
        if not (_are_ids_ascending(own) if table == "multicasts" else _are_positions_ascending(own)):
            found.append(table)
    return found


def read_order(table: str, row_groups: list[RowGroup]) -> AscendingIds | Ends | None:
    """What consecutive rows show about their order: the ids of each sender, or the positions of each process; None if
    positions do not ascend."""
    ids, ends = AscendingIds(), Ends()
    for one in row_groups:
        names = ["message"] if table == "multicasts" else ["process", "position"]
        for data in iterate_canonical(table, one.path, open_parquet(one.path), names, one.row_group):
            columns = [to_int64(data.column(name).combine_chunks()) for name in names]
            if table == "multicasts":
                ids.absorb(columns[0])
            elif not _extend_ends(ends, *columns):
                return None
    return ids if table == "multicasts" else ends


def _extend_ends(ends: Ends, processes: Int64Array, positions: Int64Array) -> bool:
    """Adds rows; False if positions do not ascend."""
    order = np.argsort(processes, kind="stable")
    process, position = processes[order], positions[order]
    same = process[1:] == process[:-1]
    if (position[1:][same] <= position[:-1][same]).any():
        return False
    starts = np.nonzero(np.concatenate([[True], ~same]))[0] if process.size else np.zeros(0, np.int64)
    for low, high in zip(starts.tolist(), [*starts[1:].tolist(), process.size], strict=False):
        if not _append(ends, int(process[low]), int(position[low]), int(position[high - 1])):
            return False
    return True


def _append(ends: Ends, process: int, first: int, last: int) -> bool:
    known = ends.get(process)
    if known is not None and known[1] >= first:
        return False
    ends[process] = (first if known is None else known[0], last)
    return True


def _are_ids_ascending(parts: list[AscendingIds]) -> bool:
    if not parts:
        return True
    for later in parts[1:]:
        parts[0].extend_with(later)
    return parts[0].is_ascending


def _are_positions_ascending(parts: list[Ends | None]) -> bool:
    every: Ends = {}
    return all(
        part is not None and all(_append(every, process, *ends) for process, ends in part.items()) for part in parts
    )
