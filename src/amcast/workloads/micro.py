"""Microbenchmark: small messages to groups chosen at random. Convoy: the same, with several messages in flight.

Sources: paper 003, section 5.1 (64 bytes, 1 to 16 groups, clients chosen so that destinations x clients = 1536); paper
002, section 7.2 (the client's own group is always among the destinations) and Fig. 5 (2 and 128 outstanding messages
per client, which makes messages wait for each other; the payload there is not published).
"""

from random import Random

from amcast.kernel.errors import UsageError
from amcast.kernel.ids import GroupId, ProcessId
from amcast.kernel.topology import Topology
from amcast.workloads.base import PayloadConfig, Workload, draw_between, draw_sample


class MicroConfig(PayloadConfig, frozen=True):
    destinations: int | tuple[int, int] = 1
    """How many groups a message addresses; a pair is a range, each number in it with equal probability."""
    home: bool = False
    """The client's home group is always one of them."""

    def __post_init__(self) -> None:
        super().__post_init__()
        low, high = self.range
        if not 1 <= low <= high:
            raise ValueError(f"destinations = {self.destinations}; expected 1 or more, or a range such as [1, 4]")

    @property
    def range(self) -> tuple[int, int]:
        wanted = self.destinations
        return (wanted, wanted) if isinstance(wanted, int) else wanted


class ConvoyConfig(MicroConfig, frozen=True):
    destinations: int | tuple[int, int] = 2
    home: bool = True
    outstanding: int = 2


class Micro(Workload):
    name = "micro"

    def __init__(self, topology: Topology, seed: int, config: MicroConfig) -> None:
        super().__init__(topology, seed, config)
        self._low, self._high = config.range
        self._size = config.payload
        if self._high > len(topology.groups):
            raise UsageError(
                f"options of workload {self.name}: destinations = {config.destinations};"
                f" expected at most the {len(topology.groups)} groups there are"
            )
        self._with_home = config.home
        self._others = {g: tuple(h for h in topology.groups if h != g) for g in topology.groups} if config.home else {}

    def draw_message(self, client: ProcessId, random: Random) -> tuple[tuple[GroupId, ...], int]:
        count = self._low if self._low == self._high else draw_between(random, self._low, self._high)
        if not self._with_home:
            return tuple(sorted(draw_sample(random, self.topology.groups, count))), self._size
        home = self.home_group(client)
        return tuple(sorted((home, *draw_sample(random, self._others[home], count - 1)))), self._size


class Convoy(Micro):
    name = "convoy"
