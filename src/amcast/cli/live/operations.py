"""Commands for operators of a live cluster: status, explain, roll, replace."""

import getpass
import subprocess
from typing import TYPE_CHECKING, Annotated, Any

import typer

from amcast.cli.live.cluster import ConfigOption
from amcast.cli.output import HOLDS, UNKNOWN, JsonFlag, err, out, print_json, print_table
from amcast.cli.panels import OPERATE
from amcast.kernel.errors import CannotTellError, UsageError

if TYPE_CHECKING:
    from amcast.live.config.cluster import Cluster

ClientOption = Annotated[
    str | None, typer.Option("--as", help="Name of the client; default: the first with operate = true.")
]


def register(app: typer.Typer) -> None:
    """Add these commands."""
    app.command(rich_help_panel=OPERATE)(status)
    app.command(rich_help_panel=OPERATE)(explain)
    app.command(rich_help_panel=OPERATE)(roll)
    app.command(rich_help_panel=OPERATE)(replace)


def status(
    config: ConfigOption,
    node: Annotated[str | None, typer.Option("--node", help="The node that determines the exit code.")] = None,
    wait: Annotated[float, typer.Option(min=0.0, help="Seconds to wait until the nodes are ready.")] = 0.0,
    client: ClientOption = None,
    json: JsonFlag = False,
) -> None:
    """Show the status of every replica: leader, epoch, position and lag, pending messages, queues for peers and disk.

    The exit code is 0 when all nodes (or the one of --node) are ready, else 2.

    Example: amcast status --config cluster.toml --node orders/1 --wait 60
    """
    from amcast.live.config.cluster import read_cluster
    from amcast.live.operations.cluster_status import add_lags, collect_advice, fetch_current, wait_until_ready

    cluster = fetch_current(read_cluster(config), client)
    if node is not None:
        cluster.process_of(node)
    wanted = [node] if node is not None else list(cluster.nodes())
    answers = add_lags(wait_until_ready(cluster, client, wanted, wait))
    if json:
        topology = {"configuration": cluster.topology.configuration, "members": cluster.members_by_group()}
        print_json(
            {
                "cluster": cluster.name,
                "protocol": cluster.protocol,
                "topology": topology,
                "advice": collect_advice(answers),
                "nodes": answers,
            }
        )
    else:
        names = {process: name for name, process in cluster.nodes().items()}
        _print_status(answers, names)
        _print_members(cluster, answers)
        for advice in collect_advice(answers):
            err.print(advice, markup=False)
    raise typer.Exit(HOLDS if all(answers[name].get("ready") for name in wanted) else UNKNOWN)


def _print_status(answers: dict[str, dict[str, Any]], names: dict[int, str]) -> None:
    headings = [
        "node",
        "state",
        "leader",
        "epoch",
        "position",
        "lag",
        "pending",
        "not durable",
        "unsent bytes",
        "incarnation",
    ]
    rows = [[name, *_row(status, names)] for name, status in answers.items()]
    print_table(headings, rows)
    for name, status in answers.items():
        if "error" in status:
            err.print(f"{name}: {status['error']}", markup=False)
            continue
        for reason in status["not_ready_reasons"]:
            err.print(f"{name} is not ready: {reason}", markup=False)
        for warning in status["warnings"]:
            err.print(f"{name} is ready, but {warning}" if status["ready"] else f"{name}: {warning}", markup=False)
        for link in status["links"]:
            if link["congested"]:
                err.print(f"{name}: {names[link['peer']]} is slow; {link['queued_bytes']} bytes are queued for it")
        for link in status["slowest_clients"]:
            if link["congested"]:
                err.print(f"{name}: client {link['peer']} is slow; {link['queued_bytes']} bytes are queued for it")


def _print_members(cluster: "Cluster", answers: dict[str, dict[str, Any]]) -> None:
    """Prints the members if they have changed since the cluster started, and the nodes that have not followed yet."""
    configuration = cluster.topology.configuration
    if configuration:
        groups = "; ".join(f"{group} = {', '.join(nodes)}" for group, nodes in cluster.members_by_group().items())
        out.print(f"configuration {configuration}: {groups}", markup=False)
    for name, status in answers.items():
        known = status.get("protocol_status", {}).get("configuration", configuration)
        if known not in (configuration, -1):  # -1: it waits for its state, which is printed above
            err.print(f"{name} is in configuration {known}, not in {configuration}", markup=False)


def _row(status: dict[str, Any], names: dict[int, str]) -> list[object]:
    if "error" in status:
        return ["no answer", *[None] * 8]
    protocol, queues = status["protocol_status"], status["queues"]
    state = "ready" if status["ready"] else "not ready"
    role = protocol.get("role")
    return [
        f"{state}, {role}" if role else state,
        names.get(protocol.get("leader", -1)),
        protocol.get("epoch"),
        protocol.get("position"),
        status["lag"],
        protocol.get("pending"),
        queues["appended"] - queues["durable"],
        sum(link.get("unsent_bytes", link["queued_bytes"]) for link in status["links"]),
        status["incarnation"],
    ]


def explain(
    config: ConfigOption,
    message: Annotated[int, typer.Argument(help="The id of a message, as in a receipt or a log.")],
    client: ClientOption = None,
    json: JsonFlag = False,
) -> None:
    """Show what a message waits for at every replica, phase by phase, and which processes are late.

    Exit code 2: no replica answers, or none knows the message.

    Example: amcast explain --config cluster.toml 1048576000000003
    """
    from amcast.live.config.cluster import read_cluster
    from amcast.live.operations.cluster_status import fetch_current, fetch_statuses, late_processes

    cluster = fetch_current(read_cluster(config), client)
    answers = fetch_statuses(cluster, client, message)
    names = {str(process): name for name, process in cluster.nodes().items()}
    late = [names.get(process, process) for process in late_processes(answers)]
    delivered = [name for name, answer in answers.items() if answer.get("delivered")]
    silent = sum("error" in answer for answer in answers.values())
    phases = [phase for answer in answers.values() for phase in answer.get("phases", ())]
    is_known = bool(delivered) or any(phase["is_done"] for phase in phases)
    code = HOLDS if is_known else UNKNOWN
    if json:
        print_json(
            {
                "message": message,
                "known": is_known,
                "delivered": delivered,
                "waiting_for": late,
                "nodes": answers,
            }
        )
        raise typer.Exit(code)
    for name, answer in answers.items():
        if "error" in answer:
            out.print(f"{name}: no answer ({answer['error']})", markup=False)
            continue
        if not is_known:
            out.print(f"{name}: does not know message {message}", markup=False)
            continue
        for phase in answer["phases"]:
            waits = ", ".join(names.get(str(process), str(process)) for process in phase["waiting_for"])
            mark = "done" if phase["is_done"] else "waits"
            out.print(
                f"{name}: {mark} {phase['name']}: {phase['description']}{f' (late: {waits})' if waits else ''}",
                markup=False,
            )
    none = "no replica that answers" if silent else "no replica"
    if code == UNKNOWN and silent < len(answers):
        err.print(f"{none} knows message {message}: it was not multicast, has not arrived, or was delivered long ago")
    if code == HOLDS:
        out.print(f"delivered by {', '.join(delivered) or none}{f'; late: {late[0]}' if late else ''}")
    raise typer.Exit(code)


def roll(
    config: ConfigOption,
    command: Annotated[
        str, typer.Argument(help="Command that restarts a node; {node}, {group}, {number}, {host} are filled in.")
    ],
    wait: Annotated[float, typer.Option(min=1.0, help="Longest time for a node to become ready again.")] = 120.0,
    client: ClientOption = None,
) -> None:
    """Restart all nodes, one at a time, while the cluster serves: followers first, each when all are ready.

    Example: amcast roll --config cluster.toml "ssh {host} systemctl restart amcast@{group}-{number}"
    """
    from amcast.live.config.cluster import read_cluster
    from amcast.live.operations.cluster_status import fetch_current, restart_all

    if not command.strip():
        raise UsageError(f"command = {command!r}; expected one that restarts {{node}}")
    cluster = fetch_current(read_cluster(config), client)

    def restart(node: str) -> None:
        group, _, number = node.rpartition("/")
        host = cluster.addresses[cluster.process_of(node)][0]
        filled = command
        for field, value in (("node", node), ("group", group), ("number", number), ("host", host)):
            filled = filled.replace("{" + field + "}", value)
        done = subprocess.run(filled, shell=True, check=False)
        if done.returncode:
            raise CannotTellError(f"{filled!r} exited with code {done.returncode}; the rolling restart stops")

    restart_all(cluster, client, restart, wait, lambda line: err.print(line, markup=False))
    out.print(f"{len(cluster.nodes())} nodes were restarted; all are ready")


def replace(
    config: ConfigOption,
    node: Annotated[str, typer.Option("--node", help="The dead node that this machine replaces.")],
    incarnation: Annotated[
        int | None, typer.Option(help="Its next incarnation, if no node knows the last one.")
    ] = None,
    accepts_loss: Annotated[
        bool,
        typer.Option("--accept-loss", help="Let the node take part with its doubtful folder as it is; see the docs."),
    ] = False,
    client: ClientOption = None,
) -> None:
    """Prepare this machine to replace a dead replica under the same name; then start it like any node.

    Run it on the new machine, with the name of the node pointing there (or its address changed in every cluster.toml).
    With --accept-loss the folder of the stopped node is kept and used as it is: the way out where its group cannot
    restore it. Acknowledged messages that are missing in the folder may be lost, and replicas may differ.

    Example: amcast replace --config cluster.toml --node orders/2
    """
    from amcast.cluster import cluster_spec
    from amcast.live.audit_log import close_audit, configure_audit, record_audit
    from amcast.live.config.cluster import read_cluster
    from amcast.live.operations.replacement import accept_loss, prepare_replacement

    cluster = read_cluster(config)
    configure_audit(node, cluster.audit)
    if accepts_loss:
        kept = accept_loss(cluster, node)
        record_audit("loss accepted", who=getpass.getuser(), records=kept)
        close_audit()
        out.print(
            f"{node} will take part with the {kept} records of its data folder; what is missing there may be lost"
            if kept
            else f"{node} has no record left: its group must give it its state, and all is lost if no member has it"
        )
        err.print(f"start it: amcast serve --config {config} --node {node}", markup=False)
        return
    if "amnesia" not in cluster_spec(cluster).claims.faults:
        raise UsageError(
            f"protocol {cluster.protocol} does not tolerate the loss of a member's state; expected one that does"
            " (`amcast protocols`)"
        )
    first = prepare_replacement(cluster, node, client, incarnation)
    record_audit("replacement prepared", who=getpass.getuser(), incarnation=first)
    close_audit()
    out.print(f"{node} will begin incarnation {first} without state, and receive it from its group")
    err.print(f"start it: amcast serve --config {config} --node {node}", markup=False)
