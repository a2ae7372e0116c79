"""A demonstration: a cluster on this machine, traffic across groups, a leader killed and restarted.

Nine operating-system processes in three groups, real sockets, logs on disk. Their trace is checked by the caller, with
Spark, and shown in a report.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from time import time_ns

from amcast.cluster import cluster_spec, connect, local_cluster
from amcast.kernel.errors import UsageError
from amcast.lab.protocol_lookup import find_protocol
from amcast.live.config.cluster import read_cluster
from amcast.live.load.closed_loop import Traffic, run_stages
from amcast.live.operations.local_cluster import format_local_config
from amcast.live.server.node import run_loop
from amcast.trace.meta import Meta, RunClaims, collect_versions
from amcast.trace.run_folder import FolderRecorder

GROUPS = ("orders", "stock", "billing")
VICTIM = "orders/1"
CLIENTS = 4
OUTSTANDING = 4
FIRST_CLIENT = 1000


@dataclass(frozen=True)
class DemoResult:
    """The result of a demonstration."""

    trace: Path
    receipts: int
    unanswered: int
    longest_gap_ms: float
    """The longest time without any receipt: the leader change."""


def run_demo(folder: Path, protocol: str, seconds: float, say: Callable[[str], None]) -> DemoResult:
    """Runs the demonstration into `folder`; `say` is called as each stage begins."""
    find_protocol(protocol)
    if folder.exists() and any(folder.iterdir()):
        raise UsageError(f"{folder} is not empty; expected a folder that is new")
    folder.mkdir(parents=True, exist_ok=True)
    config = folder / "cluster.toml"
    config.write_text(
        format_local_config(
            dict.fromkeys(GROUPS, 3),
            protocol=protocol,
            durability="os",
            trace={"mode": "full", "folder": "trace", "run": "demo"},
        )
    )
    cluster = read_cluster(config)
    claims = cluster_spec(cluster).claims
    meta = Meta(
        run=cluster.run,
        protocol=protocol,
        topology=cluster.topology.describe(),
        workload={"clients": CLIENTS, "outstanding": OUTSTANDING},
        faults={"killed": VICTIM},
        versions=collect_versions(),
        claims=RunClaims(genuine=claims.genuine, exactly_once=True),
    )
    sets = [pair for size in (1, 2, 3) for pair in combinations(cluster.topology.groups, size)]
    traffic = Traffic(lambda number: sets[number % len(sets)], payload=64, outstanding=OUTSTANDING)
    recorder = FolderRecorder(cluster.trace_folder, meta, writer="clients", latest=False)
    struck: list[tuple[str, int]] = []
    clients = [connect(cluster, me=FIRST_CLIENT + number, recorder=recorder) for number in range(CLIENTS)]
    say(f"starting 3 groups x 3 replicas of {protocol} on loopback: {', '.join(GROUPS)}")
    with local_cluster(cluster) as running:

        def kill() -> None:
            struck.append(("fault-crash", time_ns()))
            say(f"{traffic.done} multicasts so far; kill -9 {VICTIM}, the leader of its group")
            running.kill(VICTIM)

        def revive() -> None:
            struck.append(("fault-recover", time_ns()))
            say(f"{traffic.done} multicasts so far; {VICTIM} starts again from its log")
            running.start(VICTIM)

        say(f"{CLIENTS} clients multicast to every combination of groups, {OUTSTANDING} messages in flight each")
        stages = [(seconds / 3, kill), (seconds / 3, revive), (seconds / 3, lambda: None)]
        run_loop(run_stages(clients, traffic, stages, running.wait_until_settled))
    for name, at_ns in struck:
        recorder.record_note(cluster.process_of(VICTIM), at_ns, name)
    recorder.close(complete=True)
    return DemoResult(cluster.trace_folder, traffic.done, traffic.unanswered, traffic.longest_gap_ns / 1e6)
