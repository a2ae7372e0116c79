"""What monitors judge of deliveries themselves."""

import pytest

from amcast.kernel.effects import Deliver
from amcast.kernel.message import Message
from amcast.kernel.process import Process
from amcast.kernel.statements import StatementTable
from amcast.simulation.monitors.monitors import MonitoredDisk, Monitoring, Monitors


class JudgedWorld:
    """A world of which only the violations matter."""

    def __init__(self) -> None:
        self.steps = 0
        self.disks: dict[int, MonitoredDisk] = {}
        self.history: dict[int, list[int]] = {}
        self.violations: list[str] = []

    def report_violation(self, process: int, sentence: str) -> None:
        self.violations.append(sentence)


def make_nothing(process: int) -> Process:
    raise AssertionError("no restart is rehearsed here")


def judge(*deliveries: tuple[int, int, tuple[int, int]], discards: bool = False) -> list[str]:
    """The violations of deliveries of process 0: message, position and rank of each."""
    world = JudgedWorld()
    monitors = Monitors(Monitoring(StatementTable(), make_nothing, is_ranked=True, discards=discards), world)
    for id, position, (time, tie) in deliveries:
        monitors.hear_delivery(0, Deliver(Message(id, 9, (0,), b""), position, time, tie))
    return world.violations


@pytest.mark.parametrize("second", [(3, 9), (4, 1)])
def test_process_delivers_in_the_order_of_ranks(second: tuple[int, int]) -> None:
    (violation,) = judge((7, 0, (4, 2)), (8, 1, second))
    assert "ascending ranks" in violation
    assert "message 8" in violation


@pytest.mark.parametrize("second", [(4, 2), (4, 3), (5, 0)])
def test_ranks_may_stand_still_and_ascend(second: tuple[int, int]) -> None:
    assert not judge((7, 0, (4, 2)), (8, 1, second))


def test_restarted_process_repeats_lower_ranks() -> None:
    assert not judge((7, 0, (4, 2)), (8, 1, (5, 2)), (7, 0, (4, 2)), (8, 1, (5, 2)), (9, 2, (6, 0)))


def test_configurations_count_ranks_anew() -> None:
    assert not judge((7, 0, (4, 2)), (8, 1, (1, 1)), discards=True)
