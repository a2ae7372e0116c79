"""What a restarted process knows of its configurations from its records."""

from amcast.kernel.events import Started
from amcast.kernel.ids import ProcessId
from amcast.kernel.message import Record
from amcast.kernel.process import Process
from amcast.kernel.reconfiguration import change_topology, encode_topology
from amcast.kernel.topology import Topology
from amcast.parts.membership.configuration import recover_instances
from amcast.parts.membership.messages import (
    ConfigurationRecord,
    ConfigurationStart,
    InstanceRecord,
    ReconfigurableConfig,
)
from amcast.parts.membership.reconfigurable import Reconfigurable
from amcast.protocols.catalogue import CATALOGUE

FIRST = Topology.grid(1, 3, 1)
SECOND = change_topology(FIRST, 0, 7, None)
THIRD = change_topology(SECOND, 0, None, 1)
SPEC = CATALOGUE["multipaxos"]


class Vote(Record, frozen=True):
    """A record of an instance."""


def make(me: ProcessId, topology: Topology) -> Process:
    return SPEC.process(me, topology, SPEC.configure())


def begin(topology: Topology, before: Topology | None) -> ConfigurationRecord:
    start = ConfigurationStart(topology.configuration, encode_topology(topology))
    return ConfigurationRecord(start, b"" if before is None else encode_topology(before), 0)


def test_instance_that_waited_for_its_admission_is_started_without_memory_again() -> None:
    """A process without memory starts the next configuration, in which it may vote, while it has no vote in the old
    one. Groups that lag behind need the old one: a restart must not forget that it takes part there."""
    records = (begin(SECOND, FIRST), InstanceRecord(1, False, Vote()))
    old, new = recover_instances(records, 4, 0, FIRST, make, 64)
    assert (old.configuration, new.configuration) == (0, 1)
    assert old.inbox == [Started((), 4)]
    assert new.inbox == [Started((Vote(),), 4)]
    intact = recover_instances((Vote(), *records), 4, 0, FIRST, make, 64)
    assert intact[0].inbox == [Started((Vote(),), 4)]
    joined = recover_instances((begin(SECOND, None), InstanceRecord(1, False, Vote())), 4, 7, SECOND, make, 64)
    assert [instance.configuration for instance in joined] == [1], "a new member has no old instance"


def test_member_has_joined_when_it_has_a_vote_in_every_instance_that_runs() -> None:
    process = Reconfigurable(0, FIRST, make, ReconfigurableConfig(), SPEC.bodies, SPEC.records)
    process.step((Started((begin(SECOND, FIRST),), 4),), 0)
    assert process.status()["instances"] == 2
    assert process.status()["joined"] == 0
