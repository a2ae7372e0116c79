"""The command that measures a live cluster: bench."""

from typing import Annotated, Literal, cast

import typer

from amcast.cli.output import EXIT_CODES, JsonFlag, SeedOption, colour_verdict, err, out, print_json, print_table
from amcast.kernel.config import parse_config


def register(app: typer.Typer) -> None:
    """Add this command."""
    app.command()(bench)


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
    seed: SeedOption = 0,
    json: JsonFlag = False,
) -> None:
    """Measure a cluster of real processes on this machine: throughput, latency, CPU per multicast. Checks the order.

    Exit code 0: the order holds; 1: it is violated; 2: unknown.

    Example, many unanswered messages: amcast bench --groups 2 --replicas 3 --connections 6 --outstanding 170

    Example, one lone message at a time: amcast bench --connections 1 --outstanding 1 --json

    Example, many small clients: amcast bench --connections 258 --outstanding 1

    Example, local messages on durable logs: amcast bench --groups 4 --destinations 1 --durability fsync

    Example, latency at a fixed rate: amcast bench --connections 12 --outstanding 10 --rate 1000
    """
    from amcast.lab.live_benchmark import BenchmarkPlan
    from amcast.lab.live_benchmark import run_benchmark as measure

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
    }
    result = measure(parse_config(BenchmarkPlan, given, "bench"), lambda line: err.print(line, markup=False))
    if json:
        print_json(result)
    else:
        _show(result)
    raise typer.Exit(EXIT_CODES[result["verdict"]])


def _show(result: dict[str, object]) -> None:
    pace = "" if result["rate"] is None else f" at {result['rate']:g}/s each"
    load = (
        f"{result['groups']} groups x {result['replicas']} replicas of {result['protocol']}, {result['durability']},"
        f" {result['destinations']} destinations, {result['connections']} connections x {result['outstanding']}{pace},"
        f" {result['payload']} bytes"
    )
    rows = [
        ("throughput", f"{result['throughput_per_s']:,} multicasts/s on {result['cores_used']} cores"),
        ("CPU of all replicas", f"{result['replica_cpu_us']} us per multicast"),
        ("  without that of idle replicas", f"{result['replica_cpu_us_net']} us per multicast"),
        ("  in the best half second", f"{result['replica_cpu_us_best']} us per multicast"),
        ("CPU of the clients", f"{result['client_cpu_us']} us per multicast"),
        *((f"latency {name}", f"{result[f'latency_us_{name}']} us") for name in ("p50", "p90", "p99", "p999", "max")),
        ("build", f"{result['build']}, {result['interpreter']}, {result['machine']}"),
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
