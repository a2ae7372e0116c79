"""The public entry points of the laboratory: simulate, sweep and advise from Python, with data frames as results.

run = amcast.simulate({"protocol": "primcast", "workload": {"messages": 1000}}, seed=7)
run.verdict
run["deliveries"].to_pandas()
run.waits.to_pandas()                       what each client waited for

cells = amcast.sweep("plans/five.toml")     every cell of a grid, measured; no folder, no Spark
cells.to_polars()

advice = amcast.advise(["eu-west-1", "us-east-1"], mix="80% home, 20% all")
advice.table.to_pandas()
"""

import copy
import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa

from amcast.check.judge import Report, judge
from amcast.check.verdict import Verdict
from amcast.kernel.errors import CannotTellError, UsageError
from amcast.kernel.ids import sender_of
from amcast.lab.advice.advice import Advice
from amcast.lab.advice.advice import advise as rank_candidates
from amcast.lab.advice.candidates import DEFAULT_PROTOCOLS, list_candidates, list_placements, parse_choice
from amcast.lab.advice.sources import ask_directly
from amcast.lab.experiments.measures import run_measured_cell
from amcast.lab.runs import PreparedRun, prepare_run
from amcast.lab.sweep_cell import normalise_plan
from amcast.pipeline.sweep.grid import TABLES as GRID_TABLES
from amcast.pipeline.sweep.grid import SweepCell, expand_cells, parse_grid
from amcast.simulation.inputs.plan import parse_plan, read_plan
from amcast.simulation.simulate import RunSummary, Simulation
from amcast.trace.arrow_columns import to_arrow
from amcast.trace.columns import TABLES
from amcast.trace.data_table import DataTable
from amcast.trace.parquet import TYPES
from amcast.trace.recorder import Recorder
from amcast.trace.run import Run

PlanLike = str | Path | Mapping[str, Any]
"""A plan file, or a plan as plain data."""


class SimulatedRun(Mapping[str, DataTable]):
    """A simulated run in memory: its tables by name, its verdict, and what its clients waited for."""

    def __init__(self, prepared: PreparedRun, recorder: Recorder, summary: RunSummary) -> None:
        self._prepared = prepared
        meta = prepared.make_meta("simulated").with_claims(complete=summary.complete)
        self.run: Run = Run.from_recorder(recorder, meta)
        self.summary = summary
        self.report: Report = judge(self.run)
        self._rows = {name: getattr(recorder, name) for name in TABLES}
        self._present = [
            name
            for name in TABLES
            if (name != "packets" or recorder.wants_packets) and (name != "answers" or recorder.has_answers)
        ]

    @property
    def verdict(self) -> Verdict:
        """The verdict of all properties; violated if a process took a step that none may take, or failed."""
        return "violated" if self.summary.violations else self.report.verdict

    def story(self) -> list[str]:
        """Why the verdict is what it is, in sentences; empty if every claimed property holds."""
        return [*self.summary.violations, *self.report.story()]

    @cached_property
    def waits(self) -> DataTable:
        """What each client waited for: message, client, region, kind (local, global), groups, multicast and wait in
        milliseconds; no wait means that the message was not answered."""
        if "answers" not in self._present:
            raise UsageError('the run has no answers; expected nodes, or answers = "nearest", "first" or "groups"')
        answered = {int(str(row[0])): int(str(row[1])) for row in self._rows["answers"]}
        topology = self._prepared.topology
        rows = []
        for row in self._rows["multicasts"]:
            message, groups, since = int(str(row[0])), row[2], int(str(row[3]))
            rows.append(
                {
                    "message": message,
                    "client": sender_of(message),
                    "region": topology.region(sender_of(message)),
                    "kind": "local" if len(groups) == 1 else "global",
                    "groups": list(groups),
                    "multicast_ms": since / 1e6,
                    "wait_ms": (answered[message] - since) / 1e6 if message in answered else None,
                }
            )
        return DataTable("waits", pa.Table.from_pylist(rows, schema=WAITS))

    def __getitem__(self, name: str) -> DataTable:
        if name not in self._present:
            raise UsageError(f"table {name!r}; expected one of {', '.join(self._present)}")
        columns = TABLES[name][1:]
        rows = self._rows[name]
        arrays = [to_arrow([row[place] for row in rows], TYPES[column.type]) for place, column in enumerate(columns)]
        return DataTable(name, pa.table(arrays, names=[column.name for column in columns]))

    def __contains__(self, name: object) -> bool:
        return name in self._present

    def __iter__(self) -> Iterator[str]:
        return iter(self._present)

    def __len__(self) -> int:
        return len(self._present)


WAITS = pa.schema(
    [
        ("message", pa.int64()),
        ("client", pa.int32()),
        ("region", pa.string()),
        ("kind", pa.string()),
        ("groups", pa.list_(pa.int32())),
        ("multicast_ms", pa.float64()),
        ("wait_ms", pa.float64()),
    ]
)


def simulate(plan: PlanLike, *, seed: int | None = None, packets: bool = True) -> SimulatedRun:
    """Simulates a plan and judges the run, in memory. `amcast simulate --out` writes a run folder instead."""
    values, where = _read_values(plan)
    grid = [name for name in GRID_TABLES if name in values]
    if grid:
        raise UsageError(f"{where}: {grid[0]} is given; expected a plan of one run: amcast.sweep runs grids")
    if seed is not None:
        values["seed"] = seed
    prepared = prepare_run(parse_plan(values, where))
    recorder = Recorder()
    recorder.wants_packets = packets
    summary = Simulation(prepared.make_setup(), recorder).run()
    topology = prepared.whole_topology
    for process in topology.processes:
        crashed_ns = summary.crashed.get(process)
        recorder.record_process(process, topology.group_of(process), topology.region(process), crashed_ns)
    return SimulatedRun(prepared, recorder, summary)


def sweep(plan: PlanLike, *, seeds: Sequence[int] | None = None, packets: bool = False) -> DataTable:
    """Simulates every cell of a plan's grid in this process, one row each: the fields that vary, `status` (ok,
    violated), and the measures of `amcast reproduce`, such as `answer_ms_p50_local`. `amcast sweep` runs large grids on
    all cores."""
    values, where = _read_values(plan)
    if seeds is not None:
        grid = dict(values.get("grid", {}))
        values = {**values, "grid": {**grid, "seed": list(seeds)}}
    cells = expand_cells(parse_grid(values, where), normalise_plan, where)
    return make_table([run_grid_cell(cell, packets) for cell in cells])


def run_grid_cell(cell: SweepCell, packets: bool = False) -> dict[str, Any]:
    """The row of one cell."""
    varied = {path.rpartition(".")[2]: value for path, value in cell.varied.items()}
    try:
        return {"cell": cell.id, **varied, "status": "ok", "message": None, **run_measured_cell(cell.plan, packets)}
    except CannotTellError as error:
        return {"cell": cell.id, **varied, "status": "violated", "message": str(error)}


def make_table(rows: Sequence[Mapping[str, Any]]) -> DataTable:
    """Rows with different columns as one table; values that are tables or lists become JSON texts."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    columns = {name: [_simplify(row.get(name)) for row in rows] for name in names}
    for name, cells in columns.items():
        if len({type(cell) for cell in cells if cell is not None}) > 1:
            numeric = all(cell is None or type(cell) in (int, float) for cell in cells)
            columns[name] = [cell if cell is None else float(cell) if numeric else str(cell) for cell in cells]
    return DataTable("cells", pa.table(columns))


def _simplify(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, (dict, list, tuple)) else value


class AdviceResult:
    """An advice: `table` has a row per candidate, the best one first; `losses` one per region; `reasons` sentences."""

    def __init__(self, advice: Advice) -> None:
        self.advice = advice
        self.reasons: list[str] = list(advice.reasons)
        self.plan: dict[str, Any] = advice.best.plan
        """The plan of the best candidate, for `amcast.simulate`."""

    @cached_property
    def table(self) -> DataTable:
        """Rank, protocol, placement, leaders, waits of clients in milliseconds, bytes between regions per message, and
        the regions whose death stops a group."""
        rows: list[dict[str, Any]] = []
        for rank, one in enumerate(self.advice.ranked, 1):
            row: dict[str, Any] = {
                "rank": rank,
                "protocol": one.candidate.choice.name,
                "placement": one.candidate.placement.name,
                "leaders": list(one.candidate.placement.leaders()),
                "mean_ms": one.outcome.total.mean,
                "region_bytes": one.outcome.region_bytes,
                "fatal_regions": list(one.fragile),
            }
            for kind, waits in one.outcome.by_kind.items():
                row |= {f"{kind}_ms_p50": waits.p50, f"{kind}_ms_p95": waits.p95, f"{kind}_ms_p99": waits.p99}
            rows.append(row)
        return make_table(rows)

    @cached_property
    def losses(self) -> DataTable:
        """What is lost with each region, under the best candidate."""
        names = self.advice.request.names
        rows = []
        for loss in self.advice.losses:
            row: dict[str, Any] = {"region": loss.region, "stopped": [names[group] for group in loss.stopped]}
            for kind, (done, total) in loss.answered.items():
                row |= {f"{kind}_answered": done, f"{kind}_of": total}
            rows.append(row)
        return make_table(rows)


def advise(
    regions: Sequence[str],
    *,
    mix: str,
    groups: str | None = None,
    clients: Sequence[str] | None = None,
    latencies: str | Path | None = None,
    replicas: int = 3,
    rate: float = 2.0,
    protocols: Sequence[str] = DEFAULT_PROTOCOLS,
    by: Literal["mean", "p50", "p95", "p99"] = "mean",
    survive_region: bool = False,
    messages: int = 400,
    seed: int = 0,
) -> AdviceResult:
    """Ranks protocols, placements and regions of leaders, as `amcast advise` does (docs/advise.md)."""
    request = ask_directly(
        ",".join(regions),
        groups,
        mix,
        None if clients is None else ",".join(clients),
        None if latencies is None else Path(latencies),
        replicas,
        None,
        rate,
    )
    candidates = list_candidates([parse_choice(text) for text in protocols], list_placements(request))
    return AdviceResult(rank_candidates(request, candidates, messages, seed, by, survive_region))


def _read_values(plan: PlanLike) -> tuple[dict[str, Any], str]:
    if isinstance(plan, Mapping):
        return copy.deepcopy(dict(plan)), "plan"
    return read_plan(Path(plan)), f"plan {plan}"
