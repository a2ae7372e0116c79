"""Reconfiguration: costs, fast path, stale changes, snapshots and records, which whole runs do not show."""

from collections.abc import Sequence
from copy import deepcopy

import msgspec
import pytest

from amcast.assembly import assemble_simulation
from amcast.check.judge import judge
from amcast.kernel.effects import Effect, Note, Persist, Send
from amcast.kernel.events import Event, LinkReset, Receive, Started, Submit, Timer
from amcast.kernel.ids import message_id
from amcast.kernel.message import Message, Record, Request
from amcast.kernel.reconfiguration import change_topology, encode_topology, make_change_message
from amcast.kernel.topology import Topology
from amcast.parts.client.messages import ConfigurationStarted
from amcast.parts.groups.leader_group_messages import DeliveredPrefix
from amcast.parts.membership.messages import (
    ConfigurationInfo,
    ConfigurationRecord,
    ConfigurationStart,
    InstanceRecord,
    SkippedBarrier,
    make_body_type,
    make_record_type,
)
from amcast.parts.membership.reconfigurable import RETRY_TIMER, Reconfigurable, build_reconfigurable_spec
from amcast.parts.node.node import Node
from amcast.parts.ordering.delivered_set import DeliveredSet
from amcast.protocols.catalogue import CATALOGUE
from amcast.protocols.whitebox.messages import CatchUp, DeliveryHistory
from amcast.simulation.inputs.plan import scale_ns
from amcast.simulation.simulate import Simulation, SimulationSetup
from amcast.simulation.world.disk import Disk
from amcast.trace.recorder import Recorder
from amcast.trace.run import Run
from tests.conformance.test_members import MS, planned

# The fast path, and clusters that never change


@pytest.mark.parametrize(
    ("name", "faults"), [("skeen", "none"), ("multipaxos", "links+leaders"), ("primcast", "all"), ("a-ng", "all")]
)
def test_cluster_without_changes_runs_as_if_not_reconfigurable(name: str, faults: str) -> None:
    prepared = planned(name, 3, "add", faults)
    without = msgspec.structs.replace(prepared.plan.faults, events=())
    runs = []
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
                "kinds": setup.kinds - {"amnesia", "emptied", "rollback", "recovery", "leave"},
                "absent": frozenset(),
                "operator": None,
            }
        )
        assert Simulation(plain, recorder, keeps_history=True).run().end == "delivered"
        runs.append((recorder.packets, recorder.deliveries, recorder.notes))
    assert runs[0] == runs[1]


@pytest.mark.parametrize(("name", "faults"), [("primcast", "all"), ("multipaxos", "none")])
def test_fast_step_equals_step(name: str, faults: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every fast step is compared with a step of a copy."""
    fast_step = Reconfigurable.fast_step
    compared = 0

    def compare_with_step(self: Reconfigurable, events: Sequence[Event], now: int) -> list[Effect]:
        nonlocal compared
        copy = deepcopy(self) if self._bare_process is not None else None
        effects = fast_step(self, events, now)
        if copy is not None:
            compared += 1
            assert copy.step(events, now) == effects
            assert copy.snapshot() == self.snapshot()
            assert self.is_idle <= (copy.position == self.position)
        return effects

    monkeypatch.setattr(Reconfigurable, "fast_step", compare_with_step)
    workload = {"messages": 20, "outstanding": 3, "destinations": [1, 3]}
    prepared = planned(name, 3, "several", faults, workload=workload)
    assert Simulation(prepared.make_setup(), Recorder(), keeps_history=True).run().end == "delivered"
    assert compared > 100


def test_fast_step_holds_requests_back_for_a_known_configuration() -> None:
    """The next configuration orders such a request without a retry of its sender."""
    first = Topology.grid(2, 3, 1)
    spec = build_reconfigurable_spec(CATALOGUE["primcast"])
    member = spec.process(0, first, spec.configure())
    assert isinstance(member, Reconfigurable)
    member.step([Started((), 0)], 0)
    requests = [Receive(6, Request(Message(message_id(6, number), 6, (0,), b""))) for number in range(2)]
    member.fast_step(requests[:1], 1)
    assert member.snapshot().early == ()
    announced = ConfigurationStarted(1, encode_topology(change_topology(first, 0, add=20)))
    member.step([Receive(1, announced)], 2)
    member.fast_step(requests[1:], 3)
    assert [early[2] for early in member.snapshot().early] == [requests[1].body]


# Stale changes


def test_second_change_of_a_configuration_is_stale() -> None:
    prepared = planned("primcast", 5, "add")
    recorder = Recorder()
    simulation = Simulation(prepared.make_setup(), recorder, keeps_history=True)
    world = simulation.world

    def submit_another() -> None:
        assert world.operator is not None
        late = change_topology(prepared.topology, 2, remove=8)
        world.submit(world.operator, make_change_message(message_id(world.operator, 77), world.operator, late))

    simulation.scheduler.schedule(11 * MS, submit_another)
    summary = simulation.run()
    assert summary.end == "delivered"
    assert summary.notes["stale"] >= 9, "all processes deliver it, and none follows it"
    configurations = {process.topology.configuration for process in world.processes.values()}
    assert configurations == {1}
    report = judge(Run.from_recorder(recorder, prepared.make_meta("stale").with_claims(complete=True)))
    assert report.verdict == "holds", report.story()


# Snapshots


@pytest.mark.parametrize("name", ["primcast", "treecast"])
def test_snapshot_during_a_reconfiguration_is_complete(name: str) -> None:
    prepared = planned(name, 2, "several")
    simulation = Simulation(prepared.make_setup(), Recorder(), keeps_history=True)
    world = simulation.world
    observed: set[tuple[int, int]] = set()

    def replace_by_restored_copies() -> None:
        for process in sorted(world.processes):
            original = world.processes[process]
            copy = prepared.make(process)
            copy.restore(original.snapshot())
            assert msgspec.msgpack.encode(copy.snapshot()) == msgspec.msgpack.encode(original.snapshot())
            assert copy.topology == original.topology
            world.processes[process] = copy
            if isinstance(copy, Node):
                assert isinstance(copy.protocol, Reconfigurable)
                observed.add((copy.protocol.configuration, int(copy.protocol.status()["instances"])))

    for at in range(8, 90, 3):
        simulation.scheduler.schedule(at * MS, replace_by_restored_copies)
    assert simulation.run().end == "delivered"
    assert (-1, 0) in observed, "no new member was waiting"
    assert any(configuration > 0 and instances > 1 for configuration, instances in observed), "no old instance ran"


# Records


@pytest.mark.parametrize("name", ["primcast", "multipaxos"])
def test_checkpoints_beside_old_instances_wait_for_deliveries(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver must know: a restart from such a record does not repeat the deliveries before it."""
    persisted: list[Persist] = []
    original = Disk.store

    def store(self: Disk, effect: Persist, limit: int = 1) -> None:
        persisted.append(effect)
        original(self, effect, limit)

    monkeypatch.setattr(Disk, "store", store)
    simulation = Simulation(
        planned(name, 2, "several", options={"keep": 2}).make_setup(), Recorder(), keeps_history=True
    )
    assert simulation.run().end == "delivered"
    assert any(effect.replaces for effect in persisted), "no checkpoint of an only instance"
    several = [effect for effect in persisted if isinstance(effect.record, InstanceRecord) and not effect.replaces]
    assert any(effect.record.replaces for effect in several), "no checkpoint while several instances ran"
    assert all(effect.after_deliveries == effect.record.replaces for effect in several)
    assert all(effect.after_deliveries for effect in persisted if isinstance(effect.record, ConfigurationRecord))


# A state transfer past the barrier


FIRST = Topology.grid(2, 3, 1)


def make_member(process: int, *records: Record) -> Reconfigurable:
    """A member that has started, again if there are records."""
    spec = build_reconfigurable_spec(CATALOGUE["whitebox"])
    member = spec.process(process, FIRST, spec.configure())
    assert isinstance(member, Reconfigurable)
    member.step([Started(records, 1 if records else 0)], 0)
    return member


def lagging_member(remove: int | None = None) -> tuple[Reconfigurable, ConfigurationInfo, Receive]:
    """A member at position 0 of configuration 0, the offer of configuration 1, which begins at position 5, and a body
    that makes it install a state at position 7."""
    member = make_member(1)
    moved = change_topology(FIRST, 0, add=20 if remove is None else None, remove=remove)
    start = ConfigurationStart(1, encode_topology(moved), position=5)
    transfer = CatchUp(DeliveryHistory(7, (), DeliveredPrefix(9, 0, DeliveredSet().snapshot(), ())))
    envelope = make_body_type(CATALOGUE["whitebox"].bodies)(0, transfer, 5)
    return member, ConfigurationInfo(start, 0, is_offer=True), Receive(0, envelope)


def test_member_that_installs_a_state_past_the_barrier_starts_the_offered_configuration_at_once() -> None:
    member, offer, transfer = lagging_member()
    member.step([Receive(0, offer)], 1)
    assert member.configuration == 0, "a member that lags a little gets there by itself"
    effects = member.step([transfer], 2)
    assert (member.configuration, member.position) == (1, 5)
    records = [effect.record for effect in effects if isinstance(effect, Persist)]
    assert isinstance(records[0], ConfigurationRecord), "no effect of the transfer is durable without it"
    assert not any(isinstance(record, SkippedBarrier) for record in records)
    effects = member.step([LinkReset(2, 1)], 3)
    sent = [effect.body for effect in effects if isinstance(effect, Send) and 2 in effect.targets]
    assert sent[1] == offer, "it passes the offer on before any state of the old configuration"


def test_member_that_skipped_the_barrier_without_an_offer_takes_a_later_one() -> None:
    member, offer, transfer = lagging_member()
    effects = member.step([transfer], 1)
    assert any(isinstance(effect, Persist) and isinstance(effect.record, SkippedBarrier) for effect in effects)
    assert member.configuration == 0
    member.step([Receive(0, offer)], 2)
    assert (member.configuration, member.position) == (1, 5)


@pytest.mark.parametrize("is_offered_first", [True, False])
def test_start_of_a_configuration_is_taken_from_the_member_that_it_removes(is_offered_first: bool) -> None:
    """It may be the only one that has passed the barrier, and remembers what was before."""
    member, offer, transfer = lagging_member(remove=0)
    events = [Receive(0, offer), transfer] if is_offered_first else [transfer, Receive(0, offer)]
    for now, event in enumerate(events, 1):
        member.step([event], now)
    assert (member.configuration, member.position) == (1, 5)


def test_start_of_a_configuration_is_not_taken_from_another_group() -> None:
    """Its position and deliveries are those of another group."""
    member, offer, transfer = lagging_member(remove=0)
    member.step([transfer], 1)
    member.step([Receive(3, offer)], 2)
    assert member.configuration == 0


# Removed processes


def removed_member() -> tuple[Reconfigurable, ConfigurationStart]:
    """Process 0, which configuration 1 removes and which restarts in it, and the start of that configuration."""
    start = ConfigurationStart(1, encode_topology(change_topology(FIRST, 0, remove=0)), position=5)
    return make_member(0, ConfigurationRecord(start, encode_topology(FIRST), 0)), start


def test_removed_member_retires_although_all_others_restarted() -> None:
    """They have dropped the old configuration, announce nothing to a process that is no member, and do not remember
    that nobody needs it."""
    removed, start = removed_member()
    assert removed.has_old_instances()
    assert not removed.is_retired
    asked = [effect for effect in removed.step([Timer(RETRY_TIMER)], 1) if isinstance(effect, Send)]
    others = {process: make_member(process, ConfigurationRecord(start, b"", 0)) for process in (1, 2, 3, 4, 5)}
    for send in asked:
        for target in send.targets:
            for effect in others[target].step([Receive(0, send.body)], 2):
                if isinstance(effect, Send) and 0 in effect.targets:
                    removed.step([Receive(target, effect.body)], 3)
    assert removed.is_retired
    assert not removed.has_old_instances()


def test_removed_member_retires_when_a_configuration_after_that_which_removed_it_has_started() -> None:
    """Members of the configuration that removed it are gone, too."""
    removed, _ = removed_member()
    later = change_topology(change_topology(change_topology(FIRST, 0, remove=0), 0, add=20), 0, remove=1)
    announcement = ConfigurationStarted(later.configuration, encode_topology(later))
    for process in (2, 20, 3):
        removed.step([Receive(process, announcement)], 1)
    assert not removed.is_retired, "one of three members of group 1 is no majority"
    removed.step([Receive(5, announcement)], 2)
    assert removed.is_retired


# Restarts


def test_restart_in_a_later_configuration_names_its_position_among_all() -> None:
    moved = change_topology(FIRST, 0, add=20)
    start = ConfigurationStart(1, encode_topology(moved), position=5)
    spec = CATALOGUE["whitebox"]
    empty = spec.process(1, moved, spec.configure()).snapshot().checkpoint  # type: ignore[attr-defined]
    checkpoint = msgspec.structs.replace(empty, delivered_until=2, history_start=2)
    record = make_record_type(spec.records)(1, True, checkpoint, start)
    member = build_reconfigurable_spec(spec).process(1, FIRST, spec.configure())
    effects = member.step([Started((record,), 1)], 0)
    assert Note("resumed", None, 7.0) in effects
    assert member.position == 7


def test_removed_member_drops_multicasts_of_its_own_user() -> None:
    removed, _ = removed_member()
    message = Message(message_id(0, 0), 0, (0, 1))
    assert not [effect for effect in removed.step([Submit(message)], 1) if isinstance(effect, Send)]
