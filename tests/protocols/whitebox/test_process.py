"""White-Box: the paper's numbers, and scenes that force what is rare."""

from typing import Any

import pytest

from amcast.lab.delays import measure_delays
from amcast.protocols.catalogue import CATALOGUE
from tests.protocols.stage import Stage


@pytest.mark.parametrize("replicas", [3, 5])
@pytest.mark.parametrize("destinations", [1, 2, 4])
def test_delays_by_role_and_the_exact_number_of_packets(destinations: int, replicas: int) -> None:
    row = measure_delays(CATALOGUE["whitebox"], destinations, replicas)
    assert row.delays_by_role == {"leader": 3, "follower": 4}
    assert row.packets == destinations * (1 + 2 * destinations * replicas + replicas)


def an_acceptance_that_one_member_knows(spec: Any) -> Stage:
    """A leader delivers with one follower's help and dies; the next leader must ask that follower too."""
    stage = Stage(spec)
    stage.world.blocked = {(0, 1), (0, 5)}
    stage.multicast(0, 0)
    stage.until(lambda: stage.world.history[0])
    stage.crash(0)
    stage.world.blocked = set()
    stage.lead(0, 1)
    stage.multicast(1, 0)
    stage.end()
    return stage


def a_candidate_behind(spec: Any) -> Stage:
    """A majority's clocks are past a final timestamp; who leads next was not among them, and must hear one."""
    stage = Stage(spec)
    stage.get_ahead()
    blocked = stage.world.blocked
    blocked |= {(far, 2) for far in (3, 4, 5)}
    id = stage.multicast(0, 0, 1)
    stage.until(lambda: _known(stage, 1, id, "local"))
    blocked |= {(0, 1), (0, 2)}
    stage.until(lambda: stage.world.history[0])
    stage.crash(0)
    stage.lead(0, 2)
    later = stage.multicast(1, 0)
    stage.until(lambda: _known(stage, 2, later, "proposed"), 2_000)
    stage.heal()
    stage.end()
    return stage


def _known(stage: Stage, process: int, id: int, field: str) -> int:
    """What a process knows of an open message; 0 if nothing."""
    return getattr(stage.protocol(process)._pending.get(id), field, 0)


@pytest.mark.parametrize("scene", [an_acceptance_that_one_member_knows, a_candidate_behind])
def test_scenes_that_mutants_get_wrong(scene: Any) -> None:
    stage = scene("whitebox")
    stage.check()
    assert stage.done(), stage.world.owed()
