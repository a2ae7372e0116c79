"""Commands of the live cluster: demo, serve, up, call, send, tail, log."""

import signal
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from amcast.cli.extras import require_extra
from amcast.cli.output import EXIT_CODES, HOLDS, UNKNOWN, VIOLATED, JsonFlag, colour_verdict, err, out, print_json
from amcast.cli.panels import OPERATE, RUN
from amcast.kernel.errors import UsageError

if TYPE_CHECKING:
    from amcast.live.client_batch import Delivery

WATCH_S = 0.5
"""How often `up` checks its nodes."""
CONNECT_S = 10.0
"""Longest time to wait for a connection."""
MIN_TIMEOUT_S = 0.1
"""Shortest useful time-out."""
SILENT_S = 1.0
"""How long `tail` waits for a replica before it says so."""
ConfigOption = Annotated[
    Path,
    typer.Option(
        "--config",
        envvar="AMCAST_CONFIG",
        default_factory=lambda: Path("cluster.toml"),
        show_default="cluster.toml in this folder",
        help="The cluster.toml.",
    ),
]
ServiceOption = Annotated[
    str, typer.Option("--service", help="A service to run: MODULE:CLASS, such as bank:Bank (docs/services.md).")
]
AsOption = Annotated[str | None, typer.Option("--as", help="Name of the client, where cluster.toml names several.")]


def register(app: typer.Typer) -> None:
    """Add these commands."""
    app.command(rich_help_panel=RUN)(demo)
    app.command(rich_help_panel=RUN)(serve)
    app.command(rich_help_panel=RUN)(up)
    app.command(rich_help_panel=RUN)(call)
    app.command(rich_help_panel=RUN)(send)
    app.command(rich_help_panel=RUN)(tail)
    logs = typer.Typer(help="Look at the durable log of a node.", no_args_is_help=True)
    logs.command("verify")(verify)
    app.add_typer(logs, name="log", rich_help_panel=OPERATE)


def demo(
    folder: Annotated[Path, typer.Option("--out", help="New folder; default: runs/demo-NUMBER.")] = Path("runs/demo"),
    protocol: Annotated[str, typer.Option("--protocol", "-p", help="Protocol of the cluster.")] = "primcast",
    seconds: Annotated[float, typer.Option(min=3.0, help="Seconds of traffic.")] = 12.0,
    json: JsonFlag = False,
) -> None:
    """Run a real cluster on this machine, kill its leader, check the trace with Spark and write a report.

    Example: amcast demo --out runs/demo
    """
    require_extra("spark")

    from amcast.cli.data.pipeline import write_page
    from amcast.lab.demo import run_demo
    from amcast.pipeline.check.job import check
    from amcast.pipeline.spark.session import open_session

    folder = _free(folder)
    shown = run_demo(folder, protocol, seconds, lambda line: err.print(line, markup=False))
    err.print("checking the trace with Spark and writing the report")
    with open_session(brief=True):
        answer = check(str(shown.trace))
        report = answer["runs"][0]
        page = write_page(str(shown.trace), folder, answer)
    data = {
        "verdict": report["verdict"],
        "folder": str(folder),
        "trace": str(shown.trace),
        "report": str(page),
        "receipts": shown.receipts,
        "unanswered": shown.unanswered,
        "longest_gap_ms": round(shown.longest_gap_ms, 1),
        "properties": {name: found["verdict"] for name, found in report["properties"].items()},
    }
    if json:
        print_json(data)
    else:
        out.print(
            f"{shown.receipts} multicasts acknowledged, {shown.unanswered} unanswered; the longest gap, when the"
            f" leader was killed, was {shown.longest_gap_ms:.0f} ms"
        )
        findings = report["properties"].items()
        verdicts = ", ".join(
            f"{name} {colour_verdict(found['verdict'])}" for name, found in findings if found["claimed"]
        )
        apart = [name for name, found in findings if not found["claimed"]]
        unclaimed = f"; {protocol} does not claim {', '.join(apart)}" if apart else ""
        out.print(f"order: {colour_verdict(report['verdict'])} ({verdicts}{unclaimed})")
        out.print(f"report: {page}")
    raise typer.Exit(EXIT_CODES[report["verdict"]])


def _free(folder: Path) -> Path:
    """The folder itself, or the first numbered one that does not exist."""
    number = 1
    chosen = folder
    while chosen.exists():
        number += 1
        chosen = folder.with_name(f"{folder.name}-{number}")
    return chosen


def serve(
    config: ConfigOption,
    node: Annotated[str, typer.Option("--node", help="The node: GROUP/NUMBER, such as orders/1.")],
    service: Annotated[
        str,
        typer.Option(
            "--service",
            envvar="AMCAST_SERVICE",
            help="A service to run: MODULE:CLASS, such as bank:Bank (docs/services.md).",
        ),
    ] = "",
    client_name: Annotated[
        str,
        typer.Option("--as", envvar="AMCAST_AS", help="Name of the client, where cluster.toml names several."),
    ] = "",
) -> None:
    """Run one node of a cluster until SIGTERM; with --service, a service of yours on it.

    Examples: amcast serve --config cluster.toml --node orders/1   |   amcast serve --node north/1 --service bank:Bank
    """
    from amcast.cluster import main

    arguments = ["--service", service] if service else []
    arguments += ["--as", client_name] if client_name else []
    raise typer.Exit(main([str(config), node, *arguments]))


def up(config: ConfigOption, service: ServiceOption = "", client_name: AsOption = None) -> None:
    """Start every node of a cluster.toml as a local process; stop them with Ctrl-C or SIGTERM.

    If a node exits, `up` reports it and does not restart it. Exit code 2: some node exited with an error.

    Examples: amcast up --config cluster.toml   |   amcast up --service bank:Bank --as nodes
    """
    from amcast.cluster import local_cluster
    from amcast.live.config.cluster import read_cluster
    from amcast.services.loader import load_service

    cluster = read_cluster(config)
    if service:
        load_service(service)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with local_cluster(cluster, service=service, client=client_name) as running:
        for name, process in cluster.nodes().items():
            host, port = cluster.addresses[process]
            out.print(f"{name}: process {process} at {host}:{port}, pid {running.pid(name)}, log {running.logs}")
        for name, reason in running.waiting.items():
            err.print(f"{name} is not ready: {reason}", markup=False)
        ready = len(cluster.nodes()) - len(running.waiting)
        err.print(f"{'all' if not running.waiting else ready} nodes are ready; Ctrl-C stops them")
        failed = 0
        try:
            left = len(cluster.nodes())
            while left:
                time.sleep(WATCH_S)
                for name, code in running.take_exited().items():
                    left -= 1
                    failed += code != 0
                    flag = f" --service {service}" if service else ""
                    flag += f" --as {client_name}" if client_name else ""
                    hint = f"; to restart it: amcast serve --config {config} --node {name}{flag}" if code else ""
                    # What a node that was killed logged before says nothing about its end.
                    end = f"was killed by {_name_signal(-code)}"
                    if code >= 0:
                        end = f"exited with code {code}: {running.last_log_line(name)}"
                    err.print(f"{name} {end}{hint}", markup=False)
        except KeyboardInterrupt:
            err.print("stopping")
    raise typer.Exit(UNKNOWN if failed else HOLDS)


def _name_signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def call(
    config: ConfigOption,
    method: Annotated[str, typer.Argument(help="MODULE:CLASS.METHOD, such as bank:Bank.transfer.")],
    arguments: Annotated[list[str] | None, typer.Argument(help="Its arguments: text, or JSON where that fits.")] = None,
    timeout: Annotated[
        float, typer.Option("--timeout", min=MIN_TIMEOUT_S, help="Seconds to wait for the connection and the results.")
    ] = 30.0,
    consistency: Annotated[
        str, typer.Option("--consistency", help="What a query promises: linearizable, group or stale.")
    ] = "linearizable",
    max_age: Annotated[
        float | None,
        typer.Option("--max-age", help="Seconds that a stale read may be old; refused if it may be older."),
    ] = None,
    call_key: Annotated[
        str | None, typer.Option("--key", help="Names the call: made again, it is not executed again.")
    ] = None,
    client_name: AsOption = None,
    json: JsonFlag = False,
) -> None:
    """Call a command or query of the service that a cluster runs, and print what it returns.

    Exit code 1: the command raised an exception; 2: unknown whether it was executed.

    Examples: amcast call --config cluster.toml bank:Bank.transfer ann bob 5
    |   amcast call bank:Bank.balance ann --consistency stale --max-age 2
    """
    from amcast.cluster import connect
    from amcast.live.config.cluster import read_cluster
    from amcast.live.server.node import run_loop
    from amcast.services.calls import check_consistency
    from amcast.services.errors import CommandError
    from amcast.services.loader import load_service

    reference, _, name = method.rpartition(".")
    if ":" not in reference:
        raise UsageError(f"method = {method!r}; expected MODULE:CLASS.METHOD, such as bank:Bank.transfer")
    description, cluster = load_service(reference), read_cluster(config)
    operation = description.find(name)
    check_consistency(operation, consistency, max_age)
    values = operation.parse(arguments or [])

    async def run() -> None:
        async with connect(cluster, connect_s=min(timeout, CONNECT_S), client=client_name) as client:
            method = getattr(client.service(description), name)
            options = {"timeout_s": timeout, "consistency": consistency, "max_age_s": max_age, "call_key": call_key}
            outcome = await method(*values, **options)
        data = {"value": outcome.value, "by_group": outcome.by_group, "positions": outcome.positions}
        if json:
            print_json(data)
        else:
            same = len(outcome.by_group) == 1 or all(one == outcome.value for one in outcome.by_group.values())
            out.print(str(outcome.value if same else outcome.by_group), markup=False)

    try:
        run_loop(run())
    except CommandError as error:
        err.print(f"amcast: {error}", markup=False)
        raise typer.Exit(VIOLATED) from None


def send(
    config: ConfigOption,
    groups: Annotated[str, typer.Argument(help="Destinations by name, separated by commas.")],
    text: Annotated[str, typer.Argument(help="The message.")],
    timeout: Annotated[
        float,
        typer.Option(
            "--timeout", min=MIN_TIMEOUT_S, help="Seconds to wait for the connection (10 at most) and for every group."
        ),
    ] = 30.0,
    key: Annotated[
        str | None, typer.Option("--key", help="Order it once, however often this command is repeated with the key.")
    ] = None,
    outbox: Annotated[Path, typer.Option("--outbox", help="With --key: the folder that remembers keys.")] = Path(
        "outbox"
    ),
    client_name: AsOption = None,
    json: JsonFlag = False,
) -> None:
    """Multicast one message to a running cluster and wait until it has its place in the order of every destination.

    Exit code 2: unknown whether it has.

    Example: amcast send --config cluster.toml orders,stock "hello"   |   amcast send orders "hello" --key order-17
    """
    from amcast.cluster import connect_blocking
    from amcast.live.config.cluster import read_cluster

    cluster = read_cluster(config)
    wanted = {name for name in groups.split(",") if name}
    if not wanted:
        raise UsageError(f"groups {groups!r}; expected names such as orders,stock")
    for name in sorted(wanted):
        cluster.group_id(name)
    deadline = time.monotonic() + timeout
    kept, patience_s = None if key is None else outbox, min(timeout, CONNECT_S)
    with connect_blocking(cluster, connect_s=patience_s, client=client_name, outbox=kept) as client:
        begin = time.perf_counter()
        receipt = client.multicast(wanted, text.encode(), max(deadline - time.monotonic(), MIN_TIMEOUT_S), key=key)
        took_ms = (time.perf_counter() - begin) * 1000
    if json:
        destinations = list(receipt.destinations)
        print_json({"message": receipt.message, "destinations": destinations, "latency_ms": round(took_ms, 3)})
    else:
        count = len(receipt.destinations)
        out.print(f"message {receipt.message} was ordered in {count} group{'s'[: count > 1]} after {took_ms:.1f} ms")


def tail(
    config: ConfigOption,
    group: Annotated[str, typer.Argument(help="The group, by name.")],
    since: Annotated[
        int | None,
        typer.Option("--since", min=0, help="First position, if it is still held; default: the current one."),
    ] = None,
    count: Annotated[int, typer.Option("--count", min=0, help="Number of messages after which to stop; 0: never.")] = 0,
    only_closed: Annotated[
        bool, typer.Option("--only-closed", help='Each one when it is closed; in a cluster with order = "real-time".')
    ] = False,
    name: Annotated[
        str | None,
        typer.Option("--name", help="Resume behind what the last reader of this name printed; servers keep the place."),
    ] = None,
    client_name: AsOption = None,
    json: JsonFlag = False,
) -> None:
    """Print the deliveries of a group, whichever of its replicas are up; stop with Ctrl-C.

    Examples: amcast tail --config cluster.toml orders --since 0   |   amcast tail orders --name billing
    """
    from amcast.cluster import subscribe
    from amcast.live.rpc.subscription import TIMEOUT_S
    from amcast.live.server.node import run_loop

    async def follow() -> None:
        left = count
        reading = subscribe(config, group, since=since, only_closed=only_closed, name=name, client=client_name)

        def say_waiting() -> None:
            if reading.source < 0:
                err.print(f"no replica of group {group} answers yet; trying for {TIMEOUT_S:g} s", markup=False)

        silence = threading.Timer(SILENT_S, say_waiting)
        silence.daemon = True
        silence.start()
        async with reading as deliveries:
            async for delivery in deliveries:
                _show(delivery, json)
                if name is not None:
                    await deliveries.acknowledge(delivery)
                left -= 1
                if left == 0:
                    return

    with suppress(KeyboardInterrupt):
        run_loop(follow())


def _show(delivery: "Delivery", json: bool) -> None:
    text = delivery.payload.decode(errors="replace")
    if json:
        typer.echo(msgspec.json.encode({**delivery._asdict(), "payload": text}))
    else:
        # Control characters from a client must not reach the terminal.
        shown = "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text)
        typer.echo(f"{delivery.position}.{delivery.place} from {delivery.sender}: {shown}")


def verify(
    folder: Annotated[Path, typer.Argument(help="A node's data folder, with its log segments.")], json: JsonFlag = False
) -> None:
    """Verify a node's log: sound, torn at the end, or damaged.

    Example: amcast log verify data/process-00000
    """
    from amcast.live.storage.store import verify_log as verified

    found = verified(folder)
    if json:
        print_json({"verdict": "holds", **found._asdict()})
        return
    torn = f"; a torn tail of {found.torn_bytes} bytes will be cut at the next start" if found.torn_bytes else ""
    out.print(f"sound: {found.records} records in {found.segments} segments, {found.bytes} bytes{torn}")
