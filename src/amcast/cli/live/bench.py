"""Commands that measure a live cluster: bench, and compare, which measures it beside the simulator."""

from pathlib import Path
from typing import Annotated, Literal, cast

import typer

from amcast.cli.extras import require_extra
from amcast.cli.output import (
    EXIT_CODES,
    HOLDS,
    VIOLATED,
    JsonFlag,
    SeedOption,
    colour_verdict,
    err,
    out,
    print_json,
    print_table,
)
from amcast.cli.panels import LABORATORY
from amcast.kernel.config import parse_config


def register(app: typer.Typer) -> None:
    """Add these commands."""
    app.command(rich_help_panel=LABORATORY)(bench)
    app.command(rich_help_panel=LABORATORY)(compare)


def bench(
    groups: Annotated[int, typer.Option("--groups", help="Groups in the cluster.")] = 2,
    replicas: Annotated[int, typer.Option("--replicas", help="Replicas in each group.")] = 3,
    destinations: Annotated[
        int | None,
        typer.Option("--destinations", help="Destination groups of each message; default: 2, or the only one."),
    ] = None,
    connections: Annotated[int, typer.Option("--connections", help="Clients with one connection each.")] = 6,
    outstanding: Annotated[int, typer.Option("--outstanding", help="Unanswered messages per connection.")] = 170,
    rate: Annotated[
        float | None,
        typer.Option("--rate", help="Messages per second of each connection; default: as many as are answered."),
    ] = None,
    arrivals: Annotated[
        Literal["paced", "poisson"],
        typer.Option(
            "--arrivals",
            help="With --rate: --outstanding messages together at equal intervals, or an open loop: one by one at"
            " random moments, whatever was answered.",
        ),
    ] = "paced",
    payload: Annotated[int, typer.Option("--payload", help="Bytes of each message.")] = 64,
    seconds: Annotated[float, typer.Option("--seconds", help="Measured seconds, after the warm-up.")] = 5.0,
    protocol: Annotated[str, typer.Option("--protocol", "-p", help="Protocol of the cluster.")] = "primcast",
    durability: Annotated[
        Literal["memory", "os", "fsync"], typer.Option("--durability", help="Where replicas keep their logs.")
    ] = "memory",
    trace: Annotated[
        Literal["off", "sampled", "deliveries", "full"],
        typer.Option("--trace", help="Trace of nodes and clients, to measure its cost."),
    ] = "off",
    order: Annotated[
        Literal["acyclic", "real-time"], typer.Option("--order", help="What answers promise (docs/real-time.md).")
    ] = "acyclic",
    seed: SeedOption = 0,
    json: JsonFlag = False,
) -> None:
    """Measure a cluster of real processes on this machine: throughput, latency, CPU per multicast. Checks the order.

    Exit code 0: the order holds; 1: it is violated; 2: unknown.

    Example, many unanswered messages: amcast bench --groups 2 --replicas 3 --connections 6 --outstanding 170

    Example, one lone message at a time: amcast bench --connections 1 --outstanding 1 --json

    Example, many small clients: amcast bench --connections 258 --outstanding 1

    Example, local messages on durable logs: amcast bench --groups 4 --destinations 1 --durability fsync

    Example, latency at a fixed rate, in bursts of ten: amcast bench --connections 12 --outstanding 10 --rate 1000

    Example, latency of an open loop: amcast bench --connections 50 --rate 200 --arrivals poisson
    """
    require_extra("trace")

    from amcast.lab.live_benchmark import BenchmarkPlan
    from amcast.lab.live_benchmark import run_benchmark as measure
    from amcast.lab.protocol_lookup import find_protocol

    find_protocol(protocol)

    given = {
        "groups": groups,
        "replicas": replicas,
        "destinations": min(2, groups) if destinations is None else destinations,
        "connections": connections,
        "outstanding": outstanding,
        "payload": payload,
        "seconds": seconds,
        "protocol": protocol,
        "durability": durability,
        "trace": trace,
        "seed": seed,
        "rate": rate,
        "arrivals": arrivals,
        "order": order,
    }
    result = measure(parse_config(BenchmarkPlan, given, "bench"), lambda line: err.print(line, markup=False))
    if json:
        print_json(result)
    else:
        _show(result)
    raise typer.Exit(EXIT_CODES[result["verdict"]])


def _show(result: dict[str, object]) -> None:
    pace = "" if result["rate"] is None else f" at {result['rate']:g}/s each"
    ahead = f"x {result['outstanding']}{pace}" if result["arrivals"] == "paced" else f"in an open loop{pace}"
    load = (
        f"{result['groups']} groups x {result['replicas']} replicas of {result['protocol']}, {result['order']} order,"
        f" {result['durability']},"
        f" {result['destinations']} destinations, {result['connections']} connections {ahead},"
        f" {result['payload']} bytes"
    )
    rows = [
        ("throughput", f"{result['throughput_per_s']:,} multicasts/s on {result['cores_used']} cores"),
        ("CPU of all replicas", f"{result['replica_cpu_us']} us per multicast"),
        ("  without that of idle replicas", f"{result['replica_cpu_us_net']} us per multicast"),
        ("  in the best half second", f"{result['replica_cpu_us_best']} us per multicast"),
        ("CPU of the clients", f"{result['client_cpu_us']} us per multicast"),
        *((f"latency {name}", f"{result[f'latency_us_{name}']} us") for name in ("p50", "p90", "p99", "p999", "max")),
        ("interpreter", f"{result['interpreter']}, {result['machine']}"),
        (
            "this machine",
            f"{result['tcp_us']} us of CPU for a TCP send and receive of 64 bytes,"
            f" {result['ping_us']} us to another process and back",
        ),
        ("order", colour_verdict(str(result["verdict"]))),
    ]
    print_table(("", load), rows)
    for sentence in cast(list[str], result["story"]):
        out.print(sentence, markup=False)


def compare(
    plan: Annotated[Path, typer.Argument(help="A plan file of `amcast simulate --plan`.")],
    folder: Annotated[Path, typer.Option("--out", help="New folder for the live run.")] = Path("runs/compare"),
    within: Annotated[float, typer.Option(min=0.0, help="Allowed difference of the medians, in per cent.")] = 5.0,
    json: JsonFlag = False,
) -> None:
    """Run one plan in the simulator and live, with its distances emulated in the links: how long do clients wait?

    To compare two runs, sweeps or commits with each other, use amcast diff.

    Example: amcast compare plans/wan-compare.toml
    """
    require_extra("trace")

    from amcast.cli.live.cluster import _free
    from amcast.lab.simulated_vs_live import compare_worlds
    from amcast.simulation.inputs.plan import parse_plan, read_plan

    found = compare_worlds(
        parse_plan(read_plan(plan), str(plan)), _free(folder), lambda line: err.print(line, markup=False)
    )
    agrees = found.agrees(within / 100)
    if json:
        print_json(found.as_dict(within / 100))
    else:
        print_table(["messages", "clients wait", "simulated", "live", "difference"], found.list_rows())
        verdict = "agree" if agrees else "do not agree"
        out.print(f"the medians {verdict} within {within:g} %; the live run is in {found.folder}")
    raise typer.Exit(HOLDS if agrees else VIOLATED)
