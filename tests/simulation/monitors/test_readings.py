"""The monitor of reads: a read contains what any member of the group had delivered when it began."""

import pytest

from amcast.kernel.topology import Topology
from amcast.lab.fuzz_campaign import SwarmRuns
from amcast.lab.runs import fuzz_seed
from amcast.simulation.monitors.readings import ReadMonitor
from amcast.simulation.world.actions import BeginRead


class Group:
    """Members 0 and 1 of a group, and 2 of another one; how much each has delivered."""

    def __init__(self) -> None:
        self.topology = Topology({0: (0, 1), 1: (2,)}, (3,))
        self.positions = {0: 4, 1: 6, 2: 9}
        self.broken: list[str] = []
        self.monitor = ReadMonitor(lambda process, rule, sentence: self.broken.append(sentence), self)


@pytest.fixture
def group() -> Group:
    group = Group()
    group.monitor.hear_read(0, 1)
    return group


def test_member_that_lags_may_not_be_read(group: Group) -> None:
    group.monitor.hear_ready(0, 1)
    assert group.broken == ["lets its user read after 4 deliveries; process 1 had made 6 before"]


def test_member_is_read_once_it_has_what_was_delivered_before(group: Group) -> None:
    group.positions.update({0: 6, 1: 8})
    group.monitor.hear_ready(0, 1)
    assert not group.broken


def test_restart_ends_reads(group: Group) -> None:
    group.monitor.forget(0)
    group.monitor.hear_ready(0, 1)
    assert not group.broken


def test_some_seeds_read_and_every_read_is_answered() -> None:
    runs = SwarmRuns({"protocol": "primcast"}, "here")
    outcomes = [fuzz_seed(runs.prepare(seed), seed) for seed in range(12)]
    assert [outcome.status for outcome in outcomes] == ["holds"] * len(outcomes)
    counts = [sum(type(action) is BeginRead for action in outcome.script) for outcome in outcomes]
    assert 0 in counts
    assert max(counts) > 5
