"""Every event, effect and body that a live node may see can occur in simulated runs of its protocol."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any, NamedTuple, cast

import msgspec
import pytest

from amcast.assembly import Assembly, assemble_simulation
from amcast.kernel.effects import Effect
from amcast.kernel.events import Event
from amcast.kernel.ids import ProcessId
from amcast.kernel.message import Body
from amcast.kernel.process import Process
from amcast.kernel.spec import Spec
from amcast.lab.runs import PreparedRun, prepare_run
from amcast.lab.service_search import CALLERS, ServiceSearch
from amcast.parts.client.messages import Done
from amcast.protocols.catalogue import CATALOGUE
from amcast.services.declaration import At, Key, Service, command, query
from amcast.simulation.inputs.plan import parse_plan
from amcast.simulation.narration import NarratedProcess, ObservedStep
from amcast.simulation.schedulers.fuzz import Fuzzer
from amcast.simulation.services.fuzzer import ServiceFuzzer
from amcast.simulation.services.run import SimulatedCluster
from amcast.simulation.simulate import Simulation
from amcast.simulation.world.actions import Block
from amcast.trace.recorder import Recorder
from tests.protocols.stage import Stage

MS = 1_000_000
SEEDS = 20
NEWCOMER = 20
LIVE_EVENTS = [
    {"at_ns": 0, "do": "collect", "process": 0},
    {"at_ns": 0, "do": "collect", "process": 1},
    {"at_ns": 20 * MS, "do": "leave", "process": 0},
    {"at_ns": 40 * MS, "do": "unreachable", "process": 1, "peer": 0},
]
OLDER_COPY = [
    {"at_ns": 60 * MS, "do": "crash", "process": 4},
    {"at_ns": 61 * MS, "do": "recover", "process": 4, "rolled_back": 2},
]
"""A node restarts with an older copy of its data folder, and once more when its group has told it."""
CHANGE = {"at_ns": 10 * MS, "do": "change", "group": 0, "add": NEWCOMER}
RARE_OPTIONS = {
    "keep": 2,
    "consensus": "ring",
    "confirmation_batch": 1,
    "flush_every": 2,
    "proposes_early": True,
    "transfer": "leader",
}
"""Options under which logs are trimmed at once and every optional path is taken, where a protocol has them."""

NEVER_SENT = {"basecast": {"FinalQuery", "FinalReply"}, "a-ge-star": {"FinalQuery", "FinalReply"}}
"""Bodies that a protocol shares with others and has no use for: neither delivers ahead of its log."""


class Observation(NamedTuple):
    """One run to look at."""

    prepared: PreparedRun
    fuzzed: bool
    early_bodies: int | None = None
    """How many bodies of a later configuration a process keeps; None: as many as in any run."""


def list_runs(spec: Spec) -> Iterator[Observation]:
    """Short runs of a protocol: what a live driver reports, faults, gateways, changing members, rare options."""
    values: dict[str, Any] = {
        "protocol": spec.name,
        "nodes": True,
        "topology": {"groups": 2, "replicas": 1 if spec.claims.single_replica else 3, "clients": 4},
        "workload": {"messages": 12, "outstanding": 2, "destinations": [1, 2]},
        "faults": {"profile": "all"},
    }
    has_gateways = spec.open_bundle is not None
    rare = {name: value for name, value in RARE_OPTIONS.items() if name in spec.config.__struct_fields__}
    trimmed = {"keep": rare["keep"]}
    untrimmed = {name: value for name, value in rare.items() if name != "keep"}
    lone = {
        "topology": {"groups": 3, "replicas": 1, "clients": 4},
        "workload": {"messages": 20, "destinations": [1, 3]},
    }
    driven = {"faults": {"events": LIVE_EVENTS}, "network": {"cpu_ns": MS // 10, "burst": True}}
    yield _observe(values, gateways=has_gateways, **driven)
    if "amnesia" in spec.claims.faults:
        yield _observe(values, faults={"events": OLDER_COPY})
    for seed in range(SEEDS):
        changing = {"profile": "all", "events": [CHANGE]}
        yield _observe(values, True, seed=seed, gateways=has_gateways)
        yield _observe(values, True, seed=seed, options=rare, workload={"messages": 40, "destinations": [1, 2]})
        yield _observe(values, True, seed=seed, options=untrimmed, **lone)
        if not spec.claims.real_time:
            yield _observe(values, True, seed=seed, order="real-time", **lone)
        if spec.claims.members:
            yield _observe(values, True, seed=seed, options=trimmed, faults=changing)
            yield _observe(values, True, seed=seed, faults=changing)._replace(early_bodies=1)


def _observe(values: dict[str, Any], fuzzed: bool = False, **changes: Any) -> Observation:
    return Observation(prepare_run(parse_plan({**values, **changes})), fuzzed)


def watch(run: Observation) -> list[ObservedStep]:
    """The steps of all processes in a run, which must hold."""
    prepared, log = run.prepared, list[ObservedStep]()
    assembly = _limit_early_bodies(prepared.assembly, run.early_bodies)

    def make(process: ProcessId) -> Process:
        return cast(Process, NarratedProcess(assembly.make(process, prepared.initial_topology(process)), log))

    if run.fuzzed:
        outcome = Fuzzer(replace(prepared.make_case(), make=make), prepared.plan.seed, Recorder()).run(lambda *_: None)
        assert outcome.status == "holds", outcome.story
    else:
        assert Simulation(replace(prepared.make_setup(), make=make), Recorder()).run().end == "delivered"
    return log


def _limit_early_bodies(assembly: Assembly, count: int | None) -> Assembly:
    if count is None:
        return assembly
    assert assembly.reconfiguration is not None
    return replace(assembly, reconfiguration=msgspec.structs.replace(assembly.reconfiguration, max_early_bodies=count))


class WatchedStage(Stage):
    """A stage that writes down the steps of its processes."""

    def __init__(self, name: str, options: dict[str, Any]) -> None:
        self.log: list[ObservedStep] = []
        super().__init__(name, options=options)

    def make(self, process: ProcessId) -> Process:
        return cast(Process, NarratedProcess(super().make(process), self.log))

    def multicast_many(self, count: int) -> None:
        for number in range(count):
            self.multicast(number % 2, 0, 1)
            self.steps(40)


def play_absence(name: str) -> list[ObservedStep]:
    """Process 5 misses many messages: it crashes, where that is survived, and its links are reset twice. It catches up
    with everybody; at last only with its own group."""
    stage = WatchedStage(name, {"keep": 4, "retry_ns": [3 * MS, 6 * MS]})
    stage.multicast_many(10)
    if "recovery" in CATALOGUE[name].claims.faults:
        stage.crash(5)
        stage.multicast_many(30)
        stage.recover(5)
        stage.multicast_many(10)
    other_group = tuple(pair for other in (0, 1, 2) for pair in ((other, 5), (5, other)))
    for blocked in ((), other_group):
        stage.isolate(5)
        stage.multicast_many(30)
        for other in range(5):
            stage.reset_link(5, other)
        stage.heal()
        stage.apply(Block(blocked))
        stage.steps(2500)
        stage.heal()
    stage.check()
    return stage.log


class Number(Service):
    """A number that is read."""

    def __init__(self, group: str) -> None:
        self.value: int = 0

    @command
    def add(self, at: At, name: Key) -> None:
        self.value += 1

    @query
    def read(self, name: Key) -> int:
        return self.value


def play_reads(name: str) -> list[ObservedStep]:
    """A service is read without ordering."""

    async def main(cluster: SimulatedCluster) -> None:
        number = cluster.service(Number)
        for _ in range(4):
            await number.add("x")
            await number.read("x")

    log: list[ObservedStep] = []
    prepared = ServiceSearch(main, protocol=name).prepare(0)

    def make(process: ProcessId) -> Process:
        return cast(Process, NarratedProcess(prepared.assembly.make(process, prepared.initial_topology(process)), log))

    case = replace(prepared.make_case(), make=make, monitoring=None)
    assert ServiceFuzzer(case, 0, main, CALLERS, ()).search().status == "holds"
    return log


def find_bodies(value: object) -> Iterator[str]:
    """The names of all bodies in an event, those inside other bodies included."""
    if isinstance(value, Body):
        yield type(value).__name__
    if isinstance(value, msgspec.Struct):
        for name in value.__struct_fields__:
            yield from find_bodies(getattr(value, name))
    elif isinstance(value, tuple | list):
        for item in value:
            yield from find_bodies(item)


def test_every_event_and_effect_occurs() -> None:
    missing = {kind.__name__ for kind in (*Event.__subclasses__(), *Effect.__subclasses__())}
    for _, events, effects in play_reads("primcast"):
        missing -= {type(item).__name__ for item in (*events, *effects)}
    # In turn, because only groups of A_dt suspect each other.
    for run in chain.from_iterable(zip(*(list_runs(CATALOGUE[name]) for name in ("primcast", "a-dt")), strict=False)):
        for _, events, effects in watch(run):
            missing -= {type(item).__name__ for item in (*events, *effects)}
        if not missing:
            return
    raise AssertionError(f"no simulated run has {sorted(missing)}")


@pytest.mark.parametrize("name", CATALOGUE)
def test_every_body_of_a_protocol_occurs(name: str) -> None:
    spec = CATALOGUE[name]
    has_gateways = spec.open_bundle is not None
    whole = assemble_simulation(spec, spec.configure(), MS, gateways=has_gateways, changes=spec.claims.members)
    missing = {body.__name__ for body in whole.spec.wire_bodies()} - NEVER_SENT.get(name, set())
    if not has_gateways:
        missing.remove(Done.__name__)
    scenes = [partial(play_absence, name)] if "retry_ns" in spec.config.__struct_fields__ else []
    scenes += [partial(play_reads, name)] if spec.states_accepted else []
    for steps in chain((scene() for scene in scenes), map(watch, list_runs(spec))):
        for _, events, _ in steps:
            missing.difference_update(body for event in events for body in find_bodies(event))
        if not missing:
            return
    raise AssertionError(f"no simulated run of {name} has {sorted(missing)}")
