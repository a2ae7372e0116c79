"""In every protocol, a member that restarts without records reports that it waits for its group's state."""

import pytest

from amcast.kernel.events import Started
from amcast.kernel.topology import Topology
from amcast.protocols.catalogue import CATALOGUE

TOPOLOGY = Topology.grid(2, 3)


@pytest.mark.parametrize("name", list(CATALOGUE))
def test_status_shows_a_member_that_waits_for_state(name: str) -> None:
    spec = CATALOGUE[name].for_topology(TOPOLOGY)
    first, later = (spec.process(1, TOPOLOGY, spec.configure({})) for _ in range(2))
    first.step([Started((), 0)], 0)
    later.step([Started((), 1)], 0)
    assert first.status()["joined"] == 1
    assert later.status()["joined"] == 0
    assert (later.status()["role"] == "gone") == ("amnesia" not in spec.claims.faults)
