"""A process that lost its memory: which configurations it starts as one without, and until when it is in doubt."""

from collections import deque

import pytest

from amcast.kernel.effects import Effect, Persist, Send, SetTimer
from amcast.kernel.events import LinkReset, Receive, Started, Timer
from amcast.kernel.ids import MessageId, ProcessId
from amcast.kernel.message import Body, Record, Request
from amcast.kernel.reconfiguration import change_topology, encode_topology, is_change, make_marker
from amcast.kernel.topology import Topology
from amcast.parts.membership.memory_doubt import MemoryDoubt
from amcast.parts.membership.messages import (
    ConfigurationInfo,
    ConfigurationRecord,
    ConfigurationStart,
    DoubtEnded,
    InstanceRecord,
)
from amcast.parts.membership.reconfigurable import RETRY_TIMER, Reconfigurable, build_reconfigurable_spec
from amcast.parts.ordering.delivered_set import DeliveredSet
from amcast.protocols.catalogue import CATALOGUE

FIRST = Topology.grid(2, 3, 1)
NEXT = change_topology(FIRST, 1, add=20)


def make_member(
    process: ProcessId, incarnation: int, *records: Record, name: str = "whitebox"
) -> tuple[Reconfigurable, list[Effect]]:
    """A member that has started, and what it did then."""
    spec = build_reconfigurable_spec(CATALOGUE[name])
    member = spec.process(process, FIRST, spec.configure())
    assert isinstance(member, Reconfigurable)
    return member, member.step([Started(records, incarnation)], 0)


def make_start(*delivered: MessageId) -> ConfigurationStart:
    """The start of configuration 1 after these deliveries."""
    before = DeliveredSet()
    for message in delivered:
        before.add(message)
    return ConfigurationStart(1, encode_topology(NEXT), len(delivered), 0, before.snapshot())


def list_records(effects: list[Effect]) -> list[Record]:
    return [effect.record for effect in effects if isinstance(effect, Persist)]


def list_requests(effects: list[Effect]) -> list[MessageId]:
    bodies = [effect.body for effect in effects if isinstance(effect, Send)]
    return [body.message.id for body in bodies if isinstance(body, Request)]


def role_of(member: Reconfigurable) -> object:
    current = member.current
    assert current is not None
    assert current.process is not None
    return current.process.status()["role"]


def marker_of(process: ProcessId, incarnation: int) -> MessageId:
    return make_marker(process, 0, incarnation).id


class Network:
    """Members of configuration 0 that hear each other at once; every record is durable at once."""

    def __init__(self, name: str = "whitebox") -> None:
        self.name = name
        self.persisted: dict[ProcessId, list[Record]] = {process: [] for process in FIRST.servers}
        self.members: dict[ProcessId, Reconfigurable] = {}
        self._packets: deque[tuple[ProcessId, ProcessId, Body]] = deque()
        self._timers: dict[ProcessId, set[str]] = {process: set() for process in FIRST.servers}
        for process in FIRST.servers:
            self.start(process, 0)
        self.run()

    def start(self, process: ProcessId, incarnation: int, *records: Record) -> None:
        """Starts a process again; the others learn of it."""
        member, effects = make_member(process, incarnation, *records, name=self.name)
        self.members[process], self.persisted[process] = member, list(records)
        for other in FIRST.servers if incarnation else ():
            if other != process:
                self._perform(other, self.members[other].step([LinkReset(process, incarnation)], 0))
        self._perform(process, effects)

    def _perform(self, process: ProcessId, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, SetTimer):
                self._timers[process].add(effect.name)
            elif isinstance(effect, Send):
                self._packets += [(process, target, effect.body) for target in effect.targets]
            elif isinstance(effect, Persist):
                if effect.replaces:
                    self.persisted[process] = []
                self.persisted[process].append(effect.record)

    def run(self, steps: int = 10_000) -> None:
        """Lets packets arrive, at most so many."""
        for _ in range(steps):
            if not self._packets:
                break
            source, target, body = self._packets.popleft()
            member = self.members.get(target)
            if member is not None:
                self._perform(target, member.step([Receive(source, body)], 0))

    def fire(self, process: ProcessId) -> None:
        """Fires every timer of a process once: what it waits for may have come before it was readmitted."""
        names, self._timers[process] = self._timers[process], set()
        for name in sorted(names):
            self._perform(process, self.members[process].step([Timer(name)], 0))

    def settle(self) -> None:
        for _ in range(4):
            self.run()
            for process in FIRST.servers:
                self.fire(process)
        self.run()


# The configurations that it starts


def test_member_without_memory_starts_the_next_configuration_without_memory() -> None:
    member, _ = make_member(0, 1)
    effects = member.step([Receive(1, ConfigurationInfo(make_start(), 0))], 1)
    assert (member.configuration, role_of(member)) == (1, "joining"), "it may have led this configuration before"
    assert [record.doubt for record in list_records(effects) if isinstance(record, ConfigurationRecord)] == [1]
    assert list_requests(effects) == [marker_of(0, 1)], "it goes on to ask for its marker"


def test_member_starts_a_configuration_with_memory_if_its_marker_was_delivered_before() -> None:
    member, _ = make_member(0, 1)
    effects = member.step([Receive(1, ConfigurationInfo(make_start(marker_of(0, 1)), 0))], 1)
    assert (member.configuration, role_of(member)) == (1, "leader")
    assert [record.doubt for record in list_records(effects) if isinstance(record, ConfigurationRecord)] == [0]
    assert list_requests(effects) == []


def test_marker_of_an_earlier_loss_says_nothing_about_the_last_one() -> None:
    member, _ = make_member(0, 2)
    member.step([Receive(1, ConfigurationInfo(make_start(marker_of(0, 1)), 0))], 1)
    assert role_of(member) == "joining"


def test_marker_of_another_member_says_nothing() -> None:
    member, _ = make_member(0, 1)
    member.step([Receive(1, ConfigurationInfo(make_start(marker_of(1, 1)), 0))], 1)
    assert role_of(member) == "joining"


def test_member_whose_memory_is_intact_is_not_in_doubt() -> None:
    member, effects = make_member(0, 0)
    assert list_requests(effects) == []
    member.step([Receive(1, ConfigurationInfo(make_start(), 0))], 1)
    assert role_of(member) == "leader"


# Its end


@pytest.mark.parametrize("name", [name for name, spec in CATALOGUE.items() if "amnesia" in spec.claims.faults])
def test_doubt_ends_when_the_marker_is_delivered(name: str) -> None:
    network = Network(name)
    network.start(2, 1)
    assert network.members[2].status()["joined"] == 0
    network.settle()
    member = network.members[2]
    assert member.status()["joined"] == 1
    assert DoubtEnded(0) in network.persisted[2]
    assert member.has_delivered(marker_of(2, 1))
    positions = {network.members[process].position for process in (0, 1, 2)}
    assert positions == {1}, "it has a position, like a change"
    assert list_requests(member.step([Timer(RETRY_TIMER)], 1)) == [], "nothing is asked for any more"
    member.step([Receive(1, ConfigurationInfo(make_start(marker_of(2, 1)), 0))], 1)
    assert member.current is not None
    assert member.current.doubt == 0


def test_readmitted_member_is_in_doubt_until_its_marker_is_delivered() -> None:
    """If it did not count as lost until then, another member could lose its memory, a change could overtake both
    markers, and the next configuration would lack a majority."""
    network = Network()
    network.start(2, 1)
    for _ in range(1000):
        network.run(1)
        member = network.members[2]
        if role_of(member) != "joining":
            break
    assert role_of(member) != "joining"
    assert not member.has_delivered(marker_of(2, 1)), "the marker came first; this test shows nothing"
    assert member.status()["joined"] == 0


# Records


def run_until_readmitted() -> Network:
    """Member 2 lost its memory, was readmitted, and is in doubt."""
    network = Network()
    network.start(2, 1)
    while not network.persisted[2]:
        network.run(1)
    return network


def test_every_record_says_that_its_process_is_in_doubt() -> None:
    records = run_until_readmitted().persisted[2]
    assert records
    assert all(isinstance(record, InstanceRecord) and record.doubt == 1 for record in records), records


def test_restart_after_readmission_goes_on_with_the_same_doubt() -> None:
    records = run_until_readmitted().persisted[2]
    member, effects = make_member(2, 2, *records)
    assert list_requests(effects) == [marker_of(2, 1)]
    assert member.status()["joined"] == 0
    effects = member.step([Receive(1, ConfigurationInfo(make_start(), 0))], 1)
    assert role_of(member) == "joining", "it may have taken part in this configuration before it lost its memory"
    records += [record for record in list_records(effects) if isinstance(record, ConfigurationRecord)]
    again, effects = make_member(2, 3, *records)
    assert (role_of(again), list_requests(effects)) == ("joining", [marker_of(2, 1)])


def test_restart_after_the_end_of_the_doubt_is_not_in_doubt() -> None:
    network = run_until_readmitted()
    network.settle()
    records = network.persisted[2]
    assert DoubtEnded(0) in records
    member, effects = make_member(2, 2, *records)
    assert list_requests(effects) == []
    member.step([Receive(1, ConfigurationInfo(make_start(marker_of(2, 1)), 0))], 1)
    assert member.current is not None
    assert member.current.doubt == 0


def test_records_are_recalled_in_their_order() -> None:
    doubt = MemoryDoubt(2)
    start = make_start()
    in_doubt = ConfigurationRecord(start, b"", 3)
    for records, since in (
        ((in_doubt,), 3),
        ((in_doubt, DoubtEnded(1)), 0),
        ((in_doubt, ConfigurationRecord(start, b"", 0)), 0),
        ((in_doubt, InstanceRecord(1, True, DoubtEnded(1), start)), 0),
        ((InstanceRecord(1, False, DoubtEnded(1), None, 3), InstanceRecord(0, False, DoubtEnded(1))), 3),
        ((), 0),
    ):
        doubt.recall(records)
        assert doubt.since == since, records


def test_marker_is_a_word_of_the_membership_and_no_change() -> None:
    marker = make_marker(2, 0, 1)
    assert is_change(marker), "applications do not see it"
    assert (marker.sender, marker.destinations) == (2, (0,))
