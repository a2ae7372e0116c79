"""PrimCast and White-Box (`parts/groups/leader_group.py`) survive faults after every step, lag and truncation."""

from collections.abc import Callable

import msgspec
import pytest
from msgspec import structs

from amcast.kernel.effects import Deliver, Note
from amcast.kernel.events import Started
from tests.protocols import enumerated_faults as enumerated
from tests.protocols.stage import Stage

NAMES = ("primcast", "whitebox")
pytestmark = pytest.mark.parametrize("name", NAMES)


@pytest.mark.parametrize("restart", enumerated.RESTARTS)
def test_leader_crashes_after_every_step(name: str, restart: str) -> None:
    enumerated.crash_leader(name, restart)


@pytest.mark.parametrize("fault", enumerated.FAULTS)
def test_fault_after_every_step(name: str, fault: Callable[[str], None]) -> None:
    fault(name)


def test_repeated_request_is_delivered_once_and_resolved_again(name: str) -> None:
    enumerated.repeat_request(name)


@pytest.mark.parametrize("process", [0, 2, 5])
@pytest.mark.parametrize("amnesia", [False, True])
def test_lagging_member_recovers_after_truncation(name: str, process: int, amnesia: bool) -> None:
    stage = Stage(name, options={"keep": 4})
    stage.crash(process)
    if process == 0:
        stage.suggest_leader(0, 1)
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


def test_state_and_records_are_bounded(name: str) -> None:
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
        # White-Box writes a few more records until it knows that its deliveries have left the process.
        assert len(stage.world.disks[process].records) <= {"primcast": 17, "whitebox": 20}[name]
        assert len(stage.protocol(process)._obligations.answers) < 8
        assert len(getattr(stage.protocol(process), "_log", ())) < 8


def test_restart_of_an_idle_group_names_its_position(name: str) -> None:
    """The last record is a checkpoint with nothing behind it, and no delivery is repeated."""
    stage = Stage(name, options={"keep": 1})
    for number in range(3):
        stage.multicast(number % 2, 0, 1)
    stage.finish()
    stage.drain()
    for process in stage.topology.servers:
        protocol = stage.protocol(process)
        checkpoint = structs.replace(protocol.snapshot().checkpoint, delivered_until=protocol.position)
        effects = stage.make(process).step([Started((checkpoint,), 1)], 0)
        assert not any(isinstance(effect, Deliver) for effect in effects)
        assert Note("resumed", None, 3.0) in effects, f"process {process}"
