"""Measures: from the traces of one run or of many to small tables, each as Parquet and as CSV.

    with session() as spark:
        measured = measure(spark, "runs/latest", Path("runs/latest/measures"))

docs/RESULTS.md is the legend of every table. Reads, transforms, writes; what a table means is in transforms/.
"""

import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from amcast.kernel.errors import CannotTellError, UsageError
from amcast.pipeline.measure import comparison as compare
from amcast.pipeline.measure.transforms.convoy import convoy
from amcast.pipeline.measure.transforms.fairness import fairness
from amcast.pipeline.measure.transforms.latency import latency, latency_cdf, routes, views
from amcast.pipeline.measure.transforms.packets import (
    audit,
    concerned,
    overhead,
    packets_per_body,
    packets_per_process,
    work,
)
from amcast.pipeline.measure.transforms.paths import paths
from amcast.pipeline.measure.transforms.recovery import faults, recovery
from amcast.pipeline.measure.transforms.responses import completions, responses
from amcast.pipeline.measure.transforms.steady import counted, delivered, once, windows
from amcast.pipeline.measure.transforms.throughput import throughput
from amcast.pipeline.rows.compaction import Counts, footers, gathered
from amcast.pipeline.rows.files import Source, sources
from amcast.pipeline.rows.schemas import frame
from amcast.pipeline.spark.progress import progress
from amcast.trace.columns import TABLES

EDGE: Final = 0.1
EXACT_ROWS: Final = 5_000_000
"""Up to so many deliveries percentiles are exact; beyond, they come from sketches."""
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
"""Every table that comes from traces, with the columns that name its rows and order them."""
OF_PACKETS: Final = ("packets", "bodies", "overhead", "audit", "work")
OVER_RUNS: Final = ("summary", "comparison")
"""Tables over whole runs; a sweep without traces has these."""


@dataclass
class MeasureResult:
    """What was measured."""

    out: Path
    runs: int
    method: str
    """exact, sketch, or cells: what the cells of a sweep without traces said themselves."""
    edge: float
    tables: dict[str, int] = field(default_factory=dict)
    """Rows by table."""
    missing: list[str] = field(default_factory=list)
    """Tables that could not be made, because nobody recorded packets."""


def measure(
    spark: SparkSession,
    folder: str,
    out: Path,
    *,
    edge: float = EDGE,
    order: Sequence[int] | None = None,
    statuses: Mapping[str, str] | None = None,
    exact_rows: int = EXACT_ROWS,
) -> MeasureResult:
    """Measure every run at or below a folder. `order` ranks destinations, `statuses` says how runs were judged."""
    found = sources(folder)
    names = _distinct(found)
    with progress(spark, f"measuring {len(names)} runs" if len(names) > 1 else "measuring"):
        return _measured(spark, found, out, edge, order, statuses, exact_rows)


def _measured(
    spark: SparkSession,
    found: list[Source],
    out: Path,
    edge: float,
    order: Sequence[int] | None,
    statuses: Mapping[str, str] | None,
    exact_rows: int,
) -> MeasureResult:
    counts = footers(spark, found)
    exact = _rows(counts, ("deliveries",)) <= exact_rows
    result = MeasureResult(out, len(_distinct(found)), "exact" if exact else "sketch", edge)
    prepare_folder(out)
    with tuned(spark, _rows(counts, TABLES)), _gathered(spark, found, counts, out) as easier:
        frames = {table: frame(spark, easier, table) for table in TABLES}
        for name, make in _tables(frames, found, edge, order, exact).items():
            if make is None:
                result.missing.append(name)
                continue
            result.tables[name] = write(make(), out, name)
        spark.catalog.clearCache()
    described = [compare.describe_run(meta, source.folder) for source in found for meta in source.metas]
    for run in described:
        run["status"] = (statuses or {}).get(run["run"])
    write_run_tables(result, compare.summarize_runs(described, *_per_run(out, result)))
    return result


def measure_cells(cells: Sequence[compare.Row], out: Path) -> MeasureResult:
    """Measure a sweep without traces: its cells carry their own headline numbers."""
    prepare_folder(out)
    result = MeasureResult(out, len(cells), "cells", EDGE)
    write_run_tables(result, compare.summarize_cells(cells))
    return result


def write_run_tables(result: MeasureResult, rows: Sequence[compare.Row]) -> None:
    """The tables of runs and of settings, and what a reader must know about all of them."""
    result.tables["summary"] = write_rows(rows, compare.SUMMARY, result.out, "summary")
    settings = compare.compare_settings(rows)
    result.tables["comparison"] = write_rows(settings, compare.COMPARISON, result.out, "comparison")
    told = {
        "runs": result.runs,
        "method": result.method,
        "edge_dropped": result.edge,
        "tables": result.tables,
        "missing": result.missing,
    }
    (result.out / "measures.json").write_text(json.dumps(told, indent=2) + "\n")


def _tables(
    frames: Mapping[str, DataFrame],
    found: Sequence[Source],
    edge: float,
    order: Sequence[int] | None,
    exact: bool,
) -> dict[str, Callable[[], DataFrame] | None]:
    """Every table, not computed yet; None where the packets that it needs were not recorded."""
    processes, multicasts, packets, notes = (frames[t] for t in ("processes", "multicasts", "packets", "notes"))
    processes = once(processes).persist()
    spans = windows(multicasts, edge).persist()
    facts = delivered(frames["deliveries"], multicasts, processes, spans, order).persist()
    answers = responses(facts).persist()
    done = completions(answers).persist()
    counts = views(answers, exact).persist()
    recorded = [meta.run for source in found if "packets" in source.tables for meta in source.metas]
    watched = processes.where(F.col("run").isin(recorded)) if len(recorded) < len(_distinct(found)) else processes
    ends = concerned(packets, multicasts, watched)
    tables: dict[str, Callable[[], DataFrame] | None] = {
        "spans": lambda: counted(spans, facts, done, edge),
        "latency": lambda: latency(counts, exact),
        "cdf": lambda: latency_cdf(counts),
        "routes": lambda: routes(answers, exact),
        "throughput": lambda: throughput(multicasts, facts, done, spans),
        "packets": lambda: packets_per_process(packets, watched, spans),
        "bodies": lambda: packets_per_body(packets, spans),
        "overhead": lambda: overhead(ends.persist(), facts),
        "audit": lambda: audit(ends, watched),
        "work": lambda: work(ends),
        "convoy": lambda: convoy(facts, notes),
        "paths": lambda: paths(notes, done, spans),
        "fairness": lambda: fairness(facts, done, exact),
        "recovery": lambda: recovery(answers, faults(notes, processes), processes),
    }
    if not recorded:
        tables.update(dict.fromkeys(OF_PACKETS))
    assert set(tables) == set(MEASURES)
    return tables


# Files


def prepare_folder(out: Path) -> None:
    """An empty folder for tables; tables of an earlier measure go, anything else is left alone and refused."""
    if out.exists() and not out.is_dir():
        raise UsageError(f"--out {out}: a file; expected a folder")
    if out.is_dir() and any(out.iterdir()) and not (out / "measures.json").is_file():
        raise UsageError(f"--out {out}: not empty, and no measures; expected a new folder")
    try:
        out.mkdir(parents=True, exist_ok=True)
        (out / "measures.json").write_text("{}\n")
        for name in (*MEASURES, *OVER_RUNS):
            for file in (out / f"{name}.parquet", out / f"{name}.csv"):
                file.unlink(missing_ok=True)
    except OSError as error:
        raise UsageError(f"--out {out}: cannot be written: {error.strerror}") from None


def write(table: DataFrame, out: Path, name: str) -> int:
    """One table as one Parquet file, in its order, and the same as CSV; how many rows."""
    early = out / f".{name}"
    table.repartition(1).sortWithinPartitions(*MEASURES[name]).write.mode("overwrite").parquet(str(early))
    parts = sorted(early.glob("part-*.parquet"))
    if len(parts) > 1:
        raise CannotTellError(f"{early}: {len(parts)} files; expected one: is --out a folder that Spark's workers see?")
    if parts:
        parts[0].rename(out / f"{name}.parquet")
    else:
        pq.write_table(_empty(table), out / f"{name}.parquet")
    shutil.rmtree(early)
    return as_csv(out, name)


def _empty(table: DataFrame) -> pa.Table:
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(table.schema).empty_table()


def write_rows(rows: Sequence[compare.Row], names: Sequence[str], out: Path, name: str) -> int:
    """A table that was made without Spark."""
    columns = {column: [row[column] for row in rows] for column in names}
    arrays = [
        pa.array(values) if any(v is not None for v in values) else pa.nulls(len(values), pa.float64())
        for values in columns.values()
    ]
    pq.write_table(pa.table(arrays, names=list(columns)), out / f"{name}.parquet", compression="zstd")
    return as_csv(out, name)


def as_csv(out: Path, name: str) -> int:
    """The same rows for spreadsheets, some at a time."""
    file = pq.ParquetFile(out / f"{name}.parquet")
    with pacsv.CSVWriter(out / f"{name}.csv", file.schema_arrow) as writer:
        for batch in file.iter_batches():
            writer.write_batch(batch)
    return int(file.metadata.num_rows)


def _per_run(out: Path, result: MeasureResult) -> list[dict[str, compare.Row]]:
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
        for run, values in _grouped(read(name), columns).items():
            for column, found in values.items():
                called = "overhead_max" if column == "overhead" else column
                sums.setdefault(run, {})[called] = merge(found) if found else None
    for row in read("fairness"):
        if row["side"] == "sender":
            sums.setdefault(row["run"], {})["jain_index"] = row["jain_index"]
    return [spans, lines, sums]


def _grouped(rows: Sequence[compare.Row], columns: Sequence[str]) -> dict[str, dict[str, list[float]]]:
    found: dict[str, dict[str, list[float]]] = {}
    for row in rows:
        for column in columns:
            values = found.setdefault(row["run"], {}).setdefault(column, [])
            if row[column] is not None:
                values.append(row[column])
    return found


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _distinct(found: Sequence[Source]) -> list[str]:
    seen: dict[str, str] = {}
    for source in found:
        for meta in source.metas:
            if meta.run in seen:
                raise UsageError(
                    f"run {meta.run!r} is in {seen[meta.run]} and in {source.folder}; expected runs of different names"
                )
            seen[meta.run] = source.folder
    return list(seen)


def _rows(counts: Counts, tables: Iterable[str]) -> int:
    return sum(rows.get(table, 0) for rows in counts.values() for table in tables)


@contextmanager
def _gathered(spark: SparkSession, found: list[Source], counts: Counts, out: Path) -> Iterator[list[Source]]:
    """The same rows in few files, for as long as they are needed."""
    place = out / ".gathered"
    shutil.rmtree(place, ignore_errors=True)
    try:
        yield gathered(spark, found, counts, str(place))
    finally:
        shutil.rmtree(place, ignore_errors=True)


@contextmanager
def tuned(spark: SparkSession, rows: int) -> Iterator[None]:
    """For small traces, Spark's care for large ones costs more than the work: few partitions, no compiled stages."""
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
        for name, kept in before.items():
            spark.conf.set(name, str(kept))
