"""Posts of a social network: a message goes to every partition that holds a follower of the user who posts.

Source: paper 003, section 5.3: 10,000 users in 16 partitions; the posts of 7110 users stay in one partition, those of
2474 reach two, of 376 three, of 40 four or five; 64 bytes. The authors' graph is not public. The graph here has exactly
these counts; data/README.md says how it was made. Every post is by a user chosen at random, so the classes occur in
these proportions.
"""

from random import Random

from amcast.kernel.ids import GroupId, ProcessId
from amcast.kernel.topology import Topology
from amcast.workloads.base import PayloadConfig, Workload, draw_below
from amcast.workloads.tables import social_users


class SocialConfig(PayloadConfig, frozen=True):
    pass


class Social(Workload):
    name = "social"

    def __init__(self, topology: Topology, seed: int, config: SocialConfig) -> None:
        super().__init__(topology, seed, config)
        self._size = config.payload
        groups = topology.groups
        self._users = [tuple(sorted(groups[partition] for partition in reached)) for reached in social_users()]

    def draw_message(self, client: ProcessId, random: Random) -> tuple[tuple[GroupId, ...], int]:
        return self._users[draw_below(random, len(self._users))], self._size
