"""The command that changes a group's replicas while the cluster runs."""

import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from amcast.cli.live.cluster import ConfigOption
from amcast.cli.output import HOLDS, VIOLATED, JsonFlag, err, out, print_json
from amcast.kernel.errors import CannotTellError, UsageError

if TYPE_CHECKING:
    from amcast.live.config.cluster import Cluster
    from amcast.live.operations.reconfiguration import ReplicaChange


def register(app: typer.Typer) -> None:
    """Add this command."""
    app.command()(change)


def change(
    config: ConfigOption,
    add: Annotated[str, typer.Option(help="A new replica: GROUP/NUMBER=HOST:PORT, under a name nobody has.")] = "",
    remove: Annotated[str, typer.Option(help="A replica that shall go, dead or alive: GROUP/NUMBER.")] = "",
    region: Annotated[str, typer.Option(help="Where the new one is, if the file tells regions.")] = "",
    follow: Annotated[
        bool, typer.Option("--follow", help="Change nothing: only write the file as the cluster is now.")
    ] = False,
    write: Annotated[
        Path | None, typer.Option(help="Where to write the next cluster.toml; default: in the place of --config.")
    ] = None,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds to wait for every group.")] = 30.0,
    client: Annotated[
        str | None, typer.Option("--as", help="In which client's name; default: the first that may change.")
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Add one replica to a group, or remove one, while the cluster serves; then write the next cluster.toml.

    A file that is replaced is kept as FILE.old. Start a new replica with the new file, on an empty data folder; a
    removed one ends by itself. To replace a dead one by another under a new name: first add, then remove.

    Exit code 0: done; 1: somebody else's change came first, ask again; 2: not known; 64: not possible.

    Example: amcast change --config cluster.toml --add orders/4=10.0.0.7:7001
    """
    from amcast.live.config.cluster import read_cluster
    from amcast.live.operations.reconfiguration import parse_change

    if follow and (add or remove):
        raise UsageError("--follow with --add or --remove; expected --follow alone, because it changes nothing")
    cluster = read_cluster(config)
    target = write or config
    if not os.access(target.parent, os.W_OK):
        raise UsageError(f"{target.parent} cannot be written; expected a place for the next cluster.toml (--write)")
    made = _follow(cluster, client) if follow else _change(cluster, parse_change(add, remove, region), client, timeout)
    if made.outcome == "done":
        _write(made, target)
    if json:
        print_json(made.described())
    else:
        out.print(made.sentence, markup=False)
        for line in made.advice:
            err.print(line, markup=False)
    raise typer.Exit(HOLDS if made.outcome == "done" else VIOLATED)


@dataclass
class Made:
    """What came of it."""

    outcome: str
    cluster: "Cluster"
    sentence: str
    advice: list[str]
    file: Path | None = None
    kept: Path | None = None

    def described(self) -> dict[str, object]:
        """As plain data."""
        return {
            "outcome": self.outcome,
            "configuration": self.cluster.topology.configuration,
            "members": self.cluster.members_by_group(),
            "file": None if self.file is None else str(self.file),
            "old_file": None if self.kept is None else str(self.kept),
            "description": self.sentence,
        }


def _write(made: Made, file: Path) -> None:
    from amcast.live.config.rewrite import replace_file, rewrite_members

    try:
        made.kept = replace_file(file, rewrite_members(made.cluster))
    except OSError as error:
        raise CannotTellError(
            f"{made.sentence}, but {file} cannot be written: {error.strerror}; `amcast change --follow` writes it later"
        ) from None
    made.file = file
    where = f"; the old one is {made.kept}" if made.kept is not None else ""
    made.advice.insert(0, f"{file} tells topology {made.cluster.topology.configuration}{where}")


def _changer(cluster: "Cluster", client: str | None) -> str | None:
    """In whose name; a right of its own."""
    if cluster.security.mode == "plain":
        return None
    able = [known.name for known in cluster.clients.values() if known.change]
    if client is None and able:
        return able[0]
    if client is None or client not in able:
        who = "nobody may" if client is None else f"client {client} may not"
        raise UsageError(f"{who} change groups' replicas ({cluster.file}); expected a client with change = true")
    return client


def _follow(cluster: "Cluster", client: str | None) -> Made:
    from amcast.live.operations.cluster_status import fetch_current

    now = fetch_current(cluster, client, needed=True)
    return Made("done", now, f"the cluster is in topology {now.topology.configuration}", [])


def _change(cluster: "Cluster", wish: "ReplicaChange", client: str | None, timeout: float) -> Made:
    from amcast.cluster import cluster_spec, connect
    from amcast.live.operations import reconfiguration as changes
    from amcast.live.operations.cluster_status import fetch_current

    if not cluster.allows_changes or not cluster_spec(cluster).claims.members:
        why = (
            "members.change = false" if not cluster.allows_changes else f"protocol {cluster.protocol} does not claim it"
        )
        raise UsageError(f"{cluster.file}: groups' replicas cannot be changed here: {why}")
    client = _changer(cluster, client)
    cluster = fetch_current(cluster, client, needed=True)
    topology = changes.next_topology(cluster, wish)

    connected = partial(connect, client=client, connect_s=timeout, batches=False)
    outcome, gone = changes.carry_out_change(cluster, wish, topology, client, connected, timeout)
    if outcome == "stale":
        said = f"{wish.node}: stale, somebody else's change to topology {topology.configuration} came first; ask again"
        return Made("stale", cluster, said, ["`amcast change --follow` writes the file as the cluster is now"])
    after = cluster.with_topology(topology)
    group = wish.node.rpartition("/")[0]
    size = len(topology.members(cluster.group_id(group)))
    done = "was added to" if wish.is_addition else "was removed from"
    said = f"{wish.node} {done} {group}, which has {size} replicas in topology {topology.configuration}"
    return Made("done", after, said, _advice(after, wish, gone))


def _advice(cluster: "Cluster", wish: "ReplicaChange", gone: bool) -> list[str]:
    """What the operator does next."""
    if not wish.is_addition:
        return [f"{wish.node} has left" if gone else f"{wish.node} still answers; it leaves when nobody needs it"]
    group = cluster.group_id(wish.node.rpartition("/")[0])
    needed, others = cluster.topology.quorum(group), len(cluster.topology.members(group)) - 1
    told = [
        f"start it now, with the new file: amcast serve --config FILE --node {wish.node}",
        f"until it runs, {needed} of the other {others} must"
        if needed <= others
        else f"until it runs, nothing is delivered in its group: {needed} replicas are a majority",
    ]
    if cluster.security.mode == "tls":
        told.insert(0, "make its certificate first, with the new file: amcast certs --config FILE")
    return told
