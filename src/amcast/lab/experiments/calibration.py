"""The cost of a packet on this machine, time = a + b x bytes, fitted from live runs.

A run is a cluster of real processes and one client with one message at a time, so that nothing is bundled. What its
replicas compute per multicast, without what they use when idle, is laid against the packets and bytes that they send
and receive for one multicast of this kind in the simulator. Several sizes of payload and numbers of destinations give
the points of a linear fit; what is left over at each point is part of the result.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from math import sqrt
from typing import Any, Final

from amcast.kernel.errors import CannotTellError, UsageError
from amcast.lab.live_benchmark import BenchmarkPlan, run_benchmark
from amcast.lab.protocol_lookup import find_protocol
from amcast.lab.runs import prepare_run
from amcast.simulation.inputs.plan import parse_plan
from amcast.simulation.simulate import Simulation
from amcast.trace.recorder import Recorder

SIMULATED_MESSAGES: Final = 20
MAX_PAYLOAD: Final = 1 << 20


@dataclass(frozen=True)
class CostPoint:
    """One live run: what its replicas computed per multicast, and what they sent and received for it."""

    destinations: int
    payload: int
    packet_ends: float
    """Packets per multicast that replicas send, and that they receive: one between two replicas counts twice."""
    byte_ends: float
    """The bytes of these packets."""
    cpu_us: float


@dataclass(frozen=True)
class PacketCost:
    """The fit: microseconds for each packet sent or received, nanoseconds for each of its bytes."""

    packet_us: float
    byte_ns: float
    points: tuple[CostPoint, ...]
    residuals_us: tuple[float, ...]
    """Measured minus fitted, by point."""

    @property
    def relative_error(self) -> float:
        """The root mean square of the residuals, as a share of the mean of what was measured."""
        mean = sum(point.cpu_us for point in self.points) / len(self.points)
        return sqrt(sum(left * left for left in self.residuals_us) / len(self.residuals_us)) / mean

    def as_dict(self) -> dict[str, Any]:
        """The fit as plain data; `network` has the fields of a plan, where a byte costs its receiver both ends."""
        return {
            "packet_us": round(self.packet_us, 3),
            "byte_ns": round(self.byte_ns, 4),
            "relative_error": round(self.relative_error, 4),
            "network": {
                "cpu_ns": round(1000 * self.packet_us),
                "cpu_send_ns": round(1000 * self.packet_us),
                "cpu_byte_ns": round(2 * self.byte_ns, 4),
            },
            "points": [
                {**asdict(point), "residual_us": round(left, 2)}
                for point, left in zip(self.points, self.residuals_us, strict=True)
            ],
        }


def fit_cost(points: Sequence[CostPoint]) -> PacketCost:
    """The least squares of cpu = packets x a + bytes x b; neither is below 0."""
    if len(points) < 3:
        raise UsageError(f"{len(points)} live runs; expected at least 3 to fit two numbers and see what is left over")
    nn = sum(point.packet_ends**2 for point in points)
    bb = sum(point.byte_ends**2 for point in points)
    nb = sum(point.packet_ends * point.byte_ends for point in points)
    ny = sum(point.packet_ends * point.cpu_us for point in points)
    by = sum(point.byte_ends * point.cpu_us for point in points)
    determinant = nn * bb - nb * nb
    if determinant <= 1e-9 * nn * bb:
        raise UsageError("the runs have equal sizes; expected different --payloads to tell packets from bytes")
    packet, byte = (ny * bb - by * nb) / determinant, (by * nn - ny * nb) / determinant
    if byte < 0:
        packet, byte = ny / nn, 0.0
    elif packet < 0:
        packet, byte = 0.0, by / bb
    left = tuple(point.cpu_us - packet * point.packet_ends - byte * point.byte_ends for point in points)
    return PacketCost(packet, 1000 * byte, tuple(points), left)


def count_ends(protocol: str, groups: int, replicas: int, destinations: int, payload: int) -> tuple[float, float]:
    """Packets and bytes that replicas send and receive for one multicast, each counted at each replica."""
    spec = find_protocol(protocol)
    values = {
        "protocol": protocol,
        "nodes": True,
        "gateways": spec.open_bundle is not None,
        "topology": {"groups": groups, "replicas": replicas, "clients": 1},
        "workload": {"messages": SIMULATED_MESSAGES, "destinations": destinations, "payload": payload},
    }
    prepared = prepare_run(parse_plan(values))
    recorder = Recorder()
    Simulation(prepared.make_setup(), recorder).run()
    servers = set(prepared.topology.servers)
    packets = size = 0
    for row in recorder.packets:
        if row[0] is None or row[2] == row[3]:
            continue  # heartbeats are part of what idle replicas use; a packet to itself does not leave a process
        ends = (row[2] in servers) + (row[3] in servers)
        packets += ends
        size += ends * int(str(row[4]))
    return packets / SIMULATED_MESSAGES, size / SIMULATED_MESSAGES


def calibrate(
    protocol: str,
    payloads: Sequence[int],
    seconds: float,
    seed: int,
    replicas: int = 3,
    say: Callable[[str], None] = lambda line: None,
) -> PacketCost:
    """Measures every payload with one and with two destination groups, and fits the cost of a packet."""
    for payload in payloads:
        if not 0 <= payload <= MAX_PAYLOAD:
            raise UsageError(f"--payloads: {payload}; expected 0 to {MAX_PAYLOAD} bytes")
    points = []
    for destinations in (1, 2):
        for payload in payloads:
            plan = BenchmarkPlan(
                groups=2,
                replicas=replicas,
                destinations=destinations,
                connections=1,
                outstanding=1,
                payload=payload,
                seconds=seconds,
                protocol=protocol,
                seed=seed,
            )
            result = run_benchmark(plan)
            if result["verdict"] == "violated":
                raise CannotTellError(f"a run of {protocol} violates its order: {' '.join(result['story'])}")
            ends = count_ends(protocol, 2, replicas, destinations, payload)
            points.append(CostPoint(destinations, payload, *ends, result["replica_cpu_us_net"]))
            say(f"{destinations} groups, {payload} bytes: {points[-1].cpu_us:.0f} us of CPU per multicast")
    return fit_cost(points)
