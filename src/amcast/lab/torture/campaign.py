"""One torture: builds the cluster and its network, runs traffic, observers and nemesis, and judges everything.

The folder of a run gets `torture.json` (verdict, counts, every strike, every violation), the trace in `trace`, the
ledgers of hosted programs in `ledgers`, and the logs of nodes in `data/logs`. A service instead of ledgers leaves the
history of its calls in `history.jsonl`, and the states of its replicas in `states`.
"""

import platform
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from amcast.check.judge import judge
from amcast.check.verdict import Verdict, worst_verdict
from amcast.cluster import cluster_spec, connect, subscribe
from amcast.kernel.config import Config
from amcast.kernel.errors import CannotTellError, UsageError
from amcast.kernel.message import Message
from amcast.kernel.spec import Spec
from amcast.lab.protocol_lookup import find_protocol
from amcast.lab.torture.comparison import compare_acknowledged, compare_ends, compare_ledgers, compare_observed
from amcast.lab.torture.faults import FAULTS, NEEDED_CLAIMS, NEEDED_REPLICAS, Strike
from amcast.lab.torture.hosted_service import FOLDER as STATES
from amcast.lab.torture.hosted_service import PROGRAM as SERVICE_PROGRAM
from amcast.lab.torture.hosted_service import TorturedService, load_tortured
from amcast.lab.torture.ledger import ledger_file, read_ledger
from amcast.lab.torture.nemesis import Nemesis
from amcast.lab.torture.target import TorturedCluster
from amcast.live.config.cluster import Cluster, format_toml, read_cluster
from amcast.live.operations.local_cluster import LocalCluster
from amcast.live.server.node import run_loop
from amcast.live.torture.cuts import CuttableNetwork, ProxyNetwork
from amcast.live.torture.namespaces import NodeNamespaces, are_namespaces_available
from amcast.live.torture.service_session import ServiceSession
from amcast.live.torture.session import TortureSession
from amcast.trace.meta import Meta, RunClaims, collect_versions
from amcast.trace.run import read_run
from amcast.trace.run_folder import FolderRecorder

CLIENTS: Final = 6
FIRST_CLIENT: Final = 1000
FILE: Final = "torture.json"
HISTORY: Final = "history.jsonl"
MAX_SENTENCES: Final = 20
PROGRAM: Final = "amcast.lab.torture.ledger"
"""The module that runs at every replica."""


class TorturePlan(Config, frozen=True):
    """The settings of one torture."""

    protocol: str = "primcast"
    minutes: float = 1.0
    groups: int = 2
    replicas: int = 3
    faults: tuple[str, ...] = ()
    """Empty: all that the protocol claims to survive and the network can do."""
    network: Literal["auto", "namespaces", "proxy"] = "auto"
    durability: Literal["os", "fsync"] = "os"
    order: Literal["acyclic", "real-time"] = "acyclic"
    service: str = ""
    """MODULE:CLASS: a service that is hosted instead of ledgers."""
    load: str = ""
    """MODULE:FUNCTION: what each of its callers does again and again; empty: random calls."""
    invariants: tuple[str, ...] = ()
    """MODULE:FUNCTION: what judges its states at the end."""
    seed: int = 0

    def __post_init__(self) -> None:
        for name, low, high in (("minutes", 0.05, 24 * 60), ("groups", 1, 16), ("replicas", 1, 9)):
            value = getattr(self, name)
            if not low <= value <= high:
                raise ValueError(f"{name} = {value}; expected {low} to {high}")
        for fault in self.faults:
            if fault not in FAULTS:
                raise ValueError(f"faults: {fault!r}; expected some of {', '.join(FAULTS)}")
        if not self.service and (self.load or self.invariants):
            raise ValueError(
                f"load = {self.load!r}, invariants = {list(self.invariants)}; expected a service with them"
            )


@dataclass
class TortureResult:
    """What became of a torture."""

    verdict: Verdict
    plan: dict[str, Any]
    network: str
    faults: tuple[str, ...]
    acknowledged: int
    unanswered: int
    """Multicasts without an answer in time: they may be delivered or not."""
    observed: int
    executed: int
    """Rows in the ledgers of all hosted programs, repetitions included; of a service, lines of the history."""
    struck_s: float
    """How long faults struck."""
    longest_gap_ms: float
    longest_recovery_s: float
    properties: dict[str, Verdict]
    strikes: list[Strike]
    violations: list[str]
    unknown: list[str] = field(default_factory=list)
    """Sentences: what could not be judged, and why."""


def run_torture(plan: TorturePlan, folder: Path, say: Callable[[str], None], program: str = PROGRAM) -> TortureResult:
    """Tortures a new cluster in `folder`, which must be empty or new. `program` may be a module with a planted bug."""
    if folder.exists() and any(folder.iterdir()):
        raise UsageError(f"{folder} is not empty; expected a folder that is new")
    service = load_tortured(plan.service, plan.load, plan.invariants) if plan.service else None
    spec = find_protocol(plan.protocol)
    if "recovery" not in spec.claims.faults:
        raise UsageError(f"protocol {spec.name} does not claim to survive restarts; expected one that does")
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        cluster, network, prefix, around = stack.enter_context(_build_cluster(plan, folder))
        kinds = _choose_faults(plan, spec, network)
        command = [program] if service is None else [SERVICE_PROGRAM, service.reference]
        running = LocalCluster(cluster, [sys.executable, "-m", *command], prefix=prefix)
        session = TortureSession(cluster.topology.groups, plan.seed)
        if service is not None:
            session = ServiceSession(cluster.topology.groups, plan.seed, load=service.load)

        def settle() -> None:
            running.wait_until_settled()
            if service is not None:
                service.collect(running.cluster, folder / STATES)

        target = TorturedCluster(running, network, plan.replicas, plan.seed, say)
        nemesis = Nemesis(target, kinds, lambda: len(session.acknowledged))
        recorder = FolderRecorder(cluster.trace_folder, _make_meta(plan, cluster), packets=False, writer="clients")
        clients = [connect(cluster, me=FIRST_CLIENT + n, recorder=recorder, connect_s=60) for n in range(CLIENTS)]
        unknown: list[str] = []
        say(f"{plan.groups} groups x {plan.replicas} replicas of {plan.protocol}, {network.name}, {', '.join(kinds)}")
        with recorder, running:
            try:
                run_loop(
                    session.run(
                        clients,
                        lambda group, since: subscribe(running.cluster, cluster.topology.names[group], since=since),
                        lambda: nemesis.run(60 * plan.minutes),
                        settle,
                        around,
                    )
                )
            except CannotTellError as error:
                unknown.append(str(error))
            running.record_dead(recorder)
            if isinstance(session, ServiceSession):
                _record_exchanged(recorder, session, cluster)
            recorder.close(complete=not unknown and not target.violations)
    result = _judge(plan, target, session, nemesis, unknown, service)
    if isinstance(session, ServiceSession):
        lines = [msgspec.json.encode(line) + b"\n" for line in session.history]
        (folder / HISTORY).write_bytes(b"".join(lines))
    result.network, result.faults = network.name, kinds
    (folder / FILE).write_bytes(msgspec.json.format(msgspec.json.encode(asdict(result)), indent=1))
    return result


def _record_exchanged(recorder: FolderRecorder, session: ServiceSession, cluster: Cluster) -> None:
    """Records the multicasts of values that nodes have exchanged, at a time before everything: theirs is not known."""
    for message, delivery in session.exchanged.items():
        groups = tuple(sorted(cluster.group_id(name) for name in delivery.destinations))
        recorder.record_multicast(Message(message, delivery.sender, groups), 0)
    for sender in sorted({delivery.sender for delivery in session.exchanged.values()}):
        recorder.record_process(sender, None, host=platform.node())


def _choose_faults(plan: TorturePlan, spec: Spec, network: CuttableNetwork) -> tuple[str, ...]:
    able = [fault for fault in FAULTS if network.corrupts or fault != "corrupt"]
    able = [fault for fault in able if NEEDED_CLAIMS.get(fault, "pause") in spec.claims.faults]
    able = [fault for fault in able if NEEDED_REPLICAS.get(fault, 1) <= plan.replicas]
    able = [fault for fault in able if spec.claims.members or fault != "members"]
    for fault in plan.faults:
        if fault not in able:
            raise UsageError(
                f"--faults {fault}: not with protocol {spec.name}, --replicas {plan.replicas} and --network"
                f" {network.name}; expected some of {', '.join(able)}"
            )
    return plan.faults or tuple(able)


Built = tuple[Cluster, CuttableNetwork, Callable[[int], tuple[str, ...]], AbstractAsyncContextManager[Any]]


@contextmanager
def _build_cluster(plan: TorturePlan, folder: Path) -> Iterator[Built]:
    """Writes the cluster.toml. Yields the cluster, its network, the prefix of nodes' commands, and the context in which
    a session runs."""
    processes = range(plan.groups * plan.replicas)
    chosen = plan.network
    if chosen == "auto":
        chosen = "namespaces" if are_namespaces_available() else "proxy"
    if chosen == "namespaces":
        with NodeNamespaces() as namespaces:
            cluster = _write_config(plan, folder, [namespaces.add_node(process).describe() for process in processes])
            yield cluster, namespaces, lambda process: tuple(namespaces.prefix(process)), nullcontext()
        return
    network = ProxyNetwork()
    cluster = _write_config(plan, folder, [network.add_node(process).describe() for process in processes])
    yield cluster, network, lambda process: (), network.run()


def _write_config(plan: TorturePlan, folder: Path, replicas: list[dict[str, str]]) -> Cluster:
    groups = {
        f"group{number}": {"replicas": replicas[number * plan.replicas : (number + 1) * plan.replicas]}
        for number in range(plan.groups)
    }
    text = format_toml(
        {
            "name": "torture",
            "protocol": plan.protocol,
            "durability": plan.durability,
            "order": plan.order,
            # Addresses of namespaces are reachable from this run alone.
            "security": {"mode": "plain", "plain_beyond_loopback": True},
            "limits": {"heartbeat_timeout_s": 1.0, "heartbeat_s": 0.1, "reconnect_max_s": 0.2},
            "trace": {"mode": "deliveries", "folder": "trace", "run": "torture"},
            "groups": groups,
        }
    )
    file = folder / "cluster.toml"
    file.write_text(text)
    return read_cluster(file)


def _make_meta(plan: TorturePlan, cluster: Cluster) -> Meta:
    claims = cluster_spec(cluster).claims
    return Meta(
        run=cluster.run,
        protocol=plan.protocol,
        seed=plan.seed,
        topology=cluster.topology.describe(),
        workload={"clients": CLIENTS},
        faults={"torture": list(plan.faults) or ["all"]},
        versions=collect_versions(),
        claims=RunClaims(fifo=claims.fifo, exactly_once=True, real_time=plan.order == "real-time"),
    )


def _judge(
    plan: TorturePlan,
    target: TorturedCluster,
    session: TortureSession,
    nemesis: Nemesis,
    unknown: list[str],
    service: TorturedService | None,
) -> TortureResult:
    """Judges the trace, and compares what all parties say."""
    report = judge(read_run(target.cluster.trace_folder))
    violations = [*target.violations, *report.story()] if report.verdict == "violated" else [*target.violations]
    if service is None:
        rows = _judge_ledgers(target, session, violations, complete=not unknown)
    else:
        assert isinstance(session, ServiceSession)
        rows = len(session.history)
        violations += [*session.violations, *service.judge(target.cluster)]
        if not service.states and not unknown:
            unknown.append("no replica gave its state at the end")
    if report.verdict == "unknown":
        unknown.append("the trace has not all evidence: " + "; ".join(islice(report.story(), 3)))
    if not session.acknowledged:
        unknown.append("no multicast was acknowledged")
    own: Verdict = "violated" if violations else "unknown" if unknown else "holds"
    return TortureResult(
        verdict=worst_verdict([own, report.verdict]),
        plan=msgspec.to_builtins(plan),
        network="",
        faults=(),
        acknowledged=len(session.acknowledged),
        unanswered=session.unanswered,
        observed=sum(map(len, session.observed.values())),
        executed=rows,
        struck_s=round(nemesis.struck_s, 1),
        longest_gap_ms=round(session.longest_gap_ns / 1e6, 1),
        longest_recovery_s=round(nemesis.longest_recovery_s, 3),
        properties={name: finding.verdict for name, finding in report.properties.items() if finding.claimed},
        strikes=nemesis.strikes,
        violations=violations[:MAX_SENTENCES],
        unknown=unknown,
    )


def _judge_ledgers(target: TorturedCluster, session: TortureSession, violations: list[str], *, complete: bool) -> int:
    """Compares ledgers, receipts and observers, and adds what contradicts; of removed members, what they said before
    they left. Returns the number of rows."""
    executed, rows = {}, 0
    is_whole = complete and not target.violations
    for group in target.cluster.topology.groups:
        nodes = [*target.members(group), *target.former.get(group, ())]
        ledgers = {node: read_ledger(ledger_file(target.folder, node)) for node in nodes}
        rows += sum(map(len, ledgers.values()))
        executed[group], contradictions = compare_ledgers(group, ledgers)
        violations += contradictions
        if is_whole:
            violations += compare_ends(group, {node: ledgers[node] for node in target.members(group)})
        violations += compare_observed(
            group, session.observed.get(group, []), executed[group], session.gaps.get(group, 0)
        )
    violations += compare_acknowledged(session.acknowledged, executed)
    return rows
