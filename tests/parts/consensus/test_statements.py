"""What Paxos states to monitors."""

import pytest

from amcast.kernel.topology import Topology
from amcast.parts.consensus.statements import build_group_paxos_table


@pytest.mark.parametrize(("replicas", "expected"), [(3, True), (1, False)])
def test_members_of_groups_with_a_log_begin_with_a_record(replicas: int, expected: bool) -> None:
    """Otherwise a restart of one that has written nothing looks like the loss of its memory."""
    assert build_group_paxos_table(Topology.grid(2, replicas, 1), None).has_first_record is expected
