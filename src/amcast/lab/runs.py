"""Runs of plans: builds protocol, topology, workload and network from a plan, executes the run and judges it.

The simulator imports no protocol and no checker; this module passes them in. Commands, sweeps and tests all prepare
their runs here, so that a plan means the same everywhere.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from amcast.assembly import Assembly, assemble_bare, assemble_simulation
from amcast.check.judge import Report, judge
from amcast.check.verdict import Verdict
from amcast.kernel.config import Config
from amcast.kernel.errors import UsageError
from amcast.kernel.ids import MessageId, ProcessId
from amcast.kernel.message import Body
from amcast.kernel.process import Process
from amcast.kernel.reconfiguration import change_topology
from amcast.kernel.spec import Spec, all_correct, majorities_survive
from amcast.kernel.topology import Topology
from amcast.lab.protocol_lookup import find_protocol
from amcast.simulation.inputs.answers import AnswerRule
from amcast.simulation.inputs.environments import find_environment
from amcast.simulation.inputs.faults import parse_profile
from amcast.simulation.inputs.load import Draw
from amcast.simulation.inputs.network import NetworkConfig
from amcast.simulation.inputs.plan import Plan, describe_plan, scale_ns
from amcast.simulation.monitors.monitors import Monitoring
from amcast.simulation.schedulers.feedback import AbstractState, Lineage, StateRecorder
from amcast.simulation.schedulers.fuzz import FuzzCase, Fuzzer, FuzzOutcome
from amcast.simulation.simulate import RunSummary, Simulation, SimulationSetup
from amcast.simulation.world.actions import Change
from amcast.simulation.world.world import NodeBodies, World
from amcast.trace.meta import Meta, RunClaims, collect_versions
from amcast.trace.recorder import Recorder
from amcast.trace.run import Run, read_run
from amcast.workloads.base import MAX_OUTSTANDING, Workload
from amcast.workloads.catalogue import build_workload


@dataclass(frozen=True)
class PreparedRun:
    """A plan whose names are all resolved and checked."""

    plan: Plan
    spec: Spec
    config: Config
    topology: Topology
    network: NetworkConfig
    kinds: frozenset[str]
    nodes: bool

    def make(self, process: ProcessId) -> Process:
        """Builds a process of this run: a server or a client."""
        return self.assembly.make(process, self.initial_topology(process))

    @cached_property
    def assembly(self) -> Assembly:
        """The composition of the processes of this run."""
        if not self.nodes:
            return assemble_bare(self.spec, self.config)
        return assemble_simulation(
            self.spec,
            self.config,
            scale_ns(self.network),
            gateways=self.plan.gateways,
            changes=bool(self.changes),
            heartbeats=self.plan.heartbeats,
            gateway_options=self.plan.gateway,
            membership_options=self.plan.membership,
            order=self.plan.order,
            order_options=self.plan.order_options,
            replies="all" if self.plan.answers == "all" else "leader",
        )

    @property
    def node_bodies(self) -> NodeBodies:
        """The bodies by which the driver takes part in the nodes of this run; those of bare processes are empty."""
        spec = self.assembly.spec
        return NodeBodies(spec.farewell, spec.admission_bodies)

    @cached_property
    def monitoring(self) -> Monitoring | None:
        """The invariants of the protocol, for searches; None if its Spec states none."""
        table = self.assembly.make_statements(self.list_configurations())
        if table is None:
            return None
        claims = self.spec.claims
        # A protocol that has the order by itself answers what other groups are still to deliver.
        closes = self.plan.order == "real-time" and not claims.real_time and not claims.removes_groups
        return Monitoring(table, self.make, claims.ranked, bool(self.changes), answers_closed=closes)

    def list_configurations(self) -> list[Topology]:
        """The topologies of all configurations of the run, in order."""
        topologies = [self.topology]
        for change in self.changes:
            topologies.append(change_topology(topologies[-1], change.group, change.add, change.remove))
        return topologies

    def initial_topology(self, process: ProcessId) -> Topology:
        """The topology that a process begins with: of a process that joins, the first one with it as a member."""
        for change, topology in zip(self.changes, self.list_configurations()[1:], strict=True):
            if change.add == process:
                return topology
        return self.topology

    @property
    def changes(self) -> tuple[Change, ...]:
        """The changes of members in the plan, in order."""
        return tuple(event.fault for event in self.plan.faults.events if isinstance(event.fault, Change))

    @property
    def whole_topology(self) -> Topology:
        """The topology of all processes that exist at any time."""
        return unite_members(self.topology, self.changes)

    @property
    def absent(self) -> frozenset[ProcessId]:
        return frozenset(self.whole_topology.servers) - frozenset(self.topology.servers)

    @property
    def operator(self) -> ProcessId | None:
        """The client that requests changes of members: the last one, which sends nothing else."""
        return self.topology.clients[-1] if self.changes else None

    @property
    def senders(self) -> tuple[ProcessId, ...]:
        """The processes that multicast; none stands for all clients. A server that is removed is not one of them: what
        it has not been answered then is lost with it."""
        clients = self.topology.clients[:-1] if self.changes else ()
        if self.plan.senders == "clients":
            return clients
        removed = {change.remove for change in self.changes}
        servers = tuple(server for server in self.topology.servers if server not in removed)
        return (*(clients or self.topology.clients), *servers)

    def make_workload(self, seed: int) -> Workload:
        """The workload under a seed."""
        plan = self.plan
        return build_workload(plan.workload_name, self.topology, seed, plan.workload_options, self.measure_distance)

    def measure_distance(self, one: str, other: str) -> int:
        """Nanoseconds there and back between two regions, without jitter."""
        matrix = self.network.matrix_ns
        if one in matrix and other in matrix:
            return matrix[one][other] + matrix[other][one]
        return 2 * self.network.delay_ns

    def make_draw(self, seed: int) -> Draw:
        return self.make_workload(seed).draw

    @property
    def outstanding(self) -> int:
        """Outstanding messages per client; an open loop never waits for them."""
        load = self.make_workload(0)
        return MAX_OUTSTANDING if load.is_open_loop else load.outstanding

    def make_setup(self) -> SimulationSetup:
        plan = self.plan
        return SimulationSetup(
            topology=self.whole_topology,
            make=self.make,
            draw=self.make_draw(plan.seed),
            claims=self.spec.claims,
            network=self.network,
            seed=plan.seed,
            messages=plan.messages,
            outstanding=self.outstanding,
            replies=self.nodes,
            demands_answers=self.plan.order == "real-time",
            faults=plan.faults,
            kinds=self.kinds,
            until_ns=plan.until_ns,
            settle_ns=plan.settle_ns,
            senders=self.senders,
            absent=self.absent,
            operator=self.operator,
            node_bodies=self.node_bodies,
            answers=self.answer_rule,
            load_until_ns=round(plan.seconds * 1e9) if plan.seconds else 2**62,
        )

    @property
    def answer_rule(self) -> AnswerRule | None:
        """The rule by which the driver answers clients of bare processes, if it does."""
        rule = self.plan.answers
        return rule if rule == "nearest" or rule == "first" or rule == "groups" else None

    def make_case(self) -> FuzzCase:
        """The inputs of the fuzzer, which draws its own schedule."""
        return FuzzCase(
            topology=self.whole_topology,
            make=self.make,
            draw=self.make_draw,
            claims=self.spec.claims,
            kinds=self.kinds,
            messages=self.plan.messages,
            outstanding=self.outstanding,
            replies=self.nodes,
            demands_answers=self.plan.order == "real-time",
            is_audited=self.claims_real_time({}),
            links=self.network.links,
            wire_bodies=self.wire_bodies(),
            senders=self.senders,
            absent=self.absent,
            operator=self.operator,
            node_bodies=self.node_bodies,
            changes=self.changes,
            monitoring=self.monitoring,
        )

    def wire_bodies(self) -> tuple[type[Body], ...]:
        """Every body that may be sent in this run."""
        return self.assembly.spec.wire_bodies()

    def make_meta(self, run: str) -> Meta:
        claims = self.spec.claims
        return Meta(
            run=run,
            protocol=self.spec.name,
            seed=self.plan.seed,
            config=describe_plan(self.plan),
            topology=self.whole_topology.describe(),
            workload=self.plan.workload,
            faults={"profile": self.plan.faults.profile, "kinds": sorted(self.kinds)},
            versions=collect_versions(),
            claims=RunClaims(
                genuine=claims.genuine,
                fifo=claims.fifo,
                exactly_once=claims.exactly_once,
                real_time=claims.real_time or self.plan.order == "real-time",
            ),
        )

    def claims_real_time(self, notes: Mapping[str, int]) -> bool:
        """Whether a run that made these notes must be in real-time order."""
        claims = self.spec.claims
        has_promise = claims.real_time or self.plan.order == "real-time"
        return has_promise and not (claims.removes_groups and notes.get("removed", 0))


def prepare_run(plan: Plan, spec: Spec | None = None) -> PreparedRun:
    """Resolves and checks everything that a plan names. `spec` replaces the one of the catalogue (for mutants)."""
    spec = spec or find_protocol(plan.protocol)
    config = spec.configure(plan.options)
    sizes = plan.topology
    defaults: dict[str, Any] = {}
    if sizes.environment:
        place = find_environment(sizes.environment, sizes.groups, sizes.replicas, sizes.clients, sizes.options)
        topology, defaults = place.topology, place.network
    else:
        topology = Topology.grid(sizes.groups, sizes.replicas, sizes.clients)
    if not topology.clients:
        raise UsageError("topology.clients = 0; expected at least 1 client to multicast")
    changes = [event.fault for event in plan.faults.events if isinstance(event.fault, Change)]
    if changes:
        topology = add_operator(topology, spec, plan.nodes)
        unite_members(topology, changes)
        if spec.claims.tolerates is not all_correct:
            # A change goes to all groups and needs a majority of each, even if whole groups may crash otherwise.
            spec = replace(spec, claims=replace(spec.claims, tolerates=majorities_survive))
    else:
        spec = spec.for_topology(topology)
    spec.check_topology(topology)
    network = plan.network_config(defaults)
    _check_links(spec, network)
    if plan.gateways and not spec.open_bundle:
        raise UsageError(f"gateways = true; protocol {spec.name} does not open bundles")
    is_real_time = plan.order == "real-time"
    if is_real_time and plan.nodes is False:
        raise UsageError('order = "real-time", and nodes = false; it is an order of answers, and only nodes answer')
    nodes = plan.nodes if plan.nodes is not None else bool(changes) or "crash" in spec.claims.faults or is_real_time
    _check_answers(plan, nodes)
    kinds = parse_profile(plan.faults.profile, spec.claims.for_nodes() if nodes else spec.claims, spec.name)
    prepared = PreparedRun(plan, spec, config, topology, network, kinds, nodes)
    reconfiguration = prepared.assembly.reconfiguration
    if reconfiguration is not None and len(changes) > reconfiguration.max_old_instances:
        raise UsageError(
            f"membership.max_old_instances = {reconfiguration.max_old_instances}, and {len(changes)} changes; expected"
            " at least as many: a group that is down during more changes never finishes its old configurations"
        )
    prepared.make_draw(plan.seed)(topology.clients[0])
    prepared.make(topology.servers[0])  # rejects options that do not fit the topology
    return prepared


def _check_answers(plan: Plan, nodes: bool) -> None:
    """Rejects answers that processes of this kind cannot give."""
    rules = ("leader", "all") if nodes else ("everywhere", "nearest", "first", "groups")
    if plan.answers and plan.answers not in rules:
        kind = "nodes" if nodes else "bare processes (nodes = false)"
        raise UsageError(f"answers = {plan.answers!r}, and processes are {kind}; expected one of: {', '.join(rules)}")


def add_operator(topology: Topology, spec: Spec, nodes: bool | None) -> Topology:
    """Adds a client, the operator, that requests changes of members."""
    if not spec.claims.members:
        raise UsageError(f"faults.events: change; protocol {spec.name} does not claim that its members can change")
    if nodes is False:
        raise UsageError("faults.events: change, and nodes = false; members change in nodes")
    return topology.with_clients((*topology.clients, max(topology.processes) + 1))


def unite_members(topology: Topology, changes: Sequence[Change]) -> Topology:
    """Adds all processes that join at any time; rejects changes that cannot be made before anything runs."""
    groups = {group: list(topology.members(group)) for group in topology.groups}
    current = topology
    for change in changes:
        if change.add in groups.get(change.group, ()):
            raise UsageError(f"faults.events: change adds process {change.add}; expected one that was never a member")
        current = change_topology(current, change.group, change.add, change.remove)
        if change.add is not None:
            groups[change.group].append(change.add)
    regions = {**topology.regions}
    for group, members in groups.items():
        for member in members:
            regions.setdefault(member, topology.region(topology.members(group)[0]))
    return Topology(groups, topology.clients, {p: r for p, r in regions.items() if r}, topology.names)


def _check_links(spec: Spec, network: NetworkConfig) -> None:
    strength = ("raw", "reordering", "fifo")
    if strength.index(network.links) < strength.index(spec.claims.links):
        raise UsageError(
            f"network.links = {network.links!r}; protocol {spec.name} needs {spec.claims.links!r} links or better"
        )


@dataclass
class RecordedRun:
    """A recorded run with its report."""

    folder: Path
    summary: RunSummary
    report: Report
    run: Run

    @property
    def verdict(self) -> Verdict:
        """The verdict of the report; violated if a process took a step that none may take, or failed."""
        return "violated" if self.summary.violations else self.report.verdict


def record_run(
    prepared: PreparedRun,
    folder: Path,
    packets: bool = True,
    progress: Callable[[int, int], None] | None = None,
) -> RecordedRun:
    """Simulates a plan into a run folder, reads it back and judges it."""
    from amcast.trace.run_folder import FolderRecorder

    with FolderRecorder(folder, prepared.make_meta(folder.name), packets=packets) as recorder:
        summary = Simulation(prepared.make_setup(), recorder).run(progress)
        recorder.close(complete=summary.complete, real_time=prepared.claims_real_time(summary.notes))
    run = read_run(folder)
    return RecordedRun(folder, summary, judge(run), run)


def make_judge(prepared: PreparedRun, seed: int) -> Callable[[World, Recorder, bool], str | None]:
    """The judge of fuzzed runs: checks all properties on the trace in memory."""

    def verdict(world: World, recorder: Recorder, complete: bool) -> str | None:
        topology = world.topology
        for process in topology.processes:
            recorder.record_process(
                process, topology.group_of(process), topology.region(process), world.down.get(process)
            )
        for message, at_ns in list_closings(world):
            recorder.record_answer(message, at_ns)
        real_time = prepared.claims_real_time(world.note_counts)
        meta = prepared.make_meta(f"seed-{seed}").with_claims(complete=complete, real_time=real_time)
        report = judge(Run.from_recorder(recorder, meta))
        if report.verdict != "violated":
            return None
        return describe_violation(report)

    return verdict


def list_closings(world: World) -> Iterator[tuple[MessageId, int]]:
    """The messages that some node stated to be closed, and when it was first stated. It must be as true as an answer:
    readers may act on it."""
    for group, closings in world.closings.items():
        longest = max((world.history[member] for member in world.topology.members(group)), key=len)
        begin = 0
        for position, at_ns in closings:
            yield from ((message, at_ns) for message in longest[begin:position])
            begin = position


def describe_violation(report: Report) -> str:
    """The first violated property that is claimed, with its story."""
    for name, finding in report.properties.items():
        if finding.verdict == "violated" and finding.claimed:
            return f"{name}: " + "; ".join(finding.story)
    raise AssertionError("a violated report names no violated property")


def fuzz_seed(prepared: PreparedRun, seed: int) -> FuzzOutcome:
    """Fuzzes one seed: draws everything, checks safety, demands liveness."""
    return _fuzz(prepared, Fuzzer(prepared.make_case(), seed, Recorder()))


def fuzz_lineage(prepared: PreparedRun, lineage: Lineage) -> tuple[FuzzOutcome, dict[AbstractState, int]]:
    """Fuzzes one seed that is drawn anew at some steps; returns the abstract states that it reached, too."""
    recorder = StateRecorder(prepared.whole_topology)
    fuzzer = Fuzzer(prepared.make_case(), lineage.seed, recorder, lineage.turns)
    recorder.world = fuzzer.world
    return _fuzz(prepared, fuzzer), recorder.states


def _fuzz(prepared: PreparedRun, fuzzer: Fuzzer) -> FuzzOutcome:
    try:
        return fuzzer.run(make_judge(prepared, fuzzer.seed))
    except Exception as error:  # of the simulator or a judge; one of a process is an outcome
        error.add_note(f"while fuzzing seed {fuzzer.seed} of {prepared.spec.name}")
        raise
