"""Changes of a group's replicas by an operator: which are valid, and how they are carried out.

A change is a message to all groups (`kernel/reconfiguration.py`). It starts from the topology of the running nodes, not
from a file that may be old; of two operators who start from the same one, the first wins and the other gets "stale".
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
from amcast.storage.client_ids import STRIDE
from amcast.trace.recorder import Recorder

POLL_S: Final = 0.1
LEAVE_S: Final = 10.0
"""How long to wait for a removed node; it leaves when no other process needs it."""

Outcome = Literal["done", "stale"]


@dataclass(frozen=True)
class ReplicaChange:
    """One replica to add or to remove."""

    node: str
    address: str = ""
    """Address of the new replica; empty for a removal."""
    region: str = ""

    @property
    def is_addition(self) -> bool:
        return bool(self.address)


def parse_change(add: str, remove: str, region: str = "") -> ReplicaChange:
    """Parses the options of the command line."""
    if bool(add) == bool(remove):
        raise UsageError("expected --add GROUP/NUMBER=HOST:PORT or --remove GROUP/NUMBER: one replica at a time")
    if remove:
        return ReplicaChange(remove)
    node, equals, address = add.partition("=")
    if not equals:
        raise UsageError(f"--add {add!r}; expected GROUP/NUMBER=HOST:PORT, such as orders/4=10.0.0.7:7001")
    parse_address(address, f"--add {add}")
    return ReplicaChange(node, address, region)


def next_topology(cluster: Cluster, change: ReplicaChange) -> Topology:
    """The topology after a change, if the current cluster allows it."""
    topology = cluster.topology
    home, _, number = change.node.rpartition("/")
    group = cluster.group_id(home)
    if not change.is_addition:
        process = cluster.process_of(change.node)
        if not any(other < STRIDE for other in topology.servers if other != process):
            raise UsageError(
                f"--remove {change.node}: it is the last process below {STRIDE}, and only those allocate client"
                " ids; expected another replica"
            )
        return change_topology(topology, group, remove=process, endpoint=(change.node, ""))
    if not number.isdigit() or number.startswith("0"):
        raise UsageError(f"--add {change.node}: expected {home}/NUMBER, a whole number from 1 on")
    if change.node in cluster.names:
        raise UsageError(f"--add {change.node}: the node exists; expected an unused name")
    address = parse_address(change.address, f"--add {change.node}")
    for name, process in cluster.names.items():
        if cluster.addresses[process] == address:
            raise UsageError(
                f"--add {change.node}: {change.address} is the address of {name}; expected an unused address"
            )
    plain = cluster.security.mode == "plain" and not cluster.security.plain_beyond_loopback
    if plain and not is_loopback(address[0]):
        raise UsageError(
            f'--add {change.node}: {change.address} with security.mode = "plain"; expected a loopback address'
        )
    return change_topology(
        topology, group, add=topology.next_process, endpoint=(change.node, change.address), region=change.region
    )


def carry_out_change(
    cluster: Cluster,
    change: ReplicaChange,
    topology: Topology,
    client: str | None,
    connect: Callable[..., Client],
    timeout_s: float,
) -> tuple[Outcome, bool]:
    """Carries out a change as a client; returns the outcome, and whether a removed node has left."""

    async def carry_out() -> tuple[Outcome, bool]:
        rpc = RpcClient(cluster.name, cluster.addresses, cluster.limits, cluster.client_transport(client))
        if not change.is_addition:
            await check_remaining_quorum(rpc, topology, change)
        with _record_change(cluster, topology.configuration) as recorder:
            async with connect(cluster, recorder=recorder) as operator:
                outcome = await order_change(operator, rpc, cluster.topology, topology, timeout_s)
        has_left = (
            outcome == "done" and not change.is_addition and await wait_until_left(rpc, cluster.process_of(change.node))
        )
        return outcome, has_left

    return asyncio.run(carry_out())


async def check_remaining_quorum(rpc: RpcClient, topology: Topology, change: ReplicaChange) -> None:
    """Refuses to remove a replica if fewer than a quorum of the remaining ones take part. A replica that was added and
    waits for its admission does not: without the removed one it might wait for ever."""
    home = change.node.rpartition("/")[0]
    group = next(group for group, name in topology.names.items() if name == home)
    answers = await rpc.fetch_progress(topology.members(group))
    able = sum(progress.has_state for progress in answers.values())
    if able < topology.quorum(group):
        raise UsageError(
            f"--remove {change.node}: of the {len(topology.members(group))} replicas that would remain in {home},"
            f" {len(answers)} answer and {able} have the group's state; expected a majority, {topology.quorum(group)}"
        )


@contextmanager
def _record_change(cluster: Cluster, configuration: int) -> Iterator[Recorder | None]:
    """Opens a recorder if the nodes record a trace on this machine: the change is part of it, whatever its outcome."""
    if cluster.trace_mode == "off" or not cluster.trace_folder.is_dir():
        yield None
        return
    from amcast.live.server.trace_recorder import open_recorder

    recorder = open_recorder(cluster, f"change-{configuration:05d}")
    try:
        yield recorder
    finally:
        recorder.close()


async def order_change(
    client: Client, rpc: RpcClient, before: Topology, topology: Topology, timeout_s: float
) -> Outcome:
    """Multicasts a change and waits until every group has delivered it; returns whether it took effect."""
    try:
        await client.multicast(topology.groups, encode_change(topology), timeout_s)
    except CannotTellError as error:
        raise CannotTellError(f"{error}; run `amcast status` before another attempt") from None
    deadline = asyncio.get_running_loop().time() + timeout_s
    while True:
        newest = await rpc.fetch_topology()
        if newest is not None and newest.configuration >= topology.configuration:
            return "done" if _took_effect(before, topology, newest) else "stale"
        if asyncio.get_running_loop().time() > deadline:
            raise CannotTellError(f"no node is in configuration {topology.configuration} after {timeout_s} s")
        await asyncio.sleep(POLL_S)


def _took_effect(before: Topology, wanted: Topology, newest: Topology) -> bool:
    """Whether this change took effect, judged by the newest topology."""
    if newest.configuration == wanted.configuration:
        return newest == wanted
    added = set(wanted.servers) - set(before.servers)
    removed = set(before.servers) - set(wanted.servers)
    return all(newest.group_of(process) is None for process in removed) and all(
        newest.endpoints.get(process, ("", ""))[0] == wanted.endpoints[process][0] for process in added
    )


async def wait_until_left(rpc: RpcClient, process: int, timeout_s: float = LEAVE_S) -> bool:
    """Waits until a removed node stops answering."""
    deadline = asyncio.get_running_loop().time() + timeout_s
    while await rpc.fetch_progress([process]):
        if asyncio.get_running_loop().time() > deadline:
            return False
        await asyncio.sleep(POLL_S)
    return True
