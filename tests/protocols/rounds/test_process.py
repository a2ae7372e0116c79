"""A_ng and A_dt: the place of rounds in the order, waiting between groups, lost leaders and lost groups."""

from typing import Any

import msgspec
import pytest

from amcast.kernel.effects import Send
from amcast.kernel.errors import UsageError
from amcast.kernel.events import Receive, Started
from amcast.kernel.ids import message_id
from amcast.kernel.message import Message
from amcast.kernel.topology import Topology
from amcast.lab.runs import prepare_run
from amcast.parts.broadcast.messages import Ack, Item, ItemRequest
from amcast.parts.client.messages import AbsentGroups
from amcast.parts.groups.contacts import contact_one_group
from amcast.protocols.catalogue import CATALOGUE
from amcast.protocols.rounds.a_dt import tolerates
from amcast.protocols.rounds.messages import RoundsCore, StateTransfer
from amcast.simulation.inputs.plan import parse_plan
from amcast.simulation.simulate import Simulation
from amcast.simulation.world.actions import Block, Suspicion
from amcast.trace.recorder import Recorder
from tests.protocols.stage import MAX_STEPS, Stage

ROUNDS = ("a-ng", "a-dt")
SMALL = {"keep": 6}
SOON = {"retry_ns": [60_000_000, 80_000_000], "patience": 1}
"""Lost groups are suspected after few rounds."""


def start(name: str, groups: int = 2, replicas: int = 3, options: dict[str, Any] | None = None) -> Stage:
    """Two conflicting global messages and a local one, from two clients."""
    stage = Stage(name, groups, replicas, options)
    stage.multicast(0, 0, 1)
    stage.multicast(1, 0, 1)
    stage.multicast(1, 0)
    return stage


def settle(stage: Stage, limit: int = MAX_STEPS) -> int:
    """Steps until every live destination has delivered; clients may still wait for processes of lost groups."""
    for taken in range(limit):
        if not stage.world.list_due_deliveries():
            stage.check()
            return taken
        assert not stage.world.violations, stage.world.violations
        stage.step()
    raise AssertionError(f"still owed: {stage.world.list_due_deliveries()}")


def block_between_groups(stage: Stage) -> Block:
    servers = stage.topology.servers
    group_of = stage.topology.group_of
    return Block(tuple((a, b) for a in servers for b in servers if group_of(a) != group_of(b)))


def record_run(name: str, options: dict[str, Any], **topology: int) -> Recorder:
    plan = {
        "protocol": name,
        "options": options,
        "topology": {"groups": 3, "replicas": 3, "clients": 4, **topology},
        "workload": {"messages": 60, "outstanding": 4, "destinations": [1, 3]},
    }
    recorder = Recorder()
    summary = Simulation(prepare_run(parse_plan(plan)).make_setup(), recorder, keeps_history=True).run()
    assert summary.end == "delivered"
    return recorder


@pytest.mark.parametrize("name", ROUNDS)
@pytest.mark.parametrize(("kappa", "eta"), [(0, 1), (1, 1), (2, 3), (5, 2)])
def test_rounds_are_delivered_after_the_instance_given_by_kappa_and_eta(name: str, kappa: int, eta: int) -> None:
    recorder = record_run(name, {"kappa": kappa, "eta": eta})
    last: dict[object, tuple[Any, Any]] = {}
    rounds = 0
    for process, _, _, message, _, rank, tie, *rest in recorder.deliveries:
        destinations = next(row[2] for row in recorder.multicasts if row[0] == message)
        assert (rank, tie) > last.get(process, (0, 0)), rest
        last[process] = (rank, tie)
        if len(destinations) == 1:
            assert rank % 2 == 0
        else:
            assert rank % 2 == 1
            assert (rank // 2 - kappa) % eta == 0
            rounds += 1
    assert rounds > 0


def test_leaders_exchange_batches_with_messages_for_the_receiver_only() -> None:
    recorder = record_run("a-ng", {})
    destinations = {row[0]: row[2] for row in recorder.multicasts}
    topology = Topology.grid(3, 3)
    exchanged = empty = 0
    for row in recorder.packets:
        body, source, target, several = row[1], int(str(row[2])), int(str(row[3])), row[9]
        groups = topology.group_of(source), topology.group_of(target)
        if body != "RoundBatch" or groups[0] == groups[1]:
            continue
        exchanged += 1
        assert source % 3 == 0, "a follower sent a batch"
        assert target % 3 == 0, "a batch went to a follower"
        about = [row[0]] if row[0] is not None else list(several or ())  # type: ignore[call-overload]
        empty += not about
        for message in about:
            assert groups[1] in destinations[message]  # type: ignore[operator]
    assert exchanged > empty > 0, "no empty batch was sent"


@pytest.mark.parametrize("name", ROUNDS)
def test_local_messages_do_not_wait_for_other_groups_within_kappa_instances(name: str) -> None:
    stage = Stage(name, 2, 3, {"kappa": 4})
    stage.multicast(0, 0, 1)
    stage.steps(40)
    stage.apply(block_between_groups(stage))
    local = stage.multicast(1, 0)
    stage.steps(120)
    assert all(local in stage.world.history[process] for process in (0, 1, 2))
    stage.heal()
    stage.finish()


@pytest.mark.parametrize("name", ROUNDS)
def test_local_messages_wait_with_kappa_zero_and_note_the_convoy(name: str) -> None:
    options = {"kappa": 0, "patience": 1000} if name == "a-dt" else {"kappa": 0}
    stage = Stage(name, 2, 3, options)
    stage.apply(block_between_groups(stage))
    stage.multicast(0, 0, 1)
    stage.steps(120)
    local = stage.multicast(1, 0)
    stage.steps(60)
    assert all(local not in history for history in stage.world.history.values())
    stage.heal()
    stage.finish()
    stage.check()
    assert stage.world.note_counts["convoy"] == 3, "each member of the group reads it from the log"


@pytest.mark.parametrize("name", ROUNDS)
def test_group_without_messages_takes_part_in_rounds(name: str) -> None:
    stage = Stage(name, 3, 1)
    stage.multicast(0, 0, 1)
    stage.finish()
    assert stage.protocol(2)._instance > 0


@pytest.mark.parametrize("restart", ["forever", "with its disk", "without memory"])
def test_leader_of_a_ng_crashes_after_any_step(restart: str) -> None:
    for steps in range(0, start("a-ng").finish(), 2):
        stage = start("a-ng", options=SMALL)
        stage.steps(steps)
        stage.crash(0)
        stage.suggest_leader(0, 1)
        if restart != "forever":
            stage.steps(5)
            stage.recover(0, amnesia=restart == "without memory")
        stage.finish()
        stage.check()


def test_all_processes_of_a_ng_restart_after_any_step() -> None:
    for steps in range(0, start("a-ng").finish(), 3):
        stage = start("a-ng", options=SMALL)
        stage.steps(steps)
        stage.crash(*stage.topology.servers)
        stage.recover(*stage.topology.servers)
        stage.finish()
        stage.check()


def test_member_that_needs_dropped_batches_installs_a_state() -> None:
    stage = Stage("a-ng", options={"keep": 4})
    stage.isolate(5)
    for number in range(12):
        stage.multicast(number % 2, 0, 1)
        stage.multicast(number % 2, number % 2)
        stage.steps(400)
    stage.crash(5)
    stage.heal()
    stage.recover(5)
    stage.finish()
    stage.check()
    assert stage.world.note_counts["installed"] > 0
    assert stage.world.history[5] == stage.world.history[3]


@pytest.mark.parametrize("name", ROUNDS)
def test_state_size_is_bounded(name: str) -> None:
    options = {"keep": 16, "linger": 16} if name == "a-dt" else {"keep": 16}
    stage = Stage(name, 2, 3, options)
    peaks = [0, 0, 0]
    for number in range(120):
        stage.multicast(0, 0, 1)
        stage.multicast(1, number % 2)
        stage.finish()
        sizes = [len(msgspec.msgpack.encode(stage.protocol(p).snapshot())) for p in stage.topology.servers]
        peaks[number // 40] = max(peaks[number // 40], *sizes)
    stage.check()
    assert peaks[2] < 1.2 * peaks[1], peaks
    for process in stage.topology.servers:
        assert len(stage.world.disks[process].records) < 200


@pytest.mark.parametrize(("replicas", "every"), [(1, 1), (3, 90)])
@pytest.mark.parametrize("lost", [0, 1, 3])
def test_whole_group_is_lost_after_any_step(replicas: int, every: int, lost: int) -> None:
    """Group 0 orders the messages and leads the broadcast, group 1 is a destination, group 3 is not."""
    for steps in range(0, settle(start("a-dt", 4, replicas, SOON)), every):
        stage = start("a-dt", 4, replicas, SOON)
        stage.steps(steps)
        stage.crash(*stage.topology.members(lost))
        settle(stage)
        stage.multicast(0, *[group for group in range(4) if group != lost][:2])
        settle(stage)
        assert stage.world.note_counts["removed"] > 0
        alive = next(process for process in stage.topology.servers if process in stage.world.processes)
        assert lost not in stage.protocol(alive)._generic.open


def test_group_without_majority_is_removed_and_stays_out() -> None:
    """Nothing is claimed for its remaining process; the others go on and do not wait for it again."""
    stage = Stage("a-dt", 3, 3, SOON)
    stage.multicast(0, 0, 2)
    stage.finish()
    stage.crash(4, 5)
    for _ in range(3):
        message = stage.multicast(0, 0, 2)
        stage.step_until(lambda: all(message in stage.world.history[p] for p in (0, 1, 2, 6, 7, 8)), 20_000)  # noqa: B023
        stage.steps(2000)
    assert stage.world.note_counts["removed"] == 7
    assert "returned" not in stage.world.note_counts


def test_message_survives_the_group_that_was_to_order_it() -> None:
    stage = Stage("a-dt", 4, 1, SOON)
    stage.crash(1)
    message = stage.multicast(0, 1, 2, 3)
    settle(stage)
    assert all(message in stage.world.history[process] for process in (2, 3))
    assert stage.world.note_counts["retried"] > 0


@pytest.mark.parametrize(("suspect", "replicas", "every"), [(0, 1, 1), (2, 1, 1), (0, 3, 60)])
def test_wrongly_suspected_group_returns(suspect: int, replicas: int, every: int) -> None:
    for steps in range(0, settle(start("a-dt", 3, replicas)), every):
        stage = start("a-dt", 3, replicas)
        stage.steps(steps)
        for group in range(3):
            stage.apply(Suspicion(suspect, group, False))
        stage.finish()
        stage.check()
        stage.steps(600 * replicas * replicas)
        views = {stage.protocol(process)._generic.open for process in stage.topology.servers}
        assert views == {(0, 1, 2)}, views
        assert stage.world.note_counts["removed"] == stage.world.note_counts["returned"] > 0


def test_messages_of_an_uncounted_batch_are_ordered_again() -> None:
    stage = Stage("a-dt", 3, 1)
    servers = stage.topology.servers
    stage.apply(Block(tuple((0, other) for other in servers if other != 0)))
    message = stage.multicast(0, 0, 1)
    stage.steps(30)
    for process in (1, 2):
        stage.apply(Suspicion(process, 0, False))
    stage.steps(400)
    stage.heal()
    stage.finish()
    stage.check()
    assert message in stage.world.history[1]


def test_crashed_process_of_a_dt_stays_silent() -> None:
    stage = Stage("a-dt", 4, 1)
    stage.crash(3)
    stage.recover(3)
    stage.multicast(0, 0, 1)
    for _ in range(2000):
        if all(stage.world.history[process] for process in (0, 1)):
            break
        stage.step()
    assert stage.world.history[0] == stage.world.history[1] != []
    assert stage.protocol(3)._has_crashed
    assert not stage.world.timers[3]


@pytest.mark.parametrize("instance", [0, 4])
def test_installed_state_of_a_dt_brings_its_batches_and_counts_as_held(instance: int) -> None:
    """Also the state of a member that has applied as many instances, and delivered one more round."""
    topology = Topology.grid(2, 3, 1)
    spec = CATALOGUE["a-dt"]
    member = spec.process(2, topology, spec.configure({}))
    member.step((Started((), 0),), 0)
    batch = (Message(message_id(6, 0), 6, (0, 1)),)
    core = RoundsCore(0, instance, 1, (), ((2, batch),), (), (), (), (0, (1, 1)))
    effects = member.step((Receive(1, StateTransfer(msgspec.msgpack.encode(core))),), 0)
    # Round 1 is in the state, and batch 2 came with it; the other group's stream goes on behind round 1.
    assert [one.body for one in effects if isinstance(one, Send)] == [Ack(0, (2, 1))]
    asked = member.step((Receive(1, ItemRequest(0, 2)),), 0)
    assert [one.body for one in asked if isinstance(one, Send)] == [Item(0, 2, batch)]


def test_tolerated_crashes_of_a_dt_depend_on_the_topology() -> None:
    nine, twelve = Topology.grid(3, 3), Topology.grid(4, 3)
    assert tolerates(nine, frozenset({0, 1, 2})), "a group of three"
    assert tolerates(nine, frozenset({0, 1, 2, 3})), "and one more: five of nine are left"
    assert tolerates(nine, frozenset({0, 3, 6}))
    assert not tolerates(nine, frozenset({0, 1, 2, 3, 6})), "four of nine are left"
    assert not tolerates(Topology.grid(2, 3), frozenset({0, 1, 2})), "half of all"
    assert tolerates(twelve, frozenset({3, 4, 5, 6}))
    assert not tolerates(twelve, frozenset(range(6))), "two of four groups"
    assert tolerates(Topology.grid(5, 3), frozenset(range(6))), "two of five groups"
    assert not tolerates(twelve, frozenset({3, 4})), "a group without majority that is not lost"
    assert tolerates(Topology.grid(4, 1), frozenset({2}))


def test_contacts_prefer_own_group_then_own_region() -> None:
    regions = {0: "east", 1: "west", 2: "north", 3: "west", 4: "south"}
    topology = Topology({0: (0,), 1: (1,), 2: (2,)}, (3, 4), regions)
    contacts = [contact_one_group(topology, Message(1, sender, (0, 1))) for sender in (1, 2, 3, 4)]
    assert contacts == [(1,), (0,), (1,), (0,)]


@pytest.mark.parametrize(
    ("name", "options", "complaint"),
    [
        ("a-ng", {"kappa": -1}, "kappa = -1"),
        ("a-ng", {"eta": 0}, "eta = 0"),
        ("a-ng", {"pace_ns": 0}, "pace_ns = 0"),
        ("a-ng", {"idle_ns": [5, 1]}, "idle_ns"),
        ("a-dt", {"linger": 0}, "linger = 0"),
        ("a-dt", {"patience": 0}, "patience = 0"),
    ],
)
def test_invalid_options_are_rejected(name: str, options: dict[str, Any], complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        CATALOGUE[name].configure(options)


def test_too_many_servers_for_a_dt_are_rejected() -> None:
    spec, topology = CATALOGUE["a-dt"], Topology.grid(342, 3)
    with pytest.raises(UsageError, match="1026 servers in all; generic broadcast expects at most 1024"):
        spec.process(0, topology, spec.configure())


def test_forty_processes_of_a_dt_survive_the_loss_of_a_group() -> None:
    """Ten of forty processes are the lost group."""
    stage = Stage("a-dt", 4, 10, SOON)
    stage.multicast(0, 0, 1)
    stage.steps(300)
    stage.crash(*stage.topology.members(1))
    settle(stage, 60_000)
    assert 1 not in stage.protocol(0)._generic.open


@pytest.mark.parametrize("destinations", [(1,), (1, 2), (0, 1, 3)])
def test_client_does_not_wait_for_a_lost_group_and_reports_it(destinations: tuple[int, ...]) -> None:
    stage = Stage("a-dt", 4, 1, SOON)
    stage.crash(1)
    message = stage.multicast(0, *destinations)
    other = stage.multicast(1, 0, 2)
    stage.finish()
    stage.check()
    assert sorted(stage.world.resolved) == sorted([message, other])
    assert stage.absent_groups == {message: (1,)}
    assert all(message in stage.world.history[process] for process in destinations if process != 1)


def test_client_learns_of_a_group_lost_after_the_others_delivered() -> None:
    stage = Stage("a-dt", 4, 1, SOON)
    message = stage.multicast(0, 0, 1)
    stage.finish()
    stage.crash(1)
    stage.step_until(lambda: 1 not in stage.protocol(0)._generic.open, 20_000)
    sent = stage.multicasts[message]
    assert stage.protocol(0).reply_extra(sent) == AbsentGroups(1, (1,))
    assert stage.protocol(0).reply_extra(msgspec.structs.replace(sent, destinations=(0, 2))) is None


def test_message_reaches_a_group_wrongly_out_of_the_view() -> None:
    """The group that was to order a message is lost, and its other destination is out of the view by mistake."""
    stage = Stage("a-dt", 5, 1, SOON)
    stage.crash(0)
    message = stage.multicast(0, 0, 1)
    servers = stage.topology.servers
    pairs = [(a, b) for a in servers for b in servers if (a == 1) != (b == 1)]
    stage.apply(Block(tuple(pairs)))
    stage.step_until(lambda: stage.world.resolved, 20_000)
    assert stage.absent_groups == {message: (0, 1)}
    stage.heal()
    settle(stage)
    assert message in stage.world.history[1]


def test_client_waits_for_a_returned_group() -> None:
    stage = Stage("a-dt", 4, 1, SOON)
    stage.apply(Suspicion(0, 1, False))
    stage.steps(600)
    assert stage.world.note_counts["returned"] > 0
    message = stage.multicast(0, 1, 2)
    stage.finish()
    assert stage.absent_groups == {}
    assert all(message in stage.world.history[process] for process in (1, 2))


@pytest.mark.parametrize("outstanding", [1, 4])
def test_closed_loop_continues_after_the_loss_of_a_group(outstanding: int) -> None:
    crashes = [{"at_ns": 5_000_000, "do": "crash", "process": process} for process in (3, 4, 5)]
    plan = {
        "protocol": "a-dt",
        "topology": {"groups": 4, "replicas": 3, "clients": 4},
        "workload": {"messages": 60 * outstanding, "outstanding": outstanding, "destinations": [1, 2]},
        "faults": {"events": crashes},
        "nodes": True,
    }
    recorder = Recorder()
    summary = Simulation(prepare_run(parse_plan(plan)).make_setup(), recorder, keeps_history=True).run()
    assert summary.end == "delivered", summary
    assert any(row[2] == "absent" for row in recorder.notes)
