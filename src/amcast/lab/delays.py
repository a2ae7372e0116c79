"""Message delays and packets of one lone a-multicast, measured in a world of unit delays.

Two worlds. "unit": every link takes 1, and a client sends directly to the contacts. "intergroup": 1 between groups, 0
inside them, and the sender is the first member of the first destination (the convention of paper 001). Packets of a
process to itself take no time in both, and are counted. Nothing else happens: no other message, fault or heartbeat.
Where rounds follow the clock, the message is sent a nanosecond before a round begins, which is not counted.
"""

from dataclasses import dataclass
from typing import Any, Final, Literal

from amcast.assembly import assemble_bare
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
    spec = spec.for_topology(Topology.grid(destinations, replicas))
    world = world or spec.claims.world
    recorder, topology, sent_ns = _run(spec, world, destinations, replicas, options)
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


def _claimed(spec: Spec, destinations: int, replicas: int, roles: list[str]) -> dict[str, Any]:
    """The claims of the protocol about this case, without open ones."""
    claims = spec.claims
    claimed = {role: claims.delays(role, destinations, replicas) for role in ("max", *roles)}
    claimed["packets"] = claims.packets(destinations, replicas)
    return {name: value for name, value in claimed.items() if value is not None}


def record_transcript(spec: Spec, destinations: int, replicas: int) -> list[str]:
    """The trace of a lone multicast, one line per step."""
    recorder, topology, _ = _run(spec, spec.claims.world, destinations, replicas, None)
    for process in topology.processes:
        recorder.record_process(process, topology.group_of(process))
    return list(render_lines(Run.from_recorder(recorder, Meta(run=spec.name)), limit=10_000))


def _run(
    spec: Spec, world: WorldName, destinations: int, replicas: int, options: dict[str, Any] | None
) -> tuple[Recorder, Topology, int]:
    grid = Topology.grid(destinations, replicas, 1)
    regions = {p: str(grid.group_of(p)) for p in grid.servers} | dict.fromkeys(grid.clients, "0")
    topology = Topology({g: grid.members(g) for g in grid.groups}, grid.clients, regions)
    spec.check_topology(topology)
    config = spec.configure(options)
    matrix: dict[str, dict[str, int]] = {}
    if world == "intergroup":
        names = sorted(set(regions.values()))
        matrix = {a: {b: 0 if a == b else UNIT_NS for b in names} for a in names}
    network = Network(NetworkConfig(delay_ns=UNIT_NS, matrix_ns=matrix), topology, make_stream(0))
    scheduler = DiscreteEventScheduler(network, make_stream(0))
    recorder = Recorder()
    assembly = assemble_bare(spec, config)
    simulated = World(topology, lambda process: assembly.make(process, topology), scheduler, recorder)
    scheduler.world = simulated
    sender: ProcessId = topology.clients[0] if world == "unit" else topology.members(0)[0]
    simulated.start()
    message = Message(message_id(sender, 0), sender, topology.groups, b"")
    sent_ns = max(0, spec.claims.round_start_ns(config) - 1)
    scheduler.schedule(sent_ns, lambda: simulated.submit(sender, message))
    nobody = ClientLoad(topology, lambda client: ((), 0, 0), 0, 1, (sender,))
    over = (
        (lambda: not simulated.undelivered and simulated.now > sent_ns)
        if not spec.claims.quiescent
        else (lambda: False)
    )
    scheduler.run(nobody, sent_ns + LIMIT * UNIT_NS, over)
    return recorder, topology, sent_ns


def _units(nanoseconds: int) -> float:
    """Nanoseconds as message delays, rounded to thousandths."""
    return round(nanoseconds / UNIT_NS, 3)


def _tidy(value: float) -> float:
    """Turns 2.0 into 2."""
    return int(value) if value == int(value) else value
