"""Members change while clients multicast: every protocol that claims it, in both worlds, with crashes."""

import pytest

from amcast.check.judge import judge
from amcast.lab.runs import PreparedRun, fuzz_seed, prepare_run
from amcast.protocols.catalogue import CATALOGUE
from amcast.simulation.inputs.plan import parse_plan
from amcast.simulation.simulate import Simulation
from amcast.trace.recorder import Recorder
from amcast.trace.run import Run

MS = 1_000_000
CHANGES = {
    "add": [{"group": 1, "add": 20}],
    "remove": [{"group": 0, "remove": 2}],
    "replace-the-leader": [{"group": 0, "add": 20}, {"group": 0, "remove": 0}],
    "replace-a-follower": [{"group": 1, "add": 20}, {"group": 1, "remove": 4}],
    "several": [
        {"group": 0, "add": 20},
        {"group": 0, "remove": 0},
        {"group": 1, "add": 21},
        {"group": 1, "remove": 4},
    ],
}
FUZZ_SEEDS = 3


def planned(name: str, seed: int, changes: str, faults: str = "none", **tables: object) -> PreparedRun:
    spec = CATALOGUE[name]
    events = [{"at_ns": (10 + 15 * at) * MS, "do": "change", **one} for at, one in enumerate(CHANGES[changes])]
    values = {
        "protocol": name,
        "seed": seed,
        "topology": {"groups": 3, "replicas": 3, "clients": 3},
        "workload": {"messages": 60, "outstanding": 3, "destinations": [1, 3]},
        "network": {"links": spec.claims.links, "distribution": "exponential", "spread": 1.0},
        "faults": {"profile": faults, "events": events},
        **tables,
    }
    return prepare_run(parse_plan(values))


def hold(prepared: PreparedRun) -> Simulation:
    """Run in the timed world; everything that is claimed must hold, and everybody must be where it belongs."""
    recorder = Recorder()
    simulation = Simulation(prepared.make_setup(), recorder, keeps_history=True)
    summary = simulation.run()
    replay = f"seed {prepared.plan.seed}: amcast simulate --plan with {prepared.plan}"
    assert not summary.violations, f"{summary.violations[0]}: {replay}"
    report = judge(Run.from_recorder(recorder, prepared.make_meta("members").with_claims(complete=True)))
    assert report.verdict == "holds", "\n".join([replay, *report.story()])
    assert summary.end == "delivered", f"{summary.undelivered} deliveries owed, {summary.end}: {replay}"
    world = simulation.world
    assert world.changes == len(prepared.changes), replay
    for change in prepared.changes:
        if change.add is not None and change.add in world.processes:
            assert world.history[change.add], f"process {change.add} has no part in anything: {replay}"
        if change.remove is not None:
            assert change.remove not in world.processes, f"process {change.remove} has not retired: {replay}"
    return simulation


@pytest.mark.parametrize("changes", CHANGES)
def test_timed_world(name: str, changes: str) -> None:
    if not CATALOGUE[name].claims.members:
        pytest.skip(f"{name} does not claim that its members can change")
    hold(planned(name, 1, changes))


def test_timed_world_in_bursts(name: str) -> None:
    if CATALOGUE[name].claims.members:
        links = CATALOGUE[name].claims.links
        hold(planned(name, 2, "several", network={"links": links, "cpu_ns": 300_000, "burst": True}))


def test_timed_world_under_all_claimed_faults(name: str) -> None:
    if not CATALOGUE[name].claims.members:
        pytest.skip(f"{name} does not claim that its members can change")
    for seed in range(2):
        hold(planned(name, seed, "several", "all"))


def test_random_world_under_all_claimed_faults(name: str) -> None:
    if not CATALOGUE[name].claims.members:
        pytest.skip(f"{name} does not claim that its members can change")
    seen: dict[str, int] = {}
    for seed in range(FUZZ_SEEDS):
        workload = {"messages": 10, "outstanding": 2, "destinations": [1, 3]}
        prepared = planned(name, seed, "several", "all" if seed % 2 else "none", workload=workload)
        outcome = fuzz_seed(prepared, seed)
        assert outcome.status == "holds", f"seed {seed}: {outcome.story} (plan {prepared.plan})"
        for note, count in outcome.notes.items():
            seen[note] = seen.get(note, 0) + count
    missed = [note for note in ("turned", "retired", "installed") if note not in seen]
    assert not missed, f"these runs never reached {missed}: they are too tame to trust"


def test_group_may_shrink_to_two_members() -> None:
    """Of three one may be lost, of two none: who stays must not have crashed for good before the third is removed."""
    for seed in (2, 6, 17, 25):
        workload = {"messages": 12, "outstanding": 2, "destinations": [1, 3]}
        outcome = fuzz_seed(planned("primcast", seed, "remove", "all", workload=workload), seed)
        assert outcome.status == "holds", f"seed {seed}: {outcome.story}"


def test_gateways_follow_changes_of_members() -> None:
    # In the last one a client asks a newcomer that was told nothing yet, for what another gateway has in a bundle.
    for seed in (0, 1, 2, 124):
        hold(planned("primcast", seed, "several", "all" if seed else "none", gateways=True))


def test_groups_of_one_member_grow() -> None:
    """Skeen alone becomes Skeen replicated, and alone again."""
    values = {
        "protocol": "skeen",
        "topology": {"groups": 3, "replicas": 1, "clients": 3},
        "workload": {"messages": 60, "outstanding": 3, "destinations": [1, 3]},
        "faults": {
            "events": [
                {"at_ns": 10 * MS, "do": "change", "group": 0, "add": 20},
                {"at_ns": 30 * MS, "do": "change", "group": 0, "remove": 0},
            ]
        },
    }
    hold(prepare_run(parse_plan(values)))


@pytest.mark.parametrize("protocol", ["primcast", "multipaxos"])
def test_last_member_of_the_first_configuration_restarts(protocol: str) -> None:
    """Both members that process 2 began with are gone: it is admitted by those that came since."""
    moves = [{"add": 20}, {"remove": 0}, {"add": 21}, {"remove": 1}]
    changes = [{"at_ns": (10 + 15 * at) * MS, "do": "change", "group": 0, **one} for at, one in enumerate(moves)]
    crash = [{"at_ns": 120 * MS, "do": "crash", "process": 2}, {"at_ns": 130 * MS, "do": "recover", "process": 2}]
    values = {
        "protocol": protocol,
        "topology": {"groups": 3, "replicas": 3, "clients": 3},
        "workload": {"messages": 400, "outstanding": 1, "destinations": [1, 3]},
        "faults": {"events": [*changes, *crash]},
    }
    simulation = hold(prepare_run(parse_plan(values)))
    assert simulation.world.incarnations[2] == 1
