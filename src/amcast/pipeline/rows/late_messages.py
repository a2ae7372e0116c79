"""The messages that a merge reports as preceded by a later multicast: a table in memory, or in a scratch folder."""

from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from amcast.pipeline.rows.files import resolve_filesystem
from amcast.pipeline.rows.tables import FileTable, MemoryTable, Table

COLUMNS: Final = ("message", "multicast_ns", "latest_ns", "groups")
ROWS_PER_GROUP: Final = 1 << 20


class LateMessages:
    """Collects rows of a merge; with a path, in a file of bounded row groups."""

    def __init__(self, path: str | None) -> None:
        self._path = path
        self._pieces: list[pa.Table] = []
        self._waiting = 0
        self._row_groups: list[int] = []
        self._writer: pq.ParquetWriter | None = None

    def absorb(self, found: NDArray[np.int64]) -> bool:
        """Takes the rows that a merge reports; the merge goes on."""
        self._pieces.append(pa.table({name: pa.array(found[at]) for at, name in enumerate(COLUMNS)}))
        self._waiting += found.shape[1]
        if self._path is not None and self._waiting >= ROWS_PER_GROUP:
            self._write()
        return True

    def close(self) -> Table:
        """All rows as a table."""
        empty = pa.table({name: pa.array([], pa.int64()) for name in COLUMNS})
        if self._path is None or not self._row_groups:
            # A file would hold less than a row group.
            return MemoryTable(pa.concat_tables([empty, *self._pieces]))
        self._write()
        assert self._writer is not None
        self._writer.close()
        return FileTable(tuple((self._path, number, rows) for number, rows in enumerate(self._row_groups)))

    def _write(self) -> None:
        if not self._waiting:
            return
        assert self._path is not None
        data = pa.concat_tables(self._pieces).combine_chunks()
        if self._writer is None:
            where, inner = resolve_filesystem(self._path)
            self._writer = pq.ParquetWriter(inner, data.schema, filesystem=where, compression="zstd")
        self._writer.write_table(data, row_group_size=data.num_rows)
        self._row_groups.append(data.num_rows)
        self._pieces, self._waiting = [], 0
