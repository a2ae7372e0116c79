"""A service under torture: the program that runs it at every node, and the judgement of the states that it ends with.

    python -m amcast.lab.torture.hosted_service bank:Bank cluster.toml orders/1        until SIGTERM

When faults have healed and everything is delivered, each replica is asked for its state. Replicas of a group must have
the same bytes at the same position, nothing may wait for another group, and the invariants of the user, which judge one
service of each group, must hold.
"""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
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

        def is_waiting(node: str, state: ReplicaState) -> bool:
            with self._restore(cluster, node, state) as executor:
                return bool(executor.describe_waiting())

        self.states = collect_states(cluster, folder, is_waiting)

    @contextmanager
    def _restore(self, cluster: Cluster, node: str, state: ReplicaState) -> Iterator[Executor]:
        """The service of a replica; one that keeps its state in files has them for so long."""
        groups = cluster.topology.names_of(cluster.topology.groups)
        executor = Executor(cluster.describe_service(self.description), node.rpartition("/")[0], groups)
        with TemporaryDirectory() as folder:
            executor.restore(state.snapshot, state.position, Path(folder))
            yield executor
            executor.close()

    def judge(self, cluster: Cluster) -> list[str]:
        """What is wrong with the states, in sentences."""
        with ExitStack() as stack:
            return self._judge(cluster, stack)

    def _judge(self, cluster: Cluster, stack: ExitStack) -> list[str]:
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
            executor = stack.enter_context(self._restore(cluster, first, states[first]))
            services[name] = executor.service
            if waiting := executor.describe_waiting():
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
