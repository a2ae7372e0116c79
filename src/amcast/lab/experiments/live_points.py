"""Points of an experiment that are also run live, with the environment's distances imitated inside the links.

    experiments/NAME/live.csv    one row per point: what clients waited for, simulated and live

Both runs are whole nodes whose leaders answer, and clients with sessions: what `amcast compare` runs. A point is a plan
of the experiment with a few fields set, usually with fewer messages, because a live run takes real time.
"""

import copy
import csv
import io
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from amcast.kernel.errors import UsageError
from amcast.lab.experiments.experiment import Experiment
from amcast.lab.simulated_vs_live import Comparison, compare_worlds
from amcast.pipeline.sweep.grid import set_fields
from amcast.simulation.inputs.plan import Plan, parse_plan

MAX_REPLICAS: Final = 24
"""A live point has a process for every replica on one machine."""
SWEEP_TABLES: Final = ("grid", "zip", "override", "exclude")
COLUMNS: Final = ("mean_ms", "p50_ms", "p95_ms")


@dataclass(frozen=True)
class LiveRow:
    """What clients of one point waited for, in milliseconds."""

    point: dict[str, Any]
    """The fields that were set."""
    messages: int
    simulated: dict[str, float]
    live: dict[str, float]

    @property
    def difference(self) -> float:
        """How much longer clients of the live run waited on average, as a share. A median says little where half of the
        messages are local."""
        return self.live["mean_ms"] / self.simulated["mean_ms"] - 1


def list_points(experiment: Experiment) -> list[Plan]:
    """The plans of the live points."""
    base = {name: value for name, value in copy.deepcopy(experiment.file.plan).items() if name not in SWEEP_TABLES}
    plans = []
    for number, point in enumerate(experiment.file.live, 1):
        where = f"experiment {experiment.name}, live point {number}"
        plan = parse_plan(set_fields(base, {**point, "nodes": True, "answers": ""}), where)
        replicas = plan.topology.groups * plan.topology.replicas
        if replicas > MAX_REPLICAS:
            raise UsageError(f"{where}: {replicas} replicas; expected at most {MAX_REPLICAS} on one machine")
        plans.append(plan)
    return plans


def read_live(experiment: Experiment) -> list[LiveRow]:
    """The rows of the points that the experiment has."""
    file = experiment.folder / "live.csv"
    if not file.is_file():
        return []
    with file.open(encoding="utf-8", newline="") as lines:
        rows = [_parse_row(row) for row in csv.DictReader(lines)]
    return [row for row in rows if row.point in experiment.file.live]


def _parse_row(row: dict[str, str]) -> LiveRow:
    simulated, live = ({name: float(row[f"{world}_{name}"]) for name in COLUMNS} for world in ("simulated", "live"))
    return LiveRow(json.loads(row["point"]), int(row["messages"]), simulated, live)


def run_points(
    experiment: Experiment, runs: Path, known: Sequence[LiveRow], say: Callable[[str], None] = lambda line: None
) -> list[LiveRow]:
    """Runs the points that have no row yet, and writes the table after each."""
    done = {json.dumps(row.point, sort_keys=True): row for row in known}
    for number, (point, plan) in enumerate(zip(experiment.file.live, list_points(experiment), strict=True), 1):
        key = json.dumps(point, sort_keys=True)
        if key not in done:
            say(f"{experiment.name}, live point {number} of {len(experiment.file.live)}: {plan.protocol}")
            done[key] = _make_row(point, compare_worlds(plan, runs / f"{experiment.name}-{number}", say))
            (experiment.folder / "live.csv").write_text(_format_rows(list(done.values())), encoding="utf-8")
    return list(done.values())


def _make_row(point: dict[str, Any], found: Comparison) -> LiveRow:
    simulated, live = (
        {name: round(getattr(world, name), 3) for name in COLUMNS} for world in (found.simulated, found.live)
    )
    return LiveRow(point, found.live.messages, simulated, live)


def _format_rows(rows: Sequence[LiveRow]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    worlds = ("simulated", "live")
    writer.writerow(["point", "messages", *(f"{world}_{name}" for world in worlds for name in COLUMNS)])
    for row in rows:
        spans = [world[name] for world in (row.simulated, row.live) for name in COLUMNS]
        writer.writerow([json.dumps(row.point), row.messages, *spans])
    return text.getvalue()
