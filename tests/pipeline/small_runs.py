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


def timed_run(seed: int) -> Trace:
    """A trace in one order without cycles, so that time alone decides: paths over three to six groups, messages that
    were multicast again, answers that are early, equal, late or missing, and hosts with their own clocks."""
    random = Random(f"timed {seed}")
    count = random.randint(3, 6)
    groups = {g: [10 * g + r for r in range(random.choice((1, 1, 3)))] for g in range(count)}
    trace = Trace(groups, [90, 91, 92])
    for message in range(1, random.randint(count, 16) + 1):
        first = random.randrange(count)
        # Neighbours: messages that share no group are ordered over those between them.
        some = {first, first + 1} & groups.keys() if random.random() < 0.6 else {first}
        trace.multicast(message, *sorted(some), sender=random.choice(trace.clients))
    order = random.sample(sorted(trace.multicasts), len(trace.multicasts))
    span, near = random.choice((3, 12, 60)), random.random() < 0.6
    for place, message in enumerate(order):
        # Near: times of multicast follow the order but for some; else they have nothing to do with it.
        trace.multicasts[message]["at_ns"] = place * 3 if near and random.random() < 0.8 else random.randrange(span * 4)
    for group, members in groups.items():
        mine = [message for message in order if group in trace.multicasts[message]["destinations"]]
        at_ns, times = 0, {}
        for message in mine:
            at_ns = max(at_ns + random.choice((0, 0, 1)), trace.multicasts[message]["at_ns"]) + random.randrange(3)
            times[message] = at_ns
        for member in members:
            length = len(mine) if random.random() < 0.8 else random.randrange(len(mine) + 1)
            late = random.choice((0, 0, 2, span))
            rows = enumerate(mine[:length])
            trace.sequences[member] = [(position, message, times[message] + late) for position, message in rows]
    _draw_answers(random, trace, span)
    trace.claims["real_time"] = random.random() < 0.8
    return trace


def _draw_answers(random: Random, trace: Trace, span: int) -> None:
    """Sometimes no table, or an empty one; else rows of most messages, some of them twice, or of nobody's message."""
    if random.random() < 0.8:
        trace.answers = []
        for message, row in trace.multicasts.items():
            for _ in range(random.choice((0, 1, 1, 1, 2))):
                trace.answers.append((message, row["at_ns"] + random.choice((-2, 0, 0, 1, 3, 6, span))))
        if random.random() < 0.1:
            trace.answers = []
        if random.random() < 0.2:
            trace.answers.append((4711, random.randrange(span)))
    processes = [*trace.clients, *(member for members in trace.groups.values() for member in members)]
    if random.random() < 0.4:
        some = random.sample(processes, random.randint(1, len(processes)))
        trace.hosts = {process: random.choice(("a", "a", "a", "b")) for process in some}
    trace.clock_bound_ns = random.choice((None, None, 0, 1, 3, span))
