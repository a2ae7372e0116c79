"""Schedules that force what random runs rarely reach, each for a spec: PrimCast passes, a mutant fails."""

from typing import Any

from tests.protocols.stage import Stage


def primary_is_alone_with_its_clock(spec: Any) -> Stage:
    """A primary knows its message's final timestamp; the clocks of the other members have not reached it."""
    stage = Stage(spec)
    stage.raise_remote_clocks()
    stage.world.blocked = {(remote, local) for remote in (3, 4, 5) for local in (1, 2)}
    stage.multicast(0, 0, 1)
    stage.step_until(lambda: stage.protocol(1)._log.length and stage.protocol(2)._log.length)
    stage.world.blocked |= {(0, 1), (0, 2)}
    stage.drain()
    return replace_primary(stage, 1)


def proposal_arrives_before_epoch_is_established(spec: Any) -> Stage:
    """A new primary proposes to a member that holds the new log and does not know yet that a majority does."""
    stage = Stage(spec)
    stage.crash(0)
    stage.world.blocked = {(2, 2)}
    stage.suggest_leader(0, 1)
    stage.drain()
    stage.multicast(0, 0)
    stage.drain()
    stage.world.blocked = set()
    stage.drain()
    stage.multicast(1, 0)
    stage.run_until_blocked()
    return stage


def clock_rises_by_new_state(spec: Any) -> Stage:
    """A member's clock reaches a final timestamp by the new primary's state alone; the others must learn that."""
    stage = Stage(spec)
    stage.raise_remote_clocks()
    stage.world.blocked = {(remote, local) for remote in (3, 4, 5) for local in (0, 2)}
    stage.multicast(0, 0, 1)
    stage.drain()
    stage.crash(0)
    stage.suggest_leader(0, 1)
    stage.drain()
    stage.heal()
    stage.run_until_blocked()
    return stage


def candidate_has_low_clock(spec: Any) -> Stage:
    """A majority's clocks have reached a final timestamp; the next primary's has not, and must be raised."""
    stage = Stage(spec)
    stage.raise_remote_clocks()
    stage.world.blocked = {(remote, 2) for remote in (3, 4, 5)}
    stage.multicast(0, 0, 1)
    stage.step_until(lambda: stage.protocol(2)._log.length)
    stage.world.blocked.add((0, 2))
    stage.drain()
    assert stage.world.history[0], "the primary delivers"
    return replace_primary(stage, 2)


def candidate_dies_with_a_promise(spec: Any) -> Stage:
    """A candidate dies after another member promised; the old primary, suggested again, must learn of the promise."""
    stage = Stage(spec)
    stage.world.blocked = {(1, 0), (2, 1)}
    stage.suggest_leader(0, 1, 1)
    stage.drain()
    stage.crash(1)
    stage.world.blocked = set()
    stage.suggest_leader(0, 0)
    stage.multicast(0, 0, 1)
    stage.run_until_blocked()
    return stage


def promise_precedes_memory_loss(spec: Any) -> Stage:
    """A member promised, lost its memory and came back to the old epoch; its promise must not count any more."""
    stage = Stage(spec, groups=1, replicas=5)
    blocked = stage.world.blocked
    blocked |= {(1, 0), (1, 3), (1, 4)}
    stage.suggest_leader(0, 1, 1)
    stage.drain()
    stage.crash(2)
    blocked |= {(2, 1)}
    stage.recover(2, amnesia=True)
    stage.drain()
    assert stage.protocol(2)._role == "member", "three others admit it"
    one, other = stage.topology.clients
    blocked |= {(0, 4), (0, 1), (one, 1), (one, 4), (other, 0), (other, 2), (other, 3)}
    stage.multicast(0, 0)
    stage.multicast(1, 0)
    stage.drain()
    assert stage.world.history[2], "the old epoch goes on"
    blocked -= {(1, 4), (1, 2)}
    stage.drain()
    stage.heal()
    stage.suggest_leader(0, 1)
    stage.run_until_blocked()
    return stage


def minority_enters_new_epoch(spec: Any) -> Stage:
    """Two of five hold a new epoch; the three others go back to a log that the two have never seen."""
    stage = Stage(spec, replicas=5)
    stage.raise_remote_clocks(400)
    local, remote = range(5), range(5, 10)
    blocked = stage.world.blocked
    blocked |= {(a, b) for a in remote for b in local}
    stage.multicast(0, 0, 1)
    stage.drain()
    blocked |= {(0, b) for b in local if b != 0}
    stage.multicast(1, 0)
    stage.drain()
    blocked -= {(a, b) for a in remote for b in local if b != 0}
    stage.drain()
    stage.suggest_leader(0, 1, 1)
    blocked |= {(1, 0)}
    while stage.protocol(1)._sent_state is None:
        assert stage.step()
    blocked |= {(1, 3), (1, 4)}
    stage.drain()
    blocked -= {(0, 3), (0, 4)}
    blocked |= {(2, 3), (2, 4), (0, 1), (0, 2)}
    stage.suggest_leader(0, 0, 0)
    stage.drain()
    stage.heal()
    stage.suggest_leader(0, 0)
    stage.run_until_blocked()
    return stage


def replace_primary(stage: Stage, successor: int) -> Stage:
    """Isolates the primary of group 0 while another takes its place and proposes; then they reconnect."""
    stage.isolate(0)
    stage.suggest_leader(0, successor, successor)
    stage.drain()
    stage.multicast(1, 0)
    stage.drain()
    stage.heal()
    stage.run_until_blocked()
    return stage


SCENES = (
    proposal_arrives_before_epoch_is_established,
    clock_rises_by_new_state,
    primary_is_alone_with_its_clock,
    candidate_has_low_clock,
    candidate_dies_with_a_promise,
    promise_precedes_memory_loss,
    minority_enters_new_epoch,
)
