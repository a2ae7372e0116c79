"""Where protocols, parts and the live room meet: a cluster's nodes, and clients that talk to them.

async with amcast.cluster.connect("cluster.toml") as client:
    receipt = await client.multicast({"orders", "stock"}, b"...")

python -m amcast.cluster cluster.toml orders/1            one node, until SIGTERM
"""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from amcast.assembly import Assembly, assemble_cluster
from amcast.kernel.errors import UsageError
from amcast.kernel.ids import ProcessId
from amcast.kernel.spec import Spec
from amcast.live.client.blocking_client import BlockingClient
from amcast.live.client.client import Client
from amcast.live.client_batch import Delivery
from amcast.live.config.cluster import Cluster, read_cluster
from amcast.live.operations.local_cluster import LocalCluster
from amcast.live.rpc.client import RpcClient
from amcast.live.rpc.subscription import Subscription
from amcast.live.server import node
from amcast.live.server.application import Install, Take
from amcast.live.server.replica import ReplicaBase
from amcast.protocols.catalogue import get_protocol
from amcast.trace.recorder import Recorder


def cluster_spec(cluster: Cluster) -> Spec:
    """What the nodes of a cluster run: its protocol, inside nodes that answer clients and watch each other."""
    return assemble(cluster).spec


def assemble(cluster: Cluster) -> Assembly:
    """The parts of a cluster's nodes and of its clients' sessions."""
    return assemble_cluster(get_protocol(cluster.protocol), cluster.topology, cluster.options, cluster.allows_changes)


def connect(
    config: Path | str | Cluster,
    *,
    me: ProcessId | None = None,
    recorder: Recorder | None = None,
    connect_s: float = 10.0,
    client: str | None = None,
    region: str | None = None,
    batches: bool = True,
) -> Client:
    """A client of the cluster that a cluster.toml describes; use it with `async with`.

    `me` gives it a number instead of one that a server issues; it must never be used twice with one cluster. `client`:
    in whose name, where certificates are used and the configuration names several clients. `region`: from where, in a
    cluster that imitates distances. `batches = False`: every payload is ordered by itself, and as it is.
    """
    cluster = config if isinstance(config, Cluster) else read_cluster(config)
    assembly = assemble(cluster)
    wiring = cluster.client_transport(client, region)
    return Client(
        lambda process: assembly.make_client(process, cluster.topology),
        cluster.topology,
        assembly.spec,
        cluster.addresses,
        me=me,
        cluster=cluster.name,
        limits=cluster.limits,
        recorder=recorder,
        batches=batches,
        connect_s=connect_s,
        wiring=wiring,
        lazy=assembly.session.gateways,
    )


def connect_blocking(
    config: Path | str | Cluster,
    *,
    recorder: Recorder | None = None,
    connect_s: float = 10.0,
    client: str | None = None,
) -> BlockingClient:
    """The same for programs without an event loop; use it with `with`."""
    return BlockingClient(lambda: connect(config, recorder=recorder, connect_s=connect_s, client=client))


def subscribe(
    config: Path | str | Cluster,
    group: str,
    *,
    since: int | None = None,
    after: Delivery | None = None,
    client: str | None = None,
) -> Subscription:
    """What a group delivers, for who only reads: as `Client.deliveries`, without being a client."""
    cluster = config if isinstance(config, Cluster) else read_cluster(config)
    known = cluster.group_id(group)
    asker = RpcClient(cluster.name, cluster.addresses, cluster.limits, cluster.client_transport(client))
    return Subscription(asker, known, cluster.topology.members(known), since=since, after=after)


class Replica(ReplicaBase):
    """Be the node `name` inside this program; use it with `async with`.

    Every message delivered there is handed to `on_delivery`, in order, each once. `take` and `install` give the
    program's state as bytes, and put such bytes in its place (with the number of deliveries that they contain): with
    them nothing is missed when the replica restarts or catches up by a snapshot. Without them, `handed` says what the
    program has already, and `on_missed(first, position)` that deliveries first to position - 1 will not come.
    """

    def __init__(
        self,
        config: Path | str | Cluster,
        name: str,
        on_delivery: Callable[[Delivery], None] | None = None,
        *,
        take: Take | None = None,
        install: Install | None = None,
        on_missed: Callable[[int, int], None] | None = None,
        handed: int = 0,
        client: str | None = None,
    ) -> None:
        cluster = config if isinstance(config, Cluster) else read_cluster(config)
        super().__init__(
            cluster,
            name,
            cluster_spec(cluster),
            lambda: connect(cluster, client=client),
            on_delivery,
            take=take,
            install=install,
            on_missed=on_missed,
            handed=handed,
        )


def local_cluster(cluster: Cluster, *, steps: Path | None = None, skew: Path | None = None) -> LocalCluster:
    """The whole cluster as local processes; use it with `with`."""
    command = [sys.executable, "-m", "amcast.cluster"]
    for option, folder in (("--steps", steps), ("--skew", skew)):
        if folder is not None:
            command += [option, str(folder)]
    return LocalCluster(cluster, command)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m amcast.cluster", description="Be one node of a cluster.")
    parser.add_argument("config", type=Path, help="the cluster.toml")
    parser.add_argument("node", help="which one: GROUP/NUMBER, for example orders/1")
    parser.add_argument("--steps", type=Path, help="a folder for a log of every step")
    parser.add_argument("--skew", type=Path, help="a folder of files (orders-1): seconds to add to a node's clock")
    given = parser.parse_args(arguments)
    try:
        cluster = read_cluster(given.config)
        return node.main(cluster, given.node, cluster_spec(cluster), given.steps, given.skew)
    except UsageError as error:
        print(error, file=sys.stderr)
        return 64


if __name__ == "__main__":
    sys.exit(main())
