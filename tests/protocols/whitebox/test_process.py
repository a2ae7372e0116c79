"""White-Box: the numbers of the paper, and scenes that force rare schedules."""

from pathlib import Path
from typing import Any

import pytest

from amcast.lab.delays import measure_delays
from amcast.lab.runs import describe_violation, prepare_run, record_run
from amcast.protocols.catalogue import CATALOGUE
from amcast.simulation.inputs.plan import parse_plan, read_plan
from tests import ROOT
from tests.protocols.stage import Stage


@pytest.mark.parametrize("replicas", [3, 5])
@pytest.mark.parametrize("destinations", [1, 2, 4])
def test_delays_by_role_and_packet_count_match_the_claims(destinations: int, replicas: int) -> None:
    row = measure_delays(CATALOGUE["whitebox"], destinations, replicas)
    assert row.delays_by_role == {"leader": 3, "follower": 4}
    assert row.packets == destinations * (1 + 2 * destinations * replicas + replicas)


def acceptance_known_to_one_member(spec: Any) -> Stage:
    """A leader delivers with the acceptance of one follower and crashes; the next leader needs that follower's
    promise."""
    stage = Stage(spec)
    stage.world.blocked = {(0, 1), (0, 5)}
    stage.multicast(0, 0)
    stage.step_until(lambda: stage.world.history[0])
    stage.crash(0)
    stage.world.blocked = set()
    stage.suggest_leader(0, 1)
    stage.multicast(1, 0)
    stage.run_until_blocked()
    return stage


def candidate_with_stale_clock(spec: Any) -> Stage:
    """The clocks of a majority are past a final timestamp; the next leader was not among them and must learn it."""
    stage = Stage(spec)
    stage.raise_remote_clocks()
    blocked = stage.world.blocked
    blocked |= {(far, 2) for far in (3, 4, 5)}
    id = stage.multicast(0, 0, 1)
    stage.step_until(lambda: _pending_field(stage, 1, id, "accepted"))
    blocked |= {(0, 1), (0, 2)}
    stage.step_until(lambda: stage.world.history[0])
    stage.crash(0)
    stage.suggest_leader(0, 2)
    later = stage.multicast(1, 0)
    stage.step_until(lambda: _pending_field(stage, 2, later, "proposed"), 2_000)
    stage.heal()
    stage.run_until_blocked()
    return stage


def deposed_leader_learns_a_decision(spec: Any) -> Stage:
    """Process 0 loses its own group, which elects process 1 and orders a local message, and hears the other group
    deliver a later global one."""
    stage = Stage(spec)
    stage.world.blocked = {(0, 1), (1, 0), (0, 2), (2, 0), (6, 0), (7, 0)}
    stage.suggest_leader(0, 1, 1, 2)
    stage.step_until(lambda: stage.protocol(1).status()["role"] == "leader")
    stage.multicast(0, 0)
    stage.step_until(lambda: stage.world.history[1])
    both = stage.multicast(1, 0, 1)
    stage.step_until(lambda: _pending_field(stage, 0, both, "final") > 0 or stage.world.history[0], 2_000)
    stage.steps(100)
    stage.heal()
    stage.suggest_leader(0, 1)
    stage.run_until_blocked()
    return stage


def decision_learnt_by_a_successor(spec: Any) -> Stage:
    """The other group delivers a global message; the leader that accepted it with its group crashes before it commits,
    and the next one can learn the final timestamp alone."""
    stage = Stage(spec)
    id = stage.multicast(0, 0, 1)
    stage.step_until(lambda: all(_pending_field(stage, member, id, "accepted") for member in (0, 1, 2)))
    stage.crash(0)
    stage.step_until(lambda: all(stage.world.history[member] for member in (3, 4, 5)))
    stage.suggest_leader(0, 1)
    stage.multicast(1, 0)
    stage.run_until_blocked()
    return stage


def _pending_field(stage: Stage, process: int, id: int, field: str) -> int:
    """A field of a process's state of a pending message; 0 if the process does not know the message."""
    return getattr(stage.protocol(process)._pending.get(id), field, 0)


@pytest.mark.parametrize(
    "scene",
    [
        acceptance_known_to_one_member,
        candidate_with_stale_clock,
        deposed_leader_learns_a_decision,
        decision_learnt_by_a_successor,
    ],
)
def test_scenes_that_catch_mutants_pass(scene: Any) -> None:
    stage = scene("whitebox")
    stage.check()
    assert stage.is_done(), stage.world.list_due_deliveries()


def test_deposed_leader_does_not_deliver_on_another_groups_decision() -> None:
    stage = deposed_leader_learns_a_decision("whitebox")
    assert stage.world.history[0] == stage.world.history[1]
    assert len(stage.world.history[0]) == 2


def test_plan_of_a_partial_partition_holds(tmp_path: Path) -> None:
    plan = parse_plan(read_plan(ROOT / "plans" / "partial-partition.toml"))
    recorded = record_run(prepare_run(plan), tmp_path / "run")
    assert recorded.report.verdict == "holds", describe_violation(recorded.report)
    assert recorded.summary.notes["epoch"] >= 1, "the group of the cut leader elected another one"
