"""A_dt loses whole groups, slow groups and leaders while no oracle says a word about groups: the others go on.

Every story is a timed run of whole nodes, as in a live cluster: leaders of groups are elected by heartbeats, and that a
group is lost must be found out by those who miss it.
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
from tests.mutants.protocols.rounds import SILENT

MS: Final = 1_000_000
SOON: Final = {"retry_ns": [100 * MS, 200 * MS]}
"""Missed sooner than usual, so that runs are short."""

Events = list[dict[str, Any]]


def at(time_ms: int, what: str, *processes: int, **more: int) -> Events:
    return [{"at_ns": time_ms * MS, "do": what, "process": process, **more} for process in processes]


def group(number: int) -> tuple[int, ...]:
    return tuple(range(3 * number, 3 * number + 3))


def planned(
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


def played(prepared: PreparedRun) -> tuple[RunSummary, Recorder]:
    recorder = Recorder()
    return Simulation(prepared.make_setup(), recorder, keeps_history=True).run(), recorder


def told(prepared: PreparedRun) -> RunSummary:
    """Everything that must be delivered at somebody who is there is, and in order."""
    summary, recorder = played(prepared)
    replay = f"seed {prepared.plan.seed}: amcast simulate --plan with {prepared.plan}"
    assert not summary.violations, f"{summary.violations[0]}: {replay}"
    report = judge(Run.from_recorder(recorder, prepared.make_meta("disasters").with_claims(complete=True)))
    assert report.verdict == "holds", "\n".join([replay, *report.story()])
    assert summary.end == "delivered", f"{summary.undelivered} deliveries owed, {summary.end}: {replay}"
    return summary


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("lost", range(3))
def test_a_group_dies_at_once(lost: int, seed: int) -> None:
    """Before anything is ordered, and in the middle."""
    notes = told(planned(at((1, 42)[seed], "crash", *group(lost)), seed)).notes
    assert notes["removed"] == 6, "each of those who are left has seen it once"
    assert "returned" not in notes
    assert notes["absent"] > 0, "clients were told"
    assert notes.get("far-campaign", 0) <= 3, "leaders of everybody do not fight"


@pytest.mark.parametrize("lost", range(3))
def test_a_group_dies_one_by_one(lost: int) -> None:
    first, second, third = group(lost)
    events = at(42, "crash", first) + at(44, "crash", second) + at(59, "crash", third)
    assert told(planned(events, 1, options={})).notes["removed"] == 6
    backwards = at(42, "crash", third) + at(60, "crash", second) + at(61, "crash", first)
    assert told(planned(backwards, 2)).notes["removed"] == 6


@pytest.mark.parametrize(("one", "other", "later_ms"), [(0, 1, 0), (0, 1, 430), (3, 0, 500), (1, 4, 380), (0, 2, 900)])
def test_two_of_five_groups_die(one: int, other: int, later_ms: int) -> None:
    """The second one together with the first, while it is being removed, or after that."""
    events = at(30, "crash", *group(one)) + at(30 + later_ms, "crash", *group(other))
    assert told(planned(events, 3, groups=5)).notes["removed"] > 9


@pytest.mark.parametrize("lost", range(3))
def test_a_group_dies_and_another_has_lost_its_leader(lost: int) -> None:
    other = group((lost + 1) % 3)[0]
    assert told(planned(at(20, "crash", other) + at(40, "crash", *group(lost)), 4)).notes["removed"] == 5


@pytest.mark.parametrize("paused", range(3))
def test_a_group_that_stood_still_comes_back(paused: int) -> None:
    events = at(40, "pause", *group(paused)) + at(1500, "resume", *group(paused))
    notes = told(planned(events, 5)).notes
    assert notes["removed"] > 0
    assert notes["removed"] == notes["returned"]


@pytest.mark.parametrize("slow", [0, 2])
def test_a_group_that_is_slow_comes_back_and_is_given_more_time(slow: int) -> None:
    events = at(40, "slow", *group(slow), extra_ns=10 * MS) + at(700, "slow", *group(slow), extra_ns=0)
    notes = told(planned(events, 6)).notes
    assert notes["removed"] > 0
    assert notes["removed"] - notes["returned"] in range(9), "the last return may be under way"


@pytest.mark.parametrize("lost", range(3))
def test_a_group_dies_and_the_leader_of_another_stands_still(lost: int) -> None:
    other = group((lost + 1) % 3)[0]
    events = at(40, "crash", *group(lost)) + at(50, "pause", other) + at(1500, "resume", other)
    assert told(planned(events, 7)).notes["removed"] >= 6


def test_a_leader_that_stands_still_is_replaced_and_no_group_is_removed_for_good() -> None:
    for leader in (0, 3):
        notes = told(planned(at(40, "pause", leader) + at(1500, "resume", leader), 8, options={})).notes
        assert notes.get("removed", 0) == notes.get("returned", 0)


@pytest.mark.parametrize("mutant", SILENT, ids=lambda mutant: mutant.__name__)
def test_what_ends_in_silence_is_found(mutant: Any) -> None:
    """The plan that was once stuck with every seed is stuck without what was done about it."""
    spec = replace(CATALOGUE["a-dt"], process=mutant)
    summary, _ = played(planned(at(42, "crash", *group(0)), 1, spec=spec, bound_ms=2500))
    assert summary.end == "stuck", mutant.__doc__
    told(planned(at(42, "crash", *group(0)), 1, bound_ms=2500))
