"""One plan, twice: in the simulator, and live on this machine with the same distances imitated inside the links.

Both write the same trace, so a latency is the same thing in both: from a multicast until every destination group has a
member that delivered it. What the simulator leaves out (the CPU, the event loop, the sockets) is what the two differ
by; where delays dominate, they agree within a few per cent.
"""

import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from amcast.cluster import connect, local_cluster
from amcast.kernel.errors import CannotTellError, UsageError
from amcast.kernel.ids import ProcessId
from amcast.kernel.topology import Topology
from amcast.lab.runs import PreparedRun, prepare_run
from amcast.live.config.cluster import Cluster, format_toml, read_cluster
from amcast.live.load.scripted_clients import ScriptedClient, ScriptedMessage, run_clients
from amcast.live.operations.local_cluster import find_free_ports
from amcast.live.server.node import run_loop
from amcast.simulation.inputs.plan import Plan
from amcast.simulation.simulate import Simulation
from amcast.trace.recorder import Recorder
from amcast.trace.run import Run, read_run
from amcast.trace.run_folder import FolderRecorder

MOST_MESSAGES = 100_000
"""Live runs take real time."""


@dataclass(frozen=True)
class Latencies:
    """Of one run, in milliseconds."""

    messages: int
    mean_ms: float
    p50_ms: float
    p95_ms: float

    @classmethod
    def of(cls, run: Run) -> "Latencies":
        """From a trace: every message that all its groups delivered."""
        found = sorted(compute_latencies_ms(run))
        if not found:
            raise CannotTellError(
                "no message of the run was delivered by all its groups; there is no latency to compare"
            )
        last = len(found) - 1
        return cls(len(found), statistics.fmean(found), found[round(0.5 * last)], found[math.ceil(0.95 * last)])


@dataclass(frozen=True)
class Comparison:
    """Two runs of one plan."""

    simulated: Latencies
    live: Latencies
    folder: Path

    def difference(self, field: str) -> float:
        """How much longer the live run took, as a share."""
        simulated: float = getattr(self.simulated, field)
        live: float = getattr(self.live, field)
        return live / simulated - 1

    def agrees(self, within: float) -> bool:
        """Whether the medians are as close as that."""
        return abs(self.difference("p50_ms")) <= within


def compute_latencies_ms(run: Run) -> list[float]:
    """Until the first delivery in the slowest destination group, message by message."""
    first: dict[tuple[int, int], int] = {}
    deliveries = run.deliveries
    for group, message, at_ns in zip(deliveries["group"], deliveries["message"], deliveries["at_ns"], strict=True):
        key = (message, group)
        first[key] = min(at_ns, first.get(key, at_ns))
    found = []
    multicasts = run.multicasts
    for message, groups, at_ns in zip(
        multicasts["message"], multicasts["destinations"], multicasts["at_ns"], strict=True
    ):
        times = [first.get((message, group)) for group in groups]
        if None not in times:
            found.append((max(time for time in times if time is not None) - at_ns) / 1e6)
    return found


def compare_worlds(plan: Plan, folder: Path, say: Callable[[str], None] = lambda line: None) -> Comparison:
    """Run a plan in both worlds; the live run's configuration, logs and trace stay in `folder`."""
    prepared = prepare_run(plan)
    if prepared.spec.open_bundle and not plan.gateways:
        # What a cluster does: clients ask gateways.
        prepared = prepare_run(msgspec.structs.replace(plan, gateways=True, nodes=True))
    _check(prepared)
    say(f"simulating {prepared.plan.messages} messages of {prepared.spec.name}")
    simulated = Latencies.of(_simulated(prepared))
    expected_s = simulated.mean_ms * prepared.plan.messages / len(prepared.topology.clients) / 1000
    say(f"the same with {len(prepared.topology.servers)} real processes; it takes about {expected_s:.0f} s")
    return Comparison(simulated, Latencies.of(_live(prepared, folder)), folder)


def _check(prepared: PreparedRun) -> None:
    plan, network = prepared.plan, prepared.network
    if plan.messages > MOST_MESSAGES:
        raise UsageError(f"messages = {plan.messages}; expected at most {MOST_MESSAGES} in a run that takes real time")
    if network.links != "fifo" or network.duplication:
        raise UsageError('network: live links are in order and exactly once; expected links = "fifo", duplication = 0')
    if network.distribution not in ("constant", "normal"):
        raise UsageError(f"network.distribution = {network.distribution!r}; expected constant or normal")
    if plan.faults.profile != "none" or plan.faults.events:
        raise UsageError('faults: a comparison has none; expected profile = "none" and no events')


def _simulated(prepared: PreparedRun) -> Run:
    recorder = Recorder()
    Simulation(prepared.make_setup(), recorder).run()
    for process in prepared.topology.processes:
        recorder.record_process(process, prepared.topology.group_of(process), prepared.topology.region(process), None)
    return Run.from_recorder(recorder, prepared.make_meta("simulated"))


def _live(prepared: PreparedRun, folder: Path) -> Run:
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "cluster.toml"
    file.write_text(write_cluster(prepared))
    cluster = read_cluster(file)
    recorder = FolderRecorder(
        cluster.trace_folder, prepared.make_meta(cluster.run), packets=False, writer="clients", latest=False
    )
    with recorder, local_cluster(cluster) as running:
        run_loop(run_clients(_loops(prepared, cluster, recorder)))
        running.wait_until_settled()
    return read_run(cluster.trace_folder)


def write_cluster(prepared: PreparedRun) -> str:
    """A cluster.toml for what a plan names: everybody on loopback, as far apart as the plan's network says."""
    topology, network = prepared.topology, prepared.network
    ports = iter(find_free_ports(len(topology.servers)))
    matrix = network.matrix_ns or {"here": {"here": network.delay_ns}}
    groups = {
        f"g{group}": {
            "id": group,
            "replicas": [
                {"address": f"127.0.0.1:{next(ports)}", "region": _region(topology, member), "process": member}
                for member in topology.members(group)
            ],
        }
        for group in topology.groups
    }
    values: dict[str, Any] = {
        "name": "compared",
        "protocol": prepared.spec.name,
        "durability": "memory",
        "security": {"mode": "plain"},
        "trace": {"mode": "deliveries", "folder": "trace", "run": "live"},
        "options": dict(prepared.plan.options),
        "emulation": {
            "spread": network.spread if network.distribution == "normal" else 0.0,
            "bandwidth": network.bandwidth,
            "loss": network.loss,
            "retransmit_ns": network.retransmit_ns,
            "seed": prepared.plan.seed,
            "matrix_ns": matrix,
        },
        "groups": groups,
    }
    return format_toml(values)


def _region(topology: Topology, process: ProcessId) -> str:
    return topology.region(process) or "here"


def _loops(prepared: PreparedRun, cluster: Cluster, recorder: FolderRecorder) -> list[ScriptedClient]:
    """The plan's clients, each with its own messages, as fast as answers come."""
    topology, plan = prepared.topology, prepared.plan
    draw = prepared.make_draw(plan.seed)
    count, rest = divmod(plan.messages, len(topology.clients))

    def asks(me: ProcessId) -> Callable[[], ScriptedMessage]:
        def ask() -> ScriptedMessage:
            return ScriptedMessage(*draw(me))

        return ask

    return [
        ScriptedClient(
            connect(cluster, me=me, recorder=recorder, region=_region(topology, me)),
            asks(me),
            count + (place < rest),
            prepared.outstanding,
        )
        for place, me in enumerate(topology.clients)
    ]
