"""One seed of a campaign."""

from amcast.lab.campaign_row import check_class, count_faults, digest_sources, find_commit, list_goals, run_seed
from amcast.lab.fuzz_campaign import SwarmRuns
from amcast.lab.runs import fuzz_seed
from amcast.simulation.world.actions import Arrive, Collect, Crash, DiskFault, Heal, Pause, Recover, Slow


def test_row_is_the_run_of_amcast_fuzz() -> None:
    row = run_seed(("ring", "drawn", 5))
    outcome = fuzz_seed(SwarmRuns({"protocol": "ring"}).prepare(5), 5)
    assert (row["status"], row["steps"], row["story"]) == (outcome.status, outcome.steps, outcome.story)
    assert row["fired"] == count_faults(outcome.script)
    assert row["reached"] == outcome.notes
    assert row["cpu_s"] > 0


def test_fault_class_names_the_faults_of_every_run() -> None:
    assert run_seed(("ring", "none", 5))["fired"] == {}
    assert set(run_seed(("ring", "pause", 5))["fired"]) <= {"pause"}


def test_ends_of_faults_are_not_counted() -> None:
    script = [
        *(Crash(1), Crash(1, torn=3), Recover(1), Recover(1, amnesia=True), Recover(1, rolled_back=2)),
        *(Arrive(1, ((2, 0),)), Heal(), Collect(1), Slow(1, 0), Slow(1, 5), DiskFault(1, "rot"), DiskFault(1, "space")),
        *(Pause(1), Pause(2)),
    ]
    assert count_faults(script) == {
        "crash": 1,
        "crash with a power cut": 1,
        "disk rot": 1,
        "pause": 2,
        "restart": 1,
        "restart with an older folder": 1,
        "restart without records": 1,
        "slow": 1,
    }


def test_class_is_run_only_where_it_is_claimed() -> None:
    assert check_class("primcast", "amnesia+crash")
    assert check_class("primcast", "emptied")
    assert not check_class("skeen", "suspects")
    assert check_class("skeen", "drawn")


def test_campaign_of_drawn_faults_must_reach_recovery() -> None:
    assert set(list_goals("primcast", "none")) < set(list_goals("primcast", "drawn"))


def test_sources_and_commit_have_names() -> None:
    assert digest_sources() == digest_sources()
    assert len(digest_sources()) == 16
    assert find_commit()
