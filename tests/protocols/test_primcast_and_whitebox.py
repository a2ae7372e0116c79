"""What PrimCast and White-Box survive alike (`parts/groups/leader_group.py`): faults at every step, laggards,
truncation."""

from collections.abc import Callable

import msgspec
import pytest

from tests.protocols import enumerated_faults as enumerated
from tests.protocols.stage import Stage

NAMES = ("primcast", "whitebox")
pytestmark = pytest.mark.parametrize("name", NAMES)


@pytest.mark.parametrize("way", enumerated.WAYS)
def test_the_leader_crashes_at_every_step(name: str, way: str) -> None:
    enumerated.leader_crashes(name, way)


@pytest.mark.parametrize("fault", enumerated.FAULTS)
def test_a_fault_at_every_step(name: str, fault: Callable[[str], None]) -> None:
    fault(name)


def test_a_retried_message_is_delivered_once_and_answered_again(name: str) -> None:
    enumerated.asks_again(name)


@pytest.mark.parametrize("process", [0, 2, 5])
@pytest.mark.parametrize("amnesia", [False, True])
def test_a_laggard_comes_back_after_truncation(name: str, process: int, amnesia: bool) -> None:
    stage = Stage(name, options={"keep": 4})
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
    assert stage.world.note_counts["installed"] > 0
    members = stage.topology.members(stage.topology.group_of(process) or 0)
    assert len({tuple(stage.world.history[member]) for member in members}) == 1


def test_state_and_records_do_not_grow(name: str) -> None:
    stage = Stage(name, options={"keep": 16})
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
        # White-Box goes on for a few records until it hears that its deliveries have left.
        assert len(stage.world.disks[process].records) <= {"primcast": 17, "whitebox": 20}[name]
        assert len(stage.protocol(process)._obligations.answers) < 8
        assert len(getattr(stage.protocol(process), "_log", ())) < 8
