"""Measures: from the traces of one run or of many to small tables, each as Parquet and as CSV.

    with open_session() as spark:
        measured = measure(spark, "runs/latest", Path("runs/latest/measures"))

docs/RESULTS.md explains every table. This module reads and writes; transforms/ defines the tables.
"""

import json
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812

from amcast.kernel.errors import CannotTellError, UsageError
from amcast.pipeline.check.run_view import refuse_other_groups
from amcast.pipeline.check.runner import Call, Runner
from amcast.pipeline.measure import comparison as compare
from amcast.pipeline.measure.transforms.convoy import measure_convoy
from amcast.pipeline.measure.transforms.fairness import measure_fairness
from amcast.pipeline.measure.transforms.latency import (
    build_latency_cdf,
    build_latency_views,
    measure_latency,
    measure_routes,
)
from amcast.pipeline.measure.transforms.packets import (
    audit_processes,
    count_packets_per_body,
    count_packets_per_process,
    find_packet_ends,
    measure_overhead,
    measure_work,
)
from amcast.pipeline.measure.transforms.paths import measure_paths
from amcast.pipeline.measure.transforms.recovery import find_faults, measure_recovery
from amcast.pipeline.measure.transforms.responses import find_completions, find_responses
from amcast.pipeline.measure.transforms.steady import (
    deduplicate_processes,
    find_steady_windows,
    join_deliveries,
    summarize_spans,
)
from amcast.pipeline.measure.transforms.throughput import measure_throughput
from amcast.pipeline.rows.compaction import RowCounts, compact_folders, read_all_footers
from amcast.pipeline.rows.files import TraceFolder, find_trace_folders, list_parquet_files, resolve_filesystem
from amcast.pipeline.rows.footers import Footers, count_table_rows, prove_tables, split_row_groups
from amcast.pipeline.rows.schemas import read_frame
from amcast.pipeline.rows.sort import copy_columns
from amcast.pipeline.rows.tables import load_table
from amcast.pipeline.rows.uniqueness import KEYS, find_repeated_tables
from amcast.pipeline.spark.progress import show_progress
from amcast.pipeline.spark.tasks import make_spark_runner
from amcast.trace.columns import TABLES

EDGE_SHARE: Final = 0.1
EXACT_ROWS: Final = 5_000_000
"""Up to this many deliveries percentiles are exact; beyond, they come from sketches."""
SMALL_ROWS: Final = 300_000

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
    "convoy": ("run", "group"),
    "paths": ("run", "name"),
    "fairness": ("run", "side", "region"),
    "recovery": ("run", "fault_ns", "fault", "process", "group"),
}
"""Every table that comes from traces, with the columns that identify its rows and order them."""
PACKET_TABLES: Final = ("packets", "bodies", "overhead", "audit", "work")
RUN_TABLES: Final = ("summary", "comparison")
"""Tables over whole runs; a sweep without traces has these."""


@dataclass
class MeasureResult:
    """The tables that were made."""

    out: Path
    runs: int
    method: str
    """exact, sketch, or cells: the numbers that the cells of a sweep without traces measured themselves."""
    edge: float
    tables: dict[str, int] = field(default_factory=dict)
    """Rows by table."""
    missing: list[str] = field(default_factory=list)
    """Tables that could not be made, because packets were not recorded."""


def measure(
    spark: SparkSession,
    folder: str,
    out: Path,
    *,
    edge: float = EDGE_SHARE,
    order: Sequence[int] | None = None,
    statuses: Mapping[str, str] | None = None,
    exact_rows: int = EXACT_ROWS,
    only: Collection[str] = tuple(MEASURES),
) -> MeasureResult:
    """Measures every run at or below a folder: all tables, or `only` some.

    `order` ranks destinations, `statuses` has the verdicts of runs.
    """
    folders = find_trace_folders(folder)
    names = _list_runs(folders)
    with show_progress(spark, f"measuring {len(names)} runs" if len(names) > 1 else "measuring"):
        return _measure(spark, folders, out, edge, order, statuses, exact_rows, only)


def _measure(
    spark: SparkSession,
    folders: list[TraceFolder],
    out: Path,
    edge: float,
    order: Sequence[int] | None,
    statuses: Mapping[str, str] | None,
    exact_rows: int,
    only: Collection[str],
) -> MeasureResult:
    footers = read_all_footers(spark, folders)
    counts = {folder: count_table_rows(found) for folder, found in footers.items()}
    exact = _sum_rows(counts, ("deliveries",)) <= exact_rows
    result = MeasureResult(out, len(_list_runs(folders)), "exact" if exact else "sketch", edge)
    prepare_folder(out)
    with tune_session(spark, _sum_rows(counts, TABLES)), _compact_folders(spark, folders, counts, out) as compacted:
        compacted, repeated = _prepare_tables(spark, compacted, footers, out)
        frames = {table: read_frame(spark, compacted, table) for table in TABLES}
        for table in repeated:
            frames[table] = _drop_repeated(frames[table], KEYS[table])
        for name, make in _plan_tables(frames, folders, edge, order, exact).items():
            if name not in only:
                continue
            if make is None:
                result.missing.append(name)
                continue
            result.tables[name] = write_table(make(), out, name)
        spark.catalog.clearCache()
    described = [compare.describe_run(meta, source.folder) for source in folders for meta in source.metas]
    for run in described:
        run["status"] = (statuses or {}).get(run["run"])
    write_run_tables(result, compare.summarize_runs(described, *_read_run_totals(out, result)))
    return result


def measure_cells(cells: Sequence[compare.Row], out: Path) -> MeasureResult:
    """Measures a sweep without traces: its cells carry their own headline numbers."""
    prepare_folder(out)
    result = MeasureResult(out, len(cells), "cells", EDGE_SHARE)
    write_run_tables(result, compare.summarize_cells(cells))
    return result


def write_run_tables(result: MeasureResult, rows: Sequence[compare.Row]) -> None:
    """Writes the tables of runs and of settings, and measures.json, which describes all tables."""
    result.tables["summary"] = write_rows(rows, compare.SUMMARY, result.out, "summary")
    settings = compare.compare_settings(rows)
    result.tables["comparison"] = write_rows(settings, compare.COMPARISON, result.out, "comparison")
    description = {
        "runs": result.runs,
        "method": result.method,
        "edge_dropped": result.edge,
        "tables": result.tables,
        "missing": result.missing,
    }
    (result.out / "measures.json").write_text(json.dumps(description, indent=2) + "\n")


def _plan_tables(
    frames: Mapping[str, DataFrame],
    folders: Sequence[TraceFolder],
    edge: float,
    order: Sequence[int] | None,
    exact: bool,
) -> dict[str, Callable[[], DataFrame] | None]:
    """Every table, not computed yet; None where the packets that it needs were not recorded."""
    processes, multicasts, packets, notes = (frames[t] for t in ("processes", "multicasts", "packets", "notes"))
    processes = deduplicate_processes(processes).persist()
    spans = find_steady_windows(multicasts, edge).persist()
    facts = join_deliveries(frames["deliveries"], multicasts, processes, spans, order).persist()
    answers = find_responses(facts).persist()
    done = find_completions(answers).persist()
    counts = build_latency_views(answers, exact).persist()
    recorded = [meta.run for source in folders if "packets" in source.tables for meta in source.metas]
    watched = processes.where(F.col("run").isin(recorded)) if len(recorded) < len(_list_runs(folders)) else processes
    ends = find_packet_ends(packets, multicasts, watched)
    tables: dict[str, Callable[[], DataFrame] | None] = {
        "spans": lambda: summarize_spans(spans, facts, done, edge),
        "latency": lambda: measure_latency(counts, exact),
        "cdf": lambda: build_latency_cdf(counts),
        "routes": lambda: measure_routes(answers, exact),
        "throughput": lambda: measure_throughput(multicasts, facts, done, spans),
        "packets": lambda: count_packets_per_process(packets, watched, spans),
        "bodies": lambda: count_packets_per_body(packets, spans),
        "overhead": lambda: measure_overhead(ends.persist(), facts),
        "audit": lambda: audit_processes(ends, watched),
        "work": lambda: measure_work(ends),
        "convoy": lambda: measure_convoy(facts, notes),
        "paths": lambda: measure_paths(notes, done, spans),
        "fairness": lambda: measure_fairness(facts, done, exact),
        "recovery": lambda: measure_recovery(answers, find_faults(notes, processes), processes),
    }
    if not recorded:
        tables.update(dict.fromkeys(PACKET_TABLES))
    assert set(tables) == set(MEASURES)
    return tables


# Files


def prepare_folder(out: Path) -> None:
    """An empty folder for tables: tables of an earlier measure are removed, a folder with other content is refused."""
    if out.exists() and not out.is_dir():
        raise UsageError(f"--out {out}: a file; expected a folder")
    if out.is_dir() and any(out.iterdir()) and not (out / "measures.json").is_file():
        raise UsageError(f"--out {out}: not empty, and no measures; expected a new folder")
    try:
        out.mkdir(parents=True, exist_ok=True)
        (out / "measures.json").write_text("{}\n")
        for name in (*MEASURES, *RUN_TABLES):
            for file in (out / f"{name}.parquet", out / f"{name}.csv"):
                file.unlink(missing_ok=True)
    except OSError as error:
        raise UsageError(f"--out {out}: cannot be written: {error.strerror}") from None


def write_table(table: DataFrame, out: Path, name: str) -> int:
    """Writes one table as one Parquet file, in its order, and as CSV; returns the number of rows."""
    early = out / f".{name}"
    table.repartition(1).sortWithinPartitions(*MEASURES[name]).write.mode("overwrite").parquet(str(early))
    parts = sorted(early.glob("part-*.parquet"))
    if len(parts) > 1:
        raise CannotTellError(f"{early}: {len(parts)} files; expected one: is --out a folder that Spark's workers see?")
    if parts:
        parts[0].rename(out / f"{name}.parquet")
    else:
        pq.write_table(_build_empty(table), out / f"{name}.parquet")
    shutil.rmtree(early)
    return write_csv(out, name)


def _build_empty(table: DataFrame) -> pa.Table:
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(table.schema).empty_table()


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


def _sum_rows(counts: RowCounts, tables: Iterable[str]) -> int:
    return sum(rows.get(table, 0) for rows in counts.values() for table in tables)


def _prepare_tables(
    spark: SparkSession, folders: list[TraceFolder], footers: Mapping[str, Footers], out: Path
) -> tuple[list[TraceFolder], set[str]]:
    """The folders in a form that Spark's own reader understands, and the tables in which rows may be repeated.

    A folder that was not compacted is proven clean, like a large run that is checked, and is copied if its types are
    others than those of the trace, or if it is in a store, for which Spark's own reader would need further packages.
    """
    prepared, repeated, runner = [], set[str](), make_spark_runner(spark)
    for number, source in enumerate(folders):
        if source.folder not in footers:
            prepared.append(source)  # compacted: read, refused and freed of repeated rows already
            continue
        proven = prove_tables(runner, footers[source.folder], [meta.run for meta in source.metas])
        if len(source.metas) == 1:
            processes = load_table(source, "processes")
            columns = (processes.column(name).to_pylist() for name in ("process", "group"))
            refuse_other_groups(proven.groups, dict(zip(*columns, strict=True)))
            repeated.update(find_repeated_tables(runner, proven.footers))
        else:
            repeated.update(KEYS)
        is_canonical = all(one.is_canonical for row_groups in proven.footers.values() for one in row_groups)
        if is_canonical and "://" not in source.folder:
            prepared.append(source)
        else:
            prepared.append(_copy_folder(runner, source, proven.footers, f"{out}/.gathered/copy-{number}"))
    return prepared, repeated


def _copy_folder(runner: Runner, source: TraceFolder, footers: Footers, place: str) -> TraceFolder:
    calls: list[Call] = []
    for table, row_groups in footers.items():
        where, inner = resolve_filesystem(f"{place}/{table}")
        where.create_dir(inner)
        columns = [column.name for column in TABLES[table]]
        calls += [
            (copy_columns, (table, share, columns, f"{place}/{table}/part-{at:05}.parquet"))
            for at, share in enumerate(split_row_groups(row_groups) or [[]])
        ]
    runner(calls)
    tables = {table: list_parquet_files(f"{place}/{table}") for table in source.tables}
    return TraceFolder(place, source.metas, tables)


def _drop_repeated(rows: DataFrame, keys: Sequence[str]) -> DataFrame:
    """One row of those that agree in some columns: the earliest."""
    place = Window.partitionBy("run", *keys).orderBy("at_ns")
    return rows.withColumn("repetition", F.row_number().over(place)).where("repetition = 1").drop("repetition")


@contextmanager
def _compact_folders(
    spark: SparkSession, folders: list[TraceFolder], counts: RowCounts, out: Path
) -> Iterator[list[TraceFolder]]:
    """The same rows in few files, for as long as the block runs."""
    place = out / ".gathered"
    shutil.rmtree(place, ignore_errors=True)
    try:
        yield compact_folders(spark, folders, counts, str(place))
    finally:
        shutil.rmtree(place, ignore_errors=True)


@contextmanager
def tune_session(spark: SparkSession, rows: int) -> Iterator[None]:
    """Settings for small traces, where Spark's settings for large ones cost more than the work: few partitions, no
    compiled stages.
    """
    if rows > SMALL_ROWS:
        yield
        return
    chosen = {
        "spark.sql.shuffle.partitions": str(min(4, spark.sparkContext.defaultParallelism)),
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.codegen.wholeStage": "false",
    }
    before = {name: spark.conf.get(name) for name in chosen}
    for name, value in chosen.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, before_value in before.items():
            spark.conf.set(name, str(before_value))
