"""One run in memory: its tables as plain columns, from a recorder or from a folder of any writer.

    run = Run.from_recorder(recorder, Meta(run="r1"))   after a run in memory
    run = read_run("runs/latest")                       from a run folder
    run.deliveries["process"][0]                        a table is a dict of lists, one per column

Packets are the largest table and are needed least: they stay where they are and are read in batches of columns. Arrow
is slow to load: only what reads files imports it, so that searches and most commands start without it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from amcast.kernel.errors import UsageError
from amcast.trace.columns import BATCH_ROWS, REQUIRED, TABLES
from amcast.trace.meta import META_FILE, Meta, read_metas
from amcast.trace.recorder import Recorder, Row

if TYPE_CHECKING:
    import pyarrow as pa

Columns = dict[str, list[Any]]
"""A table, or a batch of one: column name -> values. Every known column but `run` is present; an absent one is None."""


class Packets(Protocol):
    """The packets of one run, in memory or in files."""

    def __len__(self) -> int: ...

    def batches(self, *names: str) -> Iterator[Columns]:
        """The named columns, some rows at a time; all columns if none is named."""


@dataclass
class Run:
    """The tables of one run. `packets` and `answers` are None when they were not recorded, which is not the same as
    empty."""

    meta: Meta
    processes: Columns
    multicasts: Columns
    deliveries: Columns
    notes: Columns
    packets: Packets | None
    answers: Columns | None = None

    @classmethod
    def from_recorder(cls, recorder: Recorder, meta: Meta) -> "Run":
        """The rows of an in-memory recorder."""
        return cls(
            meta,
            to_columns("processes", recorder.processes),
            to_columns("multicasts", recorder.multicasts),
            to_columns("deliveries", recorder.deliveries),
            to_columns("notes", recorder.notes),
            MemoryPackets(recorder.packets) if recorder.wants_packets else None,
            to_columns("answers", recorder.answers) if recorder.has_answers else None,
        )


def to_columns(table: str, rows: Sequence[Row]) -> Columns:
    """Rows in a recorder's order as columns."""
    names = [column.name for column in TABLES[table][1:]]
    return {name: [row[place] for row in rows] for place, name in enumerate(names)}


class MemoryPackets:
    """Packets of a recorder in memory."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def batches(self, *names: str) -> Iterator[Columns]:
        places = {column.name: place for place, column in enumerate(TABLES["packets"][1:])}
        for start in range(0, len(self._rows), BATCH_ROWS):
            rows = self._rows[start : start + BATCH_ROWS]
            yield {name: [row[places[name]] for row in rows] for name in names or places}


class FilePackets:
    """Packets of one run in the files of a folder. Schemas are checked at once, rows are read on demand."""

    def __init__(self, files: Sequence[Path], run: str, shared: bool) -> None:
        self._files = files
        self._run = run
        self._shared = shared
        from amcast.trace import parquet

        for file in files:
            parquet.check_schema("packets", file, parquet.open_parquet(file).schema_arrow)

    def __len__(self) -> int:
        from amcast.trace import parquet

        if self._shared:
            return sum(len(batch["source"]) for batch in self.batches("source"))
        return sum(parquet.open_parquet(file).metadata.num_rows for file in self._files)

    def batches(self, *names: str) -> Iterator[Columns]:
        wanted = [column.name for column in TABLES["packets"][1:] if not names or column.name in names]
        for file in self._files:
            for batch in self._tables(file):
                yield {name: batch.column(name).to_pylist() for name in wanted}

    def _tables(self, file: Path) -> "Iterator[pa.Table]":
        from amcast.trace import parquet

        for table in parquet.iterate_canonical("packets", file, parquet.open_parquet(file)):
            selected = _select_run(table, self._run, file, self._shared)
            if len(selected):
                yield selected


def read_run(folder: Path | str, run: str | None = None) -> Run:
    """Reads the run of a folder; if it holds several, `run` names one."""
    folder = Path(folder)
    metas = read_metas(folder)
    if run is None and len(metas) > 1:
        names = ", ".join(meta.run for meta in metas[:5])
        raise UsageError(f"{folder}: holds {len(metas)} runs; expected one, or its name given (for example {names})")
    for meta in metas:
        if run in (None, meta.run):
            return _FolderReader(folder, [other.run for other in metas]).run(meta)
    raise UsageError(
        f"{folder / META_FILE}: run {run!r} is not there; expected one of {[meta.run for meta in metas][:5]}"
    )


def read_runs(folder: Path | str) -> list[Run]:
    """Reads every run of a folder: one, several that share its tables, or those of run folders inside it, by name."""
    folder = Path(folder)
    if folder.is_dir() and not (folder / META_FILE).exists():
        inside = sorted(file.parent for file in folder.glob(f"*/{META_FILE}") if not file.parent.is_symlink())
        if inside:
            return [run for child in inside for run in read_runs(child)]
    metas = read_metas(folder)
    tables = _FolderReader(folder, [meta.run for meta in metas])
    return [tables.run(meta) for meta in metas]


class _FolderReader:
    """Reads the tables of a folder, each once, however many runs share it."""

    def __init__(self, folder: Path, runs: list[str]) -> None:
        self._folder = folder
        self._runs = runs
        self._tables: dict[str, pa.Table] = {}

    def run(self, meta: Meta) -> Run:
        tables = {table: self._columns(table, meta.run) for table in ("processes", "multicasts", "deliveries", "notes")}
        files = self._files("packets")
        packets = FilePackets(files, meta.run, len(self._runs) > 1) if files else None
        answers = self._columns("answers", meta.run) if self._files("answers") else None
        return Run(meta, **tables, packets=packets, answers=answers)

    def _columns(self, table: str, run: str) -> Columns:
        if table not in self._tables:
            self._tables[table] = self._read(table)
        data = self._tables[table]
        if len(self._runs) > 1:
            import pyarrow.compute as pc

            data = data.filter(pc.equal(data.column("run"), run))
        return {column.name: data.column(column.name).to_pylist() for column in TABLES[table][1:]}

    def _read(self, table: str) -> "pa.Table":
        import pyarrow as pa

        from amcast.trace import parquet

        files = self._files(table)
        if not files and table in REQUIRED:
            raise UsageError(f"{self._folder}: table {table} is missing; expected {self._folder / table}/*.parquet")
        parts = [self._part(table, file) for file in files]
        if not parts:
            schema = pa.schema([(column.name, parquet.TYPES[column.type]) for column in TABLES[table]])
            return schema.empty_table()
        return pa.concat_tables(parts)

    def _part(self, table: str, file: Path) -> "pa.Table":
        import pyarrow as pa
        import pyarrow.compute as pc

        from amcast.trace import parquet

        opened = parquet.open_parquet(file)
        known = parquet.check_schema(table, file, opened.schema_arrow)
        try:
            data = opened.read(columns=known)
        except (pa.ArrowException, OSError) as error:
            raise parquet.unreadable_file_error(file, error) from None
        data = parquet.to_canonical(table, file, data)
        for name in pc.unique(data.column("run")).to_pylist():
            if name not in self._runs:
                raise UsageError(f"{file}: rows of run {name!r}; expected only {self._runs[:5]}, as {META_FILE} says")
        return data

    def _files(self, table: str) -> list[Path]:
        return sorted(file for file in (self._folder / table).glob("*.parquet") if not file.name.startswith("."))


def _select_run(table: "pa.Table", run: str, file: Path, shared: bool) -> "pa.Table":
    import pyarrow.compute as pc

    in_run = pc.equal(table.column("run"), run)
    if not shared and not pc.all(in_run).as_py() and len(table):
        raise UsageError(f"{file}: rows of another run than {run!r}; expected one run, as {META_FILE} says")
    return table.filter(in_run) if shared else table
