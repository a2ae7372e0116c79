"""The table of an experiment: one row per finished cell, as CSV. It is written after every cell, and a cell that it
contains is not run again."""

import csv
import io
import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from amcast.kernel.errors import UsageError
from amcast.lab.experiments.experiment import Experiment
from amcast.lab.experiments.measures import measure_lone_cell, run_measured_cell
from amcast.lab.experiments.saturation import find_saturation
from amcast.pipeline.sweep.grid import SweepCell
from amcast.pipeline.sweep.worker import run_isolated

Row = dict[str, Any]
FIXED: Final = ("cell", "seed", "seconds")
MEASURE_PARTS: Final = ("_ms_", "_per_", "overhead_", "delays", "packets", "saturation_")
MEASURES: Final = ("end", "multicasts", "clean_share")


@dataclass
class Failure:
    """A cell without a result."""

    cell: SweepCell
    status: str
    message: str


@dataclass
class TableRun:
    """What a run of an experiment did."""

    rows: list[Row]
    run: int = 0
    failures: list[Failure] = field(default_factory=list)
    left: int = 0
    """Cells that are still to be run: the time was over."""


def name_columns(paths: Sequence[str]) -> dict[str, str]:
    """Dotted path -> column: the last part, if it is the only one of that name."""
    last = [path.rpartition(".")[2] for path in paths]
    return {path: name if last.count(name) == 1 else path for path, name in zip(paths, last, strict=True)}


def read_table(experiment: Experiment) -> list[Row]:
    """The rows of the table, of any seed; none if there is no table yet. Rows of cells that the experiment had before
    its file was changed are left out, so that no check counts them."""
    file = experiment.folder / "table.csv"
    if not file.is_file():
        return []
    with file.open(encoding="utf-8", newline="") as lines:
        rows = [{key: _parse(text) for key, text in row.items() if text} for row in csv.DictReader(lines)]
    if rows and "cell" not in rows[0]:
        raise UsageError(f"{file}: no column cell; expected the table of an experiment")
    known = {cell.id for cell in experiment.expand(seeds=sorted({row["seed"] for row in rows}))} if rows else set()
    return [row for row in rows if row["cell"] in known]


def select_rows(experiment: Experiment, rows: Sequence[Row], cells: Sequence[SweepCell]) -> list[Row]:
    """The rows of these cells, in their order."""
    by_cell = {row["cell"]: row for row in rows}
    return [by_cell[cell.id] for cell in cells if cell.id in by_cell]


def write_table(experiment: Experiment, rows: Sequence[Row]) -> None:
    """Writes the table in the order of the grid, rows of other grids last."""
    file = experiment.folder / "table.csv"
    early = file.with_name(f".table-{os.getpid()}.csv")
    early.write_text(format_table(rows), encoding="utf-8")
    early.rename(file)


def format_table(rows: Sequence[Row]) -> str:
    columns = list(dict.fromkeys(name for row in rows for name in row))
    varied = [name for name in columns if name not in FIXED and not _is_measure(name)]
    names = [*FIXED, *varied, *sorted(name for name in columns if name not in FIXED and name not in varied)]
    text = io.StringIO()
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({name: _format(row[name]) for name in names if name in row})
    return text.getvalue()


def _is_measure(name: str) -> bool:
    return (
        any(part in name for part in ("_ms_", "_per_", "overhead_", "delays", "packets", "saturation_"))
        or name in MEASURES
    )


def _format(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _parse(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def run_cells(
    experiment: Experiment,
    cells: Sequence[SweepCell],
    known: Sequence[Row],
    save: Callable[[list[Row]], None],
    is_time_over: Callable[[], bool] = lambda: False,
    progress: Callable[[int], None] = lambda done: None,
) -> TableRun:
    """Runs the cells that have no row yet, each in a child process, and saves the table after each."""
    by_cell = {row["cell"]: row for row in known}
    left = [cell for cell in cells if cell.id not in by_cell]
    columns = name_columns(experiment.make_grid(False).paths)
    file = experiment.file

    def measure(plan: dict[str, Any]) -> dict[str, Any]:
        return run_measured_cell(plan, file.packets)

    def work(plan: dict[str, Any]) -> dict[str, Any]:
        if file.lone:
            return measure_lone_cell(plan)
        return find_saturation(plan, file.saturate, measure) if file.saturate else measure(plan)

    result = TableRun([])
    outcomes = run_isolated(work, [cell.plan for cell in left], experiment.file.timeout_s)
    for cell, outcome in _pair(left, outcomes, is_time_over):
        result.run += 1
        if outcome.status == "done":
            varied = {columns.get(path, path): value for path, value in cell.varied.items() if path != "seed"}
            fixed = {"cell": cell.id, "seed": cell.plan["seed"], "seconds": round(outcome.seconds, 1)}
            by_cell[cell.id] = {**fixed, **varied, **outcome.value}
            save(_order_rows(by_cell, cells))
        else:
            result.failures.append(Failure(cell, outcome.status, outcome.message))
        progress(result.run)
    result.rows = [by_cell[cell.id] for cell in cells if cell.id in by_cell]
    result.left = len(left) - result.run
    return result


def _pair(
    cells: Sequence[SweepCell], outcomes: Iterator[Any], is_time_over: Callable[[], bool]
) -> Iterator[tuple[SweepCell, Any]]:
    for cell in cells:
        if is_time_over():
            return
        yield cell, next(outcomes)


def _order_rows(by_cell: dict[str, Row], cells: Sequence[SweepCell]) -> list[Row]:
    own = [by_cell[cell.id] for cell in cells if cell.id in by_cell]
    ids = {row["cell"] for row in own}
    return own + [row for cell, row in by_cell.items() if cell not in ids]
