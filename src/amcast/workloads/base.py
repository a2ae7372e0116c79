"""The base of workloads: what each client sends next, and when it may.

Every client has its own random streams, derived from the seed and the client alone. So a client's tenth message is the
same whatever the protocol, the network or the other clients did before it, and two protocols are compared on the same
messages. Destinations and pauses come from different streams: another load does not change destinations.

Only `Random.random` is used, whose sequence Python promises to keep from version to version; `choice` and `sample` come
without that promise.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from hashlib import blake2b
from math import log
from random import Random
from typing import Literal, NamedTuple, TypeVar

from amcast.kernel.config import Config
from amcast.kernel.errors import UsageError
from amcast.kernel.ids import GroupId, ProcessId
from amcast.kernel.topology import Topology

SECOND_NS = 1_000_000_000
MAX_THINK_NS = 3600 * SECOND_NS
MAX_PAYLOAD = 16 * 2**20
MAX_OUTSTANDING = 1_000_000

T = TypeVar("T")


class DrawnMessage(NamedTuple):
    """A client's next message."""

    destinations: tuple[GroupId, ...]
    """Sorted, distinct."""
    size: int
    """Bytes of payload."""
    after_ns: int = 0
    """Closed loop: think time before it may be sent. Open loop: gap since the client's last arrival."""


class WorkloadConfig(Config, frozen=True):
    """Options of every workload: how often clients send, and how many messages at a time."""

    outstanding: int = 1
    """Messages that a client of a closed loop keeps in flight. A hint to the driver; draws do not depend on it."""
    stagger_ns: int = 0
    """Clients begin at times drawn from 0 to this, so that closed loops do not run in step."""
    think_ns: int = 0
    """Closed loop: time (or mean time) between an answer and the next message."""
    think: Literal["fixed", "exponential"] = "fixed"
    """"exponential" is cut off at ten times its mean, as in TPC-C."""
    rate_per_s: float = 0.0
    """Open loop, if not 0: Poisson arrivals per client and second, whatever the answers."""

    def __post_init__(self) -> None:
        self._within("outstanding", 1, MAX_OUTSTANDING)
        self._within("think_ns", 0, MAX_THINK_NS)
        self._within("stagger_ns", 0, MAX_THINK_NS)
        if not 0 <= self.rate_per_s <= SECOND_NS:
            raise ValueError(f"rate_per_s = {self.rate_per_s}; expected 0 (closed loop) to {SECOND_NS}")
        if self.rate_per_s and self.think_ns:
            raise ValueError("think_ns and rate_per_s are both set; expected one: a closed or an open loop")

    def _within(self, name: str, low: int, high: int) -> None:
        value = getattr(self, name)
        if not low <= value <= high:
            raise ValueError(f"{name} = {value}; expected {low} to {high}")

    def _share(self, name: str) -> None:
        value = getattr(self, name)
        if not 0 <= value <= 1:
            raise ValueError(f"{name} = {value}; expected a share from 0 to 1")


class PayloadConfig(WorkloadConfig, frozen=True):
    """Options of workloads whose messages all have one size."""

    payload: int = 64
    """Bytes."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._within("payload", 0, MAX_PAYLOAD)


class Workload(ABC):
    """Base of workloads. Subclasses draw the destinations and the size of one message."""

    name: str

    def __init__(self, topology: Topology, seed: int, config: WorkloadConfig) -> None:
        self.topology = topology
        self.seed = seed
        self.config = config
        self.home_groups = assign_home_groups(topology)
        self._messages: dict[ProcessId, Random] = {}
        self._pauses: dict[ProcessId, Random] = {}

    @property
    def outstanding(self) -> int:
        """How many messages each client keeps in flight in a closed loop."""
        return self.config.outstanding

    @property
    def is_open_loop(self) -> bool:
        """Whether clients send by the clock instead of waiting for answers."""
        return self.config.rate_per_s > 0

    def draw(self, client: ProcessId) -> DrawnMessage:
        """Draws the client's next message."""
        random = self._messages.get(client)
        start_ns = 0
        if random is None:
            random = self._messages[client] = random_stream(self.seed, "messages", client)
            if self.config.stagger_ns:
                start_ns = draw_below(random_stream(self.seed, "start", client), self.config.stagger_ns)
        destinations, size = self.draw_message(client, random)
        return DrawnMessage(destinations, size, start_ns + self._pause_ns(client))

    @abstractmethod
    def draw_message(self, client: ProcessId, random: Random) -> tuple[tuple[GroupId, ...], int]:
        """Destinations (sorted, distinct) and payload bytes of one message."""

    def home_group(self, client: ProcessId) -> GroupId:
        """The group a client belongs to; a server that multicasts itself belongs to its own."""
        home = self.home_groups.get(client)
        if home is None:
            home = self.topology.group_of(client)
        if home is None:
            raise UsageError(f"workload {self.name}: process {client} is in no group and no client")
        return home

    def _pause_ns(self, client: ProcessId) -> int:
        config = self.config
        if not config.rate_per_s and (config.think == "fixed" or not config.think_ns):
            return config.think_ns
        random = self._pauses.get(client)
        if random is None:
            random = self._pauses[client] = random_stream(self.seed, "pauses", client)
        exponential = -log(1.0 - random.random())
        if config.rate_per_s:
            return round(exponential * SECOND_NS / config.rate_per_s)
        return round(min(exponential, 10.0) * config.think_ns)


def assign_home_groups(topology: Topology) -> dict[ProcessId, GroupId]:
    """client -> home group: in turn over the groups that have a member at the client's site, or over all groups.

    A region's name may have a part behind a slash ("R2/clients", "r1/a"); the part before it is the site.
    """
    present: dict[str, list[GroupId]] = {}
    for group in topology.groups:
        for place in sorted({site_of_region(topology.region(member)) for member in topology.members(group)}):
            present.setdefault(place, []).append(group)
    next_place: dict[str, int] = {}
    homes = {}
    for client in topology.clients:
        place = site_of_region(topology.region(client))
        candidates: Sequence[GroupId] = present.get(place, topology.groups)
        place_index = next_place.get(place, 0)
        homes[client] = candidates[place_index % len(candidates)]
        next_place[place] = place_index + 1
    return homes


def site_of_region(region: str) -> str:
    """The part of a region's name before the slash."""
    return region.partition("/")[0]


def random_stream(seed: int, *names: object) -> Random:
    """The random stream of a seed for these names; the same in every interpreter."""
    text = "/".join(str(name) for name in (seed, "workload", *names))
    return Random(int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big"))


def draw_below(random: Random, limit: int) -> int:
    """One of 0, 1 ... limit - 1."""
    return int(random.random() * limit)


def draw_between(random: Random, low: int, high: int) -> int:
    """One of low ... high, both included."""
    return low + int(random.random() * (high - low + 1))


def draw_sample(random: Random, pool: Sequence[T], count: int) -> list[T]:
    """`count` different elements, every set with equal probability: the first steps of a shuffle."""
    elements = list(pool)
    for index in range(count):
        other = index + int(random.random() * (len(elements) - index))
        elements[index], elements[other] = elements[other], elements[index]
    return elements[:count]
