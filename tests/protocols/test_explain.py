"""What operators are told of a message that waits: which phase is open, and whose word is missing."""

import pytest
from stage import Stage

from amcast.world.actions import Block

NAMES = ["a-ge", "a-ge-star", "basecast", "fastcast", "primcast", "primcast-hc", "whitebox"]


@pytest.mark.parametrize("name", NAMES)
def test_a_group_that_hears_nothing_is_named_and_then_nothing_is_open(name: str) -> None:
    stage = Stage(name)
    local = stage.multicast(0, 0)
    stage.finish()
    stage.apply(Block(tuple((source, target) for source in (3, 4, 5, 6, 7) for target in (0, 1, 2))))
    waiting = stage.multicast(1, 0, 1)
    stage.drain()
    assert [phase.done for phase in stage.world.processes[0].explain(local)] == [True]
    assert [phase.done for phase in stage.world.processes[0].explain(waiting)] == [False], "it never heard of it"
    there = stage.world.processes[3]
    assert [phase.name for phase in there.explain(local)] == ["text"]
    assert there.vitals()["pending"] == 1
    open_ones = [phase for phase in there.explain(waiting) if not phase.done]
    assert any({0, 1, 2} & set(phase.late) for phase in open_ones), open_ones

    stage.heal()
    stage.finish()
    for process in stage.topology.servers:
        (phase,) = stage.world.processes[process].explain(waiting)
        assert (phase.name, phase.done) == ("delivered", True)
        assert stage.world.processes[process].vitals()["pending"] == 0
