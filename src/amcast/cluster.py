"""Entry points of the live system: clients, subscriptions, replicas, and the nodes of a cluster.

async with amcast.cluster.connect("cluster.toml") as client:
    receipt = await client.multicast({"orders", "stock"}, b"...")

python -m amcast.cluster cluster.toml orders/1            runs one node until SIGTERM

"""

import argparse
import sys
from collections.abc import Callable
from dataclasses import replace
from inspect import isgeneratorfunction
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import structs

from amcast.assembly import Assembly, assemble_cluster
from amcast.kernel.errors import UsageError
from amcast.kernel.ids import ProcessId
from amcast.kernel.spec import Spec
from amcast.live.client.blocking_client import BlockingClient
from amcast.live.client.client import Client
from amcast.live.client.outbox import Outbox
from amcast.live.client_batch import Delivery
from amcast.live.config.cluster import Cluster, read_cluster
from amcast.live.rpc.client import RpcClient
from amcast.live.rpc.subscription import Subscription, check_closing
from amcast.protocols.catalogue import get_protocol
from amcast.services.declaration import Description, Service, describe_service
from amcast.services.loader import load_service
from amcast.trace.recorder import Recorder

if TYPE_CHECKING:  # at run time where they are used: a client needs no server
    from amcast.live.operations.local_cluster import LocalCluster
    from amcast.live.server.application import Take
    from amcast.live.server.journal import Install
    from amcast.live.server.replica import Replica
    from amcast.live.server.service_host import ServiceHost
    from amcast.live.server.state_schedule import StateSchedule


def cluster_spec(cluster: Cluster) -> Spec:
    """The specification of a cluster's nodes: its protocol, inside nodes that answer clients and monitor each other."""
    return assemble(cluster).spec


def assemble(cluster: Cluster) -> Assembly:
    """Assembles the parts of a cluster's nodes and of its clients' sessions."""
    protocol = get_protocol(cluster.protocol)
    return assemble_cluster(protocol, cluster.topology, cluster.options, cluster.allows_changes, cluster.order)


def connect(
    config: Path | str | Cluster,
    *,
    me: ProcessId | None = None,
    recorder: Recorder | None = None,
    connect_s: float = 10.0,
    client: str | None = None,
    region: str | None = None,
    batches: bool = True,
    outbox: Path | str | Outbox | None = None,
) -> Client:
    """Makes a client of the cluster that a cluster.toml describes; use it with `async with`, or `open` and `close`.

    `me` sets its process id instead of one that a server allocates; it must never be used twice with one cluster.
    `client` is the name whose certificate it uses, where cluster.toml names several clients. `region` is where it is:
    it sends to gateways there first, and emulated distances start there. With `batches = False` every payload is
    ordered by itself, unchanged. `outbox` is a folder that keeps messages with a key over restarts of the program
    (`multicast(..., key=)`); an `Outbox` says how many keys are remembered, and for how long.
    """
    if outbox is not None and me is not None:
        raise UsageError(f"me = {me} with an outbox; expected one of them: the outbox has a process id of its own")
    cluster = config if isinstance(config, Cluster) else read_cluster(config)
    transport = cluster.client_transport(client, region)
    assembly = assemble(cluster)
    place = cluster.emulation.client_region if region is None else region
    assembly = replace(assembly, session=structs.replace(assembly.session, region=place))
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
        closes=cluster.order == "real-time",
        outbox=Outbox(outbox) if isinstance(outbox, Path | str) else outbox,
        partitioner=cluster.partitioner,
    )


def connect_blocking(
    config: Path | str | Cluster,
    *,
    recorder: Recorder | None = None,
    connect_s: float = 10.0,
    client: str | None = None,
    outbox: Path | str | Outbox | None = None,
) -> BlockingClient:
    """Makes a client for programs without an event loop; use it with `with`, or `open` and `close`."""
    return BlockingClient(lambda: connect(config, recorder=recorder, connect_s=connect_s, client=client, outbox=outbox))


def subscribe(
    config: Path | str | Cluster,
    group: str,
    *,
    since: int | None = None,
    after: Delivery | None = None,
    only_closed: bool = False,
    name: str | None = None,
    client: str | None = None,
) -> Subscription:
    """Reads the deliveries of a group: as `Client.deliveries`, without being a client."""
    cluster = config if isinstance(config, Cluster) else read_cluster(config)
    check_closing(only_closed, cluster.order == "real-time")
    group_id = cluster.group_id(group)
    rpc = RpcClient(cluster.name, cluster.addresses, cluster.limits, cluster.client_transport(client))
    return Subscription(rpc, group_id, cluster.topology, since=since, after=after, only_closed=only_closed, name=name)


def run_replica(
    config: Path | str | Cluster,
    name: str,
    on_delivery: Callable[[Delivery], None] | None = None,
    *,
    take: "Take | None" = None,
    install: "Install | None" = None,
    on_missed: Callable[[int, int], None] | None = None,
    delivered_until: int = 0,
    compare_every: int = 0,
    only_closed: bool = False,
    on_closed: Callable[[int], None] | None = None,
    schedule: "StateSchedule | None" = None,
    client: str | None = None,
) -> "Replica":
    """Runs the node `name` inside this program; use it with `async with`, or `open` and `close`.

    `on_delivery` is called with every message delivered there, in order, each once. `take` exports the application's
    state, and `install` replaces it by an exported one (with the number of deliveries that it contains): with them no
    state is missed when the replica restarts or installs a snapshot. `take` is called between two deliveries, and
    returns bytes, or an iterator of pieces of bytes, which are drawn in a thread while deliveries go on; each piece is
    of the state at the call. `install` is given what `take` returned, pieces in a thread. `schedule` says when the
    state is taken. Without them, `delivered_until` is the number of deliveries that the application already has, and
    `on_missed(first, position)` reports that deliveries first to position - 1 will not come.

    `compare_every`: every so many deliveries the replica compares a digest of what `take` returns with those of the
    other replicas of its group, and stops if a majority has another one. Set it, with the same number at all replicas,
    if `take` gives equal bytes for equal states: no times, random numbers, addresses, or sets in their own order.

    In a cluster with `order = "real-time"`, `only_closed` calls `on_delivery` when a message is closed, not before; and
    `on_closed(position)` reports that everything that `on_delivery` got before a position is closed.
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
        compare_every=compare_every,
        only_closed=only_closed,
        on_closed=on_closed,
        schedule=schedule,
    )


def run_service(
    config: Path | str | Cluster, name: str, service: type[Service], *, client: str | None = None
) -> "Replica":
    """Runs the node `name` inside this program, with a service on it; use it with `async with`, or `open` and `close`.

    All nodes of a cluster run the same service. Without `order` in cluster.toml they choose "real-time": calls are then
    linearizable over all groups. `client` is the name whose certificate the node uses to multicast values to other
    groups, where cluster.toml names several clients.
    """
    from amcast.live.server.replica import Replica

    cluster = config if isinstance(config, Cluster) else read_cluster(config)
    cluster = cluster.for_service()
    make_service = make_service_factory(cluster, name, describe_service(service), client)
    return Replica(
        cluster, name, cluster_spec(cluster), lambda: connect(cluster, client=client), make_service=make_service
    )


def make_service_factory(
    cluster: Cluster, name: str, description: Description, client: str | None = None
) -> "Callable[[], ServiceHost]":
    """What makes the service of one node, for each incarnation of it."""
    from amcast.live.server.service_host import ServiceHost, check_limits

    check_limits(cluster.limits)
    topology = cluster.topology
    group = topology.group_of(cluster.process_of(name))
    assert group is not None, f"node {name} is in no group"
    description = cluster.describe_service(description)
    _check_exchange(cluster, description, client)
    names = topology.names_of(topology.groups)
    return lambda: ServiceHost(description, topology.names[group], names, lambda: connect(cluster, client=client))


def _check_exchange(cluster: Cluster, description: Description, client: str | None) -> None:
    """Refuses a client that may not give the values that a service exchanges between groups."""
    security = cluster.client_transport(client).security
    yields = [name for name in description.operations if isgeneratorfunction(getattr(description.service, name))]
    if security is None or not yields or len(cluster.topology.groups) == 1:
        return
    name = security.me.name
    if not cluster.clients[name].exchange:
        raise UsageError(
            f"{description.name}.{yields[0]} exchanges values between groups, and client {name} may not give them;"
            f" expected clients.{name}.exchange = true, and that only nodes have its key"
        )


def local_cluster(
    cluster: Cluster,
    *,
    steps: Path | None = None,
    skew: Path | None = None,
    service: str = "",
    client: str | None = None,
) -> "LocalCluster":
    """Makes a launcher of the whole cluster as local processes; use it with `with`. `service` is MODULE:CLASS, and
    `client` the name whose certificate it uses."""
    from amcast.live.operations.local_cluster import LocalCluster

    command = [sys.executable, "-m", "amcast.cluster"]
    for option, folder in (("--steps", steps), ("--skew", skew)):
        if folder is not None:
            command += [option, str(folder)]
    command += ["--service", service] if service else []
    command += ["--as", client] if client else []
    return LocalCluster(cluster, command)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m amcast.cluster", description="Run one node of a cluster.")
    parser.add_argument("config", type=Path, help="the cluster.toml")
    parser.add_argument("node", help="the node: GROUP/NUMBER, such as orders/1")
    parser.add_argument("--steps", type=Path, help="folder for a log of every step")
    parser.add_argument(
        "--skew", type=Path, help="folder of files (orders-1) with the seconds to add to a node's clock"
    )
    parser.add_argument("--service", default="", help="a service to run on it: MODULE:CLASS, such as bank:Bank")
    parser.add_argument("--as", dest="client", help="the client whose certificate a service uses, with TLS")
    options = parser.parse_args(arguments)
    from amcast.live.server import node

    try:
        cluster, make_service = read_cluster(options.config), None
        if options.service:
            cluster = cluster.for_service()
            make_service = make_service_factory(cluster, options.node, load_service(options.service), options.client)
        return node.main(cluster, options.node, cluster_spec(cluster), options.steps, options.skew, make_service)
    except UsageError as error:
        print(error, file=sys.stderr)
        return 64


if __name__ == "__main__":
    sys.exit(main())
