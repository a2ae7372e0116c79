"""Replicated groups go on: crashes at every step of a multicast (enumerated), restarts, lost memory, rival leaders,
laggards, links that begin anew."""

from typing import Any

import msgspec
import pytest

from amcast.parts.groups.timestamp_confirmations import CONFIRMATION_BATCHES
from tests.protocols.stage import Stage

PROTOCOLS = ("basecast", "fastcast", "multipaxos", "a-ge", "a-ge-star")
WAYS = ("for ever", "with its disk", "without memory")


def scene(name: str, options: dict[str, object] | None = None) -> Stage:
    """Two conflicting global messages and a local one, from two clients."""
    stage = Stage(name, options=options)
    stage.multicast(0, 0, 1)
    stage.multicast(1, 0, 1)
    stage.multicast(1, 0)
    return stage


def length(name: str) -> int:
    return scene(name).finish()


@pytest.mark.parametrize("name", PROTOCOLS)
@pytest.mark.parametrize("way", WAYS)
def test_a_leader_crashes_at_every_step(name: str, way: str) -> None:
    for moment in range(0, length(name), 1 if way == "for ever" else 2):
        stage = scene(name)
        stage.steps(moment)
        stage.crash(0)
        stage.lead(0, 1)
        if way != "for ever":
            stage.steps(5)
            stage.recover(0, amnesia=way == "without memory")
        stage.finish()
        stage.check()


@pytest.mark.parametrize("name", PROTOCOLS)
def test_one_member_of_every_group_crashes_at_every_step(name: str) -> None:
    for moment in range(length(name)):
        stage = scene(name)
        stage.steps(moment)
        for group in stage.topology.groups:
            members = stage.topology.members(group)
            gone = members[moment % len(members)]
            stage.crash(gone)
            stage.lead(group, next(member for member in members if member != gone))
        stage.finish()
        stage.check()


@pytest.mark.parametrize("name", PROTOCOLS)
def test_everybody_restarts_at_every_other_step(name: str) -> None:
    for moment in range(0, length(name), 2):
        stage = scene(name)
        stage.steps(moment)
        stage.crash(*stage.topology.servers)
        stage.recover(*stage.topology.servers)
        stage.finish()
        stage.check()


@pytest.mark.parametrize("name", PROTOCOLS)
def test_two_members_of_a_group_believe_to_lead(name: str) -> None:
    for moment in range(0, length(name), 3):
        stage = scene(name)
        stage.steps(moment)
        stage.lead(0, 1, 1)
        stage.lead(1, 5, 5)
        stage.steps(12)
        stage.lead(0, 0, 0)
        stage.steps(30)
        stage.lead(0, 2)
        stage.lead(1, 3)
        stage.finish()
        stage.check()


@pytest.mark.parametrize("name", PROTOCOLS)
def test_links_begin_anew_at_every_step(name: str) -> None:
    for moment in range(length(name)):
        stage = scene(name)
        stage.steps(moment)
        stage.renew(0, 3)
        stage.renew(0, 1)
        stage.renew(4, 0)
        stage.finish()
        stage.check()


@pytest.mark.parametrize("name", PROTOCOLS)
@pytest.mark.parametrize("process", [2, 5])
def test_a_laggard_comes_back_after_truncation(name: str, process: int) -> None:
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
def test_state_does_not_grow(name: str) -> None:
    """After hundreds of messages a member knows as much as after thousands: what grows is cut back."""
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
    assert peaks[2] < 1.3 * peaks[1], peaks  # the bits of seen messages still fill their window
    for process in stage.topology.servers:
        records = stage.world.disks[process].records
        assert len(records) < 200, f"process {process} keeps {len(records)} records"


@pytest.mark.parametrize("name", ["basecast", "fastcast", "a-ge"])
def test_what_is_not_confirmed_does_not_grow_with_the_number_of_groups(name: str) -> None:
    """Sixteen groups, every pair in turn: what each remembers for the others stays below what two groups may."""
    groups, settle = 16, 4
    stage = Stage(name, groups=groups, replicas=1, options={"confirmation_batch": settle})
    waiting = kept = 0
    for distance in (1, 2, 3, 4, 5, 6, 7) * 3:
        for group in range(groups):
            stage.multicast(0, *sorted({group, (group + distance) % groups}))
        stage.finish()
        for server in stage.topology.servers:
            member: Any = stage.protocol(server)
            waiting = max(waiting, sum(len(ids) for ids in member._confirmations.unsent.values()))
            kept = max(kept, sum(len(ids) for ids in member._confirmations.timestamps.values()))
            assert member._confirmations.unsent_count == sum(len(ids) for ids in member._confirmations.unsent.values())
    stage.check()
    assert waiting < CONFIRMATION_BATCHES * settle
    assert kept <= 2 * CONFIRMATION_BATCHES * settle


@pytest.mark.parametrize("name", PROTOCOLS)
def test_a_retried_message_is_delivered_once_and_answered_again(name: str) -> None:
    stage = Stage(name)
    id = stage.multicast(0, 0, 1)
    stage.finish()
    stage.steps(200)
    message = stage.multicasts[id]
    client = stage.world.processes[message.sender]
    client.restore(type(client.snapshot())(((message, message.destinations, True),), (), (), False))
    stage.world.resolved.clear()
    client.on_timer("session")
    for effect in client.step((), stage.world.now):
        stage.world._execute(message.sender, effect)
    stage.finish()
    assert stage.world.resolved == [id]
    assert all(stage.world.history[p] == [id] for p in stage.topology.servers)
