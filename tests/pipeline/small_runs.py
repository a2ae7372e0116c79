"""Small runs that two checkers must judge equally: every planted one, and random ones with mistakes in a
correct order.
"""

from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa

from amcast.check import judge
from amcast.kernel.errors import UsageError
from amcast.pipeline.check.examination import Examination
from amcast.pipeline.check.run_view import build_memory_view
from amcast.trace.columns import TABLES
from amcast.trace.meta import Meta
from amcast.trace.parquet import TYPES
from amcast.trace.run_folder import FolderRecorder
from tests.mutants.planted import HEALTHY, MUTANTS, UNKNOWN, Trace, healthy, make_trace


def planted_runs() -> dict[str, Trace]:
    """The healthy trace and every planted change of it."""
    return {"healthy": healthy()} | {case.name: make_trace(case) for case in [*MUTANTS, *UNKNOWN, *HEALTHY]}


def random_run(seed: int) -> Trace:
    """A trace that follows one order, then up to five mistakes."""
    random = Random(seed)
    replicas, count = random.randint(1, 3), random.randint(2, 5)
    groups = {g * 3: [10 * g + r for r in range(replicas)] for g in range(count)}
    trace = Trace(groups, [90, 91])
    for message in range(1, random.randint(1, 14) + 1):
        some = random.sample(sorted(groups), random.randint(1, min(3, count)))
        trace.multicast(message, *sorted(some), sender=random.choice(trace.clients))
        if random.random() < 0.05:
            trace.multicasts[message]["sequence"] -= 1
    processes = [p for members in groups.values() for p in members]
    order = random.sample(sorted(trace.multicasts), len(trace.multicasts))
    if random.random() < 0.7:
        order.sort()
    for process in processes:
        trace.order(process, *(m for m in order if process in trace.members(m)))
    for message, row in trace.multicasts.items():
        for target in trace.members(message):
            trace.packet(message, row["sender"], target)
    for _ in range(random.randint(0, 5)):
        apply_mistake(random, trace, random.choice(processes))
    trace.claims["complete"] = random.random() < 0.6
    draw_times(Random(f"times {seed}"), trace)
    return trace


def draw_times(random: Random, trace: Trace) -> None:
    """Multicasts, deliveries and answers spread over a short time, in most runs: many messages are complete before
    others are multicast."""
    if random.random() < 0.2:
        return
    span = random.choice((20, 60, 200))
    for message, row in trace.multicasts.items():
        row["at_ns"] = random.randrange(span) if random.random() < 0.3 else span * message // 16
    for process, rows in trace.sequences.items():
        late = random.choice((0, 0, 3, span))
        trace.sequences[process] = [
            (position, message, trace.multicasts.get(message, {"at_ns": 0})["at_ns"] + random.randrange(10) + late)
            for position, message, _ in rows
        ]
    if random.random() < 0.6:
        answered = random.sample(sorted(trace.multicasts), random.randint(0, len(trace.multicasts)))
        trace.answers = [(m, trace.multicasts[m]["at_ns"] + random.randrange(-1, span // 2)) for m in answered]
    if random.random() < 0.3:
        trace.hosts = {client: random.choice(("a", "a", "b")) for client in trace.clients}
    trace.clock_bound_ns = random.choice((None, None, 0, 5, 50))


def apply_mistake(random: Random, trace: Trace, process: int) -> None:
    """One mistake at one process, or at its whole group."""
    mine = trace.delivered(process)
    at = random.randrange(max(1, len(mine)))
    kind = random.choice(("swap", "hole", "prefix", "crash", "sender", "again", "foreign", "group", "packet", "gap"))
    if kind in ("swap", "group") and len(mine) > 1:
        at = min(at, len(mine) - 2)
        mine[at], mine[at + 1] = mine[at + 1], mine[at]
    elif kind == "hole" and mine:
        del mine[at]
    elif kind in ("prefix", "crash"):
        del mine[at:]
    elif kind == "again" and mine:
        mine.append(mine[at])
    elif kind == "foreign":
        mine.insert(at, random.randint(1, 16))
    if kind == "crash":
        trace.crashed[process] = 5000
    elif kind == "sender":
        trace.crashed[random.choice(trace.clients)] = 5000
    elif kind == "packet":
        trace.packet(random.choice((None, 1, (1, 2), 99)), process, random.choice((process, 90, 91, 10)))
    elif kind == "gap" and random.random() < 0.3:
        trace.sequences[process] = [row for row in trace.sequences[process] if row[0] != at]
        return
    members = next(m for m in trace.groups.values() if process in m)
    for member in members if kind == "group" else [process]:
        trace.order(member, *mine)


def gapped_run(seed: int) -> Trace:
    """A random run whose trace has gaps: some covered by snapshots, some noted as lost, some unexplained."""
    random, trace = Random(f"ragged {seed}"), random_run(seed)
    for process in random.sample(sorted(trace.sequences), min(len(trace.sequences), random.randint(1, 4))):
        rows = trace.sequences[process]
        low = random.randrange(len(rows) + 1)
        high = min(len(rows), low + random.randint(1, 4))
        trace.sequences[process] = [row for row in rows if not low <= row[0] < high]
        kind = random.choice(("installed", "trace-gap", "both", "silent"))
        if kind in ("installed", "both"):
            trace.notes.append((process, "installed", None, float(random.choice((high, high, low + 1)))))
        if kind in ("trace-gap", "both"):
            trace.notes.append((process, "trace-gap", None, float(low)))
    return trace


def write(folder: Path, trace: Trace, **options: int) -> Path:
    """A run folder as amcast's recorders write it."""
    recorded = trace.recorder()
    packets = trace.packets is not None
    recorder = FolderRecorder(folder, trace.meta(folder.name), packets=packets, latest=False, **options)
    recorder.has_answers = recorded.has_answers
    for table in TABLES:
        for row in getattr(recorded, table):
            getattr(recorder, table).append(row)
    recorder.close()
    return folder


def load_tables(trace: Trace) -> tuple[Meta, dict[str, pa.Table]]:
    """The run's tables in memory."""
    recorded, meta = trace.recorder(), trace.meta()
    tables = {}
    for table, columns in TABLES.items():
        rows = [(meta.run, *row) for row in getattr(recorded, table)]
        tables[table] = pa.table(
            {column.name: pa.array([row[at] for row in rows], TYPES[column.type]) for at, column in enumerate(columns)}
        )
    return meta, tables


def plain(trace: Trace) -> dict[str, Any] | str:
    """The plain checker's report, or its refusal."""
    try:
        return judge(trace.run()).as_dict()
    except UsageError as refusal:
        return str(refusal)


def examine(trace: Trace, gapped_rows: int = 10**9) -> dict[str, Any] | str:
    """The report of the kernels, without Spark, or their refusal."""
    meta, tables = load_tables(trace)
    present = {"packets"} if trace.packets is not None else set()
    view = build_memory_view(meta, tables, present | ({"answers"} if trace.answers is not None else set()))
    try:
        return Examination(view, gapped_rows=gapped_rows).report().as_dict()
    except UsageError as refusal:
        return str(refusal)


def without_run_name(report: dict[str, Any] | str) -> Any:
    """A report without the name of its run."""
    return report if isinstance(report, str) else {key: value for key, value in report.items() if key != "run"}
