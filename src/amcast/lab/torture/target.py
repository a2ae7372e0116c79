"""The cluster that faults strike: which nodes may be struck, commands of operators, and what must not happen."""

import random
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from amcast.kernel.errors import CannotTellError
from amcast.kernel.ids import GroupId
from amcast.live.config.cluster import Cluster
from amcast.live.operations.cluster_status import wait_until_ready
from amcast.live.operations.local_cluster import LocalCluster
from amcast.live.torture.cuts import CuttableNetwork

READY_S: Final = 90.0
"""Within this time a node that was damaged and healed is ready."""
COMMAND_S: Final = 120.0


class TorturedCluster:
    """The nodes of a run that is struck by faults, in the present configuration."""

    def __init__(
        self, running: LocalCluster, network: CuttableNetwork, replicas: int, seed: int, say: Callable[[str], None]
    ) -> None:
        self.running = running
        self.network = network
        self.replicas = replicas
        """The size of groups, apart from members that are being replaced."""
        self.rng = random.Random(f"{seed} nemesis")
        self.say = say
        self.violations: list[str] = []
        """Liveness that was claimed and did not come; nodes that exited by themselves; folders that were accepted."""
        self.removed: set[str] = set()
        """Nodes that were removed from their groups, and exit by themselves."""
        self.former: dict[GroupId, set[str]] = {}
        """By group: the names of all members that it ever lost."""
        self.impaired: set[str] = set()
        """Nodes that are struck already in this round."""
        self.spoilt: set[GroupId] = set()
        """Groups that have a member with a damaged folder in this round."""

    @property
    def cluster(self) -> Cluster:
        """The cluster in its present configuration."""
        return self.running.cluster

    @property
    def folder(self) -> Path:
        """The folder of the run."""
        return self.cluster.file.parent

    def data_folder(self, node: str) -> Path:
        """The data folder of a node."""
        return self.cluster.data_folder(self.cluster.process_of(node))

    def group_of(self, node: str) -> GroupId:
        """The group of a node."""
        group = self.cluster.topology.group_of(self.cluster.process_of(node))
        assert group is not None
        return group

    def members(self, group: GroupId) -> list[str]:
        """The nodes of a group."""
        return [self.cluster.name_of(process) for process in self.cluster.topology.members(group)]

    # Choices

    def choose_nodes(self, most: int, among: Sequence[str] | None = None) -> list[str]:
        """Draws nodes that this round has not struck yet."""
        able = sorted(node for node in (among or self.cluster.nodes()) if node not in self.impaired)
        nodes = self.rng.sample(able, min(most, len(able)))
        self.impaired.update(nodes)
        return nodes

    def draw_count(self) -> int:
        """One node most often; sometimes two, or all."""
        return self.rng.choice((1, 1, 1, 2, len(self.cluster.nodes())))

    def choose_folder(self) -> str | None:
        """Draws a node whose folder may be damaged: one of each group in a round, so that the others can heal it."""
        groups = [group for group in self.cluster.topology.groups if group not in self.spoilt]
        able = [node for group in groups for node in self.members(group)]
        chosen = self.choose_nodes(1, able) if able else []
        self.spoilt.update(map(self.group_of, chosen))
        return chosen[0] if chosen else None

    # Nodes

    def start(self, nodes: Sequence[str]) -> None:
        """Starts nodes; one that does not start is a violation."""
        try:
            self.running.start(*nodes)
        except CannotTellError as error:
            self.violations.append(str(error))

    def stop(self, nodes: Sequence[str]) -> None:
        """Stops nodes in good order; one that exits with an error is a violation."""
        try:
            self.running.stop(*nodes)
        except CannotTellError as error:
            self.violations.append(f"a node that should stop in good order did not: {error}")

    def require_ready(self, nodes: Sequence[str], after: str) -> None:
        """Waits until nodes are ready; the violation says what happened before."""
        answers = wait_until_ready(self.cluster, None, list(nodes), READY_S)
        for node in nodes:
            status = answers[node]
            if not status.get("ready"):
                why = status.get("error") or "; ".join([*status["not_ready_reasons"], *status["advice"]])
                self.violations.append(f"node {node} is not ready {READY_S:.0f} s {after}: {why}")

    def command(self, *arguments: str) -> tuple[int, str]:
        """Runs a command as an operator does; returns its exit code and what it printed."""
        command = [sys.executable, "-m", "amcast", *arguments]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=COMMAND_S)
        except subprocess.TimeoutExpired:
            return -1, f"amcast {' '.join(arguments)} runs for more than {COMMAND_S:.0f} s"
        return done.returncode, (done.stdout + done.stderr).strip()
