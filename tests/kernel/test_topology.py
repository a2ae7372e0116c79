"""Topologies: validation, queries and configurations."""

import pytest

from amcast.kernel.errors import UsageError
from amcast.kernel.topology import Topology


def test_grid_numbers_processes_by_group_and_clients_last() -> None:
    topology = Topology.grid(2, 3, 2)
    assert topology.members(1) == (3, 4, 5)
    assert topology.clients == (6, 7)
    assert topology.group_of(4) == 1
    assert topology.group_of(6) is None
    assert topology.processes_of((0, 1)) == (0, 1, 2, 3, 4, 5)
    assert topology.processes_of((0, 1)) is topology.processes_of((0, 1))
    assert (topology.quorum(0), topology.faults_tolerated(0)) == (2, 1)


@pytest.mark.parametrize(
    ("groups", "clients", "regions", "expected"),
    [
        ({}, (), {}, "0 groups; expected 1 to"),
        ({0: ()}, (), {}, "0 members; expected 1 to"),
        ({0: (1, 1)}, (), {}, "member twice"),
        ({0: (1,), 1: (1,)}, (), {}, "member twice"),
        ({0: (-1,)}, (), {}, "process -1; expected 0"),
        ({-1: (1,)}, (), {}, "group -1 is negative"),
        ({0: (1,)}, (1,), {}, "process 1 is a member of group 0"),
        ({0: (1,)}, (2, 2), {}, "process 2 appears twice"),
        ({0: (1,)}, (), {9: "mars"}, "process 9 is neither a member"),
    ],
)
def test_invalid_topology_is_rejected_with_the_reason(groups, clients, regions, expected) -> None:
    with pytest.raises(UsageError, match=expected):
        Topology(groups, clients, regions)


@pytest.mark.parametrize("sizes", [(0, 1, 0), (1, 0, 0), (1, 99, 0), (1, 1, -1)])
def test_invalid_grid_is_rejected(sizes) -> None:
    with pytest.raises(UsageError, match="expected"):
        Topology.grid(*sizes)


def test_destinations_are_sorted_distinct_and_existing() -> None:
    topology = Topology.grid(3, 1)
    assert topology.check_destinations([2, 0, 2]) == (0, 2)
    with pytest.raises(UsageError, match="group 7 does not exist"):
        topology.check_destinations([0, 7])
    with pytest.raises(UsageError, match="none given"):
        topology.check_destinations([])


def test_change_is_the_next_configuration_and_keeps_earlier_members() -> None:
    before = Topology.grid(2, 3)
    after = before.with_change(0, (0, 1, 9))
    assert after.configuration == 1
    assert after.members(0) == (0, 1, 9)
    assert after.members(0, 0) == (0, 1, 2)
    assert after.quorum(0, 0) == 2
    assert after.members(1) == before.members(1)
    assert after.group_of(2) is None
    with pytest.raises(UsageError, match="group 5 does not exist"):
        before.with_change(5, (1,))


def test_history_of_members_is_bounded() -> None:
    topology = Topology.grid(1, 3)
    for member in range(10, 30):
        topology = topology.with_change(0, (0, 1, member), keep=4)
    assert topology.members(0, topology.configuration - 3) == (0, 1, 26)
    with pytest.raises(KeyError):
        topology.members(0, 2)
