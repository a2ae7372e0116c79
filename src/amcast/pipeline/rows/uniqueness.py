"""Rows that were recorded again: a retried multicast, a delivery recorded twice after a crash. Each counts once.

The rows of most writers are in order, which proves without sorting that none occurs twice. Where that is not so, the
earliest row counts.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from amcast.pipeline.kernels.fingerprints import Int64Array
from amcast.pipeline.rows.sequences import to_int64

KEYS: Final = {"multicasts": ("message",), "deliveries": ("process", "position", "message")}
"""The columns that say what a row is about, besides its run. Rows that agree in them are one, at the earliest time."""

Ends = dict[int, tuple[int, int]]
"""process -> its first and its last position."""


def drop_repeated(table: str, data: pa.Table) -> pa.Table:
    """The rows of a table in memory without repeated ones, in their order."""
    if table not in KEYS or not len(data):
        return data
    keys = [pc.index_in(data.column(name), pc.unique(data.column(name))) for name in data.column_names if name == "run"]
    columns = [to_int64(column.combine_chunks()) for column in (*keys, *(data.column(name) for name in KEYS[table]))]
    order = np.lexsort((to_int64(data.column("at_ns").combine_chunks()), *reversed(columns)))
    first: NDArray[np.bool_] = np.zeros(order.size, np.bool_)
    first[:1] = True
    for column in columns:
        first[1:] |= column[order][1:] != column[order][:-1]
    return data if first.all() else data.take(pa.array(np.sort(order[first])))


def extend_ends(ends: Ends, processes: Int64Array, positions: Int64Array) -> bool:
    """Adds rows of deliveries; False if the positions of a process do not ascend."""
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


def are_positions_ascending(parts: Sequence[Ends | None]) -> bool:
    """Whether the positions of each process ascend over consecutive parts."""
    every: Ends = {}
    return all(
        part is not None and all(_append(every, process, *ends) for process, ends in part.items()) for part in parts
    )
