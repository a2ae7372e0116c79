"""Entry points of the live system: clients, subscriptions, replicas, and the nodes of a cluster.

async with amcast.cluster.connect("cluster.toml") as client:
    receipt = await client.multicast({"orders", "stock"}, b"...")

python -m amcast.cluster cluster.toml orders/1            runs one node until SIGTERM

"""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from amcast.assembly import Assembly, assemble_cluster
from amcast.kernel.errors import UsageError
from amcast.kernel.ids import ProcessId
from amcast.kernel.spec import Spec
from amcast.live.client.blocking_client import BlockingClient
from amcast.live.client.client import Client
from amcast.live.client_batch import Delivery
from amcast.live.config.cluster import Cluster, read_cluster
from amcast.live.rpc.client import RpcClient
from amcast.live.rpc.subscription import Subscription
from amcast.protocols.catalogue import get_protocol
from amcast.trace.recorder import Recorder

if TYPE_CHECKING:  # at run time where they are used: a client needs no server
    from amcast.live.operations.local_cluster import LocalCluster
    from amcast.live.server.application import Install, Take
    from amcast.live.server.replica import Replica


def cluster_spec(cluster: Cluster) -> Spec:
    """The specification of a cluster's nodes: its protocol, inside nodes that answer clients and monitor each other."""
    return assemble(cluster).spec


def assemble(cluster: Cluster) -> Assembly:
    """Assembles the parts of a cluster's nodes and of its clients' sessions."""
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
    """Makes a client of the cluster that a cluster.toml describes; use it with `async with`.

    `me` sets its process id instead of one that a server allocates; it must never be used twice with one cluster.
    `client` is the name whose certificate it uses, where cluster.toml names several clients. `region` is its place in a
    cluster with emulated distances. With `batches = False` every payload is ordered by itself, unchanged.
    """
    cluster = config if isinstance(config, Cluster) else read_cluster(config)
    assembly = assemble(cluster)
    transport = cluster.client_transport(client, region)
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
        transport=transport,
        lazy=assembly.session.gateways,
    )


def connect_blocking(
    config: Path | str | Cluster,
    *,
    recorder: Recorder | None = None,
    connect_s: float = 10.0,
    client: str | None = None,
) -> BlockingClient:
    """Makes a client for programs without an event loop; use it with `with`."""
    return BlockingClient(lambda: connect(config, recorder=recorder, connect_s=connect_s, client=client))


def subscribe(
    config: Path | str | Cluster,
    group: str,
    *,
    since: int | None = None,
    after: Delivery | None = None,
    client: str | None = None,
) -> Subscription:
    """Reads the deliveries of a group: as `Client.deliveries`, without being a client."""
    cluster = config if isinstance(config, Cluster) else read_cluster(config)
    group_id = cluster.group_id(group)
    rpc = RpcClient(cluster.name, cluster.addresses, cluster.limits, cluster.client_transport(client))
    return Subscription(rpc, group_id, cluster.topology.members(group_id), since=since, after=after)


def run_replica(
    config: Path | str | Cluster,
    name: str,
    on_delivery: Callable[[Delivery], None] | None = None,
    *,
    take: "Take | None" = None,
    install: "Install | None" = None,
    on_missed: Callable[[int, int], None] | None = None,
    delivered_until: int = 0,
    client: str | None = None,
) -> "Replica":
    """Runs the node `name` inside this program; use it with `async with`.

    `on_delivery` is called with every message delivered there, in order, each once. `take` exports the application's
    state as bytes, and `install` replaces it by such bytes (with the number of deliveries that they contain): with them
    no state is missed when the replica restarts or installs a snapshot. Without them, `delivered_until` is the number
    of deliveries that the application already has, and `on_missed(first, position)` reports that deliveries first to
    position - 1 will not come.
    """
    from amcast.live.server.replica import Replica

    cluster = config if isinstance(config, Cluster) else read_cluster(config)
    return Replica(
        cluster,
        name,
        cluster_spec(cluster),
        lambda: connect(cluster, client=client),
        on_delivery,
        take=take,
        install=install,
        on_missed=on_missed,
        delivered_until=delivered_until,
    )


def local_cluster(cluster: Cluster, *, steps: Path | None = None, skew: Path | None = None) -> "LocalCluster":
    """Makes a launcher of the whole cluster as local processes; use it with `with`."""
    from amcast.live.operations.local_cluster import LocalCluster

    command = [sys.executable, "-m", "amcast.cluster"]
    for option, folder in (("--steps", steps), ("--skew", skew)):
        if folder is not None:
            command += [option, str(folder)]
    return LocalCluster(cluster, command)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m amcast.cluster", description="Run one node of a cluster.")
    parser.add_argument("config", type=Path, help="the cluster.toml")
    parser.add_argument("node", help="the node: GROUP/NUMBER, such as orders/1")
    parser.add_argument("--steps", type=Path, help="folder for a log of every step")
    parser.add_argument(
        "--skew", type=Path, help="folder of files (orders-1) with the seconds to add to a node's clock"
    )
    options = parser.parse_args(arguments)
    from amcast.live.server import node

    try:
        cluster = read_cluster(options.config)
        return node.main(cluster, options.node, cluster_spec(cluster), options.steps, options.skew)
    except UsageError as error:
        print(error, file=sys.stderr)
        return 64


if __name__ == "__main__":
    sys.exit(main())
