"""PrimCast and PrimCast-HC: the paper's numbers, and scenes that force what is rare."""

from typing import Any

import pytest

from amcast.lab.delays import measure_delays
from amcast.protocols.catalogue import CATALOGUE
from tests.protocols.stage import Stage

NAMES = ("primcast", "primcast-hc")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("replicas", [3, 5])
@pytest.mark.parametrize("destinations", [1, 2, 4])
def test_three_delays_and_the_exact_number_of_packets(name: str, destinations: int, replicas: int) -> None:
    row = measure_delays(CATALOGUE[name], destinations, replicas)
    assert row.delays_max == 3
    assert row.packets == destinations * (replicas + destinations * replicas**2)
    assert row.delays_by_role["primary"] == 3
    assert row.delays_by_role["member"] == (2 if (destinations, replicas) == (1, 3) else 3)


def test_bumps_only_where_a_group_was_behind() -> None:
    """Group 1 is ahead: group 0 alone must tell its clocks, n packets from each of its members."""
    stage = Stage("primcast")
    stage.get_ahead()
    before = stage.world.note_counts.get("bump", 0)
    stage.multicast(1, 0, 1)
    stage.finish()
    assert stage.world.note_counts["bump"] - before == 3


def test_a_new_primary_proposes_what_only_another_group_heard_of() -> None:
    """The client's message reaches group 1 alone, and then its client is cut off for good."""
    stage = Stage("primcast")
    client = stage.topology.clients[0]
    stage.world.blocked = {(client, process) for process in (0, 1, 2)}
    id = stage.multicast(0, 0, 1)
    stage.steps(60)
    stage.crash(0)
    stage.lead(0, 1)
    stage.crash(client)
    while stage.world.list_due_deliveries() or not all(id in stage.world.history[p] for p in (1, 2, 3, 4, 5)):
        assert stage.step(), f"nobody fetched the message: {stage.world.list_due_deliveries()}"
    stage.check()


def _usurped(stage: Stage, successor: int) -> Stage:
    """The primary of group 0 is cut off while another takes its place and stamps; then they meet."""
    stage.cut_off(0)
    stage.lead(0, successor, successor)
    stage.drain()
    stage.multicast(1, 0)
    stage.drain()
    stage.heal()
    stage.end()
    return stage


def clocks_of_a_primary_alone(spec: Any) -> Stage:
    """A primary knows its message's final timestamp; the clocks of its fellows have not reached it."""
    stage = Stage(spec)
    stage.get_ahead()
    stage.world.blocked = {(far, near) for far in (3, 4, 5) for near in (1, 2)}
    stage.multicast(0, 0, 1)
    stage.drain()
    return _usurped(stage, 1)


def a_proposal_to_one_who_is_not_yet_follower(spec: Any) -> Stage:
    """A new primary proposes to a fellow that holds the new log and does not know yet that a majority does."""
    stage = Stage(spec)
    stage.crash(0)
    stage.world.blocked = {(2, 2)}
    stage.lead(0, 1)
    stage.drain()
    stage.multicast(0, 0)
    stage.drain()
    stage.world.blocked = set()
    stage.drain()
    stage.multicast(1, 0)
    stage.end()
    return stage


def a_clock_from_the_new_state(spec: Any) -> Stage:
    """A fellow's clock reaches a final timestamp by the new primary's state alone; the others must hear of it."""
    stage = Stage(spec)
    stage.get_ahead()
    stage.world.blocked = {(far, near) for far in (3, 4, 5) for near in (0, 2)}
    stage.multicast(0, 0, 1)
    stage.drain()
    stage.crash(0)
    stage.lead(0, 1)
    stage.drain()
    stage.heal()
    stage.end()
    return stage


def a_candidate_behind(spec: Any) -> Stage:
    """A majority's clocks have reached a final timestamp; who leads next was not among them, and must hear one."""
    stage = Stage(spec)
    stage.get_ahead()
    stage.world.blocked = {(far, 2) for far in (3, 4, 5)}
    stage.multicast(0, 0, 1)
    stage.drain()
    assert stage.world.history[0], "the primary delivers"
    return _usurped(stage, 2)


def a_dead_candidate(spec: Any) -> Stage:
    """A candidate dies with a fellow's promise; the old primary, named again, must hear why it is refused."""
    stage = Stage(spec)
    stage.world.blocked = {(1, 0), (2, 1)}
    stage.lead(0, 1, 1)
    stage.drain()
    stage.crash(1)
    stage.world.blocked = set()
    stage.lead(0, 0)
    stage.multicast(0, 0, 1)
    stage.end()
    return stage


def a_promise_from_a_forgotten_incarnation(spec: Any) -> Stage:
    """A member promised, lost its memory and came back to the old epoch; its promise must not count any more."""
    stage = Stage(spec, groups=1, replicas=5)
    blocked = stage.world.blocked
    blocked |= {(1, 0), (1, 3), (1, 4)}
    stage.lead(0, 1, 1)
    stage.drain()
    stage.crash(2)
    blocked |= {(2, 1)}
    stage.recover(2, amnesia=True)
    stage.drain()
    assert stage.protocol(2)._role == "member", "three others let it in again"
    one, other = stage.topology.clients
    blocked |= {(0, 4), (0, 1), (one, 1), (one, 4), (other, 0), (other, 2), (other, 3)}
    stage.multicast(0, 0)
    stage.multicast(1, 0)
    stage.drain()
    assert stage.world.history[2], "the old epoch goes on"
    blocked -= {(1, 4), (1, 2)}
    stage.drain()
    stage.heal()
    stage.lead(0, 1)
    stage.end()
    return stage


def a_minority_in_a_new_epoch(spec: Any) -> Stage:
    """Two of five hold a new epoch; the three others go back to a log that the two have never seen."""
    stage = Stage(spec, replicas=5)
    stage.get_ahead(400)
    near, far = range(5), range(5, 10)
    blocked = stage.world.blocked
    blocked |= {(a, b) for a in far for b in near}
    stage.multicast(0, 0, 1)
    stage.drain()
    blocked |= {(0, b) for b in near if b != 0}
    stage.multicast(1, 0)
    stage.drain()
    blocked -= {(a, b) for a in far for b in near if b != 0}
    stage.drain()
    stage.lead(0, 1, 1)
    blocked |= {(1, 0)}
    while stage.protocol(1)._state is None:
        assert stage.step()
    blocked |= {(1, 3), (1, 4)}
    stage.drain()
    blocked -= {(0, 3), (0, 4)}
    blocked |= {(2, 3), (2, 4), (0, 1), (0, 2)}
    stage.lead(0, 0, 0)
    stage.drain()
    stage.heal()
    stage.lead(0, 0)
    stage.end()
    return stage


SCENES = (
    a_proposal_to_one_who_is_not_yet_follower,
    a_clock_from_the_new_state,
    clocks_of_a_primary_alone,
    a_candidate_behind,
    a_dead_candidate,
    a_promise_from_a_forgotten_incarnation,
    a_minority_in_a_new_epoch,
)


@pytest.mark.parametrize("scene", SCENES)
def test_scenes_that_mutants_get_wrong(scene: Any) -> None:
    stage = scene("primcast")
    stage.check()
    assert stage.done(), stage.world.owed()


@pytest.mark.parametrize("name", NAMES)
def test_clock_jumps_do_no_harm(name: str) -> None:
    """Every process believes in another day; hybrid clocks still order everything."""
    stage = Stage(name)
    for process in stage.topology.servers:
        stage.world.skews[process] = (process * 10**15, 0.0)
    for number in range(12):
        stage.multicast(number % 2, *((0, 1) if number % 3 else (number % 2,)))
        stage.steps(number)
        stage.world.skews[number % 6] = ((-1) ** number * number * 10**14, 0.01)
    stage.finish()
    stage.check()
