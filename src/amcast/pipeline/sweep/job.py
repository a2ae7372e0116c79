"""A sweep: every cell of a plan run in a Spark task, every result one row.

    DIR/sweep.json                         the plan, and the number of its cells
    DIR/cells/protocol=NAME/*.parquet      one row per cell: its setting, its status, its headline numbers
    DIR/timings/*.parquet                  how long each cell took, and where: all that may differ between two sweeps
    DIR/plans/CELL.toml                    the plan of each cell whose status is not ok
    DIR/runs/CELL/                         traces: of all cells, or of violated ones only
    DIR/journal/*.jsonl                    results that are not in the tables yet

A task appends each result to its journal at once, so an interrupted sweep loses only the cells that were running;
starting it again skips finished cells. At the end the journal is merged into the tables, in one order whichever worker
ran which cell. DIR is a folder that all workers see, or a URI of an object store; there a task runs its cells in a
folder of its own machine, uploads their traces, and writes its journal anew about once a second.
"""

import json
import pickle
import platform
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
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
from amcast.pipeline.rows.files import resolve_filesystem
from amcast.pipeline.rows.locations import Location
from amcast.pipeline.spark.progress import show_progress
from amcast.pipeline.spark.tasks import freeze_garbage
from amcast.pipeline.sweep.grid import SweepCell, Values, bundle_cells, describe_cell, to_toml
from amcast.pipeline.sweep.journal import JournalCounter, open_journal, parse_journal
from amcast.pipeline.sweep.worker import ChildWorker, WorkOutcome
from amcast.trace.meta import META_FILE

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

    out: Path | str
    """A folder, or a URI."""
    traces: bool = False
    packets: bool = True
    timeout_s: float = 600.0
    retry: bool = False
    """Run cells again that ended with an error."""
    least_s: float = 2.0
    """A task is filled with cells up to about this many seconds: starting one costs 15 ms."""

    @property
    def place(self) -> Location:
        return Location.of(self.out)


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
    out = settings.place
    if out.is_file():
        raise UsageError(f"--out {out}: a file; expected a folder")
    names = out.list_names()
    if names and "sweep.json" not in names:
        raise UsageError(
            f"--out {out}: not empty and no sweep; expected a new folder, or the folder of a sweep to resume"
        )
    if out.is_local:
        try:
            for name in ("journal", "plans", "runs"):
                (Path(out.path) / name).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"--out {out}: cannot be written: {error.strerror}") from None
    description = {"plan": grid, "varied": list(paths), "cells": len(cells), "traces": settings.traces}
    (out / "sweep.json").write_bytes(json.dumps(description, indent=2, ensure_ascii=False).encode() + b"\n")


def read_statuses(out: Path | str) -> dict[str, str]:
    """The status of every cell that has one, from the tables and the journals."""
    known: dict[str, str] = {}
    place = Location.of(out)
    if "cells" in place.list_names():
        table = _read_table(place, "cells", CELLS)
        known.update(zip(table["cell"].to_pylist(), table["status"].to_pylist(), strict=True))
    for row in _read_journals(place):
        known[row["cell"]] = row["status"]
    return known


def find_pending(cells: Sequence[SweepCell], settings: SweepSettings) -> list[SweepCell]:
    """The cells that are still to be run."""
    known = read_statuses(settings.out)
    final = [status for status in FINISHED if status != "error" or not settings.retry]
    left = [cell for cell in cells if known.get(cell.id) not in final]
    if settings.traces:
        ids = {cell.id for cell in left}
        traced = find_traced_cells(settings.place)
        left += [cell for cell in cells if cell.id not in ids and known[cell.id] != "error" and cell.id not in traced]
    return left


def find_traced_cells(out: Location) -> set[str]:
    """The cells whose traces are whole: on a file system a folder has its name when it is, at a store run.json is."""
    if out.is_local:
        return set((out / "runs").list_names())
    entries = (out / "runs").list_entries(recursive=True)
    return {entry.path.split("/")[-2] for entry in entries if entry.base_name == META_FILE}


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
    with _show_cells(spark, settings.place, len(cells)):
        spark.range(0, len(tasks), 1, len(tasks)).mapInArrow(make_task(packed), "cells long").collect()
    packed.destroy()


def _show_cells(spark: SparkSession, out: Location, cells: int) -> AbstractContextManager[None]:
    """Progress in cells; at a store, where counting lines means reading them, in tasks."""
    if not out.is_local:
        return show_progress(spark, "sweeping")
    written = JournalCounter(Path(out.path) / "journal")
    return show_progress(spark, "sweeping", count=lambda: (written(), cells), unit="cells")


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
    out = settings.place
    # A task that is tried again, after its machine was lost, continues where it stopped.
    with _open_traces(out) as traces, open_journal(out / "journal" / f"{name}.jsonl") as journal:
        known = {row["cell"] for row in journal.rows if row["status"] in FINISHED}
        left = [cell for cell in cells if cell.id not in known]

        def one(cell: SweepCell) -> dict[str, Any]:
            folder = str(traces / cell.id) + ("" if settings.traces else "?")
            return run_cell(cell.plan, folder, settings.packets)

        for cell, outcome in zip(left, child.run_items(one, left, settings.timeout_s), strict=True):
            row = build_row(cell, outcome)
            if row["status"] != "ok":
                (out / "plans" / f"{cell.id}.toml").write_bytes(to_toml(cell.plan).encode())
            if not out.is_local and (traces / cell.id).is_dir():
                (out / "runs" / cell.id).upload(traces / cell.id, last=[META_FILE])
                shutil.rmtree(traces / cell.id)
            journal.add(row)
    return len(left)


@contextmanager
def _open_traces(out: Location) -> Iterator[Path]:
    """The local folder in which cells leave their traces."""
    if out.is_local:
        yield Path(out.path) / "runs"
        return
    with tempfile.TemporaryDirectory(prefix="amcast-sweep-") as place:
        yield Path(place)


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


# From the journal to the tables


def merge_journal(out: Path | str) -> None:
    """Merges the journal into the tables. It can be repeated after an interruption. Equal results, equal bytes.

    Each file of a table is replaced as a whole, and journals go last. So whenever this is interrupted, a file has old
    rows or new ones, the journals still have the new ones, and merging them again has the same result.
    """
    place = Location.of(out)
    if place.is_local:
        for partial in (Path(place.path) / "runs").glob(".*"):
            # The partial trace of a cell that was killed.
            shutil.rmtree(partial, ignore_errors=True)
    rows: dict[str, dict[str, Any]] = {}
    for row in _read_journals(place):
        known = rows.get(row["cell"])
        # A result replaces a timeout or a crash, whichever came first.
        if known is None or known["status"] not in FINISHED:
            rows[row["cell"]] = row
    if rows:
        names = place.list_names()
        for table, schema in (("cells", CELLS), ("timings", TIMINGS)):
            fresh = pa.Table.from_pylist([_to_schema(row, schema) for row in rows.values()], schema)
            if table in names:
                old = _read_table(place, table, schema)
                own = pc.is_in(old["cell"], value_set=pa.array(list(rows), pa.string()))
                fresh = pa.concat_tables([old.filter(pc.invert(own)), fresh])
            _write_table(fresh, place / table, table)
    for name in _list_journals(place):
        (place / "journal" / name).remove()


def _list_journals(out: Location) -> list[str]:
    return [name for name in (out / "journal").list_names() if name.endswith(".jsonl")]


def _read_journals(out: Location) -> Iterator[dict[str, Any]]:
    for name in _list_journals(out):
        yield from parse_journal((out / "journal" / name).read_bytes())


def _to_schema(row: dict[str, Any], schema: pa.Schema) -> dict[str, Any]:
    plain = {name: row.get(name) for name in schema.names}
    if "notes" in plain:
        plain["notes"] = sorted((row.get("notes") or {}).items())
    return plain


def _write_table(rows: pa.Table, folder: Location, table: str) -> None:
    if table != "cells":
        _write_file(rows.sort_by("cell"), folder)
        return
    rows = rows.sort_by([(name, "ascending") for name in ORDER])
    for protocol in pc.unique(rows["protocol"]).to_pylist():
        own = rows.filter(pc.equal(rows["protocol"], protocol)).drop_columns(["protocol"])
        _write_file(own, folder / f"protocol={protocol}")


def _write_file(rows: pa.Table, folder: Location) -> None:
    buffer = pa.BufferOutputStream()
    pq.write_table(rows, buffer, compression="zstd")
    (folder / "part-00000.parquet").write_bytes(buffer.getvalue())


def _read_table(out: Location, table: str, schema: pa.Schema) -> pa.Table:
    # The folder's name has the protocol; without a type, Arrow would read a protocol called 2 as a number.
    hive = pads.partitioning(pa.schema([("protocol", pa.string())]), flavor="hive") if table == "cells" else None
    system, inside = resolve_filesystem((out / table).path)
    try:
        found = pads.dataset(inside, schema=schema, format="parquet", partitioning=hive, filesystem=system)
        return found.to_table()
    except (pa.ArrowException, OSError) as error:
        raise UsageError(f"{out / table}: {str(error).splitlines()[0]}; expected the tables of a sweep") from None


def read_description(out: Path | str) -> dict[str, Any] | None:
    """What sweep.json says about a sweep; None if the folder is none."""
    file = Location.of(out) / "sweep.json"
    if not file.is_file():
        return None
    try:
        found: dict[str, Any] = json.loads(file.read_bytes())
    except ValueError:
        raise UsageError(f"{file}: not JSON; expected the description of a sweep") from None
    return found


def read_cells(out: Path | str) -> pa.Table:
    """All rows, in canonical order."""
    place = Location.of(out)
    if not (place / "cells").is_folder():
        raise UsageError(f"{out}: no table of cells; expected the folder of a sweep with at least one finished cell")
    return _read_table(place, "cells", CELLS).sort_by([(name, "ascending") for name in ORDER])


def summarize_sweep(cells: Sequence[SweepCell], ran: int, begun: float, out: Path | str) -> SweepResult:
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
