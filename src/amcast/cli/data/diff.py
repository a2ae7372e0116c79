"""`amcast diff`: two runs, sweeps or commits side by side, as a gate against regressions."""

import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from amcast.cli.data.pipeline import has_current_measures, judge_folder, measure_folder
from amcast.cli.data.revisions import run_revision
from amcast.cli.extras import require_extra
from amcast.cli.lab.search import parse_seeds
from amcast.cli.output import EXIT_CODES, JsonFlag, err, out, print_json, print_table
from amcast.cli.panels import TRACES
from amcast.kernel.errors import UsageError
from amcast.simulation.inputs.plan import read_plan

if TYPE_CHECKING:
    from amcast.pipeline.measure.difference import NumberChange, RunsDifference

SEEDS: Final = "0..4"
Rows = list[dict[str, Any]]


def register(app: typer.Typer) -> None:
    """Adds this command."""
    app.command(rich_help_panel=TRACES)(diff)


def diff(
    before: Annotated[
        str, typer.Argument(help="A run folder, a folder of runs, or a sweep, or its URI; with --plan, a commit.")
    ],
    after: Annotated[str, typer.Argument(help="What is compared with it, of the same kind.")],
    plan: Annotated[
        Path | None, typer.Option("--plan", help="Compare two commits: simulate this plan with the code of each.")
    ] = None,
    seeds: Annotated[str, typer.Option("--seeds", help="With --plan: the seeds of the runs.")] = SEEDS,
    tolerance: Annotated[
        float, typer.Option("--tolerance", min=0.0, help="Differences up to this many per cent do not matter.")
    ] = 5.0,
    gate: Annotated[
        str | None,
        typer.Option("--gate", help="The numbers that decide, such as throughput_per_s,latency_ns_p99."),
    ] = None,
    target: Annotated[
        str | None, typer.Option("--out", metavar="DIR", help="Also write a page, DIR/report.html; DIR may be a URI.")
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Compare two runs, sweeps or commits: differences with 95 % intervals, and whether the second is worse.

    Exit code 0: no number that decides is worse, 1: one is, or more runs are not in order, 2: the runs do not show it.
    To compare the simulator with a live cluster, use amcast compare.

    Examples: amcast diff sweeps/before sweeps/after   |   amcast diff main HEAD --plan plans/five.toml --seeds 0..9
    |   amcast diff runs/one runs/two --out runs/compared
    """
    first, last = parse_seeds(seeds)
    if plan is not None:
        read_plan(plan)
    elif (first, last) != parse_seeds(SEEDS):
        raise UsageError(f"--seeds {seeds} without --plan; expected a plan that is simulated with these seeds")
    require_extra("trace")

    from amcast.pipeline.measure.difference import GATED, compare_runs

    with ExitStack() as stack:
        places = [before, after]
        if plan is not None:
            for at, revision in enumerate(places):
                folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="amcast-diff-")))
                err.print(f"running {plan} with seeds {seeds} at {revision}", markup=False)
                run_revision(revision, plan, range(first, last + 1), folder)
                places[at] = str(folder)
        measured = [_read_measures(place) for place in places]
    gated = tuple(name.strip() for name in gate.split(",")) if gate is not None else GATED
    one, other = measured
    found = compare_runs(one.runs, other.runs, (one.inside, other.inside), tolerance / 100, gated)
    page = None if target is None else _write_page(found, (before, after), measured, target)
    if json:
        print_json({**_to_json(found), **({"page": page} if page else {})})
    else:
        _print(found)
        if page:
            out.print(f"the page is {page}", markup=False)
    raise typer.Exit(EXIT_CODES[found.verdict])


@dataclass(frozen=True)
class MeasuredSide:
    """One of the two: summaries of runs, by run its line of latencies, and what pictures show."""

    runs: Rows
    inside: dict[str, dict[str, Any]]
    distributions: Rows
    throughput: Rows


def _write_page(found: "RunsDifference", names: tuple[str, str], measured: list[MeasuredSide], target: str) -> str:
    require_extra("spark", "a page")

    from amcast.figures.difference_page import ComparedSide, write_difference
    from amcast.figures.report import PAGE_FILE
    from amcast.pipeline.rows.locations import Location, open_output

    first, second = (
        ComparedSide(name, side.distributions, side.throughput) for name, side in zip(names, measured, strict=True)
    )
    place = Location.of(target)
    with open_output(place, last=[PAGE_FILE]) as local:
        return str(place / write_difference(found, (first, second), local).name)


def _read_measures(folder: str) -> MeasuredSide:
    """The measures of runs; made now, if there are no current ones."""
    import pyarrow.parquet as pq

    from amcast.pipeline.rows.locations import Location, open_input

    place = Location.of(folder)
    if not place.is_folder():
        raise UsageError(f"{folder}: no such folder; expected a run folder, a folder of runs, or a sweep")
    with tempfile.TemporaryDirectory(prefix="amcast-diff-") as temporary:
        known = place / "measures"
        if not has_current_measures(place, known):
            known = Location(temporary)
            measure_folder(place.path, Path(temporary))
        with open_input(known) as measures:
            summary: Rows = pq.read_table(measures / "summary.parquet").to_pylist()
            lines, distributions, throughput = (
                pq.read_table(file).to_pylist() if (file := measures / f"{name}.parquet").is_file() else []
                for name in ("latency", "cdf", "throughput")
            )
    if not (place / "sweep.json").is_file():
        verdicts = {report["run"]: report["verdict"] for report in judge_folder(place.path)["runs"]}
        for row in summary:
            row["status"] = verdicts.get(row["run"])
    inside = {row["run"]: row for row in lines if row["by"] == "all"}
    return MeasuredSide(summary, inside, distributions, throughput)


def _to_json(found: "RunsDifference") -> dict[str, Any]:
    return {
        "verdict": found.verdict,
        "worse": found.worse,
        "unknown": found.unknown,
        "settings": [
            {
                "setting": one.name,
                "not_in_order": list(one.violated),
                "numbers": [number.as_dict() for number in one.numbers],
            }
            for one in found.settings
        ],
        "only_before": found.only_before,
        "only_after": found.only_after,
    }


def _print(found: "RunsDifference") -> None:
    headings = ("number", "before", "after", "difference", "95 % interval", "runs", "")
    for setting in found.settings:
        print_table(headings, [_to_line(one) for one in setting.numbers], setting.name)
    for sentence in (*found.worse, *(f"not known: {sentence}" for sentence in found.unknown)):
        out.print(sentence, markup=False)
    words = {
        "holds": "the second is not worse",
        "violated": "the second is worse",
        "unknown": "the runs do not show it",
    }
    out.print(words[found.verdict])


def _to_line(one: "NumberChange") -> tuple[str, ...]:
    share, low, high = (one.to_share(value) for value in (one.difference, one.low, one.high))
    interval = f"{100 * low:+.1f} to {100 * high:+.1f} %" if low is not None and high is not None else ""
    return (
        one.number + ("" if one.gated else " (only shown)"),
        f"{one.before:,.6g}",
        f"{one.after:,.6g}",
        f"{100 * share:+.1f} %" if share is not None else f"{one.difference:+.6g}",
        interval or one.method.replace("none", "one run"),
        f"{one.runs[0]}, {one.runs[1]}",
        one.change,
    )
