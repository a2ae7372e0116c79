"""Where a run's rows are: files, row groups, and which positions of which process each holds.

Paths are local or URIs that Arrow knows (s3://, gs://, hdfs://); tasks on other machines open them themselves. The
footers of Parquet files say which processes and positions a row group holds, so that a task reads only its share.
"""

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from amcast.kernel.errors import UsageError
from amcast.trace.columns import REQUIRED, TABLES
from amcast.trace.meta import META_FILE, Meta, read_metas
from amcast.trace.parquet import checked

SMALL_BYTES: Final = 256 << 20
"""Traces that take less than this are done before the JVM has warmed up."""


@dataclass(frozen=True)
class Span:
    """A row group of `deliveries`: its rows are those of processes first .. last, positions low .. high."""

    path: str
    row_group: int
    rows: int
    first: int
    last: int
    low: int
    high: int


@dataclass(frozen=True)
class Source:
    """A folder with run.json and tables; the runs that it describes share the tables."""

    folder: str
    metas: tuple[Meta, ...]
    tables: dict[str, tuple[str, ...]]
    """The files of each table that exists, in order of name."""


def filesystem(path: str) -> tuple[pafs.FileSystem, str]:
    """The file system of a path, and the path in its terms."""
    if "://" not in path:
        return pafs.LocalFileSystem(), str(Path(path).absolute())
    try:
        found, inner = pafs.FileSystem.from_uri(path)
    except (pa.ArrowException, ValueError, OSError) as error:
        raise UsageError(f"{path}: {_line(error)}; expected a folder or a URI of a store that Arrow knows") from None
    return found, inner


def opened(path: str) -> pq.ParquetFile:
    """A Parquet file with a readable footer, or a refusal that names it."""
    found, inner = filesystem(path)
    try:
        return pq.ParquetFile(inner, filesystem=found, pre_buffer=False)
    except (pa.ArrowException, OSError) as error:
        raise UsageError(f"{path}: {_line(error)}; expected a whole Parquet file") from None


def sources(folder: str) -> list[Source]:
    """Every run folder at or below a folder, in order of path. WrongUse when there is none."""
    found, inner = filesystem(folder)
    if found.get_file_info(inner).type != pafs.FileType.Directory:
        raise UsageError(f"{folder}: no such folder; expected a run folder, or a folder that contains some")
    prefix = folder.rstrip("/")
    if found.get_file_info(f"{inner}/{META_FILE}").type == pafs.FileType.File:
        return [source(prefix)]
    entries = found.get_file_info(pafs.FileSelector(inner, recursive=True))
    folders = sorted(
        entry.path.removesuffix(f"/{META_FILE}")[len(inner) :].strip("/")
        for entry in entries
        if entry.base_name == META_FILE and not _hidden(entry.path[len(inner) :])
    )
    # `latest` beside runs is a link to one of them: not a run of its own.
    folders = [name for name in folders if "://" in folder or not _through_link(Path(folder), name)]
    if not folders:
        # Says what is missing in the words that a single folder would get.
        return [source(prefix)]
    return [source(f"{prefix}/{name}") for name in folders]


def source(folder: str) -> Source:
    """One run folder: run.json read, tables listed, the required ones present."""
    metas = _metas(folder)
    tables = {table: files for table in TABLES if (files := parts(f"{folder}/{table}"))}
    for table in REQUIRED:
        if table not in tables:
            raise UsageError(f"{folder}: table {table} is missing; expected {folder}/{table}/*.parquet")
    return Source(folder, tuple(metas), tables)


def parts(folder: str) -> tuple[str, ...]:
    """The finished Parquet files of a table; dot-files are still being written."""
    found, inner = filesystem(folder)
    entries = found.get_file_info(pafs.FileSelector(inner, allow_not_found=True))
    names = sorted(e.base_name for e in entries if e.base_name.endswith(".parquet") and e.base_name[0] not in "._")
    return tuple(f"{folder}/{name}" for name in names)


def size_of(found: list[Source]) -> int:
    """The bytes of all files of some folders."""
    files = [file for source in found for table in source.tables.values() for file in table]
    if not files:
        return 0
    where, _ = filesystem(files[0])
    return sum(info.size or 0 for info in where.get_file_info([filesystem(file)[1] for file in files]))


def validated(source: Source) -> None:
    """Refuse missing columns, wrong types and truncated files: every footer is read, no row is."""
    for table, files in source.tables.items():
        for file in files:
            checked(table, Path(file), opened(file).schema_arrow)


def spans(files: tuple[str, ...]) -> list[Span]:
    """The row groups of `deliveries` with what their footers say; one without statistics is read to find out."""
    found: list[Span] = []
    for path in files:
        file = opened(path)
        meta = file.metadata
        places = {meta.schema.column(place).path: place for place in range(meta.num_columns)}
        for number in range(meta.num_row_groups):
            group = meta.row_group(number)
            if not group.num_rows:
                continue
            process = _range(group, places["process"])
            position = _range(group, places["position"])
            if process is None or position is None:
                data = file.read_row_group(number, columns=["process", "position"])
                process, position = _least_most(data["process"]), _least_most(data["position"])
            found.append(Span(path, number, group.num_rows, *process, *position))
    return found


def batches(path: str, row_groups: list[int], columns: list[str], rows: int) -> Iterator[pa.RecordBatch]:
    """Some columns of some row groups, a bounded number of rows at a time."""
    file = opened(path)
    present = set(file.schema_arrow.names)
    try:
        yield from file.iter_batches(
            rows, row_groups=row_groups, columns=[name for name in columns if name in present], use_threads=False
        )
    except (pa.ArrowException, OSError) as error:
        raise UsageError(f"{path}: {_line(error)}; expected a whole Parquet file") from None


def _metas(folder: str) -> list[Meta]:
    if "://" not in folder:
        return read_metas(Path(folder))
    found, inner = filesystem(folder)
    with tempfile.TemporaryDirectory() as copy:
        if found.get_file_info(f"{inner}/{META_FILE}").type == pafs.FileType.File:
            with found.open_input_stream(f"{inner}/{META_FILE}") as stream:
                (Path(copy) / META_FILE).write_bytes(stream.read())
        try:
            return read_metas(Path(copy))
        except UsageError as error:
            raise UsageError(str(error).replace(copy, folder)) from None


def _range(group: Any, place: int) -> tuple[int, int] | None:
    statistics = group.column(place).statistics
    if statistics is None or not statistics.has_min_max:
        return None
    return int(statistics.min), int(statistics.max)


def _least_most(column: pa.ChunkedArray) -> tuple[int, int]:
    values = column.to_numpy()
    return int(values.min()), int(values.max())


def _hidden(path: str) -> bool:
    return any(piece.startswith((".", "_")) for piece in path.split("/") if piece)


def _through_link(folder: Path, name: str) -> bool:
    return any((folder / Path(*Path(name).parts[: depth + 1])).is_symlink() for depth in range(len(Path(name).parts)))


def _line(error: Exception) -> str:
    return str(error).strip().splitlines()[0].rstrip(".") if str(error).strip() else type(error).__name__
