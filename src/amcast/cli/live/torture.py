"""The command that tortures a live cluster: torture."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from amcast.cli.extras import require_extra
from amcast.cli.output import EXIT_CODES, JsonFlag, SeedOption, colour_verdict, err, out, print_json, print_table
from amcast.cli.panels import SEARCH
from amcast.kernel.config import parse_config

if TYPE_CHECKING:
    from amcast.lab.torture.campaign import TortureResult

FaultsOption = Annotated[
    str,
    typer.Option(
        "--faults",
        help="all, or some of kill, stop, leave, cut, flap, corrupt, torn, rot, rollback, emptied, full, slow,"
        " members: kill,cut",
    ),
]
OrderOption = Annotated[
    str | None,
    typer.Option(
        "--order",
        help="What answers promise: acyclic, or real-time, which is then judged as well. Default: acyclic, with"
        " --service real-time.",
    ),
]
TorturedOption = Annotated[
    str, typer.Option("--service", help="A service of yours to torture: MODULE:CLASS, such as bank:Bank.")
]
LoadOption = Annotated[
    str,
    typer.Option(
        "--load", help="With --service: an `async def` that callers run again and again. Default: random calls."
    ),
]
InvariantOption = Annotated[
    list[str] | None,
    typer.Option("--invariant", help="With --service: a function that judges the services at the end."),
]


def register(app: typer.Typer) -> None:
    """Adds this command."""
    app.command(rich_help_panel=SEARCH)(torture)


def torture(
    protocol: Annotated[str, typer.Option("--protocol", "-p", help="Protocol of the cluster.")] = "primcast",
    minutes: Annotated[float, typer.Option("--minutes", help="How long faults strike.")] = 1.0,
    faults: FaultsOption = "all",
    groups: Annotated[int, typer.Option("--groups", help="Groups in the cluster.")] = 2,
    replicas: Annotated[int, typer.Option("--replicas", help="Replicas in each group.")] = 3,
    durability: Annotated[str, typer.Option("--durability", help="os or fsync.")] = "os",
    order: OrderOption = None,
    service: TorturedOption = "",
    load: LoadOption = "",
    invariant: InvariantOption = None,
    network: Annotated[
        str, typer.Option("--network", help="namespaces (needs root), proxy, or auto: the first that works.")
    ] = "auto",
    folder: Annotated[Path, typer.Option("--out", help="The folder of the run; it must be new.")] = Path(
        "runs/torture"
    ),
    append: Annotated[
        Path | None, typer.Option("--append", help="A file that gets one line of JSON about the run.")
    ] = None,
    seed: SeedOption = 0,
    json: JsonFlag = False,
) -> None:
    """Strike a live cluster on this machine with faults, and compare what clients, programs and observers were told.

    Exit code 0: everything holds; 1: something was lost, duplicated, reordered or did not recover; 2: unknown.

    Example: amcast torture --minutes 10 --faults all --protocol primcast --out runs/torture-primcast

    With --service the nodes run a class of yours (docs/services.md), and its states and invariants are judged.

    Example: amcast torture --service bank:Bank --load bank:work --invariant bank:find_loss

    Example, without root: amcast torture --network proxy --faults cut,flap,corrupt --seed 7
    """
    require_extra("trace")

    from dataclasses import asdict

    from amcast.lab.torture.campaign import FILE, TorturePlan, run_torture
    from amcast.lab.torture.record import append_record

    given = {
        "protocol": protocol,
        "minutes": minutes,
        "faults": () if faults == "all" else tuple(part.strip() for part in faults.split(",")),
        "groups": groups,
        "replicas": replicas,
        "durability": durability,
        "order": order or ("real-time" if service else "acyclic"),
        "service": service,
        "load": load,
        "invariants": tuple(invariant or ()),
        "network": network,
        "seed": seed,
    }
    plan = parse_config(TorturePlan, given, "torture")
    result = run_torture(plan, folder, lambda line: err.print(line, markup=False))
    if append is not None:
        append_record(append, result)
    if json:
        print_json(asdict(result))
    else:
        _print_result(result, f"{groups} groups x {replicas} replicas of {protocol}, seed {seed}", bool(service))
        for sentence in (*result.violations, *result.unknown):
            out.print(sentence, markup=False)
        out.print(f"everything is in {folder} ({FILE}); the trace: amcast check {folder / 'trace'}", markup=False)
    raise typer.Exit(EXIT_CODES[result.verdict])


def _print_result(result: "TortureResult", title: str, is_service: bool) -> None:
    answered = f"{result.acknowledged:,} ({result.unanswered} unanswered)"
    rows = [
        ("faults", f"{len(result.strikes)}: {', '.join(result.faults)} ({result.network})"),
        ("calls with an outcome" if is_service else "acknowledged multicasts", answered),
        ("lines of the history", f"{result.executed:,}")
        if is_service
        else ("executed by hosted programs", f"{result.executed:,} deliveries"),
        ("read by observers", f"{result.observed:,} deliveries"),
        ("longest time without an answer", f"{result.longest_gap_ms:,.0f} ms"),
        ("longest recovery after healing", f"{result.longest_recovery_s:.1f} s"),
        ("verdict", colour_verdict(result.verdict)),
    ]
    print_table(("", title), rows)
