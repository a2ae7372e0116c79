"""Folders and files that may be in object stores: the few operations that commands need on what they read and write.

A file appears under its name when it is complete: on file systems by renaming it, in object stores by the end of its
upload. Results of many files are made in a local folder first, and then uploaded, the file that describes them last.
"""

import shutil
import tempfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.fs as pafs

from amcast.kernel.errors import UsageError
from amcast.pipeline.rows.files import (
    TraceFolder,
    explain_error,
    find_file_info,
    find_trace_folders,
    list_folder,
    read_file,
    resolve_filesystem,
)
from amcast.trace.meta import META_FILE

OBJECT_STORES: Final = ("s3", "gcs", "abfs")
"""File systems of Arrow in which a file is visible when its upload ends, and has no cheap new name."""


def parse_location(text: str) -> str:
    """A folder as a user names it: file:///x is the path /x; other URIs lose only a slash at their end."""
    if text.startswith("file://"):
        rest = unquote(text.removeprefix("file://").removeprefix("localhost"))
        if not rest.startswith("/"):
            raise UsageError(f"{text}: expected an absolute path, such as file:///data/runs")
        return rest
    return text.rstrip("/") if "://" in text else text


@dataclass(frozen=True)
class Location:
    """A folder or a file: a local path, or a URI of a store."""

    path: str

    @staticmethod
    def of(path: "str | Path | Location") -> "Location":
        return path if isinstance(path, Location) else Location(parse_location(str(path)))

    def __truediv__(self, name: str) -> "Location":
        return Location(f"{self.path.rstrip('/')}/{name}")

    def __str__(self) -> str:
        return self.path

    @property
    def is_local(self) -> bool:
        return "://" not in self.path

    @property
    def name(self) -> str:
        """The last part of the path."""
        return Path(self.path).resolve().name if self.is_local else self.path.rstrip("/").rpartition("/")[2]

    def is_file(self) -> bool:
        return bool(find_file_info(self.path).type == pafs.FileType.File)

    def is_folder(self) -> bool:
        return bool(find_file_info(self.path).type == pafs.FileType.Directory)

    def read_bytes(self) -> bytes:
        """The content of a file."""
        return read_file(self.path)

    def write_bytes(self, data: bytes | pa.Buffer) -> None:
        """Writes a file, which appears when it is complete and replaces one of its name."""
        system, inside = resolve_filesystem(self.path)
        folder, _, name = inside.rpartition("/")
        early = inside if system.type_name in OBJECT_STORES else f"{folder}/.{name}"
        try:
            if early != inside:
                system.create_dir(folder)
            with system.open_output_stream(early) as stream:
                stream.write(data)
            if early != inside:
                system.move(early, inside)
        except (pa.ArrowException, OSError) as error:
            raise UsageError(f"{self}: cannot be written: {explain_error(error)}") from None

    def list_entries(self, recursive: bool = False) -> list[pafs.FileInfo]:
        """What is in a folder, in order of name; nothing if there is no folder."""
        return list_folder(self.path, recursive)

    def list_names(self) -> list[str]:
        """The names in a folder, in order."""
        return [entry.base_name for entry in self.list_entries()]

    def list_changes(self) -> list[tuple[str, int]]:
        """Every file below a folder, by its path from there, and when it changed."""
        skipped = len(resolve_filesystem(self.path)[1].rstrip("/")) + 1
        files = (entry for entry in self.list_entries(recursive=True) if entry.type == pafs.FileType.File)
        return [(entry.path[skipped:], entry.mtime_ns or 0) for entry in files]

    def remove(self) -> None:
        """Removes a file."""
        system, inside = resolve_filesystem(self.path)
        try:
            system.delete_file(inside)
        except (pa.ArrowException, OSError) as error:
            raise UsageError(f"{self}: cannot be removed: {explain_error(error)}") from None

    def upload(self, folder: Path, last: Collection[str] = ()) -> None:
        """Copies the files of a local folder here: those with names in `last` when all others are complete."""
        files = [file for file in sorted(folder.rglob("*")) if file.is_file()]
        for is_last in (False, True):
            for file in files:
                if (file.name in last) == is_last:
                    self._upload_file(file, str(file.relative_to(folder)))

    def _upload_file(self, file: Path, name: str) -> None:
        system, inside = resolve_filesystem((self / name).path)
        try:
            if system.type_name not in OBJECT_STORES:
                system.create_dir(inside.rpartition("/")[0])
            with file.open("rb") as source, system.open_output_stream(inside) as stream:
                shutil.copyfileobj(source, stream, 1 << 20)
        except (pa.ArrowException, OSError) as error:
            raise UsageError(f"{self / name}: cannot be written: {explain_error(error)}") from None

    def download(self, folder: Path) -> None:
        """Copies everything in this folder to a local one."""
        system, inside = resolve_filesystem(self.path)
        try:
            pafs.copy_files(inside, str(folder), source_filesystem=system)
        except (pa.ArrowException, OSError) as error:
            raise UsageError(f"{self}: cannot be read: {explain_error(error)}") from None


@contextmanager
def open_output(place: Location, last: Collection[str] = ()) -> Iterator[Path]:
    """A local folder for results: the place itself, or one that is uploaded to it when the block ends well."""
    if place.is_local:
        yield Path(place.path)
        return
    with tempfile.TemporaryDirectory(prefix="amcast-out-") as folder:
        yield Path(folder)
        place.upload(Path(folder), last)


@contextmanager
def open_input(place: Location) -> Iterator[Path]:
    """A local folder with what a place holds: the place itself, or a copy for as long as the block runs."""
    if place.is_local:
        yield Path(place.path)
        return
    with tempfile.TemporaryDirectory(prefix="amcast-in-") as folder:
        if place.is_folder():
            place.download(Path(folder))
        yield Path(folder)


@contextmanager
def open_runs(folder: str) -> Iterator[Path]:
    """A local folder with the runs at or below another: that one, or a copy of their tables for as long as the block
    runs. Refusals name the runs where they are."""
    if Location(folder).is_local:
        yield Path(folder)
        return
    with tempfile.TemporaryDirectory(prefix="amcast-runs-") as copy:
        try:
            for source in find_trace_folders(folder):
                copy_tables(source, Path(f"{copy}{source.folder.removeprefix(folder.rstrip('/'))}"))
            yield Path(copy)
        except UsageError as error:
            raise UsageError(str(error).replace(copy, folder)) from None


def copy_tables(source: TraceFolder, target: Path) -> None:
    """Copies run.json and the tables of a run to a local folder."""
    target.mkdir(parents=True, exist_ok=True)
    (target / META_FILE).write_bytes((Location(source.folder) / META_FILE).read_bytes())
    for table, files in source.tables.items():
        (target / table).mkdir()
        for file in files:
            (target / table / file.rpartition("/")[2]).write_bytes(Location(file).read_bytes())
