"""The command `worst`: an adversary that chooses delays, against latencies and against real-time order."""

from pathlib import Path
from typing import Annotated

import typer

from amcast.assembly import Order
from amcast.cli.lab.plan_options import OrderOption, ProtocolsOption
from amcast.cli.output import HOLDS, VIOLATED, JsonFlag, colour_verdict, out, print_json, print_table, show_progress
from amcast.cli.panels import LABORATORY
from amcast.kernel.errors import UsageError
from amcast.kernel.spec import Spec
from amcast.lab.protocol_lookup import find_protocol
from amcast.lab.real_time.counterexample import Counterexample, read_counterexample, tell_cycle
from amcast.lab.real_time.search import RealTimeSearch, search_real_time
from amcast.lab.worst_case import has_bound, list_skews, search_worst_case
from amcast.protocols.catalogue import CATALOGUE


def register(app: typer.Typer) -> None:
    """Adds this command."""
    app.command(rich_help_panel=LABORATORY)(worst)


def worst(
    names: Annotated[
        list[str] | None, typer.Argument(help="Protocols; all that claim a bound if none is named.")
    ] = None,
    protocols: ProtocolsOption = None,
    schedules: Annotated[
        int, typer.Option("--schedules", min=1, help="How many to try, for each protocol and skew.")
    ] = 1000,
    seed: Annotated[int, typer.Option("--seed", help="The seed of all random choices.")] = 0,
    real_time: Annotated[
        bool, typer.Option("--real-time", help="Search a run that breaks real-time order (P9) instead.")
    ] = False,
    order: OrderOption = None,
    folder: Annotated[
        Path | None, typer.Option("--out", help="With --real-time: a folder for schedules, stories and pictures.")
    ] = None,
    schedule: Annotated[
        Path | None, typer.Option("--schedule", help="With --real-time: run a schedule that --out wrote.")
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Search the latest delivery under conflicts, with any delays in [0, D], and compare it with the claimed bound.

    With --json each row carries the schedule that was worst. With --real-time the search looks for a message that was
    answered, and nevertheless comes after one that was multicast later; protocols that claim P9 must have none. With
    --order real-time it searches in that setting, where no protocol may have any.

    Examples: amcast worst primcast --schedules 2000   |   amcast worst --real-time --out cycles
    """
    names = [*(names or ()), *(protocols or ())]
    if schedule is not None or real_time:
        raise typer.Exit(_search_real_time(names, schedules, seed, order or "acyclic", folder, schedule, json))
    if order is not None:
        raise UsageError(f"--order {order} without --real-time; expected both: latencies are those of deliveries")
    if folder is not None:
        raise UsageError("--out without --real-time; expected both")
    specs = (
        [find_protocol(name) for name in names] if names else [spec for spec in CATALOGUE.values() if has_bound(spec)]
    )
    cases = [(spec, skew) for spec in specs for skew in list_skews(spec)]
    rows = []
    with show_progress("searches", len(cases)) as show:
        for number, (spec, skew) in enumerate(cases, 1):
            rows += search_worst_case(spec, schedules, seed, skew)
            show(number)
    if json:
        print_json([row.as_dict() for row in rows])
    else:
        print_table(
            ("protocol", "role", "skew", "latest", "bound", "share", "schedules", "seed", ""),
            [
                (
                    row.protocol,
                    row.role,
                    row.skew,
                    "never" if row.undelivered else f"{row.found:.3f}",
                    f"{row.bound:g}",
                    f"{row.found / row.bound:.1%}",
                    row.schedules,
                    row.seed,
                    colour_verdict("holds" if row.holds else "violated"),
                )
                for row in rows
            ],
        )
    raise typer.Exit(HOLDS if all(row.holds for row in rows) else VIOLATED)


def _search_real_time(
    names: list[str] | None,
    schedules: int,
    seed: int,
    order: Order,
    folder: Path | None,
    schedule: Path | None,
    json: bool,
) -> int:
    """`worst --real-time`; returns the exit code."""
    if schedule is not None:
        return _run_counterexample(schedule, json)
    if folder is not None and order == "real-time":
        raise UsageError("--out and --order real-time; expected one of them: a cycle there is a defect to report")
    specs = [find_protocol(name) for name in names] if names else list(CATALOGUE.values())
    rows: list[tuple[Spec, RealTimeSearch]] = []

    def claims(spec: Spec) -> bool:
        return order == "real-time" or spec.claims.real_time

    with show_progress("searches", len(specs)) as show:
        for number, spec in enumerate(specs, 1):
            found = search_real_time(spec, schedules, seed, order=order)
            rows.append((spec, found))
            if folder is not None and found.schedule is not None:
                Counterexample(spec, found.schedule).write(folder)
            show(number)
    if json:
        print_json([{**found.as_dict(), "claimed": claims(spec), "order": order} for spec, found in rows])
    else:
        print_table(
            ("protocol", "claims P9", "runs", "exposed", "undelivered", "seed", "P9"),
            [
                (
                    spec.name,
                    "yes" if claims(spec) else "no",
                    found.runs,
                    found.exposed,
                    found.stuck,
                    found.seed,
                    "no cycle found" if found.holds else colour_verdict("violated") if claims(spec) else "a cycle",
                )
                for spec, found in rows
            ],
        )
        out.print("exposed: preludes in which a message was answered while one before it was undelivered somewhere")
    return HOLDS if all(found.holds or not claims(spec) for spec, found in rows) else VIOLATED


def _run_counterexample(file: Path, json: bool) -> int:
    run, report = read_counterexample(file).judge()
    if json:
        print_json(report.as_dict())
    else:
        for line in tell_cycle(run, report) if report.properties["P9"].verdict == "violated" else ("no cycle",):
            out.print(line)
    return report.exit_code
