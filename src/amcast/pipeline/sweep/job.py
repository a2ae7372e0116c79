"""A sweep: every cell of a plan run in a Spark task, every result one row.

    DIR/sweep.json                         the plan, and the number of its cells
    DIR/cells/protocol=NAME/*.parquet      one row per cell: its setting, its status, its headline numbers
    DIR/timings/*.parquet                  how long each cell took, and where: all that may differ between two sweeps
    DIR/plans/CELL.toml                    the plan of each cell whose status is not ok
    DIR/runs/CELL/                         traces: of all cells, or of violated ones only
    DIR/journal/*.jsonl                    results that are not in the tables yet

A task appends each result to its journal at once, so an interrupted sweep loses only the cells that were running;
starting it again skips finished cells. At the end the journal is merged into the tables, in one order whichever worker
ran which cell. DIR must be a folder that all workers see.
"""

import json
import os
import pickle
import platform
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads
import pyarrow.parquet as pq
from pyspark import cloudpickle
from pyspark.sql import SparkSession

from amcast.kernel.errors import UsageError
from amcast.pipeline.spark.progress import show_progress
from amcast.pipeline.spark.tasks import freeze_garbage
from amcast.pipeline.sweep.grid import SweepCell, Values, bundle_cells, describe_cell, to_toml
from amcast.pipeline.sweep.worker import ChildWorker, WorkOutcome

RunCell = Callable[..., dict[str, Any]]
"""(plan, folder, packets) -> row: passed in, because the pipeline knows no protocol."""

FINISHED: Final = ("ok", "violated", "unknown", "error")
"""Final statuses: the same plan would end the same way again. The others may be caused by a machine and are tried
again.
"""
STATUSES: Final = (*FINISHED, "timeout", "crash")

_LONG, _DOUBLE, _TEXT = pa.int64(), pa.float64(), pa.string()
CELLS: Final = pa.schema(
    [
        ("cell", _TEXT),
        ("protocol", _TEXT),
        ("environment", _TEXT),
        ("groups", _LONG),
        ("replicas", _LONG),
        ("clients", _LONG),
        ("workload", _TEXT),
        ("outstanding", _LONG),
        ("messages", _LONG),
        ("faults", _TEXT),
        ("seed", _LONG),
        ("varied", _TEXT),
        ("plan", _TEXT),
        ("status", _TEXT),
        ("message", _TEXT),
        ("replay", _TEXT),
        ("end", _TEXT),
        ("multicasts", _LONG),
        ("deliveries", _LONG),
        ("packets", _LONG),
        ("bytes", _LONG),
        ("steps", _LONG),
        ("simulated_ns", _LONG),
        ("throughput_per_s", _DOUBLE),
        ("latency_ns_mean", _DOUBLE),
        ("latency_ns_p50", _LONG),
        ("latency_ns_p90", _LONG),
        ("latency_ns_p95", _LONG),
        ("latency_ns_p99", _LONG),
        ("latency_ns_max", _LONG),
        ("notes", pa.map_(_TEXT, _LONG)),
    ]
)
TIMINGS: Final = pa.schema([("cell", _TEXT), ("seconds", _DOUBLE), ("host", _TEXT)])
ORDER: Final = (
    *("protocol", "environment", "groups", "replicas", "clients", "workload", "outstanding", "messages", "faults"),
    *("seed", "cell"),
)
"""The canonical order of cells."""


@dataclass(frozen=True)
class SweepSettings:
    """How a sweep is run; nothing here changes a result."""

    out: Path
    traces: bool = False
    packets: bool = True
    timeout_s: float = 600.0
    retry: bool = False
    """Run cells again that ended with an error."""
    least_s: float = 2.0
    """A task is filled with cells up to about this many seconds: starting one costs 15 ms."""


@dataclass
class SweepResult:
    """What a sweep did."""

    cells: int
    run: int
    """Cells that were run now; the others were finished before."""
    seconds: float
    statuses: dict[str, int] = field(default_factory=dict)
    failures: list[dict[str, Any]] = field(default_factory=list)
    """The first few rows whose status is not ok."""


def prepare_sweep(settings: SweepSettings, grid: Values, cells: Sequence[SweepCell], paths: Sequence[str]) -> None:
    """Makes the folder a sweep's folder; refuses one that holds something else."""
    out = settings.out
    if out.exists() and not out.is_dir():
        raise UsageError(f"--out {out}: a file; expected a folder")
    if out.is_dir() and any(out.iterdir()) and not (out / "sweep.json").is_file():
        raise UsageError(
            f"--out {out}: not empty and no sweep; expected a new folder, or the folder of a sweep to resume"
        )
    try:
        for name in ("journal", "plans", "runs"):
            (out / name).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--out {out}: cannot be written: {error.strerror}") from None
    description = {"plan": grid, "varied": list(paths), "cells": len(cells), "traces": settings.traces}
    early = out / ".sweep.json"
    early.write_text(json.dumps(description, indent=2, ensure_ascii=False) + "\n")
    early.rename(out / "sweep.json")


def read_statuses(out: Path) -> dict[str, str]:
    """The status of every cell that has one, from the tables and the journals."""
    known: dict[str, str] = {}
    _restore_table(out, "cells")
    if (out / "cells").is_dir():
        table = _read_table(out, "cells", CELLS)
        known.update(zip(table["cell"].to_pylist(), table["status"].to_pylist(), strict=True))
    for file in sorted((out / "journal").glob("*.jsonl")):
        known.update((row["cell"], row["status"]) for row in read_journal(file))
    return known


def find_pending(cells: Sequence[SweepCell], settings: SweepSettings) -> list[SweepCell]:
    """The cells that are still to be run."""
    known = read_statuses(settings.out)
    final = [status for status in FINISHED if status != "error" or not settings.retry]
    left = [cell for cell in cells if known.get(cell.id) not in final]
    if settings.traces:
        ids = {cell.id for cell in left}
        left += [
            cell
            for cell in cells
            if cell.id not in ids and known[cell.id] != "error" and not (settings.out / "runs" / cell.id).is_dir()
        ]
    return left


def run_cells(
    spark: SparkSession,
    cells: Sequence[SweepCell],
    run_cell: RunCell,
    estimate_seconds: Callable[[Values], float],
    settings: SweepSettings,
) -> None:
    """Runs cells in Spark tasks. The results are in the journal when this returns, or as far as it got."""
    if not cells:
        return
    weights = [estimate_seconds(cell.plan) for cell in cells]
    slots = spark.sparkContext.defaultParallelism
    tasks = [[cells[place] for place in task] for task in bundle_cells(weights, slots, settings.least_s)]
    # Each task unpacks its own cells only: unpacking all of them for every task would take most of the time.
    packed = spark.sparkContext.broadcast([_pack((task, run_cell, settings)) for task in tasks])
    written = JournalCounter(settings.out / "journal")
    with show_progress(spark, "sweeping", count=lambda: (written(), len(cells)), unit="cells"):
        spark.range(0, len(tasks), 1, len(tasks)).mapInArrow(make_task(packed), "cells long").collect()
    packed.destroy()


def _pack(bundle: Any) -> bytes:
    dumped: bytes = cloudpickle.dumps(bundle)  # type: ignore[no-untyped-call]
    return dumped


def make_task(packed: Any) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function of a Spark task: it runs one bundle of cells."""

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            counts = [run_packed_bundle(packed.value[number]) for number in batch.column(0).to_pylist()]
            yield pa.RecordBatch.from_pydict({"cells": pa.array(counts, pa.int64())})

    return work


_child = ChildWorker()
"""One per Python worker of Spark; it outlives the task, as the worker does."""


def run_packed_bundle(packed: bytes) -> int:
    """Unpacks a bundle and runs it."""
    cells, run_cell, settings = pickle.loads(packed)
    freeze_garbage()
    return run_bundle(cells, run_cell, settings, _child)


def run_bundle(
    cells: Sequence[SweepCell], run_cell: RunCell, settings: SweepSettings, child: ChildWorker | None = None
) -> int:
    """Runs some cells in a child process and appends each result to the journal at once."""
    own = child or ChildWorker()
    try:
        return _run_bundle(cells, run_cell, settings, own)
    finally:
        if child is None:
            own.stop()


def _run_bundle(cells: Sequence[SweepCell], run_cell: RunCell, settings: SweepSettings, child: ChildWorker) -> int:
    name = blake2b(" ".join(cell.id for cell in cells).encode(), digest_size=10).hexdigest()
    file = settings.out / "journal" / f"{name}.jsonl"
    # A task that is tried again, after its machine was lost, continues where it stopped.
    known = {row["cell"] for row in read_journal(file) if row["status"] in FINISHED} if file.exists() else set()
    left = [cell for cell in cells if cell.id not in known]

    def one(cell: SweepCell) -> dict[str, Any]:
        folder = str(settings.out / "runs" / cell.id) + ("" if settings.traces else "?")
        return run_cell(cell.plan, folder, settings.packets)

    with file.open("a+b") as journal:
        _end_partial_line(journal)
        for cell, outcome in zip(left, child.run_items(one, left, settings.timeout_s), strict=True):
            row = build_row(cell, outcome)
            if row["status"] != "ok":
                (settings.out / "plans" / f"{cell.id}.toml").write_text(to_toml(cell.plan))
            journal.write(json.dumps(row, ensure_ascii=False).encode() + b"\n")
            journal.flush()
    return len(left)


def build_row(cell: SweepCell, outcome: WorkOutcome) -> dict[str, Any]:
    """One line of the journal."""
    if outcome.status == "done":
        result = outcome.value
    else:
        result = {"status": outcome.status, "message": outcome.message}
    replay = None
    if result["status"] != "ok":
        replay = f"amcast simulate --plan plans/{cell.id}.toml --seed {cell.plan.get('seed', 0)}"
    return {**describe_cell(cell), "replay": replay, **result, "seconds": outcome.seconds, "host": platform.node()}


def read_journal(file: Path) -> Iterator[dict[str, Any]]:
    """The complete lines of a journal."""
    with file.open("rb") as lines:
        for line in lines:
            if line.endswith(b"\n"):
                try:
                    yield json.loads(line)
                except ValueError:
                    continue


class JournalCounter:
    """Counts the lines added to the journals since it was made; it reads only new bytes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: dict[Path, int] = {}
        self._lines = self._before = 0
        self._before = self()

    def __call__(self) -> int:
        for file in self._folder.glob("*.jsonl"):
            at = self._read.get(file, 0)
            with file.open("rb") as journal:
                journal.seek(at)
                fresh = journal.read()
            self._read[file] = at + len(fresh)
            self._lines += fresh.count(b"\n")
        return self._lines - self._before


def _end_partial_line(journal: Any) -> None:
    """Ends the last line if a killed writer left it incomplete, so that the next one stands alone."""
    journal.seek(0, os.SEEK_END)
    if journal.tell():
        journal.seek(-1, os.SEEK_END)
        if journal.read(1) != b"\n":
            journal.write(b"\n")


# From the journal to the tables


def merge_journal(out: Path) -> None:
    """Merges the journal into the tables. It can be repeated after an interruption. Equal results, equal bytes."""
    for partial in (out / "runs").glob(".*"):
        # The partial trace of a cell that was killed.
        shutil.rmtree(partial, ignore_errors=True)
    files = sorted((out / "journal").glob("*.jsonl"))
    if not files:
        return
    rows: dict[str, dict[str, Any]] = {}
    for file in files:
        for row in read_journal(file):
            known = rows.get(row["cell"])
            # A result replaces a timeout or a crash, whichever came first.
            if known is None or known["status"] not in FINISHED:
                rows[row["cell"]] = row
    for table, schema in (("cells", CELLS), ("timings", TIMINGS)):
        _restore_table(out, table)
        fresh = pa.Table.from_pylist([_to_schema(row, schema) for row in rows.values()], schema)
        if (out / table).is_dir():
            old = _read_table(out, table, schema)
            own = pc.is_in(old["cell"], value_set=pa.array(list(rows), pa.string()))
            fresh = pa.concat_tables([old.filter(pc.invert(own)), fresh])
        _write_table(fresh, out / f".{table}-new", table)
    for table in ("cells", "timings"):
        _swap_table(out, table)
    for file in files:
        file.unlink()


def _to_schema(row: dict[str, Any], schema: pa.Schema) -> dict[str, Any]:
    plain = {name: row.get(name) for name in schema.names}
    if "notes" in plain:
        plain["notes"] = sorted((row.get("notes") or {}).items())
    return plain


def _write_table(rows: pa.Table, folder: Path, table: str) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    if table != "cells":
        folder.mkdir()
        pq.write_table(rows.sort_by("cell"), folder / "part-00000.parquet", compression="zstd")
        return
    rows = rows.sort_by([(name, "ascending") for name in ORDER])
    for protocol in pc.unique(rows["protocol"]).to_pylist():
        part = folder / f"protocol={protocol}"
        part.mkdir(parents=True)
        own = rows.filter(pc.equal(rows["protocol"], protocol)).drop_columns(["protocol"])
        pq.write_table(own, part / "part-00000.parquet", compression="zstd")


def _read_table(out: Path, table: str, schema: pa.Schema) -> pa.Table:
    # The folder's name has the protocol; without a type, Arrow would read a protocol called 2 as a number.
    hive = pads.partitioning(pa.schema([("protocol", pa.string())]), flavor="hive") if table == "cells" else None
    try:
        return pads.dataset(out / table, schema=schema, format="parquet", partitioning=hive).to_table()
    except (pa.ArrowException, OSError) as error:
        raise UsageError(f"{out / table}: {str(error).splitlines()[0]}; expected the tables of a sweep") from None


def _swap_table(out: Path, table: str) -> None:
    new, now, old = out / f".{table}-new", out / table, out / f".{table}-old"
    if now.is_dir():
        now.rename(old)
    new.rename(now)
    shutil.rmtree(old, ignore_errors=True)


def _restore_table(out: Path, table: str) -> None:
    """Restores a table that a merge, interrupted between two renames, left under its old name."""
    if not (out / table).is_dir() and (out / f".{table}-old").is_dir():
        (out / f".{table}-old").rename(out / table)


def read_cells(out: Path) -> pa.Table:
    """All rows, in canonical order."""
    if not (out / "cells").is_dir():
        raise UsageError(f"{out}: no table of cells; expected the folder of a sweep with at least one finished cell")
    return _read_table(out, "cells", CELLS).sort_by([(name, "ascending") for name in ORDER])


def summarize_sweep(cells: Sequence[SweepCell], ran: int, begun: float, out: Path) -> SweepResult:
    """Counts the statuses of the plan's cells."""
    wanted = {cell.id for cell in cells}
    result = SweepResult(len(cells), ran, time.monotonic() - begun)
    for row in read_cells(out).select(["cell", "protocol", "varied", "status", "message", "replay"]).to_pylist():
        if row["cell"] in wanted:
            result.statuses[row["status"]] = result.statuses.get(row["status"], 0) + 1
            if row["status"] != "ok" and len(result.failures) < 20:
                result.failures.append(row)
    result.statuses = {status: result.statuses[status] for status in STATUSES if status in result.statuses}
    return result


def decide_verdict(statuses: dict[str, int]) -> str:
    """Violated if any cell is; unknown if any other cell is not ok; else holds."""
    if statuses.get("violated"):
        return "violated"
    return "holds" if set(statuses) == {"ok"} else "unknown"
