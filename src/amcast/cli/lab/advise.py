"""The command `amcast advise`: which protocol, placement and leaders suit a service."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer

from amcast.cli.output import EXIT_CODES, JsonFlag, SeedOption, err, out, print_json, print_table, show_progress
from amcast.cli.panels import LABORATORY
from amcast.kernel.errors import UsageError

if TYPE_CHECKING:
    from amcast.lab.advice.advice import Advice, Judged
    from amcast.lab.advice.candidate_run import CandidateRun, RegionLoss, Waits
    from amcast.lab.advice.request import AdviceRequest
    from amcast.lab.simulated_vs_live import Comparison

LIVE_TOLERANCE: Final = 0.1
"""How far the medians of a live run of the first candidate may be from the simulated ones, as a share."""


def register(app: typer.Typer) -> None:
    """Adds this command."""
    app.command(rich_help_panel=LABORATORY)(advise)


def advise(
    regions: Annotated[str | None, typer.Option("--regions", help="Where replicas may be: a,b,c.")] = None,
    groups: Annotated[
        str | None, typer.Option("--groups", help="A number, or NAME=REGION,...: each group and its home.")
    ] = None,
    mix: Annotated[
        str | None, typer.Option("--mix", help='Weights and destinations: "70% home, 25% home+nearest, 5% all".')
    ] = None,
    clients: Annotated[str | None, typer.Option("--clients", help="Regions of clients; default: --regions.")] = None,
    plan: Annotated[Path | None, typer.Option("--plan", help="Regions, groups and traffic of a plan.")] = None,
    trace: Annotated[Path | None, typer.Option("--trace", help="The same of a recorded run.")] = None,
    latencies: Annotated[
        Path | None, typer.Option("--latencies", help="A CSV file of round trips in ms; default: aws-2025.")
    ] = None,
    replicas: Annotated[int | None, typer.Option("--replicas", help="Replicas per group; default: 3.")] = None,
    payload: Annotated[int | None, typer.Option("--payload", min=0, help="Bytes of a message; default: 64.")] = None,
    rate: Annotated[float, typer.Option("--rate", help="Messages per second of each client.")] = 2.0,
    protocol: Annotated[
        list[str] | None, typer.Option("--protocol", "-p", help="fastcast, or fastcast:stamps=all. May be repeated.")
    ] = None,
    by: Annotated[
        Literal["mean", "p50", "p95", "p99"], typer.Option("--by", help="What of the clients' waits is ranked.")
    ] = "mean",
    survive: Annotated[
        bool, typer.Option("--survive-region", help="Only placements where no region's death stops a group.")
    ] = False,
    messages: Annotated[int, typer.Option("--messages", min=50, max=100_000, help="Messages of each run.")] = 400,
    top: Annotated[int, typer.Option("--top", min=1, help="How many candidates are printed.")] = 10,
    folder: Annotated[Path | None, typer.Option("--out", help="Write the best candidate as a plan file.")] = None,
    live: Annotated[
        Path | None, typer.Option("--live", help="Also run the best candidate live, in this new folder.")
    ] = None,
    seed: SeedOption = 0,
    json: JsonFlag = False,
) -> None:
    """Rank protocols, placements of replicas and regions of leaders for your regions and your traffic, by simulation.

    Clients of all regions send at the same rate; what is ranked is how long they wait for their answers. With --live
    the first candidate is also run on this machine, with the distances imitated inside the links; the exit code is 1 if
    the medians of its waits differ from the simulated ones by more than 10 %.

    Examples: amcast advise --regions eu-west-1,us-east-1,ap-northeast-1 --mix "70% home, 25% home+nearest, 5% all"
    |   amcast advise --trace runs/latest --latencies mine.csv   |   amcast advise --plan mine.toml --survive-region
    """
    from amcast.lab.advice.advice import advise as rank
    from amcast.lab.advice.candidates import DEFAULT_PROTOCOLS, list_candidates, list_placements, parse_choice
    from amcast.lab.advice.sources import ask_directly, ask_from_plan, ask_from_trace

    if live is not None and live.exists():
        raise UsageError(f"--live {live}: exists; expected a new folder")
    sources = [name for name, value in (("--mix", mix), ("--plan", plan), ("--trace", trace)) if value is not None]
    if len(sources) != 1:
        raise UsageError(f"{' and '.join(sources) or 'no traffic'} given; expected one of --mix, --plan, --trace")
    if mix is not None:
        if regions is None:
            raise UsageError("--regions is missing; expected names of regions separated by commas")
        request = ask_directly(
            regions, groups, mix, clients, latencies, 3 if replicas is None else replicas, payload, rate
        )
    elif groups is not None or clients is not None:
        raise UsageError(f"--groups and --clients with {sources[0]}; expected them with --mix only")
    elif plan is not None:
        request = ask_from_plan(plan, regions, latencies, replicas, payload, rate)
    else:
        assert trace is not None
        request = ask_from_trace(trace, regions, latencies, replicas, payload, rate)
    choices = [parse_choice(text) for text in dict.fromkeys(protocol or DEFAULT_PROTOCOLS)]
    candidates = list_candidates(choices, list_placements(request))
    with show_progress("candidates", len(candidates)) as show:
        advice = rank(request, candidates, messages, seed, by, survive, show)
    if folder is not None:
        _write_plan(folder, advice.best.plan)
    compared = None if live is None else _run_live(advice.best.plan, live)
    if json:
        print_json(describe_advice(advice) | ({} if compared is None else {"live": compared.as_dict(LIVE_TOLERANCE)}))
    else:
        _print_advice(advice, top, folder, compared)
    if compared is not None and not compared.agrees(LIVE_TOLERANCE):
        raise typer.Exit(EXIT_CODES["violated"])


def _run_live(plan: dict[str, Any], folder: Path) -> "Comparison":
    from amcast.lab.simulated_vs_live import compare_worlds
    from amcast.simulation.inputs.plan import parse_plan

    return compare_worlds(parse_plan(plan), folder, lambda line: err.print(line, markup=False))


def _print_live(compared: "Comparison") -> None:
    headings = ("messages", "clients wait", "simulated", "live", "difference")
    print_table(headings, compared.list_rows(), title="the first one, simulated and live")
    verdict = "agree" if compared.agrees(LIVE_TOLERANCE) else "do not agree"
    out.print(f"the medians {verdict} within {LIVE_TOLERANCE:.0%}; the live run is in {compared.folder}", markup=False)


def _write_plan(file: Path, plan: dict[str, Any]) -> None:
    from amcast.live.config.cluster import format_toml

    try:
        file.write_text(format_toml(plan), encoding="utf-8")
    except OSError as error:
        raise UsageError(f"--out {file}: cannot be written: {error.strerror}") from None


def describe_advice(advice: "Advice") -> dict[str, Any]:
    """An advice as plain data."""
    request = advice.request
    return {
        "by": advice.by,
        "groups": {request.names[group]: region for group, region in sorted(request.home_of.items())},
        "clients": list(request.clients),
        "mix": request.mix,
        "by_region": request.by_region,
        "ranked": [{"rank": place, **_describe(one)} for place, one in enumerate(advice.ranked, 1)],
        "best_surviving": next((n for n, one in enumerate(advice.ranked, 1) if one.survives), None),
        "losses": [_describe_loss(request, loss) for loss in advice.losses],
        "reasons": list(advice.reasons),
        "failed": [
            {"protocol": candidate.choice.name, "placement": candidate.placement.name, "why": why}
            for candidate, why in advice.failed
        ],
        "plan": advice.best.plan,
    }


def _describe(one: "Judged") -> dict[str, Any]:
    candidate, outcome = one.candidate, one.outcome
    return {
        "protocol": candidate.choice.protocol,
        "options": dict(candidate.choice.options),
        "placement": candidate.placement.name,
        "replicas": [list(row) for row in candidate.placement.rows],
        "leaders": [row[0] for row in candidate.placement.rows],
        "waits": outcome.total.as_dict(),
        **{kind: waits.as_dict() for kind, waits in outcome.by_kind.items()},
        "by_region": {
            region: {kind: waits.as_dict() for kind, waits in kinds.items()}
            for region, kinds in outcome.by_region.items()
        },
        "region_bytes_per_message": round(outcome.region_bytes, 1),
        "packets_per_message": round(outcome.packets, 2),
        "fatal_regions": list(one.fragile),
    }


def _describe_loss(request: "AdviceRequest", loss: "RegionLoss") -> dict[str, Any]:
    return {
        "region": loss.region,
        "stopped": [request.names[group] for group in loss.stopped],
        "new_leader": [request.names[group] for group in loss.led],
        "answered": {kind: {"answered": done, "of": total} for kind, (done, total) in loss.answered.items()},
    }


def _print_advice(advice: "Advice", top: int, plan: Path | None, compared: "Comparison | None") -> None:
    rows = []
    shown = list(enumerate(advice.ranked, 1))[:top]
    safe = next(((n, one) for n, one in enumerate(advice.ranked, 1) if one.survives), None)
    if safe is not None and safe not in shown:
        shown.append(safe)
    for place, one in shown:
        outcome = one.outcome
        rows.append(
            (
                place,
                one.candidate.choice.name,
                one.candidate.placement.name,
                f"{outcome.total.mean:.1f}",
                *(_format_waits(outcome.by_kind.get(kind)) for kind in ("local", "global")),
                f"{outcome.region_bytes / 1000:.2f}",
                ", ".join(one.fragile) or "none",
            )
        )
    headings = ("", "protocol", "placement", "mean", "local", "global", "KB", "fatal regions")
    print_table(headings, rows, title=f"{len(advice.ranked)} candidates by {advice.by}")
    out.print("waits of clients in ms; local and global: p50 / p95 / p99; KB: between regions, per message")
    out.print("fatal regions: their death leaves some group without a majority")
    _print_regions(advice.best.outcome)
    _print_losses(advice)
    out.print("why:")
    for reason in advice.reasons:
        out.print(f"  {reason}", markup=False)
    for candidate, why in advice.failed[:5]:
        out.print(f"no result: {candidate.choice.name}, {candidate.placement.name}: {why}", markup=False)
    if plan is not None:
        out.print(f"the first one is in {plan}: amcast simulate --plan {plan}", markup=False)
    if compared is not None:
        _print_live(compared)


def _format_waits(waits: "Waits | None") -> str:
    return "-" if waits is None else f"{waits.p50:.0f} / {waits.p95:.0f} / {waits.p99:.0f}"


def _print_regions(outcome: "CandidateRun") -> None:
    rows = [
        (region, *(_format_waits(kinds.get(kind)) for kind in ("local", "global")))
        for region, kinds in outcome.by_region.items()
    ]
    print_table(("clients in", "local", "global"), rows, title="the first one, by region")


def _print_losses(advice: "Advice") -> None:
    names = advice.request.names
    rows = []
    for loss in advice.losses:
        shares = {kind: f"{done} of {total}" for kind, (done, total) in loss.answered.items()}
        rows.append(
            (
                loss.region,
                ", ".join(names[group] for group in loss.stopped) or "none",
                ", ".join(names[group] for group in loss.led) or "none",
                *(shares.get(kind, "-") for kind in ("local", "global", "stopped")),
            )
        )
    headings = ("region dies", "groups stop", "new leader", "local", "global", "to stopped groups")
    print_table(headings, rows, title="the first one without a region: what clients elsewhere are answered")
