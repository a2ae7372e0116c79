"""A run folder, written during the run: six tables of Parquet files, and run.json when the run is complete.

    RUN/run.json                          written last: its presence shows that the trace is whole
    RUN/deliveries/part-00000.parquet     a file gets its name when it is complete, and never changes
    RUN/deliveries/part-00001.parquet     rows of one process come in order of position, file after file
    latest -> RUN                         a link beside the run

Memory is bounded: rows become columns a few thousand at a time, and columns become a row group of a file. Several
writers may share a folder: each process of a live cluster is a `writer` that `joins`, and its files carry its name
(`process-00003-00000.parquet`); a writer that starts again continues its numbering.
"""

import re
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import pyarrow.parquet as pq

from amcast.kernel.errors import UsageError
from amcast.trace import meta as run_json
from amcast.trace import parquet
from amcast.trace.columns import TABLES
from amcast.trace.meta import Meta
from amcast.trace.recorder import Recorder, Row

ROWS_PER_CHUNK: Final = 1 << 11
"""Rows buffered as tuples: few enough to be still in the cache when they become columns."""
ROWS_PER_GROUP: Final = 1 << 18
ROWS_PER_FILE: Final = 1 << 22
WRITER_NAME: Final = re.compile(r"[a-z][a-z0-9-]*")
_BY_POSITION: Final = [("process", "ascending"), ("position", "ascending")]


class FolderRecorder(Recorder):
    """Writes a run folder. Used as a context: an exception leaves an interrupted folder, without run.json."""

    def __init__(
        self,
        folder: Path | str,
        meta: Meta,
        *,
        packets: bool = True,
        every: int = 1,
        writer: str = "part",
        joins: bool = False,
        latest: bool = True,
        rows_per_group: int = ROWS_PER_GROUP,
        rows_per_file: int = ROWS_PER_FILE,
    ) -> None:
        super().__init__()
        self.folder = Path(folder)
        self.meta = meta
        self.wants_packets = packets
        if every < 1:
            raise UsageError(f"every {every}; expected 1 (all deliveries) or more")
        self.sample_every = every
        self.joins = joins
        self._latest = latest
        self.max_buffered_rows = min(ROWS_PER_CHUNK, rows_per_group)
        if not WRITER_NAME.fullmatch(writer):
            raise UsageError(f"writer {writer!r}; expected lower-case letters, digits and hyphens, a letter first")
        if not 1 <= rows_per_group <= rows_per_file:
            raise UsageError(f"rows_per_group {rows_per_group}; expected 1 to rows_per_file ({rows_per_file})")
        if not joins:
            _claim_folder(self.folder, meta)
        self._files = {
            table: _TableWriter(self.folder, table, meta.run, writer, rows_per_group, rows_per_file) for table in TABLES
        }

    # Writing files

    def flush(self) -> None:
        """Finishes the current files: rows recorded until now survive a crash of this process."""
        for table, rows in self._buffered_tables():
            self.flush_table(table, rows)
            self._files[table].finish()

    def close(self, **claims: Any) -> None:
        """Writes buffered rows and, unless this writer only joined, run.json.

        Claims that are known only at the end of a run are passed here: `close(complete=True)`. A run with sampled
        deliveries is never complete: a missing row may just not have been recorded, and proves nothing.
        """
        if self.sample_every > 1:
            claims["complete"] = False
        self.flush()
        if self.joins:
            return
        for table, _ in self._buffered_tables():
            self._files[table].ensure_exists()
        self.meta = self.meta.with_claims(**claims)
        early = self.folder / run_json.UNFINISHED_META_FILE
        early.write_bytes(run_json.encode_metas(self.meta))
        early.rename(self.folder / run_json.META_FILE)
        if self._latest:
            link_latest(self.folder)

    def abandon(self) -> None:
        """Gives up: finished files stay, unfinished ones are removed, and run.json is never written."""
        for files in self._files.values():
            files.abandon()

    def __enter__(self) -> "FolderRecorder":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self.abandon()
        elif self.joins or not (self.folder / run_json.META_FILE).exists():
            self.close()

    def _buffered_tables(self) -> list[tuple[str, list[Row]]]:
        unused = {"packets": not self.wants_packets, "answers": not self.has_answers}
        return [(table, getattr(self, table)) for table in TABLES if not unused.get(table, False)]

    def flush_table(self, table: str, rows: list[Row]) -> None:
        if rows:
            self._files[table].add_rows(rows)
            rows.clear()


class _TableWriter:
    """Writes the files of one table: at most one is open, under a name that begins with a dot."""

    def __init__(
        self, folder: Path, table: str, run: str, writer: str, rows_per_group: int, rows_per_file: int
    ) -> None:
        self.folder = folder / table
        self._table = table
        self._writer = writer
        self._builder = parquet.TableBuilder(table, run)
        self._rows_per_group = rows_per_group
        self._rows_per_file = rows_per_file
        self._number = 1 + max((int(file.stem[-5:]) for file in self._list_own_files()), default=-1)
        self._open: pq.ParquetWriter | None = None
        self._rows = 0

    def add_rows(self, rows: list[Row]) -> None:
        self._builder.add_rows(rows)
        if self._builder.rows >= self._rows_per_group:
            self._write()

    def _write(self) -> None:
        data = self._builder.table()
        if self._table == "deliveries":
            data = data.sort_by(_BY_POSITION)
        if self._open is None:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._open = parquet.open_writer(self._table, self._hidden_path(), data.schema)
            self._rows = 0
        self._open.write_table(data, row_group_size=max(len(data), 1))
        self._rows += len(data)
        if self._rows >= self._rows_per_file:
            self.finish()

    def finish(self) -> None:
        if self._builder.rows:
            self._write()
        if self._open is None:
            return
        self._open.close()
        self._open = None
        self._hidden_path().rename(self.folder / self._name())
        self._number += 1

    def ensure_exists(self) -> None:
        """Writes an empty file if the table has none: an empty table says that nothing happened, a missing one does
        not.
        """
        if not any(self.folder.glob("[!.]*.parquet")):
            self._write()
            self.finish()

    def abandon(self) -> None:
        if self._open is not None:
            with suppress(Exception):
                self._open.close()
            self._open = None
            self._hidden_path().unlink(missing_ok=True)

    def _list_own_files(self) -> list[Path]:
        pattern = re.compile(re.escape(self._writer) + r"-\d{5}\.parquet")
        return [file for file in self.folder.glob("*.parquet") if pattern.fullmatch(file.name)]

    def _name(self) -> str:
        return f"{self._writer}-{self._number:05d}.parquet"

    def _hidden_path(self) -> Path:
        return self.folder / f".{self._name()}"


def _claim_folder(folder: Path, meta: Meta) -> None:
    """Takes a folder for this run; refuses one that holds a run already: traces are never rewritten."""
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder}: a file; expected a folder for the run")
    for name in (run_json.META_FILE, run_json.UNFINISHED_META_FILE, *TABLES):
        if (folder / name).exists():
            raise UsageError(f"{folder}: holds a run already ({name}); expected a new or empty folder")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / run_json.UNFINISHED_META_FILE).write_bytes(run_json.encode_metas(meta.with_claims(complete=False)))


def link_latest(folder: Path) -> None:
    """Points the link `latest`, beside the run folder, at it; a real file or folder of that name is left alone."""
    folder = folder.resolve()
    link = folder.parent / "latest"
    if folder.name == "latest" or (link.exists() and not link.is_symlink()):
        return
    temporary = folder.parent / f".latest-{folder.name}"
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(folder.name, target_is_directory=True)
    temporary.replace(link)
