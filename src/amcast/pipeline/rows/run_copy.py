"""Copies a run into few files: a live run of an hour has tens of thousands.

The rows are the same. Those of deliveries are sorted by process and position within each file, a row group per process,
which is the layout that checks read without sorting.
"""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa

from amcast.kernel.errors import UsageError
from amcast.pipeline.rows.files import TraceFolder, open_parquet, read_trace_folder
from amcast.pipeline.rows.footers import refuse_other_runs
from amcast.pipeline.rows.locations import Location
from amcast.pipeline.rows.tables import arrow_schema
from amcast.trace.meta import META_FILE
from amcast.trace.parquet import iterate_canonical, open_writer

ROWS_PER_FILE: Final = 1 << 22
ROWS_PER_GROUP: Final = 1 << 18


@dataclass(frozen=True)
class CopiedTable:
    """One table of a run, before and after."""

    table: str
    rows: int
    files_before: int
    files: int


def copy_run(folder: str, out: Path | str, rows_per_file: int = ROWS_PER_FILE) -> list[CopiedTable]:
    """Copies a finished run to a new folder or URI, into as few files as possible. run.json is written last."""
    place = Location.of(out)
    if place.is_file() or place.list_names():
        raise UsageError(f"--out {out}: exists and is not an empty folder; expected a new one")
    source = read_trace_folder(folder.rstrip("/"))
    description = (Location(source.folder) / META_FILE).read_bytes()
    copied = [_copy_table(source, table, place / table, rows_per_file) for table in source.tables]
    (place / META_FILE).write_bytes(description)
    return copied


def _copy_table(source: TraceFolder, table: str, out: Location, rows_per_file: int) -> CopiedTable:
    rows = files = 0
    for part in _read_parts(source, table, rows_per_file):
        with (
            _open_file(out / f"part-{files:05}.parquet") as file,
            open_writer(table, file, part.schema) as writer,
        ):
            for group in _split_row_groups(table, part):
                writer.write_table(group, row_group_size=max(1, len(group)))
        rows, files = rows + len(part), files + 1
    return CopiedTable(table, rows, len(source.tables[table]), files)


@contextmanager
def _open_file(file: Location) -> Iterator[Path]:
    """A local file that gets its name, or is uploaded, when the block ends well."""
    if not file.is_local:
        with tempfile.TemporaryDirectory(prefix="amcast-compact-") as folder:
            yield Path(folder) / file.name
            Location(file.path.rpartition("/")[0]).upload(Path(folder))
        return
    path = Path(file.path)
    early = path.with_name(f".{path.name}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield early
        early.rename(path)
    except OSError as error:
        raise UsageError(f"{file}: cannot be written: {error.strerror or error}") from None


def _read_parts(source: TraceFolder, table: str, rows_per_file: int) -> Iterator[pa.Table]:
    """The rows of a table in the order of its files, as many at a time as go to one file; one empty part if none."""
    runs, waiting, rows, has_any = [meta.run for meta in source.metas], list[pa.Table](), 0, False
    for path in source.tables[table]:
        for data in iterate_canonical(table, path, open_parquet(path)):
            refuse_other_runs(data.column("run"), path, runs)
            waiting.append(data)
            rows += len(data)
            if rows >= rows_per_file:
                yield pa.concat_tables(waiting)
                waiting, rows, has_any = [], 0, True
    if waiting or not has_any:
        yield pa.concat_tables(waiting) if waiting else arrow_schema(table).empty_table()


def _split_row_groups(table: str, part: pa.Table) -> Iterator[pa.Table]:
    cuts = list(range(0, len(part), ROWS_PER_GROUP))
    if table == "deliveries" and len(part):
        part = part.sort_by([("process", "ascending"), ("position", "ascending"), ("at_ns", "ascending")])
        process = part.column("process").to_numpy()
        bounds = [0, *(np.nonzero(np.diff(process))[0] + 1).tolist(), len(part)]
        cuts = [at for low, high in pairwise(bounds) for at in range(low, high, ROWS_PER_GROUP)]
    for low, high in pairwise([*(cuts or [0]), len(part)]):
        yield part.slice(low, high - low)
