"""White-Box: the numbers of the paper, and scenes that force rare schedules."""

from typing import Any

import pytest

from amcast.lab.delays import measure_delays
from amcast.protocols.catalogue import CATALOGUE
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


def _pending_field(stage: Stage, process: int, id: int, field: str) -> int:
    """A field of a process's state of a pending message; 0 if the process does not know the message."""
    return getattr(stage.protocol(process)._pending.get(id), field, 0)


@pytest.mark.parametrize("scene", [acceptance_known_to_one_member, candidate_with_stale_clock])
def test_scenes_that_catch_mutants_pass(scene: Any) -> None:
    stage = scene("whitebox")
    stage.check()
    assert stage.is_done(), stage.world.list_due_deliveries()
