"""A schedule without faults: multicasts, the delay of every link, and clocks. It runs nodes and clients that wait for
answers; equal schedules give equal runs.
"""

from random import Random
from typing import Any, Final

from msgspec import Struct

from amcast.assembly import Order, assemble_simulation
from amcast.check.evidence import collect_evidence
from amcast.check.order import check_order
from amcast.check.verdict import Finding
from amcast.kernel.ids import ProcessId, message_id
from amcast.kernel.message import Message
from amcast.kernel.spec import Spec
from amcast.kernel.topology import Topology
from amcast.lab.worst_case import UNIT_NS, Cast, ChosenNetwork, Link
from amcast.lab.worst_case import Schedule as Delays
from amcast.simulation.inputs.load import ClientLoad
from amcast.simulation.schedulers.discrete_event import DiscreteEventScheduler
from amcast.simulation.world.world import NodeBodies, World
from amcast.trace.meta import Meta, RunClaims
from amcast.trace.recorder import Recorder
from amcast.trace.run import Run

REPLICAS: Final = 3
LIMIT: Final = 400
"""Delays after the last multicast at which a run ends."""
HELD: Final = 40 * UNIT_NS
"""The delay of links that are held back."""
RETRY_SCALE_NS: Final = 100 * UNIT_NS
"""So long that no client and no node sends anything twice."""


class Schedule(Struct, frozen=True):
    """Everything that is chosen: multicasts, each by a client of its own; delays; clocks."""

    groups: int
    casts: tuple[Cast, ...]
    links: dict[Link, int] = {}
    """The delay of a link; D if it is not listed."""
    skews: dict[ProcessId, int] = {}
    held_ns: int = 0
    """From this time on ..."""
    held: tuple[Link, ...] = ()
    """... these links take HELD."""

    @property
    def topology(self) -> Topology:
        return Topology.grid(self.groups, REPLICAS, len(self.casts))

    def as_dict(self) -> dict[str, Any]:
        """The schedule as plain data for JSON."""
        return {
            "groups": self.groups,
            "casts": [{"at_ns": cast.at_ns, "destinations": list(cast.destinations)} for cast in self.casts],
            "links": [
                [*link, delay] for link, delay in sorted(self.links.items()) if delay != UNIT_NS and link[0] != link[1]
            ],
            "skews": [[process, skew] for process, skew in sorted(self.skews.items())],
            "held_ns": self.held_ns,
            "held": [list(link) for link in self.held],
        }

    @staticmethod
    def of_dict(data: dict[str, Any]) -> "Schedule":
        return Schedule(
            data["groups"],
            tuple(Cast(cast["at_ns"], tuple(cast["destinations"])) for cast in data["casts"]),
            {(source, target): delay for source, target, delay in data["links"]},
            dict(data["skews"]),
            data["held_ns"],
            tuple((source, target) for source, target in data["held"]),
        )


class HeldNetwork(ChosenNetwork):
    """A network with the delays of a schedule, in which links are held back from some moment on."""

    def __init__(self, schedule: Schedule) -> None:
        super().__init__(Delays(schedule.casts, schedule.links), schedule.topology)
        self._held = frozenset(schedule.held)
        self._held_ns = schedule.held_ns

    def draw_arrival(self, source: ProcessId, target: ProcessId, size: int, now: int) -> int:
        at = super().draw_arrival(source, target, size, now)
        if now < self._held_ns or (source, target) not in self._held:
            return at
        at = self._last[source, target] = max(at, now + HELD)
        return at


def run_schedule(spec: Spec, schedule: Schedule, packets: bool = False, order: Order = "acyclic") -> Run:
    """Runs nodes of a protocol, and clients that wait for answers, under a schedule."""
    topology = schedule.topology
    spec = spec.for_topology(topology)
    assembly = assemble_simulation(spec, spec.configure(), RETRY_SCALE_NS, heartbeats=False, order=order)
    scheduler = DiscreteEventScheduler(HeldNetwork(schedule), Random(0))
    recorder = Recorder()
    recorder.wants_packets = packets
    nodes = NodeBodies(assembly.spec.farewell, assembly.spec.admission_bodies)
    world = World(topology, lambda p: assembly.make(p, topology), scheduler, recorder, node_bodies=nodes)
    scheduler.world = world
    world.skews.update({process: (offset, 0.0) for process, offset in schedule.skews.items()})
    world.start()
    for client, cast in zip(topology.clients, schedule.casts, strict=True):
        message = Message(message_id(client, 0), client, cast.destinations)
        scheduler.schedule(cast.at_ns, lambda message=message: world.submit(message.sender, message))  # type: ignore[misc]
    last = max(cast.at_ns for cast in schedule.casts)
    for at in range(1, LIMIT):
        # A protocol that never rests is stopped when everything is delivered and answered.
        scheduler.schedule(last + at * UNIT_NS, lambda: None)
    count = len(schedule.casts)
    load = ClientLoad(topology, lambda client: ((), 0, 0), 0, 1)
    scheduler.run(load, last + LIMIT * UNIT_NS, lambda: world.now > last and _is_over(world, recorder, count))
    for process in topology.processes:
        recorder.record_process(process, topology.group_of(process))
    claims = spec.claims
    return Run.from_recorder(
        recorder,
        Meta(
            run=spec.name,
            protocol=spec.name,
            topology=topology.describe(),
            config={"schedule": schedule.as_dict()},
            claims=RunClaims(
                genuine=claims.genuine,
                complete=_is_over(world, recorder, count),
                fifo=claims.fifo,
                exactly_once=claims.exactly_once,
                real_time=True,
            ),
        ),
    )


def _is_over(world: World, recorder: Recorder, count: int) -> bool:
    return not world.undelivered and len(recorder.answers) == count


def judge_real_time(run: Run) -> Finding:
    """Judges P9 alone."""
    return check_order(collect_evidence(run))[2]
