"""Safety and liveness in the timed and the random world, with and without faults, one event a step and in bursts."""

from amcast.check.judge import judge
from amcast.kernel.effects import Deliver, Note
from amcast.kernel.events import Started
from amcast.kernel.spec import FAULTS
from amcast.lab.fuzz_campaign import SwarmRuns
from amcast.lab.runs import PreparedRun, fuzz_seed
from amcast.protocols.catalogue import CATALOGUE
from amcast.simulation.simulate import Simulation
from amcast.trace.recorder import Recorder
from amcast.trace.run import Run
from tests.conformance.plans import planned

FUZZ_SEEDS = 60
MOST_SEEDS = 300
"""Some goals are rare: which seeds reach them changes with everything that draws."""
FAULT_SEEDS = 12


def hold(prepared: PreparedRun) -> None:
    """Run in the timed world; everything that is claimed must hold."""
    recorder = Recorder()
    summary = Simulation(prepared.make_setup(), recorder, keeps_history=True).run()
    plan = prepared.plan
    replay = f"amcast simulate --protocol {plan.protocol} --seed {plan.seed} (plan {plan})"
    assert summary.end == "delivered", f"{summary.undelivered} deliveries owed, {summary.end}: {replay}"
    assert not summary.violations, f"{summary.violations[0]}: {replay}"
    report = judge(Run.from_recorder(recorder, prepared.make_meta("conformance").with_claims(complete=True)))
    assert report.verdict == "holds", "\n".join([replay, *report.story()])


def test_timed_world_with_equal_delays(name: str) -> None:
    hold(planned(name, workload={"messages": 200}))


def test_timed_world_with_exponential_delays(name: str) -> None:
    for seed in range(5):
        hold(planned(name, seed, network={"distribution": "exponential", "spread": 3.0}))


def test_timed_world_with_saturated_cpus_and_links(name: str) -> None:
    hold(planned(name, network={"cpu_ns": 200_000, "cpu_send_ns": 50_000, "bandwidth": 1_000_000}))


def test_timed_world_in_bursts(name: str) -> None:
    hold(planned(name, network={"cpu_ns": 300_000, "burst": True}))


def test_timed_world_under_each_fault_it_claims(name: str, fault: str) -> None:
    for seed in range(4):
        hold(planned(name, seed, faults={"profile": fault}))


def fuzzed(prepared: PreparedRun, seeds: range) -> dict[str, int]:
    notes: dict[str, int] = {}
    for seed in seeds:
        outcome = fuzz_seed(prepared, seed)
        profile = prepared.plan.faults.profile
        assert outcome.status == "holds", (
            f"{outcome.story}\nreplay: amcast fuzz --protocol {prepared.spec.name} --seeds {seed} --faults {profile}"
        )
        for note, count in outcome.notes.items():
            notes[note] = notes.get(note, 0) + count
    return notes


def test_random_world_and_every_goal_is_reached(name: str) -> None:
    runs = SwarmRuns({"protocol": name})
    missed = {*CATALOGUE[name].goals, *CATALOGUE[name].recovery_goals}
    for seed in range(MOST_SEEDS):
        if not missed and seed >= FUZZ_SEEDS:
            break
        outcome = fuzz_seed(runs.prepare(seed), seed)
        assert outcome.status == "holds", f"{outcome.story}\nreplay: amcast fuzz --protocol {name} --seeds {seed}"
        missed -= outcome.notes.keys()
    assert not missed, f"{MOST_SEEDS} runs never reached {sorted(missed)}: they are too tame to trust"


def test_random_world_under_each_fault_it_claims(name: str, fault: str) -> None:
    fuzzed(planned(name, workload={"messages": 8}, faults={"profile": fault}), range(FAULT_SEEDS))


def test_restart_tells_its_position(name: str) -> None:
    """It repeats deliveries, adopts a position, or names the one at which it resumes: readers and programs wait for
    none that will not come."""
    spec = CATALOGUE[name]
    if "recovery" not in spec.claims.faults:
        return
    options = {"keep": 1} if "keep" in spec.config.__struct_fields__ else {}
    for messages in range(3, 11):
        workload = {"messages": messages, "outstanding": 1}
        prepared = planned(name, messages, workload=workload, options=options)
        setup = prepared.make_setup()
        simulation = Simulation(setup, Recorder(), keeps_history=True)
        simulation.run()
        for process in prepared.topology.servers:
            simulation.world.complete_writes(process)
            node = setup.make(process)
            stated = 0
            for effect in node.step([Started(tuple(simulation.world.disks[process].records), 1)], 0):
                if isinstance(effect, Deliver):
                    stated = effect.position + 1
                elif isinstance(effect, Note) and effect.name in ("installed", "resumed"):
                    stated = int(effect.value or 0)
            known = node.protocol.position  # type: ignore[attr-defined]
            assert stated == known, (
                f"process {process} of {name} after {messages} messages knows {known} and states {stated}"
            )


def test_claimed_faults_exist(name: str) -> None:
    assert set(FAULTS) >= CATALOGUE[name].claims.faults
