"""`amcast.load("runs/latest")`: the tables and measures of runs for analysts, each one read when it is asked for.

run = amcast.load("runs/latest")
run["deliveries"].to_pandas()
run.measures["latency"].to_arrow()
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from amcast.kernel.errors import UsageError
from amcast.pipeline.measure.small_run import MeasureSetting, measure_folders
from amcast.pipeline.measure.tables import SCHEMAS, to_arrow
from amcast.pipeline.rows.files import TraceFolder, find_trace_folders, list_parquet_files, resolve_filesystem
from amcast.pipeline.rows.footers import read_footers
from amcast.pipeline.rows.locations import Location
from amcast.pipeline.rows.tables import arrow_schema, load_table
from amcast.trace.columns import TABLES
from amcast.trace.data_table import DataTable, load_package
from amcast.trace.meta import Meta

EDGE_SHARE = 0.1


class TraceTable:
    """One table of a trace, in files: nothing is read before it is converted."""

    def __init__(self, name: str, sources: Sequence[TraceFolder]) -> None:
        self.name = name
        self.files = [file for source in sources for file in source.tables.get(name, ())]
        self._sources = sources

    @property
    def rows(self) -> int:
        """The number of rows, from the files' footers."""
        return sum(one.rows for source in self._sources for one in _read_footers(source).get(self.name, ()))

    def to_arrow(self) -> pa.Table:
        """The rows in memory, with every column that the table may have; refuses what a check refuses."""
        parts = [load_table(source, self.name) for source in self._sources if self.name in source.tables]
        return pa.concat_tables(parts) if parts else arrow_schema(self.name).empty_table()

    def to_pandas(self) -> Any:
        """A pandas DataFrame."""
        return self.to_arrow().to_pandas()

    def to_polars(self) -> Any:
        """A Polars LazyFrame over the files."""
        return load_package("polars").scan_parquet(self._list_local_files())

    def to_duckdb(self) -> Any:
        """A DuckDB relation over the files."""
        return load_package("duckdb").read_parquet(self._list_local_files())

    def to_spark(self, spark: Any) -> Any:
        """A Spark DataFrame over the files."""
        from amcast.pipeline.rows.schemas import read_frame

        return read_frame(spark, list(self._sources), self.name)

    def _list_local_files(self) -> list[str]:
        if not self.files:
            raise UsageError(f"table {self.name}: the run has no such files; expected a table that was recorded")
        return self.files


class RunMeasures(Mapping[str, DataTable]):
    """The measures of some runs: those that `amcast measure` left in the folder, else computed here, without Spark."""

    def __init__(self, folder: str, sources: Sequence[TraceFolder]) -> None:
        self._folder = folder
        self._sources = sources

    def __getitem__(self, name: str) -> DataTable:
        if name not in SCHEMAS:
            raise UsageError(f"measure {name!r}; expected one of {', '.join(SCHEMAS)}")
        written = f"{self._folder}/measures/{name}.parquet"
        if written in list_parquet_files(f"{self._folder}/measures"):
            where, inner = resolve_filesystem(written)
            return DataTable(name, pq.read_table(inner, filesystem=where))
        return DataTable(name, to_arrow(name, self._computed.get(name, [])))

    def __iter__(self) -> Iterator[str]:
        return iter(SCHEMAS)

    def __len__(self) -> int:
        return len(SCHEMAS)

    @cached_property
    def _computed(self) -> dict[str, list[dict[str, Any]]]:
        setting = MeasureSetting(EDGE_SHARE, None, is_exact=True)
        return measure_folders([(source, _read_footers(source)) for source in self._sources], setting)


class LoadedRuns(Mapping[str, TraceTable]):
    """The runs at or below a folder: a table by its name, `measures`, and what run.json says about each run."""

    def __init__(self, folder: str) -> None:
        place = Location.of(folder)
        # Files are read later, when the working directory may be another one; that of Spark's JVM is, often.
        self.folder = str(Path(place.path).absolute()) if place.is_local else place.path
        self._sources = find_trace_folders(self.folder)
        self.metas: list[Meta] = [meta for source in self._sources for meta in source.metas]
        self.measures = RunMeasures(self.folder, self._sources)

    def __getitem__(self, name: str) -> TraceTable:
        if name not in TABLES:
            raise UsageError(f"table {name!r}; expected one of {', '.join(TABLES)}")
        return TraceTable(name, self._sources)

    def __iter__(self) -> Iterator[str]:
        return (name for name in TABLES if any(name in source.tables for source in self._sources))

    def __len__(self) -> int:
        return sum(1 for _ in self)


def load(folder: str) -> LoadedRuns:
    """The tables and measures of the runs at or below a folder or URI; nothing is read before it is asked for."""
    return LoadedRuns(folder)


def _read_footers(source: TraceFolder) -> dict[str, Any]:
    runs = [meta.run for meta in source.metas]
    return {table: tuple(read_footers(table, files, runs)) for table, files in source.tables.items()}
