"""PrimCast and PrimCast-HC: the paper's numbers, rare schedules, and skewed clocks."""

from typing import Any

import pytest

from amcast.lab.delays import measure_delays
from amcast.protocols.catalogue import CATALOGUE
from tests.protocols.primcast.scenes import SCENES
from tests.protocols.stage import Stage

NAMES = ("primcast", "primcast-hc")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("replicas", [3, 5])
@pytest.mark.parametrize("destinations", [1, 2, 4])
def test_three_delays_and_the_exact_number_of_packets(name: str, destinations: int, replicas: int) -> None:
    row = measure_delays(CATALOGUE[name], destinations, replicas)
    assert row.delays_max == 3
    assert row.packets == destinations * (replicas + destinations * replicas**2)
    assert row.delays_by_role["primary"] == 3
    assert row.delays_by_role["member"] == (2 if (destinations, replicas) == (1, 3) else 3)


def test_only_the_group_with_the_lower_timestamp_bumps() -> None:
    """Group 1 is ahead: only members of group 0 send their clocks, n packets each."""
    stage = Stage("primcast")
    stage.raise_remote_clocks()
    before = stage.world.note_counts.get("bump", 0)
    stage.multicast(1, 0, 1)
    stage.finish()
    assert stage.world.note_counts["bump"] - before == 3


def test_new_primary_proposes_a_message_that_only_another_group_received() -> None:
    """The client's message reaches group 1 alone, and then the client crashes."""
    stage = Stage("primcast")
    client = stage.topology.clients[0]
    stage.world.blocked = {(client, process) for process in (0, 1, 2)}
    id = stage.multicast(0, 0, 1)
    stage.steps(60)
    stage.crash(0)
    stage.suggest_leader(0, 1)
    stage.crash(client)
    while stage.world.list_due_deliveries() or not all(id in stage.world.history[p] for p in (1, 2, 3, 4, 5)):
        assert stage.step(), f"no member fetched the message: {stage.world.list_due_deliveries()}"
    stage.check()


@pytest.mark.parametrize("scene", SCENES)
def test_scenes_that_mutants_fail(scene: Any) -> None:
    stage = scene("primcast")
    stage.check()
    assert stage.is_done(), stage.world.list_due_deliveries()


@pytest.mark.parametrize("name", NAMES)
def test_jumping_local_clocks_do_not_break_the_order(name: str) -> None:
    """Local clocks are days apart; hybrid clocks still order everything."""
    stage = Stage(name)
    for process in stage.topology.servers:
        stage.world.skews[process] = (process * 10**15, 0.0)
    for number in range(12):
        stage.multicast(number % 2, *((0, 1) if number % 3 else (number % 2,)))
        stage.steps(number)
        stage.world.skews[number % 6] = ((-1) ** number * number * 10**14, 0.01)
    stage.finish()
    stage.check()


def test_member_without_memory_has_not_joined_before_it_has_the_deliveries_that_others_dropped() -> None:
    """Two of three have delivered and dropped messages from their logs, and one of them loses its disk. The third,
    which lags, admits it with an empty log: one member has the only copy until it sends the deliveries."""
    stage = Stage("primcast", groups=1)
    stage.isolate(2)
    for _ in range(3):
        stage.multicast(0, 0)
        stage.drain()
    stage.crash(1)
    stage.heal()
    stage.world.blocked = {(0, 1)}
    stage.suggest_leader(0, 2, 2)
    stage.drain()
    lagging = stage.protocol(2)
    assert lagging._log.floor > lagging.position
    assert lagging.status()["joined"] == 0
    stage.recover(1, amnesia=True)
    stage.drain()
    stage.world.blocked = {(0, 2)}
    stage.step_until(lambda: stage.protocol(1)._role == "member")
    joining = stage.protocol(1)
    assert joining.position < joining._log.floor
    assert joining.status()["joined"] == 0
    stage.heal()
    stage.suggest_leader(0, 2)
    stage.finish()
    assert joining.status()["joined"] == lagging.status()["joined"] == 1
    assert joining.position == lagging.position == 3
