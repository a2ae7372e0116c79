"""White-Box: the paper's numbers, every step of a leader's crash, and scenes that force what is rare."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from amcast.lab.delays import delays
from amcast.protocols.catalogue import CATALOGUE
from protocols import enumerated
from protocols.stage import Stage


@pytest.mark.parametrize("replicas", [3, 5])
@pytest.mark.parametrize("destinations", [1, 2, 4])
def test_delays_by_role_and_the_exact_number_of_packets(destinations: int, replicas: int) -> None:
    row = delays(CATALOGUE["whitebox"], destinations, replicas)
    assert row.delays_by_role == {"leader": 3, "follower": 4}
    assert row.packets == destinations * (1 + 2 * destinations * replicas + replicas)


@pytest.mark.parametrize("way", enumerated.WAYS)
def test_the_leader_crashes_at_every_step(way: str) -> None:
    enumerated.leader_crashes("whitebox", way)


@pytest.mark.parametrize("fault", enumerated.FAULTS)
def test_a_fault_at_every_step(fault: Callable[[str], None]) -> None:
    fault("whitebox")


def test_a_retried_message_is_delivered_once_and_answered_again() -> None:
    enumerated.asks_again("whitebox")


@pytest.mark.parametrize("process", [0, 2, 5])
@pytest.mark.parametrize("amnesia", [False, True])
def test_a_laggard_comes_back_after_truncation(process: int, amnesia: bool) -> None:
    stage = Stage("whitebox", options={"keep": 4})
    stage.crash(process)
    if process == 0:
        stage.lead(0, 1)
    for number in range(20):
        stage.multicast(number % 2, 0, 1)
        stage.multicast(number % 2, number % 2)
        stage.finish()
    stage.recover(process, amnesia=amnesia)
    stage.multicast(0, 0, 1)
    stage.finish()
    stage.check()
    assert stage.world.noted["installed"] > 0
    members = stage.topology.members(stage.topology.group_of(process) or 0)
    assert len({tuple(stage.world.history[member]) for member in members}) == 1


def test_state_and_records_do_not_grow() -> None:
    stage = Stage("whitebox", options={"keep": 16})
    sizes = []
    for number in range(3):
        for _ in range(60):
            stage.multicast(0, 0, 1)
            stage.multicast(1, number % 2)
            stage.finish()
        sizes.append(max(len(msgspec.msgpack.encode(stage.protocol(p).snapshot())) for p in stage.topology.servers))
    stage.check()
    assert sizes[2] < 1.25 * sizes[1], sizes
    for process in stage.topology.servers:
        assert len(stage.world.disks[process].records) <= 20
        assert len(stage.protocol(process)._facts) < 8


def an_acceptance_that_one_member_knows(spec: Any) -> Stage:
    """A leader delivers with one follower's help and dies; the next leader must ask that follower too."""
    stage = Stage(spec)
    stage.world.blocked = {(0, 1), (0, 5)}
    stage.multicast(0, 0)
    for _ in range(200):
        if stage.world.history[0]:
            break
        assert stage.step()
    assert stage.world.history[0]
    stage.crash(0)
    stage.world.blocked = set()
    stage.lead(0, 1)
    stage.multicast(1, 0)
    for _ in range(20_000):
        if stage.done() or not stage.step():
            break
    return stage


def a_candidate_behind(spec: Any) -> Stage:
    """A majority's clocks are past a final timestamp; who leads next was not among them, and must hear one."""
    stage = Stage(spec)
    for _ in range(3):
        stage.multicast(0, 1)
        stage.finish()
    stage.steps(200)
    blocked = stage.world.blocked
    blocked |= {(far, 2) for far in (3, 4, 5)}
    id = stage.multicast(0, 0, 1)
    for _ in range(200):
        item = stage.protocol(1)._items.get(id)
        if item is not None and item.local:
            break
        assert stage.step()
    blocked |= {(0, 1), (0, 2)}
    for _ in range(200):
        if stage.world.history[0]:
            break
        assert stage.step()
    assert stage.world.history[0], "the leader delivers"
    stage.crash(0)
    stage.lead(0, 2)
    later = stage.multicast(1, 0)
    for _ in range(2_000):
        item = stage.protocol(2)._items.get(later)
        if item is not None and item.proposed:
            break
        assert stage.step()
    stage.heal()
    for _ in range(20_000):
        if stage.done() or not stage.step():
            break
    return stage


@pytest.mark.parametrize("scene", [an_acceptance_that_one_member_knows, a_candidate_behind])
def test_scenes_that_mutants_get_wrong(scene: Any) -> None:
    stage = scene("whitebox")
    stage.check()
    assert stage.done(), stage.world.owed()
