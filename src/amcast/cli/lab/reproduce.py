"""The command `amcast reproduce`: the papers' evaluations as experiments."""

import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import typer

from amcast.cli.lab.search import parse_seeds
from amcast.cli.output import EXIT_CODES, JsonFlag, err, out, print_json, print_table, show_progress
from amcast.cli.panels import LABORATORY
from amcast.kernel.errors import UsageError

if TYPE_CHECKING:
    from amcast.lab.experiments.experiment import Experiment
    from amcast.lab.experiments.table import Row, TableRun
    from amcast.lab.experiments.verdicts import JudgedClaim


def register(app: typer.Typer) -> None:
    """Adds this command."""
    app.command(rich_help_panel=LABORATORY)(reproduce)


def reproduce(
    name: Annotated[str | None, typer.Argument(help="An experiment; --list names them.")] = None,
    listed: Annotated[bool, typer.Option("--list", help="List the experiments with their last verdicts.")] = False,
    every: Annotated[bool, typer.Option("--all", help="Run all experiments.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Run a reduced grid; the table stays as it is.")] = False,
    live: Annotated[
        bool, typer.Option("--live", help="Run an experiment's live points instead, beside the simulator.")
    ] = False,
    page: Annotated[bool, typer.Option("--page", help="Write docs/reproduction.md from the tables.")] = False,
    html: Annotated[
        Path | None, typer.Option("--html", help="Write the same page as one HTML file, pictures inside.")
    ] = None,
    seed: Annotated[str | None, typer.Option("--seed", help="A seed, or a range A..B, instead of the file's.")] = None,
    minutes: Annotated[float | None, typer.Option(min=0.0, help="Begin no cell after so many minutes.")] = None,
    folder: Annotated[Path, typer.Option("--folder", help="Where the experiments are.")] = Path("experiments"),
    json: JsonFlag = False,
) -> None:
    """Run an experiment of the papers, and put our numbers beside theirs.

    A run continues after the cells that the experiment's table has. Exit code 0: every cell has a result; 2: some have
    none, because they failed or the time was over. Whether claims hold does not change it.

    Examples: amcast reproduce --list   |   amcast reproduce 003-wan --quick   |   amcast reproduce --all --minutes 60
    """
    from amcast.lab.experiments.experiment import find_experiment, read_experiments

    if sum((listed, every, page, html is not None, name is not None)) != 1:
        raise UsageError("expected one of: NAME, --all, --list, --page, --html FILE")
    if listed:
        _list_experiments(folder, json)
        return
    if page or html is not None:
        _write_page(folder, html, json)
        return
    if live:
        _run_live(folder, None if every else str(name), json)
        return
    first, last = (0, -1) if seed is None else parse_seeds(seed)
    seeds = range(first, last + 1)
    chosen = read_experiments(folder) if every else {str(name): find_experiment(folder, str(name))}
    stop_at = None if minutes is None else time.monotonic() + 60 * minutes
    results = [_run(experiment, quick, seeds, stop_at) for experiment in chosen.values()]
    if json:
        print_json([_describe(experiment, result, judged) for experiment, result, judged in results])
    else:
        for experiment, result, judged in results:
            _print_result(experiment, result, judged, quick)
    complete = not any(result.failures or result.left for _, result, _ in results)
    raise typer.Exit(EXIT_CODES["holds" if complete else "unknown"])


def _run(
    experiment: "Experiment", quick: bool, seeds: Sequence[int], stop_at: float | None
) -> tuple["Experiment", "TableRun", list["JudgedClaim"]]:
    from amcast.lab.experiments.pictures import draw_pictures
    from amcast.lab.experiments.table import read_table, run_cells, write_table
    from amcast.lab.experiments.verdicts import judge_experiment

    cells = experiment.expand(quick, seeds)
    known = read_table(experiment)

    def save(rows: list["Row"]) -> None:
        if not quick:
            write_table(experiment, rows)

    def is_time_over() -> bool:
        return stop_at is not None and time.monotonic() >= stop_at

    with show_progress(experiment.name, len(cells)) as show:
        result = run_cells(experiment, cells, [] if quick else known, save, is_time_over, show)
    rows = result.rows if quick else read_table(experiment)
    if not quick and rows:
        for chart in draw_pictures(experiment, rows):
            (experiment.folder / f"{chart.name}.svg").write_text(chart.file, encoding="utf-8")
    return experiment, result, judge_experiment(experiment, rows)


def _run_live(folder: Path, name: str | None, json: bool) -> None:
    """Runs the live points of one experiment, or of all that have some."""
    from amcast.cli.extras import require_extra

    require_extra("trace")
    from amcast.lab.experiments.experiment import find_experiment, read_experiments
    from amcast.lab.experiments.live_points import read_live, run_points

    chosen = list(read_experiments(folder).values()) if name is None else [find_experiment(folder, name)]
    chosen = [experiment for experiment in chosen if experiment.file.live]
    if not chosen:
        raise UsageError(f"{name}: no live points; expected an experiment with [[live]] in its file")
    results = []
    with TemporaryDirectory(prefix="amcast-live-") as runs:
        for experiment in chosen:
            rows = run_points(experiment, Path(runs), read_live(experiment), lambda line: err.print(line, markup=False))
            results += [(experiment.name, row) for row in rows]
    if json:
        print_json([{"name": one, "difference": round(row.difference, 4), **asdict(row)} for one, row in results])
        return
    print_table(
        ("experiment", "point", "simulated mean", "live mean", "difference"),
        [
            (
                one,
                ", ".join(f"{path} = {value}" for path, value in row.point.items() if path != "options"),
                f"{row.simulated['mean_ms']:.1f} ms",
                f"{row.live['mean_ms']:.1f} ms",
                f"{row.difference:+.1%}",
            )
            for one, row in results
        ],
    )


def _describe(experiment: "Experiment", result: "TableRun", judged: Sequence["JudgedClaim"]) -> dict[str, Any]:
    return {
        "name": experiment.name,
        "cells": len(result.rows),
        "run": result.run,
        "left": result.left,
        "failures": [
            {"cell": failure.cell.id, "status": failure.status, "message": failure.message, "plan": failure.cell.plan}
            for failure in result.failures
        ],
        "claims": [one.as_dict() for one in judged],
        "rows": result.rows,
    }


def _print_result(experiment: "Experiment", result: "TableRun", judged: Sequence["JudgedClaim"], quick: bool) -> None:
    from amcast.lab.experiments.page import format_number

    out.print(f"{experiment.name}: {experiment.file.title} (paper {experiment.file.paper}, {experiment.file.figure})")
    out.print(f"{len(result.rows)} cells, {result.run} run now, {result.left} left" + (", reduced" if quick else ""))
    for failure in result.failures[:5]:
        out.print(f"{failure.status} {failure.cell.varied}: {failure.message.strip().splitlines()[-1]}", markup=False)
    print_table(
        ("claim", "number", "paper", "ours", "ratio", "expected", ""),
        [
            (
                one.number,
                number.check.say,
                format_number(number.check.paper),
                "not run" if number.ours is None else format_number(number.ours),
                "" if number.ratio is None else f"{number.ratio:.2f}",
                f"{number.check.direction}, {number.check.tolerance:.0%}",
                {None: "", True: "holds", False: "differs"}[number.holds],
            )
            for one in judged
            for number in one.numbers
        ],
    )
    for one in judged:
        reason = f": {one.reason}" if one.reason else ""
        out.print(f"claim {one.number} {one.verdict}{reason}", markup=False)


def _list_experiments(folder: Path, json: bool) -> None:
    from amcast.lab.experiments.experiment import read_experiments
    from amcast.lab.experiments.table import read_table
    from amcast.lab.experiments.verdicts import judge_experiment

    rows: list[dict[str, Any]] = []
    for experiment in read_experiments(folder).values():
        table = read_table(experiment)
        judged = judge_experiment(experiment, table)
        rows.append(
            {
                "name": experiment.name,
                "paper": experiment.file.paper,
                "figure": experiment.file.figure,
                "title": experiment.file.title,
                "cells": len(experiment.expand()),
                "finished": len({row["cell"] for row in table} & {cell.id for cell in experiment.expand()}),
                "claims": {str(one.number): one.verdict for one in judged},
            }
        )
    if json:
        print_json(rows)
        return
    print_table(
        ("name", "paper", "figure", "cells", "claims", "in one line"),
        [
            (
                row["name"],
                row["paper"],
                row["figure"],
                f"{row['finished']} of {row['cells']}",
                ", ".join(f"{number} {verdict}" for number, verdict in row["claims"].items()),
                row["title"],
            )
            for row in rows
        ],
    )


def _write_page(folder: Path, html: Path | None, json: bool) -> None:
    """Writes docs/reproduction.md, or the same as an HTML file."""
    from amcast.lab.experiments.experiment import read_claims, read_experiments
    from amcast.lab.experiments.html_page import render_html
    from amcast.lab.experiments.live_points import read_live
    from amcast.lab.experiments.page import render_page
    from amcast.lab.experiments.table import read_table
    from amcast.lab.experiments.verdicts import judge_all

    claims, experiments = read_claims(folder), read_experiments(folder)
    tables = {name: read_table(experiment) for name, experiment in experiments.items()}
    live = {name: read_live(experiment) for name, experiment in experiments.items()}
    judged = judge_all(claims, experiments, tables)
    docs = folder.parent / "docs"
    text = render_page(claims, experiments, judged, tables, live)
    if html is None and not docs.is_dir():
        raise UsageError(f"--folder {folder}: no folder {docs} beside it; expected the project's")
    file, text = (docs / "reproduction.md", text) if html is None else (html, render_html(text, docs))
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"--html {file}: cannot be written: {error.strerror}") from None
    if json:
        print_json({"page": str(file), "claims": [one.as_dict() for one in judged]})
    else:
        out.print(f"{len(judged)} claims in {file}")
