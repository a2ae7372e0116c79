"""The real-time setting of every protocol: answers are in order, and come, under every fault that it claims."""

import re

import msgspec
import pytest

from amcast.check.judge import judge
from amcast.kernel.errors import UsageError
from amcast.kernel.spec import FAULTS
from amcast.lab.delays import measure_closing_delays, measure_delays
from amcast.lab.fuzz_campaign import SwarmRuns
from amcast.lab.real_time.search import search_real_time
from amcast.lab.runs import PreparedRun, fuzz_seed
from amcast.parts.node.node import Node
from amcast.protocols.catalogue import CATALOGUE
from amcast.simulation.schedulers.fuzz import Fuzzer
from amcast.simulation.simulate import Simulation
from amcast.trace.recorder import Recorder
from amcast.trace.run import Run
from tests import ROOT
from tests.conformance.plans import planned

NEEDING = sorted(name for name, spec in CATALOGUE.items() if not spec.claims.real_time)
"""Protocols that have real-time order only by the part in their nodes."""
FUZZ_SEEDS = 4
SCHEDULES = 12


def hold(prepared: PreparedRun) -> Recorder:
    """Run in the timed world; everything that is claimed must hold, and every client must be answered."""
    recorder = Recorder()
    simulation = Simulation(prepared.make_setup(), recorder, keeps_history=True)
    summary = simulation.run()
    plan = prepared.plan
    replay = f"amcast simulate --protocol {plan.protocol} --seed {plan.seed} (plan {plan})"
    assert summary.end == "delivered", f"{summary.undelivered} deliveries owed, {summary.end}: {replay}"
    assert not summary.violations, f"{summary.violations[0]}: {replay}"
    real_time = prepared.claims_real_time(summary.notes)
    meta = prepared.make_meta("conformance").with_claims(complete=True, real_time=real_time)
    report = judge(Run.from_recorder(recorder, meta))
    assert report.verdict == "holds", "\n".join([replay, *report.story()])
    assert not real_time or report.properties["P9"].verdict == "holds", replay
    return recorder


@pytest.mark.parametrize("protocol", NEEDING)
def test_timed_world_with_unequal_delays(protocol: str) -> None:
    for seed in range(2):
        network = {"distribution": "exponential", "spread": 3.0}
        recorder = hold(planned(protocol, seed, network=network, order="real-time"))  # type: ignore[arg-type]
        assert len(recorder.answers) == 30


@pytest.mark.parametrize("protocol", NEEDING)
def test_timed_world_under_each_fault_it_claims(protocol: str) -> None:
    for fault in FAULTS:
        if fault in CATALOGUE[protocol].claims.faults:
            hold(planned(protocol, 1, faults={"profile": fault}, order="real-time"))  # type: ignore[arg-type]


@pytest.mark.parametrize("protocol", NEEDING)
def test_random_world(protocol: str) -> None:
    runs = SwarmRuns({"protocol": protocol, "order": "real-time"})
    for seed in range(FUZZ_SEEDS):
        outcome = fuzz_seed(runs.prepare(seed), seed)
        replay = f"replay: amcast fuzz --plan FILE --seeds {seed}; FILE: protocol = '{protocol}', order = 'real-time'"
        assert outcome.status == "holds", f"{outcome.story}\n{replay}"


@pytest.mark.parametrize("protocol", NEEDING)
def test_genuineness_is_as_claimed(protocol: str) -> None:
    prepared = planned(protocol, topology={"groups": 5}, order="real-time")  # type: ignore[arg-type]
    recorder = hold(prepared)
    report = judge(Run.from_recorder(recorder, prepared.make_meta("claims").with_claims(complete=True)))
    level = prepared.spec.claims.genuine
    for claim, properties in (("strict", ("P6", "P6'")), ("run", ("P6",))):
        for name in properties if level == claim else ():
            assert report.properties[name].verdict == "holds", report.properties[name].story


@pytest.mark.parametrize("protocol", ["primcast", "a-dt"])
def test_snapshots_are_canonical_and_restore_the_process(protocol: str) -> None:
    prepared = planned(protocol, workload={"messages": 10}, order="real-time")  # type: ignore[arg-type]
    encode = msgspec.msgpack.Encoder().encode
    fuzzer = Fuzzer(prepared.make_case(), 7, Recorder())
    world = fuzzer.world
    world.start()
    while not fuzzer._is_finished() and fuzzer._step(fair=True):
        if world.steps % 7:
            continue
        for process in world.topology.processes:
            before = world.processes[process].snapshot()
            fresh = prepared.make(process)
            fresh.restore(before)
            fresh.now = world.processes[process].now
            assert encode(fresh.snapshot()) == encode(before), f"{protocol}: process {process} changed in its snapshot"
            world.processes[process] = fresh
    assert not world.list_due_deliveries()
    assert not fuzzer.load.list_waiting(world)


@pytest.mark.parametrize("protocol", sorted(set(CATALOGUE) - set(NEEDING)))
def test_protocols_that_have_it_by_themselves_run_without_the_part(protocol: str) -> None:
    prepared = planned(protocol, order="real-time", nodes=True)  # type: ignore[arg-type]
    node = prepared.make(0)
    assert isinstance(node, Node)
    assert node.real_time is None
    hold(prepared)


def test_plan_without_nodes_is_refused() -> None:
    with pytest.raises(UsageError, match='order = "real-time", and nodes = false; it is an order of answers'):
        planned("skeen", order="real-time", nodes=False)  # type: ignore[arg-type]


@pytest.mark.parametrize("protocol", sorted(CATALOGUE))
def test_lone_message_is_closed_one_delay_after_its_last_delivery_at_most(protocol: str) -> None:
    """And a local one, with nothing before it, at once and without a packet more."""
    for destinations in (1, 2, 3):
        row = measure_closing_delays(CATALOGUE[protocol], destinations, 3)
        assert row.holds, f"amcast delays {protocol} --order real-time --destinations {destinations}: {row}"


@pytest.mark.parametrize("protocol", NEEDING)
def test_no_answer_overtakes_what_precedes_it_under_chosen_delays(protocol: str) -> None:
    """The search that breaks the other setting of all these protocols has not even a chance."""
    found = search_real_time(CATALOGUE[protocol], SCHEDULES, seed=7, order="real-time")
    replay = f"amcast worst {protocol} --real-time --order real-time --schedules {SCHEDULES} --seed 7 --json"
    assert (found.holds, found.exposed, found.stuck) == (True, 0, 0), replay


@pytest.mark.parametrize("protocol", sorted(CATALOGUE))
def test_published_delays_are_those_that_are_measured(protocol: str) -> None:
    page = (ROOT / "docs" / "real-time.md").read_text()
    (row,) = re.findall(rf"^\| {protocol} \| (.*) \|$", page, re.MULTILINE)
    spec = CATALOGUE[protocol]
    measured = []
    for destinations in (1, 2, 3):
        plain = measure_delays(spec, destinations, 3, world="unit")
        timed = measure_closing_delays(spec, destinations, 3, world="unit")
        measured.append(f"{plain.delays_max}, {plain.packets}; {timed.delays_max}, {timed.packets}")
    assert row.split(" | ") == measured, f"amcast delays {protocol} --order real-time --world unit"
