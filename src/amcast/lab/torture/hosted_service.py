"""A service under torture: the program that runs it at every node, and the judgement of the states that it ends with.

    python -m amcast.lab.torture.hosted_service bank:Bank cluster.toml orders/1        until SIGTERM

When faults have healed and everything is delivered, each replica is asked for its state. Replicas of a group must have
the same bytes at the same position, nothing may wait for another group, and the invariants of the user, which judge one
service of each group, must hold.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from amcast.cluster import run_service
from amcast.lab.torture.ledger import keep_running
from amcast.live.config.cluster import Cluster
from amcast.live.torture.service_session import ServiceCaller, ServiceLoad
from amcast.live.torture.service_states import ReplicaState, collect_states
from amcast.services.declaration import Description
from amcast.services.executor import Executor
from amcast.services.loader import load_name, load_service
from amcast.simulation.services.drawn_calls import call_at_random

PROGRAM: Final = "amcast.lab.torture.hosted_service"
FOLDER: Final = "states"


@dataclass
class TorturedService:
    """What is hosted, called and judged."""

    reference: str
    description: Description
    load: ServiceLoad
    invariants: Sequence[Callable[[Mapping[str, Any]], object]]
    states: dict[str, ReplicaState] = field(default_factory=dict)
    """By node, when the run has ended."""

    def collect(self, cluster: Cluster, folder: Path) -> None:
        """Asks all replicas for their states, when no command waits for another group any more."""
        self.states = collect_states(cluster, folder, lambda node, state: bool(self._restore(cluster, node, state)[1]))

    def _restore(self, cluster: Cluster, node: str, state: ReplicaState) -> tuple[Any, str]:
        """The service of a replica, and what it waits for."""
        groups = cluster.topology.names_of(cluster.topology.groups)
        executor = Executor(self.description, node.rpartition("/")[0], groups)
        executor.restore(state.snapshot, state.position)
        return executor.service, executor.describe_waiting()

    def judge(self, cluster: Cluster) -> list[str]:
        """What is wrong with the states, in sentences."""
        violations: list[str] = []
        services: dict[str, Any] = {}
        for group in cluster.topology.groups:
            name = cluster.topology.names[group]
            nodes = [cluster.name_of(process) for process in cluster.topology.members(group)]
            states = {node: self.states[node] for node in nodes if node in self.states}
            if not states:
                continue
            first, *others = states
            for node in others:
                if states[node] != states[first]:
                    violations.append(
                        f"replicas {first} and {node} have different states at positions {states[first].position} and"
                        f" {states[node].position}"
                    )
            services[name], waiting = self._restore(cluster, first, states[first])
            if waiting:
                violations.append(f"{first} still waits: {waiting}")
        for invariant in self.invariants:
            wrong = invariant(services)
            if isinstance(wrong, str) or wrong is False:
                violations.append(f"{getattr(invariant, '__name__', invariant)} does not hold at the end: {wrong}")
        return violations


def load_tortured(reference: str, load: str, invariants: Sequence[str]) -> TorturedService:
    """What a command line names; without a load, random calls."""
    description = load_service(reference)

    async def call_one(caller: ServiceCaller) -> None:
        await call_at_random(caller.service(description), description, caller.random)

    given = load_name(load, "load") if load else call_one
    return TorturedService(reference, description, given, [load_name(one, "invariant") for one in invariants])


def main(reference: str, config: Path, node: str) -> int:
    """Runs the service until SIGTERM."""
    service = load_service(reference).service
    return keep_running(config, node, lambda: run_service(config, node, service))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2]), sys.argv[3]))
