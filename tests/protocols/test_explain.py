"""Diagnostics of a pending message: the phase that is not done, and the processes that it waits for."""

import pytest

from amcast.simulation.world.actions import Block
from tests.protocols.stage import Stage

NAMES = ["a-ge", "a-ge-star", "basecast", "fastcast", "primcast", "primcast-hc", "whitebox"]


@pytest.mark.parametrize("name", NAMES)
def test_unreachable_group_is_named_until_it_is_reachable(name: str) -> None:
    stage = Stage(name)
    local = stage.multicast(0, 0)
    stage.finish()
    stage.apply(Block(tuple((source, target) for source in (3, 4, 5, 6, 7) for target in (0, 1, 2))))
    waiting = stage.multicast(1, 0, 1)
    stage.drain()
    assert [phase.is_done for phase in stage.world.processes[0].explain(local)] == [True]
    assert [phase.is_done for phase in stage.world.processes[0].explain(waiting)] == [False], (
        "the process does not know the message"
    )
    there = stage.world.processes[3]
    assert [phase.name for phase in there.explain(local)] == ["text"]
    assert there.status()["pending"] == 1
    waiting_phases = [phase for phase in there.explain(waiting) if not phase.is_done]
    assert any({0, 1, 2} & set(phase.waiting_for) for phase in waiting_phases), waiting_phases

    stage.heal()
    stage.finish()
    for process in stage.topology.servers:
        (phase,) = stage.world.processes[process].explain(waiting)
        assert (phase.name, phase.is_done) == ("delivered", True)
        assert stage.world.processes[process].status()["pending"] == 0


def awaited_processes(stage: Stage, process: int, message: int) -> set[int]:
    """The processes that a process waits for."""
    return {
        other
        for phase in stage.world.processes[process].explain(message)
        if not phase.is_done
        for other in phase.waiting_for
    }


def block_groups(stage: Stage, *pairs: tuple[int, int]) -> None:
    """Blocks the links from one group to another, until the stage is healed."""
    members = stage.topology.members
    stage.apply(Block(tuple((a, b) for one, other in pairs for a in members(one) for b in members(other))))


def heal_and_finish(stage: Stage, *messages: int) -> None:
    """Everything is delivered in the end, and no process waits for another."""
    stage.heal()
    stage.finish()
    stage.drain()
    for process in stage.topology.servers:
        assert stage.world.processes[process].status()["pending"] == 0
        for message in messages:
            if stage.world.processes[process].has_delivered(message):
                assert awaited_processes(stage, process, message) == set()


@pytest.mark.parametrize("replicas", [1, 3])
def test_skeen_names_the_missing_proposer_and_the_blocking_message(replicas: int) -> None:
    stage = Stage("skeen", 3, replicas)
    block_groups(stage, (0, 1))
    first = stage.multicast(0, 0, 1)
    stage.drain()
    second = stage.multicast(1, 1, 2)
    stage.drain()
    there = stage.topology.members(1)[0]
    assert awaited_processes(stage, there, first) == set(stage.topology.members(0))
    (waits,) = [phase for phase in stage.world.processes[there].explain(second) if not phase.is_done]
    assert waits.name == "first"
    assert str(first) in waits.description
    heal_and_finish(stage, first, second)


@pytest.mark.parametrize("replicas", [1, 3])
def test_flexcast_names_the_group_whose_acknowledgement_is_missing(replicas: int) -> None:
    stage = Stage("flexcast", 3, replicas)
    block_groups(stage, (1, 2))
    message = stage.multicast(0, 0, 1, 2)
    stage.drain()
    last = stage.topology.members(2)[0]
    assert awaited_processes(stage, last, message) == set(stage.topology.members(1))
    assert [phase.name for phase in stage.world.processes[0].explain(message)] == ["delivered"]
    if replicas > 1:
        leader = stage.topology.members(1)[0]
        (undone,) = [phase for phase in stage.world.processes[leader].explain(message) if not phase.is_done]
        assert (undone.name, set(undone.waiting_for)) == ("carried", set(stage.topology.members(2)))
    heal_and_finish(stage, message)


@pytest.mark.parametrize("replicas", [1, 3])
def test_treecast_names_the_child_that_has_not_confirmed(replicas: int) -> None:
    stage = Stage("treecast", 3, replicas)
    block_groups(stage, (0, 2))
    message = stage.multicast(0, 0, 1, 2)
    stage.drain()
    assert set(stage.topology.members(2)) <= awaited_processes(stage, 0, message)
    assert awaited_processes(stage, stage.topology.members(2)[0], message) == set(stage.topology.members(0))
    heal_and_finish(stage, message)


@pytest.mark.parametrize("replicas", [1, 3])
def test_ring_names_the_message_that_locks_a_group(replicas: int) -> None:
    stage = Stage("ring", 3, replicas)
    block_groups(stage, (0, 1))
    first = stage.multicast(0, 0, 1)
    stage.drain()
    second = stage.multicast(1, 0)
    stage.drain()
    (waits,) = [phase for phase in stage.world.processes[0].explain(second) if not phase.is_done]
    assert waits.name == "first"
    assert str(first) in waits.description
    assert not stage.world.processes[0].explain(first)[-1].is_done, "it is not at its last destination"
    heal_and_finish(stage, first, second)


def test_multipaxos_names_the_ordering_group() -> None:
    stage = Stage("multipaxos", 2)
    block_groups(stage, (0, 1))
    message = stage.multicast(0, 1)
    stage.drain()
    assert awaited_processes(stage, 3, message) == {0, 1, 2}
    stage.apply(Block(((0, 1), (0, 2))))
    waiting = stage.multicast(1, 0)
    stage.drain()
    assert awaited_processes(stage, 0, waiting) == {1, 2}
    assert [phase.description for phase in stage.world.processes[1].explain(message + 99)] == [
        "process 1 has not received it"
    ]
    heal_and_finish(stage, message, waiting)


@pytest.mark.parametrize("name", ["a-ng", "a-dt"])
def test_rounds_name_the_group_whose_batch_is_missing(name: str) -> None:
    stage = Stage(name)
    stage.finish()
    block_groups(stage, (1, 0))
    message = stage.multicast(0, 0, 1)
    stage.step_until(lambda: {3, 4, 5} <= awaited_processes(stage, 0, message), 2000)
    phases = {phase.name: phase for phase in stage.world.processes[0].explain(message)}
    assert phases["batched"].is_done
    assert not phases["exchanged"].is_done
    if name == "a-ng":  # in A_dt the own batch counts only when others acknowledge it
        assert set(phases["exchanged"].waiting_for) == {3, 4, 5}
    stage.heal()
    stage.finish()
    for process in stage.topology.servers:
        assert [phase.name for phase in stage.world.processes[process].explain(message)] == ["delivered"]
    assert [phase.is_done for phase in stage.world.processes[0].explain(message + 99)] == [False]
