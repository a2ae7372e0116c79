"""Where protocols, parts and the live room meet: a cluster's nodes, and clients that talk to them.

async with amcast.service.connect("cluster.toml") as client:
    receipt = await client.multicast({"orders", "stock"}, b"...")

python -m amcast.service cluster.toml orders/1            one node, until SIGTERM
"""

import argparse
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from amcast.kernel.effects import Deliver
from amcast.kernel.errors import WrongUse
from amcast.kernel.ids import ProcessId
from amcast.kernel.spec import Spec
from amcast.live import node
from amcast.live.batch import Delivery, opened
from amcast.live.blocking import BlockingClient
from amcast.live.client import Client, drawn_number
from amcast.live.config import Cluster, read_cluster
from amcast.live.host import Host
from amcast.live.launch import Launcher
from amcast.parts.bodies.node import NodeConfig
from amcast.parts.bodies.omega import OmegaConfig
from amcast.parts.bodies.session import SessionConfig
from amcast.parts.node import noded
from amcast.parts.session import Client as Session
from amcast.protocols.catalogue import protocol
from amcast.trace.recorder import Recorder


def cluster_spec(cluster: Cluster) -> Spec:
    """What the nodes of a cluster run: its protocol, inside nodes that answer clients and watch each other."""
    bare = protocol(cluster.protocol).on(cluster.topology)
    bare = replace(bare, contact=bare.contacts(bare.configure(cluster.options)))
    alone = all(len(cluster.topology.members(group)) == 1 for group in cluster.topology.groups)
    return noded(bare, NodeConfig(omega=None if alone else OmegaConfig()))


def connect(
    config: Path | str | Cluster,
    *,
    me: ProcessId | None = None,
    recorder: Recorder | None = None,
    connect_s: float = 10.0,
) -> Client:
    """A client of the cluster that a cluster.toml describes; use it with `async with`.

    `me` gives it a number instead of a random one; a number must never be used twice with one cluster.
    """
    cluster = config if isinstance(config, Cluster) else read_cluster(config)
    spec = cluster_spec(cluster)
    number = drawn_number() if me is None else me
    return Client(
        Session(number, cluster.topology, spec.contact, SessionConfig()),
        spec,
        cluster.addresses,
        cluster=cluster.name,
        limits=cluster.limits,
        recorder=recorder,
        connect_s=connect_s,
    )


def connect_blocking(
    config: Path | str | Cluster, *, recorder: Recorder | None = None, connect_s: float = 10.0
) -> BlockingClient:
    """The same for programs without an event loop; use it with `with`."""
    return BlockingClient(lambda: connect(config, recorder=recorder, connect_s=connect_s))


@asynccontextmanager
async def replica(
    config: Path | str | Cluster, name: str, on_delivery: Callable[[Delivery], None], *, handed: int = 0
) -> AsyncIterator[Host]:
    """Be the node `name` inside this program: every message delivered there is handed to `on_delivery`.

    `handed`: the application has everything before this position already (`Delivery.position`).
    """
    cluster = config if isinstance(config, Cluster) else read_cluster(config)

    def hand(effect: Deliver) -> None:
        for delivery in opened(effect):
            on_delivery(delivery)

    me = cluster.node(name)
    host, recorder = node.built(cluster, me, cluster_spec(cluster), hand, handed=handed)
    try:
        await host.listen(cluster.addresses[me])
        host.start(cluster.addresses)
        yield host
    finally:
        await host.stop()
        if recorder is not None:
            recorder.close()


def launcher(cluster: Cluster, *, steps: Path | None = None) -> Launcher:
    """The whole cluster as local processes; use it with `with`."""
    command = [sys.executable, "-m", "amcast.service"]
    return Launcher(cluster, command if steps is None else [*command, "--steps", str(steps)])


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m amcast.service", description="Be one node of a cluster.")
    parser.add_argument("config", type=Path, help="the cluster.toml")
    parser.add_argument("node", help="which one: GROUP/NUMBER, for example orders/1")
    parser.add_argument("--steps", type=Path, help="a folder for a log of every step")
    given = parser.parse_args(arguments)
    try:
        cluster = read_cluster(given.config)
        return node.main(cluster, given.node, cluster_spec(cluster), given.steps)
    except WrongUse as error:
        print(error, file=sys.stderr)
        return 64


if __name__ == "__main__":
    sys.exit(main())
