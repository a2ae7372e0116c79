"""The command that tortures a live cluster: torture."""

from pathlib import Path
from typing import Annotated

import typer

from amcast.cli.extras import require_extra
from amcast.cli.output import EXIT_CODES, JsonFlag, SeedOption, colour_verdict, err, out, print_json, print_table
from amcast.cli.panels import SEARCH
from amcast.kernel.config import parse_config


def register(app: typer.Typer) -> None:
    """Adds this command."""
    app.command(rich_help_panel=SEARCH)(torture)


def torture(
    protocol: Annotated[str, typer.Option("--protocol", "-p", help="Protocol of the cluster.")] = "primcast",
    minutes: Annotated[float, typer.Option("--minutes", help="How long faults strike.")] = 1.0,
    faults: Annotated[
        str,
        typer.Option(
            "--faults",
            help="all, or some of kill, stop, leave, cut, flap, corrupt, torn, rot, rollback, emptied, full, slow,"
            " members: kill,cut",
        ),
    ] = "all",
    groups: Annotated[int, typer.Option("--groups", help="Groups in the cluster.")] = 2,
    replicas: Annotated[int, typer.Option("--replicas", help="Replicas in each group.")] = 3,
    durability: Annotated[str, typer.Option("--durability", help="os or fsync.")] = "os",
    order: Annotated[
        str, typer.Option("--order", help="What answers promise: acyclic, or real-time, which is then judged as well.")
    ] = "acyclic",
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
        "order": order,
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
        print_table(
            ("", f"{groups} groups x {replicas} replicas of {protocol}, seed {seed}"),
            [
                ("faults", f"{len(result.strikes)}: {', '.join(result.faults)} ({result.network})"),
                ("acknowledged multicasts", f"{result.acknowledged:,} ({result.unanswered} unanswered)"),
                ("executed by hosted programs", f"{result.executed:,} deliveries"),
                ("read by observers", f"{result.observed:,} deliveries"),
                ("longest time without an answer", f"{result.longest_gap_ms:,.0f} ms"),
                ("longest recovery after healing", f"{result.longest_recovery_s:.1f} s"),
                ("verdict", colour_verdict(result.verdict)),
            ],
        )
        for sentence in (*result.violations, *result.unknown):
            out.print(sentence, markup=False)
        out.print(f"everything is in {folder} ({FILE}); the trace: amcast check {folder / 'trace'}", markup=False)
    raise typer.Exit(EXIT_CODES[result.verdict])
