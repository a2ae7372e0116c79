"""Measures: from the traces of one run or of many to small tables, each as Parquet and as CSV.

    with open_session() as spark:
        measured = measure(spark, "runs/latest", Path("runs/latest/measures"))

docs/RESULTS.md explains every table. Small runs are measured whole, several in one task; a large run by many tasks.
This module reads and writes; `tables` defines the tables. The tables are small: at a store, they are made in a local
folder and uploaded.
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from amcast.kernel.errors import UsageError
from amcast.pipeline.check.run_view import refuse_other_groups
from amcast.pipeline.check.runner import Call, Runner, run_sequentially
from amcast.pipeline.measure import comparison as compare
from amcast.pipeline.measure.large_run import LargeRun
from amcast.pipeline.measure.small_run import MeasureSetting, measure_folders, read_members
from amcast.pipeline.measure.tables import Tables, to_arrow
from amcast.pipeline.rows.files import TraceFolder, find_trace_folders, open_scratch
from amcast.pipeline.rows.folder_tasks import read_all_footers, share_folders
from amcast.pipeline.rows.footers import Footers, count_table_rows, prove_tables, read_footers
from amcast.pipeline.rows.isolation import isolate_run
from amcast.pipeline.rows.locations import Location, open_output
from amcast.pipeline.spark.progress import show_progress
from amcast.pipeline.spark.tasks import make_spark_runner

EDGE_SHARE: Final = 0.1
EXACT_ROWS: Final = 5_000_000
"""Up to this many deliveries percentiles are exact; beyond, they come from sketches."""
SMALL_ROWS: Final = 4_000_000
"""A folder with at most this many rows is measured by one task."""

MEASURES: Final[dict[str, tuple[str, ...]]] = {
    "spans": ("run",),
    "latency": ("run", "by", "place"),
    "cdf": ("run", "by", "place", "share"),
    "routes": ("run", "sender_region", "group"),
    "throughput": ("run", "slice"),
    "packets": ("run", "process"),
    "bodies": ("run", "body"),
    "overhead": ("run", "group"),
    "audit": ("run", "process"),
    "work": ("run", "group", "for_group"),
    "traffic": ("run", "group", "to_group"),
    "convoy": ("run", "group"),
    "paths": ("run", "name"),
    "fairness": ("run", "side", "region"),
    "clients": ("run", "wait", "scope", "role", "region"),
    "recovery": ("run", "fault_ns", "fault", "process", "group"),
}
"""Every table that comes from traces, with the columns that identify its rows and order them."""
DESCRIPTION: Final = "measures.json"
"""Describes the tables; written last."""
PACKET_TABLES: Final = ("packets", "bodies", "overhead", "audit", "work", "traffic")
RUN_TABLES: Final = ("summary", "comparison")
"""Tables over whole runs; a sweep without traces has these."""


@dataclass
class MeasureResult:
    """The tables that were made."""

    out: str
    """Their folder or URI."""
    runs: int
    method: str
    """exact, sketch, or cells: the numbers that the cells of a sweep without traces measured themselves."""
    edge: float
    tables: dict[str, int] = field(default_factory=dict)
    """Rows by table."""
    missing: list[str] = field(default_factory=list)
    """Tables that could not be made, because packets were not recorded."""


def measure(
    spark: SparkSession | None,
    folder: str,
    out: Path | str,
    *,
    edge: float = EDGE_SHARE,
    order: Sequence[int] | None = None,
    statuses: Mapping[str, str] | None = None,
    exact_rows: int = EXACT_ROWS,
    small_rows: int = SMALL_ROWS,
    scratch: str | None = None,
) -> MeasureResult:
    """Measures every run at or below a folder; without a session in this process, one run after the other.

    `order` ranks destinations, `statuses` has the verdicts of runs; `scratch` is a folder for the rows of a large run
    that all workers can write, by default inside `out`.
    """
    folders = find_trace_folders(folder)
    names = _list_runs(folders)
    runner = run_sequentially if spark is None else make_spark_runner(spark)
    title = f"measuring {len(names)} runs" if len(names) > 1 else "measuring"
    with nullcontext() if spark is None else show_progress(spark, title):
        footers = read_all_footers(runner, folders)
        rows = {folder: count_table_rows(found) for folder, found in footers.items()}
        is_exact = sum(counts.get("deliveries", 0) for counts in rows.values()) <= exact_rows
        place = prepare_folder(out)
        setting = MeasureSetting(edge, order, is_exact)
        job = _MeasureJob(runner, setting, scratch or str(place))
        cores = 1 if spark is None else spark.sparkContext.defaultParallelism
        tables = job.run(folders, footers, small_rows, cores)
    described = [compare.describe_run(meta, source.folder) for source in folders for meta in source.metas]
    for run in described:
        run["status"] = (statuses or {}).get(run["run"])
    result = MeasureResult(str(place), len(names), "exact" if is_exact else "sketch", edge)
    has_packets = any("packets" in source.tables for source in folders)
    with open_output(place, last=[DESCRIPTION]) as local:
        for name in MEASURES:
            if name in PACKET_TABLES and not has_packets:
                result.missing.append(name)
                continue
            result.tables[name] = write_table(to_arrow(name, tables.get(name, [])), local, name)
        totals = _read_run_totals(local, result)
        write_run_tables(result, compare.summarize_runs(described, *totals), local)
    return result


class _MeasureJob:
    """Measures folders by the calls of a runner."""

    def __init__(self, runner: Runner, setting: MeasureSetting, scratch: str) -> None:
        self._runner = runner
        self._setting = setting
        self._scratch = scratch

    def run(self, folders: list[TraceFolder], footers: dict[str, Footers], small_rows: int, cores: int) -> Tables:
        """The tables of all runs."""
        rows = {folder: sum(count_table_rows(found).values()) for folder, found in footers.items()}
        small = [source for source in folders if rows[source.folder] <= small_rows]
        calls: list[Call] = [
            (measure_folders, ([(source, footers[source.folder]) for source in share], self._setting))
            for share in share_folders(small, rows, cores)
        ]
        answers: list[Tables] = self._runner(calls)
        answers += [self._measure_large(source, footers[source.folder]) for source in folders if source not in small]
        names = {name for tables in answers for name in tables}
        return {name: [row for tables in answers for row in tables.get(name, [])] for name in names}

    def _measure_large(self, source: TraceFolder, footers: Footers) -> Tables:
        proven = prove_tables(self._runner, footers, [meta.run for meta in source.metas])
        found: Tables = {}
        for meta in source.metas:
            with open_scratch(self._scratch, ".scratch") as place:
                own = proven.footers
                if len(source.metas) > 1:
                    alone = isolate_run(self._runner, source, own, meta, f"{place}/alone")
                    files = {name: tuple(read_footers(name, paths, [meta.run])) for name, paths in alone.tables.items()}
                    own = prove_tables(self._runner, files, [meta.run]).footers
                members = read_members(source, meta.run)
                if len(source.metas) == 1:
                    refuse_other_groups(proven.groups, members.find_groups())
                tables = LargeRun(self._runner, place, own, members, self._setting).measure(meta.run)
            for name, rows in tables.items():
                found.setdefault(name, []).extend(rows)
        return found


def measure_cells(cells: Sequence[compare.Row], out: Path | str) -> MeasureResult:
    """Measures a sweep without traces: its cells carry their own headline numbers."""
    place = prepare_folder(out)
    result = MeasureResult(str(place), len(cells), "cells", EDGE_SHARE)
    with open_output(place, last=[DESCRIPTION]) as local:
        write_run_tables(result, compare.summarize_cells(cells), local)
    return result


def write_run_tables(result: MeasureResult, rows: Sequence[compare.Row], out: Path) -> None:
    """Writes the tables of runs and of settings, and measures.json, which describes all tables."""
    result.tables["summary"] = write_rows(rows, compare.SUMMARY, out, "summary")
    settings = compare.compare_settings(rows)
    result.tables["comparison"] = write_rows(settings, compare.COMPARISON, out, "comparison")
    description = {
        "runs": result.runs,
        "method": result.method,
        "edge_dropped": result.edge,
        "tables": result.tables,
        "missing": result.missing,
    }
    (out / DESCRIPTION).write_text(json.dumps(description, indent=2) + "\n")


# Files


def find_output(out: Path | str) -> Location:
    """A folder for tables, which may have those of an earlier measure; one with other content is refused."""
    place = Location.of(out)
    if place.is_file():
        raise UsageError(f"--out {out}: a file; expected a folder")
    names = place.list_names()
    if names and DESCRIPTION not in names:
        raise UsageError(f"--out {out}: not empty, and no measures; expected a new folder")
    return place


def prepare_folder(out: Path | str) -> Location:
    """An empty folder for tables: tables of an earlier measure are removed."""
    place = find_output(out)
    names = place.list_names()
    (place / DESCRIPTION).write_bytes(b"{}\n")
    for name in (*MEASURES, *RUN_TABLES):
        for file in (f"{name}.parquet", f"{name}.csv"):
            if file in names:
                (place / file).remove()
    return place


def write_table(table: pa.Table, out: Path, name: str) -> int:
    """Writes one table as one Parquet file, in its order, and as CSV; returns the number of rows."""
    order = pc.sort_indices(table, sort_keys=[(key, "ascending", "at_start") for key in MEASURES[name]])
    pq.write_table(table.take(order), out / f"{name}.parquet", compression="zstd")
    return write_csv(out, name)


def write_rows(rows: Sequence[compare.Row], names: Sequence[str], out: Path, name: str) -> int:
    """Writes a table that was made without Spark."""
    columns = {column: [row[column] for row in rows] for column in names}
    arrays = [
        pa.array(values) if any(v is not None for v in values) else pa.nulls(len(values), pa.float64())
        for values in columns.values()
    ]
    pq.write_table(pa.table(arrays, names=list(columns)), out / f"{name}.parquet", compression="zstd")
    return write_csv(out, name)


def write_csv(out: Path, name: str) -> int:
    """The same rows as CSV, some at a time."""
    file = pq.ParquetFile(out / f"{name}.parquet")
    with pacsv.CSVWriter(out / f"{name}.csv", file.schema_arrow) as writer:
        for batch in file.iter_batches():
            writer.write_batch(batch)
    return int(file.metadata.num_rows)


def _read_run_totals(out: Path, result: MeasureResult) -> list[dict[str, compare.Row]]:
    """What the tables say about whole runs, by run."""

    def read(name: str) -> list[compare.Row]:
        return pq.read_table(out / f"{name}.parquet").to_pylist() if name in result.tables else []

    spans = {row["run"]: row for row in read("spans")}
    lines = {row["run"]: row for row in read("latency") if row["by"] == "all"}
    sums: dict[str, compare.Row] = {}
    for row in read("bodies"):
        line = sums.setdefault(row["run"], {"packets_per_multicast": 0.0, "bytes_per_multicast": 0.0})
        for column in line:
            line[column] += row[column]
    for name, columns, merge in (
        ("convoy", ("waited_share", "wait_share_of_latency", "convoy_share_of_latency"), _mean),
        ("audit", ("share_for_others",), max),
        ("overhead", ("overhead",), max),
    ):
        for run, values in _group_values(read(name), columns).items():
            for column, found in values.items():
                called = "overhead_max" if column == "overhead" else column
                sums.setdefault(run, {})[called] = merge(found) if found else None
    for row in read("fairness"):
        if row["side"] == "sender":
            sums.setdefault(row["run"], {})["jain_index"] = row["jain_index"]
    return [spans, lines, sums]


def _group_values(rows: Sequence[compare.Row], columns: Sequence[str]) -> dict[str, dict[str, list[float]]]:
    found: dict[str, dict[str, list[float]]] = {}
    for row in rows:
        for column in columns:
            values = found.setdefault(row["run"], {}).setdefault(column, [])
            if row[column] is not None:
                values.append(row[column])
    return found


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _list_runs(folders: Sequence[TraceFolder]) -> list[str]:
    seen: dict[str, str] = {}
    for source in folders:
        for meta in source.metas:
            if meta.run in seen:
                raise UsageError(
                    f"run {meta.run!r} is in {seen[meta.run]} and in {source.folder}; expected runs of different names"
                )
            seen[meta.run] = source.folder
    return list(seen)
