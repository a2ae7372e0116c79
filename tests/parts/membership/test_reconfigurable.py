"""Members that change: what a run as a whole does not show."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from amcast.assembly import assemble_simulation
from amcast.check.judge import judge
from amcast.kernel.effects import Persist
from amcast.kernel.ids import MESSAGES_PER_SENDER, message_id
from amcast.kernel.reconfiguration import change_topology, make_change_message
from amcast.parts.membership.messages import ConfigurationRecord, InstanceRecord
from amcast.parts.membership.reconfigurable import Reconfigurable
from amcast.parts.node.node import Node
from amcast.parts.ordering.delivered_set import DeliveredSet
from amcast.parts.ordering.messages import WINDOW
from amcast.simulation.inputs.plan import scale_ns
from amcast.simulation.simulate import Simulation, SimulationSetup
from amcast.simulation.world.disk import Disk
from amcast.trace.recorder import Recorder
from amcast.trace.run import Run
from tests.conformance.test_members import MS, planned

# Nothing is paid for by those who never change


@pytest.mark.parametrize(
    ("name", "faults"), [("skeen", "none"), ("multipaxos", "links+leaders"), ("primcast", "all"), ("a-ng", "all")]
)
def test_a_cluster_that_never_changes_says_and_keeps_the_same(name: str, faults: str) -> None:
    prepared = planned(name, 3, "add", faults)
    without = msgspec.structs.replace(prepared.plan.faults, events=())
    told = []
    for changes in (False, True):
        recorder = Recorder()
        setup = prepared.make_setup()
        scale = scale_ns(prepared.network)

        def make(process: int, changes: bool = changes, scale: int = scale) -> object:
            assembly = assemble_simulation(prepared.spec, prepared.config, scale, changes=changes)
            return assembly.make(process, prepared.topology)

        plain = SimulationSetup(
            **{
                **{field: getattr(setup, field) for field in SimulationSetup.__dataclass_fields__},
                "topology": prepared.topology,
                "make": make,
                "faults": without,
                "kinds": setup.kinds - {"amnesia"},
                "absent": frozenset(),
                "operator": None,
            }
        )
        assert Simulation(plain, recorder, keeps_history=True).run().end == "delivered"
        told.append((recorder.packets, recorder.deliveries, recorder.notes))
    assert told[0] == told[1]


# What was delivered

ids = st.builds(message_id, st.integers(0, 2), st.integers(0, 2 * WINDOW))


@settings(deadline=None)
@given(st.lists(ids), st.lists(ids))
def test_merged_memories_know_what_either_knew(one: list[int], other: list[int]) -> None:
    left, right = DeliveredSet(), DeliveredSet()
    for id in one:
        left.add(id)
    for id in other:
        right.add(id)
    merged = DeliveredSet()
    merged.restore(left.snapshot())
    merged.merge(right.snapshot())
    for id in {*one, *other}:
        assert id in merged
    for sender in range(3):
        newest = max(
            (id % MESSAGES_PER_SENDER for id in (*one, *other) if id // MESSAGES_PER_SENDER == sender), default=-1
        )
        for sequence in range(max(0, newest - WINDOW + 1), newest + 1):
            id = message_id(sender, sequence)
            assert (id in merged) == (id in one or id in other)


def test_what_is_taken_back_is_new_again() -> None:
    seen = DeliveredSet()
    for sequence in (1, 2, 3):
        seen.add(message_id(1, sequence))
    seen.forget(message_id(1, 3))
    seen.forget(message_id(2, 3))
    assert message_id(1, 3) not in seen
    assert message_id(1, 2) in seen
    assert seen.add(message_id(1, 3))
    assert not seen.add(message_id(1, 3))


# Changes that come too late


def test_of_two_changes_at_once_the_first_counts_and_the_other_is_stale() -> None:
    prepared = planned("primcast", 5, "add")
    recorder = Recorder()
    simulation = Simulation(prepared.make_setup(), recorder, keeps_history=True)
    world = simulation.world

    def another() -> None:
        assert world.operator is not None
        late = change_topology(prepared.topology, 2, remove=8)
        world.submit(world.operator, make_change_message(message_id(world.operator, 77), world.operator, late))

    simulation.scheduler.schedule(11 * MS, another)
    summary = simulation.run()
    assert summary.end == "delivered"
    assert summary.notes["stale"] >= 9, "everybody delivers it, and nobody follows it"
    numbers = {process.topology.configuration for process in world.processes.values()}
    assert numbers == {1}
    report = judge(Run.from_recorder(recorder, prepared.make_meta("stale").with_claims(complete=True)))
    assert report.verdict == "holds", report.story()


# Snapshots


@pytest.mark.parametrize("name", ["primcast", "treecast"])
def test_a_snapshot_in_the_middle_of_a_change_is_enough_to_go_on(name: str) -> None:
    prepared = planned(name, 2, "several")
    simulation = Simulation(prepared.make_setup(), Recorder(), keeps_history=True)
    world = simulation.world
    looked: set[tuple[int, int]] = set()

    def look() -> None:
        for process in sorted(world.processes):
            here = world.processes[process]
            there = prepared.make(process)
            there.restore(here.snapshot())
            assert msgspec.msgpack.encode(there.snapshot()) == msgspec.msgpack.encode(here.snapshot())
            assert there.topology == here.topology
            world.processes[process] = there
            if isinstance(there, Node):
                assert isinstance(there.protocol, Reconfigurable)
                looked.add((there.protocol.configuration, int(there.protocol.status()["instances"])))

    for at in range(8, 90, 3):
        simulation.scheduler.schedule(at * MS, look)
    assert simulation.run().end == "delivered"
    assert (-1, 0) in looked, "a new member that waits"
    assert any(number > 0 and instances > 1 for number, instances in looked), "an old instance that goes on"


# Records


@pytest.mark.parametrize("name", ["primcast", "multipaxos"])
def test_a_record_says_that_it_replaces_others_also_while_old_numbers_go_on(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever runs a process must know it: what such a record stands for is not delivered again in a later
    incarnation."""
    kept: list[Persist] = []
    right = Disk.store

    def keep(self: Disk, effect: Persist) -> None:
        kept.append(effect)
        right(self, effect)

    monkeypatch.setattr(Disk, "store", keep)
    simulation = Simulation(
        planned(name, 2, "several", options={"keep": 2}).make_setup(), Recorder(), keeps_history=True
    )
    assert simulation.run().end == "delivered"
    assert any(effect.replaces for effect in kept), "no snapshot of the only number"
    several = [effect for effect in kept if isinstance(effect.record, InstanceRecord) and not effect.replaces]
    assert any(effect.record.replaces for effect in several), "no snapshot while there were several numbers"
    assert all(effect.after_deliveries == effect.record.replaces for effect in several)
    assert all(effect.after_deliveries for effect in kept if isinstance(effect.record, ConfigurationRecord))
