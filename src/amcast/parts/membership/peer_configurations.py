"""What a process knows about the configurations that other processes have reached."""

from collections.abc import Mapping

from amcast.kernel.ids import GroupId, ProcessId
from amcast.kernel.topology import Topology


class PeerConfigurations:
    """The configuration that each process is known to have reached, and the newest configuration of all."""

    __slots__ = ("newest", "reached")

    def __init__(self) -> None:
        self.reached: dict[ProcessId, int] = {}
        self.newest: tuple[int, bytes] = (0, b"")
        """The newest known configuration and its topology; the topology is empty while it is unknown."""

    def learn(self, configuration: int, topology: bytes = b"") -> None:
        """Records that a configuration exists."""
        self.newest = max(self.newest, (configuration, topology))

    def record_announcement(self, process: ProcessId, configuration: int, topology: bytes) -> None:
        """Records that a process announced a configuration."""
        self.reached[process] = max(configuration, self.reached.get(process, 0))
        self.learn(configuration, topology)

    def have_quorums_reached(self, configuration: int, topology: Topology, groups_up: Mapping[GroupId, bool]) -> bool:
        """Whether a majority of every group of a topology is known to have reached a configuration. Groups that are
        suspected as a whole do not count, for protocols that survive their loss."""
        for group in topology.groups:
            count = sum(self.reached.get(member, 0) >= configuration for member in topology.members(group))
            if count < topology.quorum(group) and groups_up.get(group, True):
                return False
        return True
