"""Message delays and packets of one lone a-multicast, measured in a world of unit delays.

Two worlds. "unit": every link takes 1, and a client sends directly to the contacts. "intergroup": 1 between groups, 0
inside them, and the sender is the first member of the first destination (the convention of paper 001). Packets of a
process to itself take no time in both, and are counted. Nothing else happens: no other message, fault or heartbeat.
Where rounds follow the clock, the message is sent a nanosecond before a round begins, which is not counted.

In the real-time setting (docs/real-time.md) nodes run the protocol, and a process counts as served when it knows that
the message is closed. Its packets are those of the protocol and the reports between groups, without the answer to the
client, as in the other setting. Promised are the claims of the protocol for a message to one group, and at most one
message delay more than the last delivery for others.
"""

from dataclasses import dataclass
from typing import Any, Final, Literal

from amcast.assembly import Order, assemble_bare, assemble_simulation, keeps_order
from amcast.kernel.ids import ProcessId, message_id
from amcast.kernel.message import Message
from amcast.kernel.spec import Spec
from amcast.kernel.topology import Topology
from amcast.simulation.inputs.load import ClientLoad
from amcast.simulation.inputs.network import Network, NetworkConfig
from amcast.simulation.inputs.random_streams import make_stream
from amcast.simulation.schedulers.discrete_event import DiscreteEventScheduler
from amcast.simulation.world.world import World
from amcast.trace.meta import Meta
from amcast.trace.recorder import Recorder
from amcast.trace.run import Run
from amcast.trace.view import render_lines

UNIT_NS: Final = 1_000_000
"""Short against every retry timer, so that nothing is sent twice."""
LIMIT: Final = 200
"""Message delays after which a message that is not delivered counts as never delivered."""

ANSWERS: Final = frozenset({"Done", "Reply"})
"""Bodies that answer a client; bare processes, which the other setting measures, send none."""

WorldName = Literal["unit", "intergroup"]


@dataclass(frozen=True)
class Delays:
    """One row of `amcast delays`."""

    protocol: str
    world: WorldName
    groups: int
    replicas: int
    destinations: int
    delays_max: float | None
    delays_min: float | None
    delays_by_role: dict[str, float]
    packets: int
    claimed: dict[str, Any]
    holds: bool
    order: Order = "acyclic"

    def as_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


def measure_delays(
    spec: Spec,
    destinations: int,
    replicas: int,
    options: dict[str, Any] | None = None,
    world: WorldName | None = None,
) -> Delays:
    """Measure a lone multicast and compare with the protocol's claims.

    Without a `world` it is the one where the protocol counts its delays; in the other one nothing is claimed but that
    everybody delivers.
    """
    spec = spec.for_topology(Topology.grid(destinations, replicas)).for_config(spec.configure(options))
    world = world or spec.claims.world
    recorder, topology, sent_ns, _ = _run(spec, world, destinations, replicas, options)
    times: dict[str, float] = {}
    for row in recorder.deliveries:
        process, at_ns = row[0], row[4]
        assert isinstance(process, int)
        assert isinstance(at_ns, int)
        role = spec.role_of(topology, process)
        times[role] = max(times.get(role, 0), _units(at_ns - sent_ns))
    whole = len(recorder.deliveries) == destinations * replicas
    earliest = _units(min((int(str(row[4])) - sent_ns for row in recorder.deliveries), default=0))
    packets = sum(1 for row in recorder.packets if row[0] is not None or row[9])
    claimed = _claimed(spec, destinations, replicas, sorted(times)) if world == spec.claims.world else {}
    measured = {"max": _tidy(max(times.values(), default=0)), **{role: _tidy(at) for role, at in sorted(times.items())}}
    holds = whole and all(
        (packets if name == "packets" else measured.get(name)) == value for name, value in claimed.items()
    )
    return Delays(
        protocol=spec.name,
        world=world,
        groups=len(topology.groups),
        replicas=replicas,
        destinations=destinations,
        delays_max=measured["max"] if whole else None,
        delays_min=_tidy(earliest) if whole else None,
        delays_by_role={role: _tidy(at) for role, at in sorted(times.items())},
        packets=packets,
        claimed=claimed,
        holds=holds,
    )


def count_packets_unequal(
    spec: Spec, destinations: int, replicas: int, seed: int, options: dict[str, Any] | None = None
) -> int | None:
    """Counts the packets of a lone multicast where every pair of processes has its own delay, drawn from the seed: some
    are fifty times as far from each other as others. None if somebody does not deliver it."""
    random = make_stream(seed, "unequal delays")
    processes = Topology.grid(destinations, replicas, 1).processes
    distances = {
        (a, b): 0 if a == b else UNIT_NS * random.randint(1, 50) // 50 for a in processes for b in processes if a <= b
    }
    recorder, _, _, _ = _run(spec, "unit", destinations, replicas, options, distances=distances)
    whole = len(recorder.deliveries) == destinations * replicas
    return sum(1 for row in recorder.packets if row[0] is not None or row[9]) if whole else None


def measure_closing_delays(
    spec: Spec, destinations: int, replicas: int, options: dict[str, Any] | None = None, world: WorldName | None = None
) -> Delays:
    """Measure when each destination process knows that a lone multicast is closed, in the real-time setting."""
    plain = measure_delays(spec, destinations, replicas, options, world)
    spec = spec.for_topology(Topology.grid(destinations, replicas))
    recorder, topology, sent_ns, closed_ns = _run(spec, plain.world, destinations, replicas, options, "real-time")
    times: dict[str, float] = {}
    for process, at_ns in closed_ns.items():
        role = spec.role_of(topology, process)
        times[role] = max(times.get(role, 0), _units(at_ns - sent_ns))
    whole = len(closed_ns) == destinations * replicas and plain.delays_max is not None
    latest = _tidy(max(times.values(), default=0))
    packets = sum(1 for row in recorder.packets if (row[0] is not None or row[9]) and row[1] not in ANSWERS)
    most = (plain.delays_max or 0) + (destinations > 1)
    return Delays(
        protocol=spec.name,
        world=plain.world,
        groups=len(topology.groups),
        replicas=replicas,
        destinations=destinations,
        delays_max=latest if whole else None,
        delays_min=_tidy(_units(min(closed_ns.values()) - sent_ns)) if whole else None,
        delays_by_role={role: _tidy(at) for role, at in sorted(times.items())},
        packets=packets,
        claimed={"most": most} | ({"most packets": plain.packets} if destinations == 1 else {}),
        holds=whole and latest <= most and (destinations > 1 or packets <= plain.packets),
        order="real-time",
    )


def _claimed(spec: Spec, destinations: int, replicas: int, roles: list[str]) -> dict[str, Any]:
    """The claims of the protocol about this case, without open ones."""
    claims = spec.claims
    claimed = {role: claims.delays(role, destinations, replicas) for role in ("max", *roles)}
    claimed["packets"] = claims.packets(destinations, replicas)
    return {name: value for name, value in claimed.items() if value is not None}


def record_transcript(spec: Spec, destinations: int, replicas: int) -> list[str]:
    """The trace of a lone multicast, one line per step."""
    recorder, topology, _, _ = _run(spec, spec.claims.world, destinations, replicas, None)
    for process in topology.processes:
        recorder.record_process(process, topology.group_of(process))
    return list(render_lines(Run.from_recorder(recorder, Meta(run=spec.name)), limit=10_000))


def _run(
    spec: Spec,
    world: WorldName,
    destinations: int,
    replicas: int,
    options: dict[str, Any] | None,
    order: Order = "acyclic",
    distances: dict[tuple[ProcessId, ProcessId], int] | None = None,
) -> tuple[Recorder, Topology, int, dict[ProcessId, int]]:
    """Runs a lone multicast: the trace, the topology, when it was sent, and when each process knew it
    to be closed (without real-time order: when it delivered it). `distances` of pairs replace those of the world."""
    grid = Topology.grid(destinations, replicas, 1)
    regions = {p: str(grid.group_of(p)) for p in grid.servers} | dict.fromkeys(grid.clients, "0")
    matrix: dict[str, dict[str, int]] = {}
    if world == "intergroup":
        names = sorted(set(regions.values()))
        matrix = {a: {b: 0 if a == b else UNIT_NS for b in names} for a in names}
    if distances is not None:
        regions = {p: str(p) for p in grid.processes}
        matrix = {str(a): {str(b): distances[min(a, b), max(a, b)] for b in grid.processes} for a in grid.processes}
    topology = Topology({g: grid.members(g) for g in grid.groups}, grid.clients, regions)
    spec.check_topology(topology)
    config = spec.configure(options)
    network = Network(NetworkConfig(delay_ns=UNIT_NS, matrix_ns=matrix), topology, make_stream(0))
    scheduler = DiscreteEventScheduler(network, make_stream(0))
    recorder = Recorder()
    assembly = assemble_bare(spec, config)
    if order == "real-time":
        assembly = assemble_simulation(spec, config, UNIT_NS, heartbeats=False, order=order)
    simulated = World(topology, lambda process: assembly.make(process, topology), scheduler, recorder)
    scheduler.world = simulated
    sender: ProcessId = topology.clients[0] if world == "unit" else topology.members(0)[0]
    simulated.start()
    message = Message(message_id(sender, 0), sender, topology.groups, b"")
    sent_ns = max(0, spec.claims.round_start_ns(config) - 1)
    scheduler.schedule(sent_ns, lambda: simulated.submit(sender, message))
    nobody = ClientLoad(topology, lambda client: ((), 0, 0), 0, 1, (sender,))
    closed_until = simulated.closed_until
    waits_for = 0 if order == "acyclic" or keeps_order(spec, order) else len(topology.servers)

    def is_over() -> bool:
        return not simulated.undelivered and simulated.now > sent_ns and len(closed_until) >= waits_for

    scheduler.run(nobody, sent_ns + LIMIT * UNIT_NS, (lambda: False) if spec.claims.quiescent else is_over)
    if waits_for:
        return recorder, topology, sent_ns, {process: at_ns for process, (_, at_ns) in closed_until.items()}
    return recorder, topology, sent_ns, {int(str(row[0])): int(str(row[4])) for row in recorder.deliveries}


def _units(nanoseconds: int) -> float:
    """Nanoseconds as message delays, rounded to thousandths."""
    return round(nanoseconds / UNIT_NS, 3)


def _tidy(value: float) -> float:
    """Turns 2.0 into 2."""
    return int(value) if value == int(value) else value
