"""The files of runs: trace folders and Parquet files.

Paths are local or URIs that Arrow knows (s3://, gs://, hdfs://); tasks on other machines open them themselves.
"""

import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final
from uuid import uuid4

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from amcast.kernel.errors import UsageError
from amcast.trace.columns import REQUIRED, TABLES
from amcast.trace.meta import META_FILE, UNFINISHED_META_FILE, Meta, read_metas

SMALL_BYTES: Final = 256 << 20
"""Traces smaller than this are done before the JVM has warmed up."""
GOOGLE_RETRIES: Final = "retry_limit_seconds=15"
"""Arrow tries to reach Google's store for a quarter of an hour, without a word."""


@dataclass(frozen=True)
class TraceFolder:
    """A folder with run.json and tables; the runs that it describes share the tables."""

    folder: str
    metas: tuple[Meta, ...]
    tables: dict[str, tuple[str, ...]]
    """The files of each table that exists, in order of name."""


def resolve_filesystem(path: str) -> tuple[pafs.FileSystem, str]:
    """The file system of a path or URI, and the path inside it. s3:// and s3a:// mean the same."""
    scheme, separator, rest = path.partition("://")
    if not separator or scheme == "file":
        return pafs.LocalFileSystem(), str(Path(rest if separator else path).absolute())
    try:
        if scheme in ("s3", "s3a"):
            return _open_s3(rest.partition("/")[0]), rest
        patient = scheme in ("gs", "gcs") and "?" not in path
        system, path_inside = pafs.FileSystem.from_uri(f"{path}?{GOOGLE_RETRIES}" if patient else path)
    except (pa.ArrowException, ValueError, OSError) as error:
        raise UsageError(
            f"{path}: {explain_error(error)}; expected a folder or a URI of a store that Arrow knows"
        ) from None
    return system, path_inside


@lru_cache
def _open_s3(bucket: str) -> pafs.FileSystem:
    """The store of a bucket: Amazon's, or the one that AWS_ENDPOINT_URL names, with credentials of the environment."""
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    if endpoint is None:
        return pafs.S3FileSystem(region=region or pafs.resolve_s3_region(bucket))
    scheme, _, address = endpoint.rpartition("://")
    return pafs.S3FileSystem(
        endpoint_override=address.rstrip("/"), scheme=scheme or "https", region=region or "us-east-1"
    )


def find_file_info(path: str) -> pafs.FileInfo:
    """Whether a path is a file, a folder or nothing."""
    system, path_inside = resolve_filesystem(path)
    try:
        return system.get_file_info(path_inside)
    except (pa.ArrowException, OSError) as error:
        raise UsageError(f"{path}: cannot be read: {explain_error(error)}") from None


def list_folder(path: str, recursive: bool = False) -> list[pafs.FileInfo]:
    """What is in a folder, in order of name; nothing if there is no folder."""
    system, path_inside = resolve_filesystem(path)
    try:
        found = system.get_file_info(pafs.FileSelector(path_inside, allow_not_found=True, recursive=recursive))
    except (pa.ArrowException, OSError) as error:
        raise UsageError(f"{path}: cannot be read: {explain_error(error)}") from None
    own = path_inside.rstrip("/")
    return sorted((entry for entry in found if entry.path.rstrip("/") != own), key=lambda entry: entry.path)


def read_file(path: str) -> bytes:
    """The content of a file."""
    system, path_inside = resolve_filesystem(path)
    try:
        with system.open_input_stream(path_inside, compression=None) as stream:
            return bytes(stream.read())
    except (pa.ArrowException, OSError) as error:
        raise UsageError(f"{path}: cannot be read: {explain_error(error)}") from None


def open_parquet(path: str, codes: Sequence[str] = ()) -> pq.ParquetFile:
    """A Parquet file with a readable footer; UsageError, which names it, otherwise. `codes`: columns that are read as
    dictionaries."""
    system, path_inside = resolve_filesystem(path)
    try:
        return pq.ParquetFile(path_inside, filesystem=system, pre_buffer=False, read_dictionary=list(codes))
    except (pa.ArrowException, OSError) as error:
        raise UsageError(f"{path}: {explain_error(error)}; expected a whole Parquet file") from None


def find_trace_folders(folder: str) -> list[TraceFolder]:
    """Every trace folder at or below a folder, in order of path. UsageError when there is none."""
    if find_file_info(folder).type != pafs.FileType.Directory:
        raise UsageError(f"{folder}: no such folder; expected a run folder, or a folder that contains some")
    prefix = folder.rstrip("/")
    if find_file_info(f"{prefix}/{META_FILE}").type == pafs.FileType.File:
        return [read_trace_folder(prefix)]
    path_inside = resolve_filesystem(folder)[1]
    folders = sorted(
        entry.path.removesuffix(f"/{META_FILE}")[len(path_inside) :].strip("/")
        for entry in list_folder(folder, recursive=True)
        if entry.base_name == META_FILE and not _is_hidden(entry.path[len(path_inside) :])
    )
    # `latest` beside runs is a link to one of them, not another run.
    folders = [name for name in folders if "://" in folder or not _is_behind_link(Path(folder), name)]
    if not folders:
        # Raises the error that a single folder without run.json gets.
        return [read_trace_folder(prefix)]
    return [read_trace_folder(f"{prefix}/{name}") for name in folders]


def read_trace_folder(folder: str) -> TraceFolder:
    """One trace folder: reads run.json, lists the tables, and requires the mandatory ones."""
    metas = _read_metas(folder)
    tables = {table: files for table in TABLES if (files := list_parquet_files(f"{folder}/{table}"))}
    for table in REQUIRED:
        if table not in tables:
            raise UsageError(f"{folder}: table {table} is missing; expected {folder}/{table}/*.parquet")
    return TraceFolder(folder, tuple(metas), tables)


def list_parquet_files(folder: str) -> tuple[str, ...]:
    """The finished Parquet files of a table; files whose name begins with a dot are still being written."""
    names = [
        e.base_name for e in list_folder(folder) if e.base_name.endswith(".parquet") and e.base_name[0] not in "._"
    ]
    return tuple(f"{folder}/{name}" for name in names)


@contextmanager
def open_scratch(given: str | None, purpose: str) -> Iterator[str]:
    """A new folder for as long as the block runs: below the given one, which all workers see, or on this machine."""
    if given is None:
        with tempfile.TemporaryDirectory(prefix=f"amcast-{purpose}-") as place:
            yield place
        return
    where, inner = resolve_filesystem(given)
    if where.get_file_info(inner).is_file:
        raise UsageError(f"--scratch {given}: a file; expected a folder")
    place = f"{given}/{purpose}-{uuid4().hex[:12]}"
    where.create_dir(resolve_filesystem(place)[1])
    try:
        yield place
    finally:
        if "://" in place:
            where.delete_dir(resolve_filesystem(place)[1])
        else:
            shutil.rmtree(place, ignore_errors=True)


def sum_file_bytes(folders: list[TraceFolder]) -> int:
    """The bytes of all files of some folders, from lists: a store would be asked about each file otherwise."""
    total = 0
    for source in folders:
        for files in source.tables.values():
            names = {file.rpartition("/")[2] for file in files}
            entries = list_folder(files[0].rpartition("/")[0]) if files else []
            total += sum(entry.size or 0 for entry in entries if entry.base_name in names)
    return total


def _read_metas(folder: str) -> list[Meta]:
    if "://" not in folder:
        return read_metas(Path(folder))
    with tempfile.TemporaryDirectory() as copy:
        for entry in list_folder(folder):
            if entry.base_name in (META_FILE, UNFINISHED_META_FILE):
                (Path(copy) / entry.base_name).write_bytes(read_file(f"{folder}/{entry.base_name}"))
        try:
            return read_metas(Path(copy))
        except UsageError as error:
            raise UsageError(str(error).replace(copy, folder)) from None


def _is_hidden(path: str) -> bool:
    return any(piece.startswith((".", "_")) for piece in path.split("/") if piece)


def _is_behind_link(folder: Path, name: str) -> bool:
    return any((folder / Path(*Path(name).parts[: depth + 1])).is_symlink() for depth in range(len(Path(name).parts)))


def explain_error(error: Exception) -> str:
    """The reason of an operating system or of Arrow, in one line."""
    reason = str(getattr(error, "strerror", None) or error)
    return reason.strip().partition("\n")[0].rstrip(".") or type(error).__name__
