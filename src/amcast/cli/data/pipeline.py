"""Commands of the pipeline: sweep, measure, report, compact. Spark is imported when one of them runs, not before."""

import json as plain_json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from amcast.cli.extras import require_extra
from amcast.cli.output import EXIT_CODES, HOLDS, JsonFlag, colour_verdict, err, out, print_json, print_table
from amcast.cli.panels import TRACES
from amcast.kernel.errors import UsageError

if TYPE_CHECKING:
    from amcast.figures.html_page import ReportSummary
    from amcast.pipeline.measure.job import MeasureResult
    from amcast.pipeline.rows.locations import Location

MasterOption = Annotated[
    str | None,
    typer.Option("--master", help="Spark's master, such as spark://HOST:7077; default: all cores of this machine."),
]
FEW_FILES, FEW_ROWS = 1000, 500_000
"""Up to so many a command judges runs in its own process: opening ten files costs it about as much as 10,000 rows."""
EdgesOption = Annotated[bool, typer.Option("--keep-edges", help="Include the first and last 10 % of a run.")]
OrderOption = Annotated[
    str | None,
    typer.Option("--order", help="Rank destinations by this order of groups (of an overlay), such as 8,1,2."),
]


def register(app: typer.Typer) -> None:
    """Adds these commands."""
    app.command(rich_help_panel=TRACES)(sweep)
    app.command(rich_help_panel=TRACES)(measure)
    app.command(rich_help_panel=TRACES)(report)
    app.command(rich_help_panel=TRACES)(compact)


def sweep(
    plan: Annotated[Path, typer.Argument(help="A TOML plan with a table \\[grid].")],
    folder: Annotated[str, typer.Option("--out", help="The sweep's folder or URI; an existing sweep is resumed.")],
    master: MasterOption = None,
    traces: Annotated[
        bool, typer.Option(help="Keep every cell's trace (those of violated cells are always kept).")
    ] = False,
    packets: Annotated[bool, typer.Option(help="Record every packet (P6 needs them).")] = True,
    timeout: Annotated[float, typer.Option("--timeout", min=0.1, help="Seconds that one cell may take.")] = 600.0,
    retry: Annotated[bool, typer.Option("--retry", help="Run cells again that ended with an error.")] = False,
    json: JsonFlag = False,
) -> None:
    """Run every cell of a plan's grid, on all cores or on a cluster; each result is one row.

    Example: amcast sweep plans/five.toml --out sweeps/five --traces
    """
    require_extra("spark")

    from amcast.lab.sweep_cell import estimate_seconds, normalise_plan, run_cell
    from amcast.pipeline.rows.locations import parse_location
    from amcast.pipeline.spark.session import open_session
    from amcast.pipeline.sweep import job
    from amcast.pipeline.sweep.grid import expand_cells, parse_grid
    from amcast.simulation.inputs.plan import read_plan

    folder = parse_location(folder)
    values = read_plan(plan)
    grid = parse_grid(values, f"plan {plan}")
    cells = expand_cells(grid, normalise_plan, f"plan {plan}")
    place = folder if "://" in folder else Path(folder).absolute()
    settings = job.SweepSettings(place, traces, packets, timeout, retry)
    job.prepare_sweep(settings, values, cells, grid.paths)
    begun = time.monotonic()
    left = job.find_pending(cells, settings)
    if left:
        err.print(f"{len(left)} of {len(cells)} cells to run")
        with open_session(master, brief=True) as spark:
            job.run_cells(spark, left, run_cell, estimate_seconds, settings)
    job.merge_journal(settings.out)
    result = job.summarize_sweep(cells, len(left), begun, settings.out)
    verdict = job.decide_verdict(result.statuses)
    if json:
        print_json(
            {
                "verdict": verdict,
                "folder": folder,
                "cells": result.cells,
                "run": result.run,
                "seconds": round(result.seconds, 3),
                "statuses": result.statuses,
                "failures": [_with_replay_path(row, folder) for row in result.failures],
            }
        )
    else:
        counts = ", ".join(f"{count} {status}" for status, count in result.statuses.items())
        out.print(f"{result.cells} cells: {counts}; {result.run} run now, in {result.seconds:.1f} s")
        for row in result.failures[:5]:
            failure = _with_replay_path(row, folder)
            out.print(f"{failure['status']} {failure['varied']}: {failure['message']}", markup=False)
            out.print(f"  {failure['replay']}", markup=False)
        out.print(f"next:  amcast measure {folder}   |   amcast report {folder}")
    raise typer.Exit(EXIT_CODES[verdict])


def _with_replay_path(row: dict[str, Any], folder: str) -> dict[str, Any]:
    """A failure whose replay command works from the current folder; a plan in a store must be copied from there."""
    return {**row, "replay": (row["replay"] or "").replace("--plan plans/", f"--plan {folder}/plans/")}


def measure(
    folder: Annotated[str, typer.Argument(help="A run folder, a folder of runs, or a sweep; or its URI.")],
    target: Annotated[
        str | None, typer.Option("--out", help="The folder or URI for the tables; default: measures inside.")
    ] = None,
    master: MasterOption = None,
    keep_edges: EdgesOption = False,
    order: OrderOption = None,
    scratch: Annotated[
        str | None,
        typer.Option("--scratch", help="Where rows of large runs wait, for driver and workers; default: in --out."),
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Measure runs: tables of latency, throughput, packets, genuineness, convoys, fairness and recovery.

    Example: amcast measure runs/latest
    """
    require_extra("spark")
    result = _measure_folder(folder, target, master, keep_edges, _parse_groups(order), scratch)
    if json:
        print_json(vars(result))
        return
    edges = "all of every run" if not result.edge else f"first and last {result.edge:.0%} dropped"
    out.print(f"{result.runs} runs, {result.method} percentiles, {edges}; tables in {result.out}, Parquet and CSV")
    print_table(("table", "rows"), list(result.tables.items()))
    if result.missing:
        out.print(f"packets were not recorded, so there is no {', '.join(result.missing)}")


def report(
    folder: Annotated[str, typer.Argument(help="A run folder, a folder of runs, or a sweep; or its URI.")],
    target: Annotated[
        str | None, typer.Option("--out", help="The folder or URI for report.html; default: the runs' own.")
    ] = None,
    master: MasterOption = None,
    keep_edges: EdgesOption = False,
    order: OrderOption = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Measure again, even if measures exist.")] = False,
    json: JsonFlag = False,
) -> None:
    """Write one self-contained HTML page about runs: the verdict first, then charts and tables.

    Example: amcast report sweeps/five
    """
    require_extra("spark")

    from amcast.figures.report import read_tables
    from amcast.lab import report_summary
    from amcast.pipeline.rows.locations import Location, open_input
    from amcast.pipeline.sweep import job

    place = Location.of(folder)
    page = Location.of(target) if target is not None else place
    if fresh or keep_edges or order or not has_current_measures(place, page / "measures"):
        _measure_folder(place.path, str(page / "measures"), master, keep_edges, _parse_groups(order))
    with open_input(page / "measures") as measures:
        description = job.read_description(place.path)
        if description is not None:
            cells = job.read_cells(place.path).to_pylist()
            summary = report_summary.summarize_sweep(place, description, cells, measures)
        else:
            answer = judge_folder(place.path, master)
            summary = report_summary.summarize_runs(place, answer, read_tables(measures)["summary"], measures)
        files = _write_files(summary, measures, page)
    if json:
        print_json({"verdict": summary.verdict, "page": files[0], "files": files[1:]})
    else:
        out.print(
            f"{colour_verdict(summary.verdict)}; the page is {files[0]}, {len(files) - 1} more files in pictures/"
        )
    raise typer.Exit(EXIT_CODES.get(summary.verdict, HOLDS))


def _write_files(summary: "ReportSummary", measures: Path, page: "Location") -> list[str]:
    """Writes the page and its pictures to a folder or URI; returns the files, the page first."""
    from amcast.figures.report import CHART_FOLDER, PAGE_FILE, write_report
    from amcast.pipeline.rows.locations import open_output

    with open_output(page, last=[PAGE_FILE]) as local:
        files = write_report(summary, measures, local)
    names = [str(file.relative_to(local)) for file in files]
    if not page.is_local:
        for name in (page / CHART_FOLDER).list_names():
            if f"{CHART_FOLDER}/{name}" not in names:
                (page / CHART_FOLDER / name).remove()
    return [str(page / name) for name in names]


def compact(
    folder: Annotated[str, typer.Argument(help="A finished run folder, or its URI.")],
    target: Annotated[str, typer.Option("--out", help="The folder or URI of the copy, new or empty.")],
    json: JsonFlag = False,
) -> None:
    """Copy a run into few files: the same rows, deliveries laid out by process, as checks read them fastest.

    Example: amcast compact runs/latest --out runs/compacted
    """
    require_extra("spark")

    from amcast.pipeline.rows.locations import parse_location
    from amcast.pipeline.rows.run_copy import copy_run

    tables = copy_run(parse_location(folder), target)
    if json:
        print_json({"folder": target, "tables": {table.table: vars(table) for table in tables}})
        return
    rows = [(table.table, table.rows, table.files_before, table.files) for table in tables]
    print_table(("table", "rows", "files before", "files"), rows)
    out.print(f"the copy is {target}")


def write_page(folder: str, target: Path, answer: dict[str, Any]) -> Path:
    """Writes the page about runs that were judged already; returns its path."""
    from amcast.figures.report import read_tables, write_report
    from amcast.lab import report_summary
    from amcast.pipeline.rows.locations import Location

    measures = target / "measures"
    _measure_folder(folder, str(measures), None, False, None)
    place = Location.of(folder)
    summary = report_summary.summarize_runs(place, answer, read_tables(measures)["summary"], measures)
    return write_report(summary, measures, target)[0]


def _measure_folder(
    folder: str,
    target: str | None,
    master: str | None,
    keep_edges: bool,
    order: list[int] | None,
    scratch: str | None = None,
) -> "MeasureResult":
    """Measures with Spark."""
    from amcast.pipeline.measure import job
    from amcast.pipeline.rows.files import SMALL_BYTES, find_trace_folders, sum_file_bytes
    from amcast.pipeline.rows.locations import Location
    from amcast.pipeline.spark.session import open_session

    source = _find_source(folder)
    measures = target or str(Location.of(folder) / "measures")
    if source.cells is not None:
        return job.measure_cells(source.cells, measures)
    job.find_output(measures)  # before Spark is started for nothing
    edge = 0.0 if keep_edges else job.EDGE_SHARE
    with open_session(master, brief=sum_file_bytes(find_trace_folders(source.folder)) < SMALL_BYTES) as spark:
        return job.measure(
            spark, source.folder, measures, edge=edge, order=order, statuses=source.statuses, scratch=scratch
        )


def measure_folder(folder: str, measures: Path) -> None:
    """Measures runs or a sweep into a folder: in this process if they are small, else with Spark."""
    from amcast.pipeline.measure import job
    from amcast.pipeline.rows.files import SMALL_BYTES, find_trace_folders, sum_file_bytes

    source = _find_source(folder)
    if source.cells is not None:
        job.measure_cells(source.cells, measures)
        return
    if sum_file_bytes(find_trace_folders(source.folder)) < SMALL_BYTES:
        job.measure(None, source.folder, measures, statuses=source.statuses)
    else:
        require_extra("spark")
        _measure_folder(folder, str(measures), None, False, None)


@dataclass(frozen=True)
class _MeasuredSource:
    """Where the traces of runs or of a sweep are; of a sweep without traces, its cells."""

    folder: str
    statuses: dict[str, str] | None = None
    cells: list[dict[str, Any]] | None = None


def _find_source(folder: str) -> _MeasuredSource:
    from amcast.pipeline.rows.locations import Location
    from amcast.pipeline.sweep import job as sweep

    place = Location.of(folder)
    description = sweep.read_description(place.path)
    if description is not None:
        cells = sweep.read_cells(place.path).to_pylist()
        if not description.get("traces"):
            return _MeasuredSource(place.path, cells=cells)
        return _MeasuredSource(str(place / "runs"), {cell["cell"]: cell["status"] for cell in cells})
    if not place.is_folder():
        raise UsageError(f"{folder}: no such folder; expected a run folder, a folder of runs, or a sweep")
    return _MeasuredSource(place.path)


def has_current_measures(place: "Location", measures: "Location") -> bool:
    """Whether measures exist that are newer than everything they measure."""
    made = {entry.base_name: entry.mtime_ns or 0 for entry in measures.list_entries()}
    if "measures.json" not in made or "summary.parquet" not in made:
        return False
    description = plain_json.loads((measures / "measures.json").read_bytes())
    newest = max((changed for name, changed in place.list_changes() if _is_fact(name)), default=0)
    return bool(description.get("tables")) and description.get("edge_dropped") != 0 and made["measures.json"] >= newest


def _is_fact(name: str) -> bool:
    """Whether a file below a folder says that its runs changed: run.json is written last, as are the cells of a
    sweep."""
    parts = name.split("/")
    if parts[-1] == "run.json":
        return len(parts) <= 2 or (len(parts) == 3 and parts[0] == "runs")
    return parts[0] == "cells" and len(parts) == 3


def judge_folder(folder: str, master: str | None = None) -> dict[str, Any]:
    """The checker's answer: in this process for a few small runs in a few files, on Spark otherwise."""
    from amcast.check.judge import judge
    from amcast.check.verdict import worst_verdict
    from amcast.pipeline.check.job import check
    from amcast.pipeline.rows.files import find_trace_folders, open_parquet
    from amcast.trace.run import read_run

    found = find_trace_folders(folder)
    files = [file for source in found for files in source.tables.values() for file in files]
    is_far = "://" in folder or len(files) > FEW_FILES
    if is_far or sum(open_parquet(file).metadata.num_rows for file in files) > FEW_ROWS:
        return check(folder, master)
    reports = [judge(read_run(source.folder, meta.run)).as_dict() for source in found for meta in source.metas]
    return {"verdict": worst_verdict([report["verdict"] for report in reports]), "runs": reports}


def _parse_groups(order: str | None) -> list[int] | None:
    if order is None:
        return None
    parts = order.split(",")
    if not all(part.strip().isdigit() for part in parts) or len(set(parts)) < len(parts):
        raise UsageError(f"--order {order!r}; expected different group numbers, separated by commas, such as 8,1,2")
    return [int(part) for part in parts]
