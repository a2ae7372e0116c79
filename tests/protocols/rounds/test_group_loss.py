"""A_dt survives lost groups, slow groups and lost leaders without an oracle that suspects groups.

Every test is a timed run of whole nodes, as in a live cluster: heartbeats elect the leaders of groups, and the other
groups detect the loss of a group by its missing batches.
"""

from dataclasses import replace
from typing import Any, Final

import pytest

from amcast.check.judge import judge
from amcast.kernel.spec import Spec
from amcast.lab.runs import PreparedRun, prepare_run
from amcast.protocols.catalogue import CATALOGUE
from amcast.simulation.inputs.plan import parse_plan
from amcast.simulation.simulate import RunSummary, Simulation
from amcast.trace.recorder import Recorder
from amcast.trace.run import Run
from tests.mutants.protocols.rounds import BLOCKING

MS: Final = 1_000_000
SOON: Final = {"retry_ns": [100 * MS, 200 * MS]}
"""Short retries keep the runs short."""

Events = list[dict[str, Any]]


def make_events(time_ms: int, action: str, *processes: int, **more: int) -> Events:
    return [{"at_ns": time_ms * MS, "do": action, "process": process, **more} for process in processes]


def members(group: int) -> tuple[int, ...]:
    return tuple(range(3 * group, 3 * group + 3))


def make_run(
    events: Events,
    seed: int,
    groups: int = 3,
    options: dict[str, Any] | None = None,
    spec: Spec | None = None,
    bound_ms: int = 10_000,
) -> PreparedRun:
    values = {
        "protocol": "a-dt",
        "seed": seed,
        "options": SOON if options is None else options,
        "topology": {"groups": groups, "replicas": 3, "clients": 3},
        "workload": {"messages": 45, "outstanding": 3, "destinations": [1, 3]},
        "network": {"links": "fifo", "distribution": "exponential", "spread": 1.0},
        "faults": {"profile": "none", "events": events},
        "settle_ns": bound_ms * MS,
    }
    return prepare_run(parse_plan(values), spec)


def simulate(prepared: PreparedRun) -> tuple[RunSummary, Recorder]:
    recorder = Recorder()
    return Simulation(prepared.make_setup(), recorder, keeps_history=True).run(), recorder


def run_and_check(prepared: PreparedRun) -> RunSummary:
    """Runs, and checks that every live destination delivered everything in order."""
    summary, recorder = simulate(prepared)
    replay = f"seed {prepared.plan.seed}: amcast simulate --plan with {prepared.plan}"
    assert not summary.violations, f"{summary.violations[0]}: {replay}"
    report = judge(Run.from_recorder(recorder, prepared.make_meta("disasters").with_claims(complete=True)))
    assert report.verdict == "holds", "\n".join([replay, *report.story()])
    assert summary.end == "delivered", f"{summary.undelivered} deliveries owed, {summary.end}: {replay}"
    return summary


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("lost", range(3))
def test_group_crashes_at_once(lost: int, seed: int) -> None:
    """Before anything is ordered, and in the middle of the run."""
    notes = run_and_check(make_run(make_events((1, 42)[seed], "crash", *members(lost)), seed)).notes
    assert notes["removed"] == 6, "each live process has noted it once"
    assert "returned" not in notes
    assert notes["absent"] > 0, "clients learn which groups are absent"
    assert notes.get("global-campaign", 0) <= 3, "leaders of the broadcast do not compete"


@pytest.mark.parametrize("lost", range(3))
def test_group_crashes_process_by_process(lost: int) -> None:
    first, second, third = members(lost)
    events = make_events(42, "crash", first) + make_events(44, "crash", second) + make_events(59, "crash", third)
    assert run_and_check(make_run(events, 1, options={})).notes["removed"] == 6
    reverse = make_events(42, "crash", third) + make_events(60, "crash", second) + make_events(61, "crash", first)
    assert run_and_check(make_run(reverse, 2)).notes["removed"] == 6


@pytest.mark.parametrize(("one", "other", "later_ms"), [(0, 1, 0), (0, 1, 430), (3, 0, 500), (1, 4, 380), (0, 2, 900)])
def test_two_of_five_groups_crash(one: int, other: int, later_ms: int) -> None:
    """The second one together with the first, during its removal, or after that."""
    events = make_events(30, "crash", *members(one)) + make_events(30 + later_ms, "crash", *members(other))
    assert run_and_check(make_run(events, 3, groups=5)).notes["removed"] > 9


@pytest.mark.parametrize("lost", range(3))
def test_group_crashes_after_another_lost_its_leader(lost: int) -> None:
    other = members((lost + 1) % 3)[0]
    assert (
        run_and_check(make_run(make_events(20, "crash", other) + make_events(40, "crash", *members(lost)), 4)).notes[
            "removed"
        ]
        == 5
    )


@pytest.mark.parametrize("paused", range(3))
def test_paused_group_returns(paused: int) -> None:
    events = make_events(40, "pause", *members(paused)) + make_events(1500, "resume", *members(paused))
    notes = run_and_check(make_run(events, 5)).notes
    assert notes["removed"] > 0
    assert notes["removed"] == notes["returned"]


@pytest.mark.parametrize("slow", [0, 2])
def test_slow_group_returns_and_is_given_more_time(slow: int) -> None:
    events = make_events(40, "slow", *members(slow), extra_ns=10 * MS) + make_events(
        700, "slow", *members(slow), extra_ns=0
    )
    notes = run_and_check(make_run(events, 6)).notes
    assert notes["removed"] > 0
    assert notes["removed"] - notes["returned"] in range(9), "the last return may be under way"


@pytest.mark.parametrize("lost", range(3))
def test_group_crashes_while_leader_of_another_is_paused(lost: int) -> None:
    other = members((lost + 1) % 3)[0]
    events = (
        make_events(40, "crash", *members(lost)) + make_events(50, "pause", other) + make_events(1500, "resume", other)
    )
    assert run_and_check(make_run(events, 7)).notes["removed"] >= 6


def test_paused_leader_is_replaced_and_its_group_stays() -> None:
    for leader in (0, 3):
        notes = run_and_check(
            make_run(make_events(40, "pause", leader) + make_events(1500, "resume", leader), 8, options={})
        ).notes
        assert notes.get("removed", 0) == notes.get("returned", 0)


@pytest.mark.parametrize("mutant", BLOCKING, ids=lambda mutant: mutant.__name__)
def test_blocking_mutant_is_caught(mutant: Any) -> None:
    """The mutants block in a run that the protocol completes."""
    spec = replace(CATALOGUE["a-dt"], process=mutant)
    summary, _ = simulate(make_run(make_events(42, "crash", *members(0)), 1, spec=spec, bound_ms=2500))
    assert summary.end == "stuck", mutant.__doc__
    run_and_check(make_run(make_events(42, "crash", *members(0)), 1, bound_ms=2500))
