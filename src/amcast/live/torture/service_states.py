"""The states that the replicas of a service have when a tortured cluster is idle."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from amcast.kernel.errors import CannotTellError
from amcast.live.config.cluster import Cluster
from amcast.live.rpc.client import RpcClient
from amcast.live.storage.state_files import read_state

ATTEMPTS: Final = 40
PAUSE_S: Final = 0.5


class ReplicaState(NamedTuple):
    """The state of one replica."""

    position: int
    snapshot: tuple[bytes, ...]
    """In pieces."""


def collect_states(
    cluster: Cluster, folder: Path, is_waiting: Callable[[str, ReplicaState], bool]
) -> dict[str, ReplicaState]:
    """Asks all nodes for their states, until nothing is delivered any more and none waits for another group, or some
    time has passed."""
    return asyncio.run(_collect(cluster, folder, is_waiting))


async def _collect(
    cluster: Cluster, folder: Path, is_waiting: Callable[[str, ReplicaState], bool]
) -> dict[str, ReplicaState]:
    folder.mkdir(exist_ok=True)
    nodes = {cluster.process_of(node): node for node in cluster.nodes()}
    transport = cluster.node_transport(next(iter(nodes.values())))
    rpc = RpcClient(cluster.name, cluster.addresses, cluster.limits, transport)
    states: dict[str, ReplicaState] = {}
    for _ in range(ATTEMPTS):
        progress = await rpc.fetch_progress(nodes)
        for process, node in nodes.items():
            if process not in progress:
                raise CannotTellError(f"node {node} does not answer, and its state is not known")
            file = await rpc.fetch_state([process], progress[process].next, folder)
            state = read_state(file.path)
            states[node] = ReplicaState(file.position, (state,) if isinstance(state, bytes) else tuple(state))
        after = await rpc.fetch_progress(nodes)
        is_still = all(process in after and after[process].next == progress[process].next for process in nodes)
        if is_still and not any(is_waiting(node, state) for node, state in states.items()):
            break
        await asyncio.sleep(PAUSE_S)
    return states
