"""The worst case under conflicts: how late can a delivery come, if an adversary chooses every delay between 0 and D?

A schedule is everything that is chosen: who multicasts what to whom at which time, how long each link takes, how long
single packets take where they differ from their link, and what the clocks show. The search begins with schedules drawn
at random (delays at the extremes, or one of the patterns known to hurt), climbs from the best of them by changing a
thing or two at a time, and begins anew. A found schedule is plain data: `replay` runs it again.

Links are FIFO: a packet that would overtake waits for the one before it, and still takes at most D. A process' packets
to itself take no time. Leaders are stable and nothing fails. Latency is from the a-multicast to a delivery.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from amcast.assembly import assemble_bare
from amcast.kernel.errors import UsageError
from amcast.kernel.ids import GroupId, ProcessId, message_id
from amcast.kernel.message import Message
from amcast.kernel.spec import Spec
from amcast.kernel.topology import Topology
from amcast.simulation.inputs.load import ClientLoad
from amcast.simulation.inputs.network import Network, NetworkConfig
from amcast.simulation.inputs.random_streams import make_stream
from amcast.simulation.schedulers.discrete_event import DiscreteEventScheduler
from amcast.simulation.world.world import World
from amcast.trace.recorder import Recorder

UNIT_NS: Final = 1_000_000
"""D. Short against every retry timer, so that nothing is asked for twice."""
MOMENT_NS: Final = 1_000
"""Just before, just after."""
GROUPS: Final = 3
REPLICAS: Final = 3
CLIENTS: Final = 8
"""One for each message, so that no sender's link keeps two of them in order."""
LIMIT: Final = 60
"""Delays after the last multicast at which a run ends; what is not delivered then never was."""
STARTS: Final = 20
"""Schedules drawn before each climb."""
CLIMB: Final = 180
"""Schedules tried on each climb."""
STEPS: Final = (0, UNIT_NS // 2, UNIT_NS, UNIT_NS, 3 * UNIT_NS // 2, 2 * UNIT_NS, 3 * UNIT_NS)
SKEWS: Final = (0.0, 0.25, 1.0)
"""Distances of clocks from real time, in delays, that are tried where the bound depends on them."""

Link = tuple[ProcessId, ProcessId]
Packet = tuple[ProcessId, ProcessId, int]


class Cast(Struct, frozen=True):
    """One a-multicast: each has a client of its own, in the order of the schedule."""

    at_ns: int
    destinations: tuple[GroupId, ...]


class Schedule(Struct, frozen=True):
    """Everything that an adversary chooses."""

    casts: tuple[Cast, ...]
    links: dict[Link, int] = {}
    """How long a link takes; D if it is not listed."""
    packets: dict[Packet, int] = {}
    """How long the n-th packet of a link takes, where it differs; n counts from 0."""
    skews: dict[ProcessId, int] = {}

    def as_dict(self) -> dict[str, Any]:
        """As JSON can say it."""
        return {
            "casts": [{"at_ns": cast.at_ns, "destinations": list(cast.destinations)} for cast in self.casts],
            "links": [[*link, delay] for link, delay in sorted(self.links.items())],
            "packets": [[*packet, delay] for packet, delay in sorted(self.packets.items())],
            "skews": [[process, skew] for process, skew in sorted(self.skews.items())],
        }

    @staticmethod
    def of_dict(data: dict[str, Any]) -> "Schedule":
        return Schedule(
            tuple(Cast(cast["at_ns"], tuple(cast["destinations"])) for cast in data["casts"]),
            {(source, target): delay for source, target, delay in data["links"]},
            {(source, target, number): delay for source, target, number, delay in data["packets"]},
            dict(data["skews"]),
        )


class ChosenNetwork(Network):
    """A network whose delays somebody chose."""

    def __init__(self, schedule: Schedule, topology: Topology) -> None:
        super().__init__(NetworkConfig(delay_ns=UNIT_NS), topology, Random(0))
        self.is_constant = False
        self.counts: dict[Link, int] = {}
        """Packets so far, by link."""
        self._schedule = schedule

    def _delay(self, source: ProcessId, target: ProcessId) -> int:
        if source == target:
            return 0
        number = self.counts.get((source, target), 0)
        self.counts[source, target] = number + 1
        chosen = self._schedule.packets.get((source, target, number))
        return self._schedule.links.get((source, target), UNIT_NS) if chosen is None else chosen


@dataclass(frozen=True)
class ScheduleOutcome:
    """How a schedule went."""

    latest: dict[str, float]
    """The longest latency by role, in delays."""
    counts: dict[Link, int]
    undelivered: int


def make_topology() -> Topology:
    """The scope of the search."""
    return Topology.grid(GROUPS, REPLICAS, CLIENTS)


def run_schedule(spec: Spec, schedule: Schedule, recorder: Recorder | None = None) -> ScheduleOutcome:
    """Run a protocol under a schedule."""
    there = make_topology()
    network = ChosenNetwork(schedule, there)
    scheduler = DiscreteEventScheduler(network, Random(0))
    if recorder is None:
        recorder = Recorder()
        recorder.wants_packets = False
    assembly = assemble_bare(spec, spec.configure())
    world = World(there, lambda process: assembly.make(process, there), scheduler, recorder)
    scheduler.world = world
    world.skews.update({process: (offset, 0.0) for process, offset in schedule.skews.items()})
    world.start()
    for client, cast in zip(there.clients, schedule.casts, strict=False):
        message = Message(message_id(client, 0), client, cast.destinations)
        scheduler.schedule(cast.at_ns, lambda message=message: world.submit(message.sender, message))  # type: ignore[misc]
    last = max(cast.at_ns for cast in schedule.casts)
    scheduler.run(ClientLoad(there, lambda client: ((), 0, 0), 0, 1), last + LIMIT * UNIT_NS)
    latest: dict[str, float] = {}
    for row in recorder.deliveries:
        process, at_ns, since_ns = row[0], row[4], row[7]
        assert isinstance(process, int)
        assert isinstance(at_ns, int)
        assert isinstance(since_ns, int)
        role = spec.role_of(there, process)
        latest[role] = max(latest.get(role, 0.0), (at_ns - since_ns) / UNIT_NS)
    return ScheduleOutcome(latest, network.counts, len(world.list_due_deliveries()))


# Drawing schedules


def _drawn(random: Random, skew_ns: int) -> Schedule:
    """A schedule to begin with: messages at random, or two that meet where one group is ahead of another."""
    there = make_topology()
    casts = _meeting(random) if random.random() < 0.5 else _crowd(random)
    links: dict[Link, int] = {}
    style = random.choice(("links", "pairs", "clients", "clients"))
    for source in there.processes:
        for group in there.groups:
            together = random.choice((0, UNIT_NS))
            for target in there.members(group):
                if style == "links":
                    links[source, target] = random.choice((0, UNIT_NS))
                elif style == "pairs" or source in there.clients:
                    links[source, target] = together
    return Schedule(casts, links, {}, _skews(random, skew_ns))


def _skews(random: Random, skew_ns: int) -> dict[ProcessId, int]:
    if not skew_ns:
        return {}
    there = make_topology()
    by_group = {group: random.choice((-skew_ns, 0, skew_ns)) for group in there.groups}
    return {process: by_group[group] for group in there.groups for process in there.members(group)}


def _crowd(random: Random) -> tuple[Cast, ...]:
    span = random.choice((2, 5, 10))
    return tuple(
        Cast(random.randrange(0, span * 2 + 1) * UNIT_NS // 2, _destinations(random))
        for _ in range(random.randint(3, CLIENTS))
    )


def _meeting(random: Random) -> tuple[Cast, ...]:
    """Local messages put group b ahead; then one to a and b, and another to a and c soon after."""
    a, b, c = random.sample(range(GROUPS), 3)
    ahead = [Cast(number * UNIT_NS, (b,)) for number in range(random.randint(1, 4))]
    start = 15 * UNIT_NS
    after = random.randrange(0, 17) * UNIT_NS // 2 + random.choice((-1, 0, 1)) * MOMENT_NS
    pairs = [(start, (a, b)), (start + after, (a, c))]
    return tuple(ahead + [Cast(max(0, at), tuple(sorted(groups))) for at, groups in pairs])


def _destinations(random: Random) -> tuple[GroupId, ...]:
    return tuple(sorted(random.sample(range(GROUPS), random.choice((1, 2, 2, 3)))))


# Changing schedules


def _changed(random: Random, schedule: Schedule, counts: dict[Link, int], skew_ns: int) -> Schedule:
    """A schedule that differs in one to three things."""
    for _ in range(random.choice((1, 1, 2, 3))):
        change = random.choice(_CHANGES)
        schedule = change(random, schedule, counts)
    if skew_ns and random.random() < 0.2:
        process = random.choice(make_topology().servers)
        schedule = replace(schedule, skews={**schedule.skews, process: random.choice((-skew_ns, 0, skew_ns))})
    return schedule


def _retimed(random: Random, schedule: Schedule, counts: dict[Link, int]) -> Schedule:
    """A message is sent at another time, often in step with another message."""
    casts = list(schedule.casts)
    place = random.randrange(len(casts))
    base = random.choice(casts).at_ns if random.random() < 0.5 else casts[place].at_ns
    shift = random.choice(STEPS) * random.choice((-1, 1)) + random.choice((-1, 0, 0, 1)) * MOMENT_NS
    casts[place] = replace(casts[place], at_ns=max(0, base + shift))
    return replace(schedule, casts=tuple(casts))


def _readdressed(random: Random, schedule: Schedule, counts: dict[Link, int]) -> Schedule:
    """A message goes elsewhere, or there is one more or one less."""
    casts = list(schedule.casts)
    place = random.randrange(len(casts))
    kind = random.random()
    if kind < 0.3 and len(casts) < CLIENTS:
        casts.append(Cast(max(0, casts[place].at_ns + random.choice(STEPS)), _destinations(random)))
    elif kind < 0.5 and len(casts) > 2:
        del casts[place]
    else:
        casts[place] = replace(casts[place], destinations=_destinations(random))
    return replace(schedule, casts=tuple(casts))


def _relinked(random: Random, schedule: Schedule, counts: dict[Link, int]) -> Schedule:
    """A link, or all links of a process into a group, or of a group into a group, takes another time."""
    there = make_topology()
    delay = random.choice((0, 0, UNIT_NS, UNIT_NS, UNIT_NS // 2))
    source = random.choice(there.processes)
    sources: tuple[ProcessId, ...] = (source,)
    targets = there.members(random.choice(there.groups))
    home = there.group_of(source)
    if home is not None and random.random() < 0.4:
        sources = there.members(home)
    elif random.random() < 0.5:
        targets = (random.choice(targets),)
    return replace(schedule, links={**schedule.links, **{(s, t): delay for s in sources for t in targets}})


def _repacked(random: Random, schedule: Schedule, counts: dict[Link, int]) -> Schedule:
    """Single packets take another time than their link."""
    packets = dict(schedule.packets)
    links = sorted(counts)
    for _ in range(random.choice((1, 2, 4))):
        source, target = random.choice(links)
        number = random.randrange(counts[source, target])
        packets[source, target, number] = random.choice((0, 0, UNIT_NS, UNIT_NS, UNIT_NS // 2))
    return replace(schedule, packets=packets)


Change = Callable[[Random, Schedule, dict[Link, int]], Schedule]
_CHANGES: Final[tuple[Change, ...]] = (_retimed, _retimed, _readdressed, _relinked, _relinked, _repacked)


# The search


@dataclass
class Worst:
    """What a search found for one protocol at one role."""

    protocol: str
    role: str
    skew: float
    bound: float
    schedules: int
    seed: int
    found: float = 0.0
    schedule: Schedule = field(default_factory=lambda: Schedule(()))
    undelivered: int = 0
    """Deliveries that never came, in all schedules together: there must be none."""

    @property
    def holds(self) -> bool:
        return self.found <= self.bound + 1e-9 and not self.undelivered

    def as_dict(self) -> dict[str, Any]:
        names = ("protocol", "role", "skew", "found", "bound", "schedules", "seed", "undelivered", "holds")
        data = {name: getattr(self, name) for name in names}
        return {**data, "share": round(self.found / self.bound, 4), "schedule": self.schedule.as_dict()}


def _bounds(spec: Spec, skew: float) -> dict[str, float]:
    """The bound of each role that has one."""
    there = make_topology()
    bounds = {role: spec.claims.bound(role, skew) for role in sorted({spec.role_of(there, p) for p in there.servers})}
    return {role: bound for role, bound in bounds.items() if bound is not None}


def has_bound(spec: Spec) -> bool:
    """Whether a protocol claims a bound under conflicts."""
    return bool(_bounds(spec, 0.0))


def list_skews(spec: Spec) -> tuple[float, ...]:
    """The distances of clocks under which a protocol is searched."""
    if not has_bound(spec):
        raise UsageError(f"protocol {spec.name}: claims no bound under conflicts; expected one that does")
    return SKEWS if _bounds(spec, 0.0) != _bounds(spec, max(SKEWS)) else (0.0,)


def search_worst_case(spec: Spec, schedules: int, seed: int, skew: float = 0.0) -> list[Worst]:
    """Try so many schedules; the worst latency of each role, with its schedule."""
    skew_ns = int(skew * UNIT_NS)
    worst = {role: Worst(spec.name, role, skew, bound, schedules, seed) for role, bound in _bounds(spec, skew).items()}
    for schedule, outcome in _tried(spec, schedules, seed, skew_ns, sorted(worst)):
        for role, row in worst.items():
            row.undelivered += outcome.undelivered
            if outcome.latest.get(role, 0.0) > row.found:
                row.found, row.schedule = outcome.latest[role], schedule
    return list(worst.values())


def _tried(
    spec: Spec, schedules: int, seed: int, skew_ns: int, roles: list[str]
) -> Iterator[tuple[Schedule, ScheduleOutcome]]:
    """One climb after the other, each for the sake of one role, each with a stream of its own."""
    left = schedules
    climb = 0
    while left > 0:
        random = make_stream(seed, "worst", spec.name, skew_ns, climb)
        role = roles[climb % len(roles)]
        climb += 1
        best, height, counts = Schedule(()), -1.0, dict[Link, int]()
        for number in range(min(left, STARTS + CLIMB)):
            schedule = _drawn(random, skew_ns) if number < STARTS else _changed(random, best, counts, skew_ns)
            outcome = run_schedule(spec, schedule)
            yield schedule, outcome
            reached = outcome.latest.get(role, 0.0)
            # As high counts too: on a plateau only wandering leads on.
            if reached >= height:
                best, height, counts = schedule, reached, outcome.counts
        left -= STARTS + CLIMB
