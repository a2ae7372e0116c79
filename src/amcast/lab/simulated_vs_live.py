"""Compares one plan in the simulator and live on this machine, with the same delays emulated inside the links.

Both write the same trace, so a latency is the same in both: from a multicast until its client is answered. They differ
by what the simulator leaves out (CPU, event loop, sockets); where delays dominate, they agree within a few per cent.
Every client sends its share of the messages, one after the other has been answered.
"""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

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
from amcast.trace.client_waits import list_waits
from amcast.trace.recorder import Recorder
from amcast.trace.run import Run, read_run
from amcast.trace.run_folder import FolderRecorder

MAX_MESSAGES = 100_000
"""Most messages of a comparison: live runs take real time."""

SPANS: Final = ("mean_ms", "p50_ms", "p95_ms")


@dataclass(frozen=True)
class Latencies:
    """What clients of one run waited for, in milliseconds."""

    messages: int
    mean_ms: float
    p50_ms: float
    p95_ms: float

    @classmethod
    def of(cls, spans_ms: Sequence[float]) -> "Latencies":
        found = sorted(spans_ms)
        last = len(found) - 1
        return cls(len(found), statistics.fmean(found), found[round(0.5 * last)], found[math.ceil(0.95 * last)])


Kinds = dict[str, Latencies]
"""By kind of message: all, local (one destination group), global."""


@dataclass(frozen=True)
class Comparison:
    """A simulated and a live run of one plan."""

    simulated_kinds: Kinds
    live_kinds: Kinds
    folder: Path

    @property
    def simulated(self) -> Latencies:
        return self.simulated_kinds["all"]

    @property
    def live(self) -> Latencies:
        return self.live_kinds["all"]

    def difference(self, field: str, kind: str = "all") -> float:
        """How much longer clients of the live run waited, as a share."""
        simulated: float = getattr(self.simulated_kinds[kind], field)
        live: float = getattr(self.live_kinds[kind], field)
        return live / simulated - 1

    def agrees(self, within: float) -> bool:
        """Whether the medians of all messages, of local and of global ones differ by at most this share."""
        return all(abs(self.difference("p50_ms", kind)) <= within for kind in self.simulated_kinds)

    def as_dict(self, within: float) -> dict[str, Any]:
        """The comparison as plain data."""
        return {
            "agrees": self.agrees(within),
            "folder": str(self.folder),
            "simulated": {kind: asdict(one) for kind, one in self.simulated_kinds.items()},
            "live": {kind: asdict(one) for kind, one in self.live_kinds.items()},
            "difference_percent": {
                kind: {name: round(100 * self.difference(name, kind), 2) for name in SPANS}
                for kind in self.simulated_kinds
            },
        }

    def list_rows(self) -> list[list[object]]:
        """The lines of a table: kind, what is counted, simulated, live, difference."""
        rows: list[list[object]] = []
        for kind, simulated in self.simulated_kinds.items():
            live = self.live_kinds[kind]
            rows.append([kind, "messages", simulated.messages, live.messages, None])
            for name in SPANS:
                values = [f"{getattr(one, name):.2f}" for one in (simulated, live)]
                rows.append([None, name, *values, f"{100 * self.difference(name, kind):+.1f} %"])
        return rows


def measure_kinds(run: Run) -> Kinds:
    """How long the clients of a run waited for their answers, by kind of message."""
    waits = list_waits(run)
    if not waits:
        raise CannotTellError("no client of the run was answered; there is no latency to compare")
    return {kind: Latencies.of([span / 1e6 for span in spans]) for kind, spans in waits.items()}


def compare_worlds(plan: Plan, folder: Path, say: Callable[[str], None] = lambda line: None) -> Comparison:
    """Runs a plan in both worlds; configuration, logs and trace of the live run stay in `folder`."""
    prepared = prepare_run(msgspec.structs.replace(plan, nodes=True))
    if prepared.spec.open_bundle and not plan.gateways:
        # As in a cluster, clients ask gateways.
        prepared = prepare_run(msgspec.structs.replace(plan, gateways=True, nodes=True))
    _check(prepared)
    say(f"simulating {prepared.plan.messages} messages of {prepared.spec.name}")
    simulated = measure_kinds(_simulate(prepared))
    rate = float(plan.workload_options.get("rate_per_s", 0))
    each = plan.messages / len(prepared.topology.clients)
    expected_s = each / rate if rate else each * simulated["all"].mean_ms / 1000
    say(f"the same with {len(prepared.topology.servers)} real processes; it takes about {expected_s:.0f} s")
    return Comparison(simulated, measure_kinds(_run_live(prepared, folder)), folder)


def _check(prepared: PreparedRun) -> None:
    plan, network = prepared.plan, prepared.network
    if plan.messages > MAX_MESSAGES:
        raise UsageError(f"messages = {plan.messages}; expected at most {MAX_MESSAGES} in a run that takes real time")
    if network.links != "fifo" or network.duplication:
        raise UsageError('network: live links are in order and exactly once; expected links = "fifo", duplication = 0')
    if network.distribution not in ("constant", "normal"):
        raise UsageError(f"network.distribution = {network.distribution!r}; expected constant or normal")
    if plan.faults.profile != "none" or plan.faults.events:
        raise UsageError('faults: a comparison has none; expected profile = "none" and no events')


def _simulate(prepared: PreparedRun) -> Run:
    recorder = Recorder()
    Simulation(replace(prepared.make_setup(), equal_shares=True, demands_answers=True), recorder).run()
    for process in prepared.topology.processes:
        recorder.record_process(process, prepared.topology.group_of(process), prepared.topology.region(process), None)
    return Run.from_recorder(recorder, prepared.make_meta("simulated"))


def _run_live(prepared: PreparedRun, folder: Path) -> Run:
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "cluster.toml"
    file.write_text(write_cluster(prepared))
    cluster = read_cluster(file)
    recorder = FolderRecorder(
        cluster.trace_folder, prepared.make_meta(cluster.run), packets=False, writer="clients", latest=False
    )
    with recorder, local_cluster(cluster) as running:
        run_loop(run_clients(_make_loops(prepared, cluster, recorder)))
        running.wait_until_settled()
    return read_run(cluster.trace_folder)


def write_cluster(prepared: PreparedRun) -> str:
    """The cluster.toml of a plan: every node on loopback, with the delays of the plan's network."""
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


def _make_loops(prepared: PreparedRun, cluster: Cluster, recorder: FolderRecorder) -> list[ScriptedClient]:
    """The clients of the plan, each with its own messages."""
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
            is_open=prepared.make_workload(plan.seed).is_open_loop,
        )
        for place, me in enumerate(topology.clients)
    ]
