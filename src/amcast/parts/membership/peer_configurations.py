"""What a process knows about the configurations that other processes have reached."""

from collections.abc import Mapping

from amcast.kernel.ids import GroupId, ProcessId
from amcast.kernel.topology import Topology


class PeerConfigurations:
    """The configuration that each process is known to have reached, and the newest configuration of all."""

    __slots__ = ("newest", "reached", "reported")

    def __init__(self) -> None:
        self.reached: dict[ProcessId, int] = {}
        self.reported: dict[ProcessId, int] = {}
        """The configuration that each process was in when it first announced itself to a process without memory."""
        self.newest: tuple[int, bytes] = (0, b"")
        """The newest known configuration and its topology; the topology is empty while it is unknown."""

    def learn(self, configuration: int, topology: bytes = b"") -> None:
        """Records that a configuration exists."""
        self.newest = max(self.newest, (configuration, topology))

    def record_announcement(
        self, process: ProcessId, configuration: int, topology: bytes, is_without_memory: bool
    ) -> None:
        """Records that a process announced a configuration."""
        self.reached[process] = max(configuration, self.reached.get(process, 0))
        if is_without_memory:
            self.reported.setdefault(process, configuration)
        self.learn(configuration, topology)

    def have_quorums_reached(self, configuration: int, topology: Topology, groups_up: Mapping[GroupId, bool]) -> bool:
        """Whether a majority of every group of a topology is known to have reached a configuration. Groups that are
        suspected as a whole do not count, for protocols that survive their loss."""
        for group in topology.groups:
            count = sum(self.reached.get(member, 0) >= configuration for member in topology.members(group))
            if count < topology.quorum(group) and groups_up.get(group, True):
                return False
        return True

    def may_have_voted_in(self, configuration: int, topology: Topology, group: GroupId) -> bool:
        """Whether a process that lost its memory may have voted in a configuration before. A vote matters only as part
        of a majority. That is excluded once every majority of its group contains a member that reported an earlier
        configuration after the process came back."""
        members = topology.members(group)
        earlier = sum(self.reported.get(member, configuration) < configuration for member in members)
        return earlier <= len(members) - topology.quorum(group)
