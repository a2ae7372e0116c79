"""An operator's change of a group's replicas: what may be asked for, how it is asked for, and the file that follows.

A change is a message to all groups (`kernel/reconfiguration.py`). It starts from the topology that the running nodes
tell, not from a file that may be old; of two operators who start from the same one, the first wins and the other is
told.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, Literal

from amcast.kernel.errors import CannotTellError, UsageError
from amcast.kernel.reconfiguration import change_topology, encode_change
from amcast.kernel.topology import Topology
from amcast.live.client.client import Client
from amcast.live.config.cluster import Cluster, parse_address
from amcast.live.rpc.client import RpcClient
from amcast.live.security.permissions import is_loopback
from amcast.live.storage.client_ids import STRIDE
from amcast.trace.recorder import Recorder

POLL_S: Final = 0.1
LEAVE_S: Final = 10.0
"""How long a removed node is waited for; it leaves when nobody needs it any more."""

Outcome = Literal["done", "stale"]


@dataclass(frozen=True)
class ReplicaChange:
    """One replica more, or one fewer."""

    node: str
    address: str = ""
    """Where the new one will be; empty: this one shall go."""
    region: str = ""

    @property
    def is_addition(self) -> bool:
        return bool(self.address)


def parse_change(add: str, remove: str, region: str = "") -> ReplicaChange:
    """From what was written on the command line."""
    if bool(add) == bool(remove):
        raise UsageError("expected --add GROUP/NUMBER=HOST:PORT or --remove GROUP/NUMBER: one replica at a time")
    if remove:
        return ReplicaChange(remove)
    node, equals, address = add.partition("=")
    if not equals:
        raise UsageError(f"--add {add!r}; expected GROUP/NUMBER=HOST:PORT, such as orders/4=10.0.0.7:7001")
    parse_address(address, f"--add {add}")
    return ReplicaChange(node, address, region)


def next_topology(cluster: Cluster, wish: ReplicaChange) -> Topology:
    """The topology that fulfils a wish, if the cluster as it is now allows that."""
    topology = cluster.topology
    home, _, number = wish.node.rpartition("/")
    group = cluster.group_id(home)
    if not wish.is_addition:
        process = cluster.process_of(wish.node)
        if not any(other < STRIDE for other in topology.servers if other != process):
            raise UsageError(
                f"--remove {wish.node}: it is the last process below {STRIDE}, and only those give clients their"
                " numbers; expected another one to go"
            )
        return change_topology(topology, group, remove=process, endpoint=(wish.node, ""))
    if not number.isdigit() or number.startswith("0"):
        raise UsageError(f"--add {wish.node}: expected {home}/NUMBER, a whole number from 1 on")
    if wish.node in cluster.names:
        raise UsageError(f"--add {wish.node}: there is such a node; expected a name that nobody has")
    address = parse_address(wish.address, f"--add {wish.node}")
    for name, process in cluster.names.items():
        if cluster.addresses[process] == address:
            raise UsageError(f"--add {wish.node}: {wish.address} is the address of {name}; expected one of its own")
    plain = cluster.security.mode == "plain" and not cluster.security.plain_beyond_loopback
    if plain and not is_loopback(address[0]):
        raise UsageError(f'--add {wish.node}: {wish.address} with security.mode = "plain"; expected a loopback address')
    return change_topology(
        topology, group, add=topology.next_process, endpoint=(wish.node, wish.address), region=wish.region
    )


def carry_out_change(
    cluster: Cluster,
    wish: ReplicaChange,
    topology: Topology,
    client: str | None,
    connect: Callable[..., Client],
    timeout_s: float,
) -> tuple[Outcome, bool]:
    """Make a change, in a client's name; what came of it, and whether a node that was removed has left."""

    async def carry_out() -> tuple[Outcome, bool]:
        asker = RpcClient(cluster.name, cluster.addresses, cluster.limits, cluster.client_transport(client))
        if not wish.is_addition:
            await check_remaining_quorum(asker, topology, wish)
        with _record_change(cluster, topology.configuration) as recorder:
            async with connect(cluster, recorder=recorder) as operator:
                outcome = await order_change(operator, asker, cluster.topology, topology, timeout_s)
        gone = (
            outcome == "done" and not wish.is_addition and await wait_until_left(asker, cluster.process_of(wish.node))
        )
        return outcome, gone

    return asyncio.run(carry_out())


async def check_remaining_quorum(asker: RpcClient, topology: Topology, wish: ReplicaChange) -> None:
    """Refuse to remove a replica if those that remain could not go on by themselves."""
    home = wish.node.rpartition("/")[0]
    group = next(group for group, name in topology.names.items() if name == home)
    there = await asker.fetch_progress(topology.members(group))
    if len(there) < topology.quorum(group):
        raise UsageError(
            f"--remove {wish.node}: of the {len(topology.members(group))} replicas that would remain in {home},"
            f" {len(there)} answer; expected a majority, {topology.quorum(group)}"
        )


@contextmanager
def _record_change(cluster: Cluster, number: int) -> Iterator[Recorder | None]:
    """Where the nodes record a trace on this machine, the change is part of it, whatever comes of it."""
    if cluster.trace_mode == "off" or not cluster.trace_folder.is_dir():
        yield None
        return
    from amcast.live.server.trace_recorder import open_recorder

    recorder = open_recorder(cluster, f"change-{number:05d}")
    try:
        yield recorder
    finally:
        recorder.close()


async def order_change(
    client: Client, asker: RpcClient, before: Topology, topology: Topology, timeout_s: float
) -> Outcome:
    """Multicast a change and wait until every group has delivered it; whether it is the one that counts."""
    try:
        await client.multicast(topology.groups, encode_change(topology), timeout_s)
    except CannotTellError as error:
        raise CannotTellError(f"{error}; look with `amcast status` before you ask again") from None
    deadline = asyncio.get_running_loop().time() + timeout_s
    while True:
        newest = await asker.fetch_topology()
        if newest is not None and newest.configuration >= topology.configuration:
            return "done" if _took_effect(before, topology, newest) else "stale"
        if asyncio.get_running_loop().time() > deadline:
            raise CannotTellError(f"no node says that it is in topology {topology.configuration} after {timeout_s} s")
        await asyncio.sleep(POLL_S)


def _took_effect(before: Topology, wanted: Topology, newest: Topology) -> bool:
    """Whether it was this change that was made, from what came of it or of later ones."""
    if newest.configuration == wanted.configuration:
        return newest == wanted
    came = set(wanted.servers) - set(before.servers)
    went = set(before.servers) - set(wanted.servers)
    return all(newest.group_of(process) is None for process in went) and all(
        newest.endpoints.get(process, ("", ""))[0] == wanted.endpoints[process][0] for process in came
    )


async def wait_until_left(asker: RpcClient, process: int, patience_s: float = LEAVE_S) -> bool:
    """Wait until a removed node does not answer any more."""
    deadline = asyncio.get_running_loop().time() + patience_s
    while await asker.fetch_progress([process]):
        if asyncio.get_running_loop().time() > deadline:
            return False
        await asyncio.sleep(POLL_S)
    return True
