"""The command that changes a group's replicas while the cluster runs."""

import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from amcast.cli.live.cluster import ConfigOption
from amcast.cli.output import HOLDS, VIOLATED, JsonFlag, err, out, print_json
from amcast.cli.panels import OPERATE
from amcast.kernel.errors import CannotTellError, UsageError

if TYPE_CHECKING:
    from amcast.live.config.cluster import Cluster
    from amcast.live.operations.reconfiguration import ReplicaChange

FOLLOW_HINT = "`amcast change --follow` writes the file for the current members"


def register(app: typer.Typer) -> None:
    """Add this command."""
    app.command(rich_help_panel=OPERATE)(change)


def change(
    config: ConfigOption,
    add: Annotated[str, typer.Option(help="New replica, with an unused name: GROUP/NUMBER=HOST:PORT.")] = "",
    remove: Annotated[str, typer.Option(help="Replica to remove, dead or alive: GROUP/NUMBER.")] = "",
    region: Annotated[str, typer.Option(help="Region of the new replica, if the file has regions.")] = "",
    follow: Annotated[
        bool, typer.Option("--follow", help="Change nothing: write the file for the current members.")
    ] = False,
    write: Annotated[
        Path | None, typer.Option(help="Path of the next cluster.toml; default: that of --config.")
    ] = None,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds to wait for every group.")] = 30.0,
    client: Annotated[
        str | None, typer.Option("--as", help="Name of the client; default: the first with change = true.")
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Add one replica to a group, or remove one, while the cluster serves; then write the next cluster.toml.

    A replaced file is kept as FILE.old. Start a new replica with the new file, on an empty data folder; a removed
    replica exits by itself. To replace a dead replica by one with a new name: first add, then remove.

    Exit code 0: done; 1: another change came first, try again; 2: unknown; 64: not possible.

    Example: amcast change --config cluster.toml --add orders/4=10.0.0.7:7001
    """
    from amcast.live.config.cluster import read_cluster
    from amcast.live.operations.reconfiguration import parse_change

    if follow and (add or remove):
        raise UsageError("--follow with --add or --remove; expected --follow alone, because it changes nothing")
    cluster = read_cluster(config)
    target = write or config
    if not os.access(target.parent, os.W_OK):
        raise UsageError(
            f"{target.parent} cannot be written; expected a writable folder for the next cluster.toml (--write)"
        )
    if follow:
        result = _follow(cluster, client)
    else:
        result = _change(cluster, parse_change(add, remove, region), client, timeout)
    if result.outcome == "done":
        _write(result, target)
    if json:
        print_json(result.describe())
    else:
        out.print(result.sentence, markup=False)
        for line in result.advice:
            err.print(line, markup=False)
    raise typer.Exit(HOLDS if result.outcome == "done" else VIOLATED)


@dataclass
class ChangeResult:
    """Outcome of the command."""

    outcome: str
    cluster: "Cluster"
    sentence: str
    advice: list[str]
    file: Path | None = None
    old_file: Path | None = None

    def describe(self) -> dict[str, object]:
        """The result as plain data."""
        return {
            "outcome": self.outcome,
            "configuration": self.cluster.topology.configuration,
            "members": self.cluster.members_by_group(),
            "file": None if self.file is None else str(self.file),
            "old_file": None if self.old_file is None else str(self.old_file),
            "description": self.sentence,
        }


def _write(result: ChangeResult, file: Path) -> None:
    from amcast.live.config.rewrite import replace_file, rewrite_members

    try:
        result.old_file = replace_file(file, rewrite_members(result.cluster))
    except OSError as error:
        raise CannotTellError(
            f"{result.sentence}, but {file} cannot be written: {error.strerror};"
            " `amcast change --follow` writes it later"
        ) from None
    result.file = file
    where = f"; the old one is {result.old_file}" if result.old_file is not None else ""
    result.advice.insert(0, f"{file} describes configuration {result.cluster.topology.configuration}{where}")


def _find_client(cluster: "Cluster", client: str | None) -> str | None:
    """The client that may change members."""
    if cluster.security.mode == "plain":
        return None
    able = [known.name for known in cluster.clients.values() if known.change]
    if client is None and able:
        return able[0]
    if client is None or client not in able:
        who = "no client may" if client is None else f"client {client} may not"
        raise UsageError(f"{who} change groups' replicas ({cluster.file}); expected a client with change = true")
    return client


def _follow(cluster: "Cluster", client: str | None) -> ChangeResult:
    from amcast.live.operations.cluster_status import fetch_current

    now = fetch_current(cluster, client, needed=True)
    return ChangeResult("done", now, f"the cluster is in configuration {now.topology.configuration}", [])


def _change(cluster: "Cluster", change: "ReplicaChange", client: str | None, timeout: float) -> ChangeResult:
    from amcast.cluster import cluster_spec, connect
    from amcast.live.operations import reconfiguration as changes
    from amcast.live.operations.cluster_status import fetch_current

    if not cluster.allows_changes or not cluster_spec(cluster).claims.members:
        why = (
            "members.change = false" if not cluster.allows_changes else f"protocol {cluster.protocol} does not claim it"
        )
        raise UsageError(f"{cluster.file}: groups' replicas cannot be changed here: {why}")
    client = _find_client(cluster, client)
    cluster = fetch_current(cluster, client, needed=True)
    topology = changes.next_topology(cluster, change)

    connected = partial(connect, client=client, connect_s=timeout, batches=False)
    outcome, has_left = changes.carry_out_change(cluster, change, topology, client, connected, timeout)
    if outcome == "stale":
        sentence = (
            f"{change.node}: stale, another change to configuration {topology.configuration} came first; try again"
        )
        return ChangeResult("stale", cluster, sentence, [FOLLOW_HINT])
    after = cluster.with_topology(topology)
    group = change.node.rpartition("/")[0]
    size = len(topology.members(cluster.group_id(group)))
    done = "was added to" if change.is_addition else "was removed from"
    sentence = f"{change.node} {done} {group}, which has {size} replicas in configuration {topology.configuration}"
    return ChangeResult("done", after, sentence, _advice(after, change, has_left))


def _advice(cluster: "Cluster", change: "ReplicaChange", has_left: bool) -> list[str]:
    """The next steps of the operator."""
    if not change.is_addition:
        return [
            f"{change.node} has left"
            if has_left
            else f"{change.node} still answers; it exits when no other node needs it"
        ]
    group = cluster.group_id(change.node.rpartition("/")[0])
    needed, others = cluster.topology.quorum(group), len(cluster.topology.members(group)) - 1
    steps = [
        f"start it now, with the new file: amcast serve --config FILE --node {change.node} (and --service, if"
        " the others run one)",
        f"until it runs, {needed} of the other {others} must"
        if needed <= others
        else f"until it runs, nothing is delivered in its group: {needed} replicas are a majority",
    ]
    if cluster.security.mode == "tls":
        steps.insert(0, "make its certificate first, with the new file: amcast certs --config FILE")
    return steps
