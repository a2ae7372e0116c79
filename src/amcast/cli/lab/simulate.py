"""Commands of the laboratory: protocols, environments, workloads, delays, simulate."""

import re
import shlex
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn, cast

import msgspec
import typer
from rich.markup import escape

from amcast.check.verdict import MAX_SENTENCES
from amcast.cli.data.verdicts import print_report
from amcast.cli.extras import require_extra
from amcast.cli.lab.plan_options import (
    ClientsOption,
    DestinationsOption,
    EnvironmentOption,
    FaultsOption,
    GroupsOption,
    MessagesOption,
    OptionOption,
    OrderOption,
    OutstandingOption,
    PlanOption,
    ProtocolOption,
    ProtocolsOption,
    ReplicasOption,
    lay,
    parse_options,
    planned,
)
from amcast.cli.output import (
    EXIT_CODES,
    HOLDS,
    VIOLATED,
    JsonFlag,
    colour_verdict,
    out,
    print_json,
    print_table,
    show_progress,
)
from amcast.cli.panels import LABORATORY
from amcast.kernel.errors import UsageError
from amcast.kernel.spec import FAULTS, Spec
from amcast.lab.delays import WorldName, measure_closing_delays
from amcast.lab.delays import measure_delays as measure_delays
from amcast.lab.protocol_lookup import find_protocol
from amcast.lab.runs import PreparedRun, RecordedRun, prepare_run, record_run
from amcast.pipeline.sweep.grid import TABLES as GRID_TABLES
from amcast.protocols.catalogue import CATALOGUE
from amcast.simulation.inputs.environments import OWN, EnvironmentOptions, load_environments
from amcast.simulation.inputs.plan import parse_plan
from amcast.trace.client_waits import list_waits, take_percentiles
from amcast.workloads.base import WorkloadConfig
from amcast.workloads.catalogue import WORKLOADS


def register(app: typer.Typer) -> None:
    """Adds these commands."""
    app.command(rich_help_panel=LABORATORY)(protocols)
    app.command(rich_help_panel=LABORATORY)(environments)
    app.command(rich_help_panel=LABORATORY)(workloads)
    app.command(rich_help_panel=LABORATORY)(delays)
    app.command(rich_help_panel=LABORATORY)(simulate)


def protocols(json: JsonFlag = False) -> None:
    """List the protocols with their claims.

    Example: amcast protocols --json | jq '.[].name'
    """
    specs = list(CATALOGUE.values())
    if json:
        print_json([_describe_spec(spec) for spec in specs])
        return
    rows = [
        (
            spec.name,
            spec.claims.genuine,
            *_claimed_delays(spec),
            "1" if spec.claims.single_replica else "2f+1",
            _survives(spec),
            "yes" if spec.claims.members else "no",
            "yes" if spec.claims.real_time else "no",
            spec.summary,
        )
        for spec in specs
    ]
    counted = ("message delays", "inter-group delays")
    names = ("name", "genuine", *counted, "replicas", "survives", "members change", "real time", "in one line")
    print_table(names, rows)
    out.print("delays: of a lone multicast to 2 groups, in the unit that is claimed")
    out.print("survives delays: pauses, slowness, partitions, losses, skew")
    out.print("real time: what is answered stays before what is multicast later, over all groups (P9)")


def _claimed_delays(spec: Spec) -> tuple[int | None, int | None]:
    """The claimed delays to 2 groups as message delays or as inter-group delays; the other one is None."""
    claimed = spec.claims.delays("max", 2, 1 if spec.claims.single_replica else 3)
    return (claimed, None) if spec.claims.world == "unit" else (None, claimed)


def _survives(spec: Spec) -> str:
    """Kinds of claimed faults in short: those that only delay are one word."""
    mild: list[str] = [kind for kind in FAULTS[:5] if kind in spec.claims.faults]
    hard: list[str] = [kind for kind in FAULTS[5:] if kind in spec.claims.faults]
    return " ".join((["delays"] if len(mild) == 5 else mild) + hard) or "none"


def _describe_spec(spec: Spec) -> dict[str, Any]:
    claims = spec.claims
    replicas = 1 if claims.single_replica else 3
    return {
        "name": spec.name,
        "summary": spec.summary,
        "source": spec.source,
        "genuine": claims.genuine,
        "links": claims.links,
        "faults": [kind for kind in FAULTS if kind in claims.faults],
        "single_replica": claims.single_replica,
        "members": claims.members,
        "ranked": claims.ranked,
        "quiescent": claims.quiescent,
        "fifo": claims.fifo,
        "exactly_once": claims.exactly_once,
        "real_time": claims.real_time,
        "world": claims.world,
        "delays": {str(k): claims.delays("max", k, replicas) for k in (1, 2, 4)},
        "packets": {str(k): claims.packets(k, replicas) for k in (1, 2, 4)},
    }


def environments(json: JsonFlag = False) -> None:
    """List the environments: where processes are and how long packets take.

    Example: amcast environments --json | jq '.[].name'
    """
    known = load_environments()
    if json:
        print_json([{"name": name, **msgspec.to_builtins(facts)} for name, facts in known.items()])
        return
    rows = [
        (
            name,
            facts.placement,
            _shorten(facts.regions) or ("those of the matrix" if name == OWN else "one per group"),
            facts.summary,
            facts.source,
        )
        for name, facts in known.items()
    ]
    print_table(("name", "placement", "regions", "in one line", "source"), rows)
    out.print(f"options (topology.options of a plan): {', '.join(EnvironmentOptions.__struct_fields__)}")


def _shorten(names: tuple[str, ...], most: int = 4) -> str:
    """Names in one cell of a table."""
    return ", ".join(names) if len(names) <= most else f"{', '.join(names[:most])} and {len(names) - most} more"


def workloads(json: JsonFlag = False) -> None:
    """List the workloads: where messages go, how large they are, and when clients send.

    Example: amcast workloads --json | jq '.[].name'
    """
    specs = list(WORKLOADS.values())
    if json:
        print_json(
            [
                {
                    "name": spec.name,
                    "summary": spec.summary,
                    "source": spec.source,
                    "groups": spec.groups,
                    "options": msgspec.to_builtins(spec.config()),
                }
                for spec in specs
            ]
        )
        return
    common = WorkloadConfig.__struct_fields__
    rows = [
        (
            spec.name,
            "any" if spec.groups is None else spec.groups,
            ", ".join(name for name in spec.config.__struct_fields__ if name not in common) or "-",
            spec.summary,
            spec.source,
        )
        for spec in specs
    ]
    print_table(("name", "groups", "options", "in one line", "source"), rows)
    out.print(f"options of all: messages, seconds, {', '.join(common)}")


def delays(
    names: Annotated[list[str] | None, typer.Argument(help="Protocols; all if none is named.")] = None,
    protocols: ProtocolsOption = None,
    destinations: Annotated[
        str, typer.Option("--destinations", help="How many groups, separated by commas.")
    ] = "1,2,4",
    replicas: Annotated[str, typer.Option("--replicas", help="Processes per group, separated by commas.")] = "1,3,5",
    world: Annotated[
        Literal["unit", "intergroup", "claimed", "both"],
        typer.Option("--world", help="unit: every link 1; intergroup: 1 between groups, 0 inside; or the claimed one."),
    ] = "both",
    order: OrderOption = None,
    options: OptionOption = None,
    json: JsonFlag = False,
) -> None:
    """Count the message delays and packets of one lone multicast, and compare them with the claims.

    With --order real-time a process is served when it knows that the message is closed (docs/real-time.md).

    Examples: amcast delays skeen --destinations 2,4 --world claimed   |   amcast delays --order real-time --world unit
    |   amcast delays fastcast --option stamps=all
    """
    names = [*(names or ()), *(protocols or ())]
    worlds: dict[str, tuple[WorldName | None, ...]] = {"both": ("unit", "intergroup"), "claimed": (None,)}
    specs = [find_protocol(name) for name in names] if names else list(CATALOGUE.values())
    sizes = _parse_numbers("--replicas", replicas)
    chosen_options = parse_options(options)
    measure = measure_closing_delays if order == "real-time" else measure_delays
    rows = [
        measure(spec, k, n, chosen_options, chosen)
        for spec in specs
        for chosen in worlds.get(world, (cast(WorldName, world),))
        for k in _parse_numbers("--destinations", destinations)
        for n in (sizes if not spec.claims.single_replica else [1])
    ]
    if json:
        print_json([row.as_dict() for row in rows])
    else:
        print_table(
            ("protocol", "world", "k", "n", "delays", "by role", "packets", "claimed", ""),
            [
                (
                    row.protocol,
                    row.world,
                    row.destinations,
                    row.replicas,
                    "never" if row.delays_max is None else row.delays_max,
                    _pairs(row.delays_by_role),
                    row.packets,
                    _pairs(row.claimed),
                    colour_verdict("holds" if row.holds else "violated"),
                )
                for row in rows
            ],
        )
    raise typer.Exit(HOLDS if all(row.holds for row in rows) else VIOLATED)


def _parse_numbers(name: str, text: str) -> list[int]:
    if not re.fullmatch(r"[1-9]\d{0,3}(,[1-9]\d{0,3})*", text):
        raise UsageError(f"{name} {text!r}; expected numbers from 1 on, separated by commas, such as 1,2,4")
    return [int(part) for part in text.split(",")]


def _pairs(values: dict[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in values.items())


def simulate(
    context: typer.Context,
    protocol_name: ProtocolOption = None,
    groups: GroupsOption = None,
    replicas: ReplicasOption = None,
    destinations: DestinationsOption = None,
    messages: MessagesOption = None,
    clients: ClientsOption = None,
    outstanding: OutstandingOption = None,
    environment: EnvironmentOption = None,
    plan: PlanOption = None,
    faults: FaultsOption = None,
    order: OrderOption = None,
    seed: Annotated[int | None, typer.Option("--seed", help="The seed of all random choices.")] = None,
    folder: Annotated[Path | None, typer.Option("--out", help="The run folder to write; default: runs/NAME.")] = None,
    packets: Annotated[bool, typer.Option(help="Record every packet (P6 needs them).")] = True,
    json: JsonFlag = False,
) -> None:
    """Simulate a run, record it, check it, and print verdicts and latencies.

    The cells of a plan with a grid are simulated one by one and not recorded; `amcast sweep` runs large grids.

    Example: amcast simulate --protocol skeen --groups 4 --destinations 2 --messages 10000 --out runs/first
    """
    require_extra("trace")
    values = planned(plan, protocol_name, groups, replicas, destinations, messages, clients, outstanding, environment)
    lay(values, "faults.profile", faults)
    lay(values, "order", order)
    lay(values, "seed", seed)
    if any(name in values for name in GRID_TABLES):
        _simulate_grid(values, f"plan {plan}", folder, packets, json)
    prepared = prepare_run(parse_plan(values, f"plan {plan}" if plan else "flags"))
    target = folder or _free_folder(prepared)
    with show_progress("multicasts", prepared.plan.messages) as show:
        result = record_run(prepared, target, packets, lambda done, total: show(done))
    data = _result(result)
    if result.summary.violations:
        data["replay"] = _repeat_command(context, prepared.plan.seed)
    if json:
        print_json(data)
    else:
        _print_result(result, data)
    raise typer.Exit(EXIT_CODES[result.verdict])


def _simulate_grid(values: dict[str, Any], where: str, folder: Path | None, packets: bool, json: bool) -> NoReturn:
    """Simulates every cell of a grid, and prints one row each."""
    from amcast.lab.sweep_cell import normalise_plan
    from amcast.laboratory import run_grid_cell
    from amcast.pipeline.sweep.grid import expand_cells, parse_grid

    if folder is not None:
        raise UsageError(f"--out {folder}: {where} has a grid; expected a plan of one run: amcast sweep records grids")
    cells = expand_cells(parse_grid(values, where), normalise_plan, where)
    rows = []
    with show_progress("cells", len(cells)) as show:
        for cell in cells:
            rows.append(run_grid_cell(cell, packets))
            show(len(rows))
    if json:
        print_json(rows)
    else:
        names = list(dict.fromkeys(path.rpartition(".")[2] for cell in cells for path in cell.varied))
        print_table(
            (*names, "multicasts", "per second", "local", "global", ""),
            [
                (
                    *(row.get(name) for name in names),
                    row.get("multicasts"),
                    _format_number(row.get("throughput_per_s")),
                    *(_format_waits(row, kind) for kind in ("local", "global")),
                    colour_verdict("holds" if row["status"] == "ok" else "violated"),
                )
                for row in rows
            ],
        )
        out.print("local, global: what clients waited for, p50 / p95 / p99 in ms")
        for row in rows:
            if row["message"]:
                out.print(f"{row['cell']}: {row['message']}", markup=False)
    raise typer.Exit(HOLDS if all(row["status"] == "ok" for row in rows) else VIOLATED)


def _format_number(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}"


def _format_waits(row: dict[str, Any], kind: str) -> str:
    values = [row.get(f"answer_ms_p{share}_{kind}") for share in (50, 95, 99)]
    return " / ".join(f"{value:.1f}" for value in values if value is not None) or "-"


def _repeat_command(context: typer.Context, seed: int) -> str:
    """The command that simulates the same run again: the flags of this one with its seed, into a new folder."""
    words = ["amcast", "simulate"]
    for option in context.command.params:
        value = context.params.get(option.name or "")
        if option.name in ("seed", "folder", "json") or value is None or value == option.default:
            continue
        if isinstance(value, bool):
            words.append(option.opts[0] if value else option.secondary_opts[0])
        else:
            words += [option.opts[-1], str(value)]
    return shlex.join([*words, "--seed", str(seed)])


def _free_folder(prepared: PreparedRun) -> Path:
    """runs/skeen-s7, or the first of its kind that is free."""
    name = f"{prepared.spec.name}-s{prepared.plan.seed}"
    for number in range(1, 10_000):
        folder = Path("runs") / (name if number == 1 else f"{name}-{number}")
        if not folder.exists():
            return folder
    raise UsageError(f"runs/{name}-*: ten thousand runs are there already; give --out DIR")


def _result(result: RecordedRun) -> dict[str, Any]:
    summary = result.summary
    return {
        **result.report.as_dict(),
        "verdict": result.verdict,
        "violations": summary.violations,
        "folder": str(result.folder),
        "protocol": result.run.meta.protocol,
        "seed": result.run.meta.seed,
        "end": summary.end,
        "multicasts": summary.multicasts,
        "deliveries": summary.deliveries,
        "packets": summary.packets,
        "simulated_ns": summary.simulated_ns,
        "notes": summary.notes,
        "latency_ns": _latencies(result),
        "wait_ns": {kind: take_percentiles(spans) for kind, spans in list_waits(result.run).items()},
    }


def _latencies(result: RecordedRun) -> dict[str, int]:
    """Percentiles of the latency from the a-multicast to each delivery."""
    columns = result.run.deliveries
    spans = sorted(
        at - since for at, since in zip(columns["at_ns"], columns["multicast_ns"], strict=True) if since is not None
    )
    if not spans:
        return {}
    return {f"p{share:g}": spans[min(len(spans) - 1, int(len(spans) * share / 100))] for share in (50, 90, 95, 99, 100)}


def _print_result(result: RecordedRun, data: dict[str, Any]) -> None:
    summary = result.summary
    out.print(
        f"{data['protocol']}, seed {data['seed']}: {summary.multicasts} multicasts, {summary.deliveries} deliveries,"
        f" {summary.packets} packets in {summary.simulated_ns / 1e9:.3f} simulated seconds; {summary.end}"
    )
    print_report(result.report)
    for sentence in summary.violations[:MAX_SENTENCES]:
        out.print(f"{colour_verdict('violated')}: {escape(sentence)}")
    if data["wait_ns"]:
        print_table(
            ("messages", *data["wait_ns"]["all"]),
            [
                (kind, *(f"{value / 1e6:.3f} ms" for value in values.values()))
                for kind, values in data["wait_ns"].items()
            ],
            title="what clients waited for, a-multicast to answer",
        )
    if data["latency_ns"]:
        row = [f"{value / 1e6:.3f} ms" for value in data["latency_ns"].values()]
        print_table(tuple(data["latency_ns"]), [row], title="latency, a-multicast to each delivery")
    out.print(f"recorded in {result.folder} (look at it: amcast view {result.folder})")
    if "replay" in data:
        out.print(f"run it again:  {data['replay']}", markup=False)
