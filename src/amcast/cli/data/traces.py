"""Commands on traces: check, watch and view."""

import dataclasses
import json as plain_json
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from amcast.check.histories.bank import check_bank
from amcast.check.histories.history import read_history
from amcast.check.histories.list_append import check_list_append
from amcast.check.histories.register import check_register
from amcast.check.histories.report import HistoryReport
from amcast.check.judge import judge
from amcast.check.verdict import Report, worst_verdict
from amcast.cli.data.verdicts import print_reports
from amcast.cli.extras import require_extra
from amcast.cli.output import EXIT_CODES, JsonFlag, colour_verdict, out, print_json
from amcast.cli.panels import TRACES
from amcast.kernel.errors import UsageError
from amcast.trace.run import read_run, read_runs
from amcast.trace.spacetime_diagram import draw_spacetime
from amcast.trace.view import Selection, find_origin, render_lines

if TYPE_CHECKING:
    from amcast.pipeline.watch.job import WatchStatus

Engine = Literal["plain", "spark"]
Model = Literal["register", "list-append", "bank"]


def register(app: typer.Typer) -> None:
    """Adds these commands."""
    app.command(rich_help_panel=TRACES)(check)
    app.command(rich_help_panel=TRACES)(view)
    app.command(rich_help_panel=TRACES)(watch)


def check(
    folder: Annotated[str, typer.Argument(help="A run folder, or a folder of run folders; or its URI.")],
    engine: Annotated[Engine, typer.Option("--engine", help="plain: in this process; spark: any size.")] = "plain",
    master: Annotated[str | None, typer.Option("--master", help="Spark's master; default: this machine.")] = None,
    scratch: Annotated[
        str | None, typer.Option("--scratch", help="A folder for sorted copies that driver and workers share.")
    ] = None,
    model: Annotated[
        Model | None, typer.Option("--as", help="Check a history of calls (JSON lines) against this model instead.")
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Check the trace of any run, of any writer: P1 to P9, with a story for each violation.

    With --as, check a history of calls of any system, as JSON lines of Jepsen's shape: linearizable registers, lists
    that transactions append to and read (strict serializability), or the totals of a bank.

    Examples: amcast check runs/latest --json   |   amcast check runs/huge --engine spark
    |   amcast check history.jsonl --as list-append   |   amcast check huge.jsonl --as bank --engine spark
    """
    if master is not None and engine != "spark":
        raise UsageError(f"--master {master}: only for --engine spark")
    if scratch is not None and engine != "spark":
        raise UsageError(f"--scratch {scratch}: only for --engine spark")
    if model is not None:
        report = _judge_history(Path(folder), model, engine, master, scratch)
        _show_history(report, model, json)
    require_extra("spark" if engine == "spark" else "trace")
    reports = _judge_with_spark(folder, master, scratch) if engine == "spark" else _judge_here(folder)
    verdict = worst_verdict(report.verdict for report in reports)
    if json:
        data: dict[str, Any] = {"verdict": verdict}
        if len(reports) == 1:
            data |= reports[0].as_dict()
        else:
            data["runs"] = [report.as_dict() for report in reports]
        print_json(data)
    else:
        print_reports(reports)
        if len(reports) > 1:
            out.print(f"{len(reports)} runs: {colour_verdict(verdict)}")
    raise typer.Exit(EXIT_CODES[verdict])


def _judge_history(file: Path, model: Model, engine: Engine, master: str | None, scratch: str | None) -> HistoryReport:
    if engine == "spark":
        require_extra("spark")
        from amcast.pipeline.histories.job import check_history

        return check_history(file, model, master, scratch)
    judges = {"register": check_register, "list-append": check_list_append, "bank": check_bank}
    return judges[model](read_history(file))


def _show_history(report: HistoryReport, model: Model, json: bool) -> None:
    if json:
        print_json(report.as_dict())
    else:
        counts = ", ".join(f"{count} {what}" for what, count in report.checked.items())
        out.print(f"{model}: {colour_verdict(report.verdict)} ({counts})")
        for sentence in report.story:
            out.print(f"  {sentence}", markup=False)
    raise typer.Exit(EXIT_CODES[report.verdict])


def _judge_here(folder: str) -> list[Report]:
    """Judges in this process; runs in a store are copied to this machine first."""
    from amcast.pipeline.rows.locations import open_runs, parse_location

    with open_runs(parse_location(folder)) as runs:
        return [judge(run) for run in read_runs(runs)]


def _judge_with_spark(folder: str, master: str | None, scratch: str | None) -> list[Report]:
    from amcast.pipeline.check.job import check as judge_with_spark
    from amcast.pipeline.rows.locations import parse_location

    found = judge_with_spark(parse_location(folder), master, scratch)
    return [Report.from_dict(report) for report in found["runs"]]


def watch(
    folder: Annotated[str, typer.Argument(help="The folder, or URI, of a run that is still going on.")],
    every: Annotated[float, typer.Option("--every", min=0.2, help="Seconds between two updates.")] = 1.0,
    patience: Annotated[
        float | None, typer.Option("--patience", min=1.0, help="Stop after this many seconds without new rows.")
    ] = None,
    state: Annotated[
        Path | None, typer.Option("--state", help="A file for the state of the watch, which continues from it.")
    ] = None,
    alert: Annotated[
        Path | None, typer.Option("--alert", help="A file that gets a line of JSON if the run is violated or refused.")
    ] = None,
    master: Annotated[str | None, typer.Option("--master", help="Spark's master; default: this machine.")] = None,
    json: JsonFlag = False,
) -> None:
    """Follow a run while it goes on: throughput, latency, lag per replica, and whether integrity or order is violated.

    Real-time order (P9) stays unknown: judge it with `amcast check` when the run is over.

    Examples: amcast watch runs/demo/trace   |   amcast watch runs/demo/trace --state watch.state --alert alerts.jsonl
    """
    require_extra("spark")

    from amcast.pipeline.watch.job import watch as follow

    try:
        found = follow(
            folder,
            lambda now: None if json else out.print(_format_status(now), markup=False),
            master=master,
            every_seconds=every,
            patience_seconds=patience,
            state=state,
        )
    except UsageError as refusal:
        if alert is not None:
            _append_alert(alert, folder, "refused", [str(refusal)])
        raise
    if alert is not None and found.verdict == "violated":
        _append_alert(alert, folder, found.verdict, found.story)
    if json:
        print_json(dataclasses.asdict(found))
    else:
        for sentence in found.story:
            out.print(sentence, markup=False)
        out.print(f"real-time order (P9): {found.real_time}: {found.real_time_reason}", markup=False)
    raise typer.Exit(EXIT_CODES[found.verdict])


def _append_alert(file: Path, folder: str, verdict: str, story: list[str]) -> None:
    """One line of JSON, for a program that follows the file."""
    line = {"at": datetime.now(UTC).isoformat(timespec="seconds"), "folder": folder, "verdict": verdict}
    try:
        with file.open("a") as lines:
            lines.write(f"{plain_json.dumps({**line, 'story': story})}\n")
    except OSError as error:
        raise UsageError(f"--alert {file}: cannot be written: {error.strerror}") from None


def _format_status(now: "WatchStatus") -> str:
    latency = "" if now.latency_ns_p50 is None else f", p50 {now.latency_ns_p50 / 1e6:.2f} ms"
    behind = [f"{process} by {count}" for process, count in sorted(now.lag.items()) if count]
    lag = f", behind: {', '.join(behind[:5])}" if behind else ""
    lag += "".join(f", process {process} lacks position {at}" for process, at in list(now.holes.items())[:5])
    rate = f"{now.per_second:,.0f}/s"
    return f"{now.multicasts} multicasts, {now.deliveries} deliveries, {rate}{latency}{lag}; {now.verdict}"


def view(
    folder: Annotated[Path, typer.Argument(help="A run folder.")],
    run_name: Annotated[str | None, typer.Option("--run", help="Which run, if the folder holds several.")] = None,
    message: Annotated[int | None, typer.Option("--message", help="Only steps about this message.")] = None,
    process: Annotated[int | None, typer.Option("--process", help="Only steps at this process.")] = None,
    window: Annotated[
        str | None,
        typer.Option(
            "--window",
            help="Only this time, A..B in milliseconds; either end may be omitted. Live runs count from their first"
            " multicast.",
        ),
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="The most lines to print.")] = 200,
    picture_file: Annotated[
        Path | None, typer.Option("--picture", help="Write a space-time diagram (SVG) to this file instead.")
    ] = None,
    arrows: Annotated[int, typer.Option("--arrows", min=1, help="The most arrows in the diagram.")] = 300,
) -> None:
    """Show a run: one line per step in the terminal, or a space-time diagram.

    Examples: amcast view runs/latest --message 3000000002   |   amcast view runs/latest --window 0..20 --picture a.svg
    """
    require_extra("trace")
    run = read_run(folder, run_name)
    origin = find_origin(run)
    selection = Selection(message, process, *_parse_window(window, origin), origin)
    if picture_file is None:
        for line in render_lines(run, selection, limit):
            out.print(line, markup=False)
        return
    text = draw_spacetime(run, selection, arrows=arrows, marks=arrows)
    try:
        picture_file.write_text(text)
    except OSError as error:
        raise UsageError(f"--picture {picture_file}: cannot be written: {error.strerror}") from None
    out.print(f"the picture is in {picture_file}")


def _parse_window(text: str | None, origin: int) -> tuple[int | None, int | None]:
    """A..B in milliseconds behind the origin as nanoseconds."""
    if text is None:
        return None, None
    found = re.fullmatch(r"(\d+(?:\.\d+)?)?\.\.(\d+(?:\.\d+)?)?", text)
    if not found:
        raise UsageError(f"--window {text!r}; expected milliseconds such as 0..20, 5.. or ..7.5")
    since, until = (None if part is None else origin + round(float(part) * 1e6) for part in found.groups())
    return since, until
