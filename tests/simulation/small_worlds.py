"""Small worlds around a protocol, for searches and scripts."""

from collections.abc import Callable, Mapping
from typing import Any

from amcast.check.incremental import check_chains
from amcast.kernel.ids import GroupId, ProcessId
from amcast.kernel.process import Process
from amcast.kernel.spec import Spec
from amcast.kernel.topology import Topology
from amcast.parts.client.one_shot import OneShotClient
from amcast.simulation.inputs.load import Draw
from amcast.simulation.inputs.random_streams import make_stream
from amcast.simulation.schedulers.fuzz import FuzzCase, Fuzzer, FuzzOutcome
from amcast.simulation.schedulers.scope import Scope
from amcast.simulation.schedulers.script import Script
from amcast.simulation.world.actions import AnyAction
from amcast.simulation.world.world import World
from amcast.trace.recorder import Recorder

Messages = tuple[tuple[ProcessId, tuple[GroupId, ...]], ...]


def maker(spec: Spec, topology: Topology) -> Callable[[ProcessId], Process]:
    """Bare processes of a protocol, and clients that send once."""
    config = spec.configure()

    def make(process: ProcessId) -> Process:
        if topology.group_of(process) is None:
            return OneShotClient(process, topology, spec.contacts)
        return spec.process(process, topology, config)

    return make


def scope_of(spec: Spec, groups: int, messages: Messages, **options: Any) -> Scope:
    """One process per group, and as many clients as the messages name; client processes follow the servers."""
    topology = Topology.grid(groups, 1, 1 + max(sender for sender, _ in messages) - groups)
    options.setdefault("goals", spec.goals)
    return Scope(
        topology, maker(spec, topology), messages, always(topology), spec.unreplicated or spec.claims, **options
    )


def always(topology: Topology) -> Callable[[Mapping[int, Any], Mapping[int, Any]], str | None]:
    group_of = {process: topology.group_of(process) for process in topology.processes}
    return lambda histories, destinations: check_chains(histories, destinations, group_of)


def judge(world: World, recorder: Recorder, complete: bool) -> str | None:
    """Safety of what was delivered so far."""
    destinations: Any = {row[0]: row[2] for row in recorder.multicasts}
    return always(world.topology)(world.history, destinations)


def case_of(spec: Spec, groups: int = 3, kinds: frozenset[str] = frozenset(), **options: Any) -> FuzzCase:
    topology = Topology.grid(groups, 1, 2)

    def draw(seed: int) -> Draw:
        random = make_stream(seed, "destinations")
        return lambda client: (tuple(sorted(random.sample(range(groups), random.randint(1, groups)))), 0, 0)

    claims = spec.unreplicated or spec.claims
    options.setdefault("links", claims.links)
    return FuzzCase(topology, maker(spec, topology), draw, claims, kinds, **options)


def fuzzed(case: FuzzCase, seed: int) -> FuzzOutcome:
    return Fuzzer(case, seed, Recorder()).run(judge)


def script_of(spec: Spec, case: FuzzCase, outcome: FuzzOutcome) -> Script:
    return Script(
        spec.name,
        case.topology,
        outcome.script,
        links=case.links,
        seed=outcome.seed,
        status=outcome.status,
        story=outcome.story,
    )


def explored_script(spec: Spec, scope: Scope, actions: list[AnyAction]) -> Script:
    return Script(spec.name, scope.topology, actions, links=scope.links, tick_ns=0)
