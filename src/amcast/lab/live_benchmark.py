"""What a live cluster costs: real processes over real sockets, one row of numbers, and the order checked at the end.

Every node is an operating-system process; all clients are in this one. What is counted per multicast:

    replica_cpu_us   CPU time of all replicas together, user and system, heartbeats and idle ticks included,
                     over the multicasts that were answered meanwhile
    ..._net          without what the same replicas use while nobody multicasts, which weighs most where a busy
                     machine lets few multicasts through
    client_cpu_us    the same of the process with the clients (and of this measurement)
    latency_us_...   from handing a message over (with a rate, from when it was due) until every destination group has
                     answered
    tcp_us           a yardstick for comparing machines: the CPU time of one send and one receive of 64 bytes over TCP
                     on loopback, of which a lone multicast to two groups of three needs thirty or so
    ping_us          another: the time for 64 bytes to go to another process and back, which waking up takes most of; a
                     lone multicast goes four times from one process to another before it is answered

The order needs no trace: replicas keep what they delivered, and are asked for it in the end. Clients tell what they
multicast, and the checker judges both as it would a trace.
"""

import gc
import os
import platform
import resource
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any, Final

from amcast.check.judge import Report, judge
from amcast.cluster import connect, local_cluster
from amcast.kernel.config import Config
from amcast.kernel.errors import UsageError
from amcast.kernel.ids import GroupId
from amcast.live.config.cluster import Cluster, Order, TraceMode, read_cluster
from amcast.live.load.load_generator import Arrivals, DeliveredPrefix, LoadGenerator, Window, read_delivered
from amcast.live.operations.local_cluster import LocalCluster, format_local_config
from amcast.live.rpc.client import RpcClient
from amcast.live.server.node import run_loop
from amcast.live.storage.store import Durability
from amcast.trace.meta import Meta, RunClaims, collect_versions
from amcast.trace.recorder import Recorder
from amcast.trace.run import Run
from amcast.trace.run_folder import FolderRecorder

FIRST_CLIENT: Final = 1000
IDLE_S: Final = 1.0
RECENT_BYTES: Final = 2 << 30
"""Bytes of deliveries that replicas keep for the check at the end; a run with more is judged unknown."""
GARBAGE_THRESHOLD: Final = 50_000
PERCENTILES: Final = {"p50": 0.50, "p90": 0.90, "p99": 0.99, "p999": 0.999}


class BenchmarkPlan(Config, frozen=True):
    """The parameters of one measurement."""

    groups: int = 2
    replicas: int = 3
    destinations: int = 2
    connections: int = 6
    outstanding: int = 170
    payload: int = 64
    seconds: float = 5.0
    protocol: str = "primcast"
    durability: Durability = "memory"
    seed: int = 0
    trace: TraceMode = "off"
    rate: float | None = None
    """Messages per second that each connection offers; None: a closed loop."""
    arrivals: Arrivals = "paced"
    """With a rate: `outstanding` messages together at equal intervals, or one by one at random moments, however many
    are unanswered."""
    order: Order = "acyclic"

    def __post_init__(self) -> None:
        for name in ("groups", "replicas", "connections", "outstanding"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} = {getattr(self, name)}; expected 1 or more")
        if not 1 <= self.destinations <= self.groups:
            raise ValueError(f"destinations = {self.destinations}; expected 1 to {self.groups}, the number of groups")
        if self.payload < 0:
            raise ValueError(f"payload = {self.payload}; expected 0 bytes or more")
        if self.seconds <= 0:
            raise ValueError(f"seconds = {self.seconds}; expected more than 0")
        if self.rate is not None and self.rate <= 0:
            raise ValueError(f"rate = {self.rate:g}; expected more than 0 messages per second")
        if self.rate is None and self.arrivals == "poisson":
            raise ValueError(
                "arrivals = 'poisson' without a rate; expected a rate, in messages per second and connection"
            )

    def sets(self) -> list[tuple[GroupId, ...]]:
        """Destinations of each connection: sets of neighbouring groups, round-robin from one that the seed draws."""
        first = Random(self.seed).randrange(self.groups)
        return [
            tuple(sorted((first + number + place) % self.groups for place in range(self.destinations)))
            for number in range(self.connections)
        ]


def run_benchmark(plan: BenchmarkPlan, say: Callable[[str], None] = lambda line: None) -> dict[str, Any]:
    """Starts a cluster, loads it, stops it and judges it; returns the numbers and the verdict as plain data."""
    with tempfile.TemporaryDirectory(prefix="amcast-bench-") as folder:
        cluster = _write_cluster(plan, Path(folder))
        recorder = _make_recorder(plan, cluster)
        rng = Random(plan.seed)
        load = LoadGenerator(rng.randbytes(plan.payload), plan.outstanding, plan.rate, plan.arrivals, rng)
        say(f"starting {plan.groups} groups x {plan.replicas} replicas of {plan.protocol}")
        with local_cluster(cluster) as running:
            idle = _measure_idle(cluster, running)
            say(f"{plan.connections} connections x {plan.outstanding} outstanding, {plan.seconds:g} s")
            with _rare_collections():
                _run_load(plan, cluster, running, load, recorder)
            say("reading back what every replica delivered")
            prefixes = _read_back(cluster)
        if isinstance(recorder, FolderRecorder):
            recorder.close()
        say("checking the order")
        report = _judge_run(plan, cluster, recorder, prefixes)
    return {**_describe_run(plan), **compute_measures(load.windows, load.latencies_ns, idle), **_verdict(report)}


def compute_measures(windows: list[Window], latencies_ns: list[int], idle: float = 0.0) -> dict[str, Any]:
    """Numbers over all windows, and the CPU time of the best one. `idle`: cores that idle replicas use."""
    total = Window(*(sum(column) for column in zip(*windows, strict=True)))
    if not total.multicasts:
        raise UsageError("no multicast was answered while it was counted; expected a longer run (--seconds)")
    row = sorted(latencies_ns)
    counted = [window for window in windows if window.multicasts]
    return {
        "multicasts": total.multicasts,
        "throughput_per_s": round(total.multicasts / total.seconds),
        "replica_cpu_us": _per(total.replicas_s, total.multicasts),
        "replica_cpu_us_net": _per(max(0.0, total.replicas_s - idle * total.seconds), total.multicasts),
        "client_cpu_us": _per(total.clients_s, total.multicasts),
        "replica_cpu_us_best": min(_per(window.replicas_s, window.multicasts) for window in counted),
        "idle_cpu_ms_per_s": round(1000 * idle, 1),
        "cores_used": round((total.replicas_s + total.clients_s) / total.seconds, 2),
        **{f"latency_us_{name}": row[int((len(row) - 1) * share)] / 1000 for name, share in PERCENTILES.items()},
        "latency_us_max": row[-1] / 1000,
    }


def _per(seconds: float, multicasts: int) -> float:
    return round(1e6 * seconds / multicasts, 2)


def _write_cluster(plan: BenchmarkPlan, folder: Path) -> Cluster:
    file = folder / "cluster.toml"
    file.write_text(
        format_local_config(
            {f"g{number}": plan.replicas for number in range(plan.groups)},
            protocol=plan.protocol,
            durability=plan.durability,
            order=plan.order,
            trace={"mode": plan.trace, "folder": "trace", "run": "bench"},
            limits={"recent_bytes": RECENT_BYTES},
        )
    )
    return read_cluster(file)


class _Memory(Recorder):
    """Records multicasts of clients, and nothing else."""

    wants_packets = False


class _Filed(FolderRecorder):
    """Records multicasts of clients in memory, and all in a trace folder."""

    def __init__(self, cluster: Cluster, packets: bool) -> None:
        super().__init__(
            cluster.trace_folder,
            Meta(run=cluster.run),
            packets=packets,
            every=cluster.trace_every,
            writer="clients",
            latest=False,
        )
        self.kept: list[Any] = []
        self.kept_answers: list[Any] = []

    def record_multicast(
        self, message: Any, at_ns: int, session: int | None = None, sequence: int | None = None
    ) -> None:
        super().record_multicast(message, at_ns, session, sequence)
        self.kept.append(
            (message.id, message.sender, message.destinations, at_ns, len(message.payload), session, sequence)
        )

    def record_answer(self, message: int, at_ns: int) -> None:
        super().record_answer(message, at_ns)
        self.kept_answers.append((message, at_ns))


def _make_recorder(plan: BenchmarkPlan, cluster: Cluster) -> Recorder:
    return _Memory() if plan.trace == "off" else _Filed(cluster, plan.trace == "full")


@contextmanager
def _rare_collections() -> Iterator[None]:
    """Lets collections of garbage be rare and pass over what exists already. With many connections and futures in one
    process each takes tens of milliseconds, for which messages would seem to wait for the cluster."""
    usual = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(GARBAGE_THRESHOLD, 50, 50)
    try:
        yield
    finally:
        gc.set_threshold(*usual)
        gc.unfreeze()


def _run_load(
    plan: BenchmarkPlan, cluster: Cluster, running: LocalCluster, load: LoadGenerator, recorder: Recorder
) -> None:
    clients = [connect(cluster, me=FIRST_CLIENT + n, recorder=recorder) for n in range(plan.connections)]

    def cpus_s() -> tuple[float, float]:
        used = resource.getrusage(resource.RUSAGE_SELF)
        return sum(running.cpu_s(node) for node in cluster.nodes()), used.ru_utime + used.ru_stime

    run_loop(load.run(clients, plan.sets(), min(1.0, plan.seconds / 3), plan.seconds, cpus_s))


def _measure_idle(cluster: Cluster, running: LocalCluster) -> float:
    """The cores that all replicas use without load."""
    time.sleep(IDLE_S / 2)
    begin, before = time.monotonic(), sum(running.cpu_s(node) for node in cluster.nodes())
    time.sleep(IDLE_S)
    return (sum(running.cpu_s(node) for node in cluster.nodes()) - before) / (time.monotonic() - begin)


def _read_back(cluster: Cluster) -> dict[int, DeliveredPrefix]:
    found: dict[int, DeliveredPrefix] = {}
    groups = {group: cluster.topology.members(group) for group in cluster.topology.groups}

    async def read() -> None:
        asker = RpcClient(cluster.name, cluster.addresses, cluster.limits)
        found.update(await read_delivered(asker, groups))

    run_loop(read())
    return found


def _judge_run(
    plan: BenchmarkPlan, cluster: Cluster, recorder: Recorder, prefixes: dict[int, DeliveredPrefix]
) -> Report:
    """Judges the multicasts of the clients and the deliveries of the replicas as a run."""
    topology = cluster.topology
    facts = _Memory()
    facts.multicasts = recorder.kept if isinstance(recorder, _Filed) else recorder.multicasts
    facts.answers = recorder.kept_answers if isinstance(recorder, _Filed) else recorder.answers
    facts.has_answers = True
    for client in range(FIRST_CLIENT, FIRST_CLIENT + plan.connections):
        facts.record_process(client, None)
    by_then = time.time_ns()
    for process, (first, messages) in prefixes.items():
        group = topology.group_of(process)
        facts.record_process(process, group)
        facts.deliveries += [
            (process, group, position, message, by_then, None, None, None, None, destinations)
            for position, (message, destinations) in enumerate(messages, first)
        ]
    claims = RunClaims(complete=True, exactly_once=True)
    return judge(Run.from_recorder(facts, Meta(run="bench", protocol=plan.protocol, seed=plan.seed, claims=claims)))


def _verdict(report: Report) -> dict[str, Any]:
    judged = {name: finding.verdict for name, finding in report.properties.items() if finding.claimed}
    return {"verdict": report.verdict, "properties": judged, "story": list(report.story())}


def _describe_run(plan: BenchmarkPlan) -> dict[str, Any]:
    optimized = "--enable-optimizations" in (sysconfig.get_config_var("CONFIG_ARGS") or "")
    return {
        **{name: getattr(plan, name) for name in plan.__struct_fields__},
        "interpreter": f"{platform.python_implementation()} {platform.python_version()}"
        + ("" if optimized else ", configured without --enable-optimizations"),
        "versions": collect_versions(),
        "machine": f"{platform.machine()}, {len(os.sched_getaffinity(0))} cores",
        "tcp_us": _tcp_us(),
        "ping_us": _ping_us(),
    }


def _tcp_us(rounds: int = 5, each: int = 2000) -> float:
    """CPU time of one send and one receive on this machine, in the best of some rounds."""
    best = float("inf")
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as one:
        other, _ = listener.accept()
        with other:
            data, buffer = bytes(64), bytearray(64)
            for _ in range(rounds):
                begin = time.process_time()
                for _ in range(each):
                    one.send(data)
                    other.recv_into(buffer)
                best = min(best, time.process_time() - begin)
    return _per(best, each)


_ECHO: Final = """
import socket, sys
with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as other:
    other.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    while data := other.recv(64):
        other.sendall(data)
"""


def _ping_us(each: int = 1000) -> float:
    """The median round-trip time to another process."""
    row: list[int] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(30)
        with subprocess.Popen([sys.executable, "-c", _ECHO, str(listener.getsockname()[1])]):
            one, _ = listener.accept()
            with one:
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                for _ in range(each):
                    begin = time.perf_counter_ns()
                    one.sendall(bytes(64))
                    one.recv(64)
                    row.append(time.perf_counter_ns() - begin)
    return sorted(row)[each // 2] / 1000
