"""Replicated groups survive crashes after every step of a multicast, restarts, lost memory, rival leaders, lag, and
link resets."""

from typing import Any

import msgspec
import pytest

from amcast.parts.groups.timestamp_confirmations import CONFIRMATION_BATCHES
from tests.protocols.stage import Stage

PROTOCOLS = ("basecast", "fastcast", "multipaxos", "a-ge", "a-ge-star")
RESTARTS = ("forever", "with its disk", "without memory")


def start(name: str, options: dict[str, object] | None = None) -> Stage:
    """Two conflicting global messages and a local one, from two clients."""
    stage = Stage(name, options=options)
    stage.multicast(0, 0, 1)
    stage.multicast(1, 0, 1)
    stage.multicast(1, 0)
    return stage


def count_steps(name: str) -> int:
    return start(name).finish()


@pytest.mark.parametrize("name", PROTOCOLS)
@pytest.mark.parametrize("restart", RESTARTS)
def test_leader_crashes_after_every_step(name: str, restart: str) -> None:
    for step in range(0, count_steps(name), 1 if restart == "forever" else 2):
        stage = start(name)
        stage.steps(step)
        stage.crash(0)
        stage.suggest_leader(0, 1)
        if restart != "forever":
            stage.steps(5)
            stage.recover(0, amnesia=restart == "without memory")
        stage.finish()
        stage.check()


@pytest.mark.parametrize("name", PROTOCOLS)
def test_one_member_of_each_group_crashes_after_every_step(name: str) -> None:
    for step in range(count_steps(name)):
        stage = start(name)
        stage.steps(step)
        for group in stage.topology.groups:
            members = stage.topology.members(group)
            crashed = members[step % len(members)]
            stage.crash(crashed)
            stage.suggest_leader(group, next(member for member in members if member != crashed))
        stage.finish()
        stage.check()


@pytest.mark.parametrize("name", PROTOCOLS)
def test_all_servers_restart_after_every_other_step(name: str) -> None:
    for step in range(0, count_steps(name), 2):
        stage = start(name)
        stage.steps(step)
        stage.crash(*stage.topology.servers)
        stage.recover(*stage.topology.servers)
        stage.finish()
        stage.check()


@pytest.mark.parametrize("name", PROTOCOLS)
def test_rival_leaders_after_every_third_step(name: str) -> None:
    for step in range(0, count_steps(name), 3):
        stage = start(name)
        stage.steps(step)
        stage.suggest_leader(0, 1, 1)
        stage.suggest_leader(1, 5, 5)
        stage.steps(12)
        stage.suggest_leader(0, 0, 0)
        stage.steps(30)
        stage.suggest_leader(0, 2)
        stage.suggest_leader(1, 3)
        stage.finish()
        stage.check()


@pytest.mark.parametrize("name", PROTOCOLS)
def test_links_are_reset_after_every_step(name: str) -> None:
    for step in range(count_steps(name)):
        stage = start(name)
        stage.steps(step)
        stage.reset_link(0, 3)
        stage.reset_link(0, 1)
        stage.reset_link(4, 0)
        stage.finish()
        stage.check()


@pytest.mark.parametrize("name", PROTOCOLS)
@pytest.mark.parametrize("process", [2, 5])
def test_lagging_member_recovers_after_truncation(name: str, process: int) -> None:
    stage = Stage(name, options={"keep": 4} if name == "multipaxos" else {"keep": 4, "confirmation_batch": 2})
    stage.crash(process)
    for number in range(20):
        stage.multicast(number % 2, 0, 1)
        stage.multicast(number % 2, number % 2)
        stage.finish()
    stage.recover(process)
    stage.finish()
    stage.check()
    assert stage.world.note_counts["transferred"] > 0
    members = stage.topology.members(stage.topology.group_of(process) or 0)
    assert len({tuple(stage.world.history[member]) for member in members}) == 1


@pytest.mark.parametrize("name", PROTOCOLS)
def test_state_size_is_bounded(name: str) -> None:
    """The state after hundreds of messages is as large as after thousands."""
    stage = Stage(name, options={"keep": 16} if name == "multipaxos" else {"keep": 16, "confirmation_batch": 8})
    peaks = []
    for number in range(3):
        peak = 0
        for _ in range(60):
            stage.multicast(0, 0, 1)
            stage.multicast(1, number % 2)
            stage.finish()
            states = [stage.protocol(process).snapshot() for process in stage.topology.servers]
            peak = max(peak, *(len(msgspec.msgpack.encode(state)) for state in states))
        peaks.append(peak)
    stage.check()
    assert peaks[2] < 1.3 * peaks[1], peaks  # the set of delivered messages still fills its window
    for process in stage.topology.servers:
        records = stage.world.disks[process].records
        assert len(records) < 200, f"process {process} keeps {len(records)} records"


@pytest.mark.parametrize("name", ["basecast", "fastcast", "a-ge"])
def test_unconfirmed_messages_do_not_grow_with_the_number_of_groups(name: str) -> None:
    """Sixteen groups, every pair in turn: each retains no more for the others than two groups may."""
    groups, settle = 16, 4
    stage = Stage(name, groups=groups, replicas=1, options={"confirmation_batch": settle})
    waiting = unconfirmed = 0
    for distance in (1, 2, 3, 4, 5, 6, 7) * 3:
        for group in range(groups):
            stage.multicast(0, *sorted({group, (group + distance) % groups}))
        stage.finish()
        for server in stage.topology.servers:
            member: Any = stage.protocol(server)
            waiting = max(waiting, sum(len(ids) for ids in member._confirmations.unsent.values()))
            unconfirmed = max(unconfirmed, sum(len(ids) for ids in member._confirmations.timestamps.values()))
            assert member._confirmations.unsent_count == sum(len(ids) for ids in member._confirmations.unsent.values())
    stage.check()
    assert waiting < CONFIRMATION_BATCHES * settle
    assert unconfirmed <= 2 * CONFIRMATION_BATCHES * settle


@pytest.mark.parametrize("name", PROTOCOLS)
def test_repeated_request_is_delivered_once_and_resolved_again(name: str) -> None:
    stage = Stage(name)
    id = stage.multicast(0, 0, 1)
    stage.finish()
    stage.steps(200)
    message = stage.multicasts[id]
    client = stage.world.processes[message.sender]
    client.restore(type(client.snapshot())(((message, message.destinations, True, 0),), (), (), False))
    stage.world.resolved.clear()
    client.on_timer("session")
    for effect in client.step((), stage.world.now):
        stage.world._execute(message.sender, effect)
    stage.finish()
    assert stage.world.resolved == [id]
    assert all(stage.world.history[p] == [id] for p in stage.topology.servers)
