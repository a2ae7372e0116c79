"""Profiles name faults that a protocol claims to survive; a injector never deals more than is claimed."""

from random import Random

import pytest

from amcast.kernel.diagnostics import ProcessStatus
from amcast.kernel.errors import UsageError
from amcast.kernel.events import Event, Started
from amcast.kernel.spec import FAULTS, Claims, majorities_survive
from amcast.kernel.topology import Topology
from amcast.simulation.inputs.faults import FaultInjector, parse_profile, perform_fault
from amcast.simulation.schedulers.pending_actions import PendingActions
from amcast.simulation.world.actions import Change, Crash, Recover, Sync
from amcast.simulation.world.membership import list_planned_topologies, list_topologies_in_force
from amcast.simulation.world.world import World
from tests.simulation.puppets import Fact, Puppet

ALL = Claims("no", faults=frozenset(FAULTS), tolerates=majorities_survive)  # type: ignore[arg-type]
MILD = Claims("no", faults=frozenset({"pause", "slow"}))


def test_profiles() -> None:
    assert parse_profile("none", MILD, "p") == frozenset()
    assert parse_profile("all", MILD, "p") == {"pause", "slow"}
    assert parse_profile("pause", MILD, "p") == {"pause"}
    with pytest.raises(UsageError, match="no kind 'earthquake'"):
        parse_profile("pause+earthquake", MILD, "p")
    with pytest.raises(UsageError, match="p does not claim to survive 'crash'; it claims pause, slow"):
        parse_profile("crash", MILD, "p")


@pytest.mark.parametrize("seed", range(30))
def test_fault_injector_stays_within_the_claims_and_heals(seed: int) -> None:
    topology = Topology.grid(2, 3, 1)
    pool = PendingActions()
    pool.world = world = World(topology, lambda me: Puppet(me, topology, lambda puppet, event: None, {}), pool)
    world.start()
    random = Random(seed)
    injector = FaultInjector(frozenset(FAULTS), ALL, random, 1000)
    ends = []
    dealt = set()
    for _ in range(200):
        faults = injector.draw(world)
        for fault in faults[:1]:
            dealt.add(type(fault).__name__)
            perform_fault(world, pool, fault)
        ends += faults[1:]
        if ends and random.random() < 0.5:
            perform_fault(world, pool, ends.pop(random.randrange(len(ends))))
    for fault in injector.list_healing(world):
        perform_fault(world, pool, fault)
    assert majorities_survive(topology, frozenset(world.down))
    assert not world.paused
    assert not world.blocked
    assert not pool.slow
    assert pool.loss == 0.0
    assert len(dealt) >= 7


class JoinedPuppet(Puppet):
    """A puppet whose group has readmitted it."""

    def status(self) -> ProcessStatus:
        return {**super().status(), "joined": 1}


def persist_at_start(puppet: Puppet, event: Event) -> None:
    if type(event) is Started:
        puppet.persist(Fact(1))


def test_readmitted_process_is_soon_restarted_from_its_new_disk() -> None:
    topology = Topology.grid(1, 3, 1)
    restarted = 0
    for seed in range(40):
        pool = PendingActions()
        pool.world = world = World(topology, lambda me: JoinedPuppet(me, topology, persist_at_start, {}), pool)
        world.start()
        injector = FaultInjector(frozenset({"pause", "skew", "recovery", "amnesia"}), ALL, Random(seed), 1000)
        for fault in injector.draw_crash(world, 0):
            perform_fault(world, pool, fault)
        while world.disks[0].busy:
            pool.apply(Sync(0))
        faults = injector.draw(world)
        restarted += injector.is_readmitted(0) and Recover(0) in faults
    assert restarted >= 5


# Members change: 20 takes the place of 0 in one group, the other group shrinks

CHANGES = (Change(0, add=20), Change(0, remove=0), Change(1, remove=4))


def changing_world() -> tuple[PendingActions, tuple[Topology, ...]]:
    everybody = Topology({0: [0, 1, 2, 20], 1: [3, 4, 5]}, [6])
    pool = PendingActions()
    pool.world = World(
        everybody, lambda me: Puppet(me, everybody, lambda puppet, event: None, {}), pool, absent=frozenset({20})
    )
    topologies = list_planned_topologies(pool.world, CHANGES)
    pool.world.start()
    return pool, topologies


def test_topology_is_in_force_until_all_that_are_left_start_a_later_one() -> None:
    pool, topologies = changing_world()
    world = pool.world
    assert [topology.members(0) for topology in topologies] == [(0, 1, 2), (0, 1, 2, 20), (1, 2, 20), (1, 2, 20)]
    assert [topology.members(1) for topology in topologies] == [(3, 4, 5)] * 3 + [(3, 5)]
    world.configurations.update(dict.fromkeys((0, 1, 3, 4, 5, 20), 1))
    assert list_topologies_in_force(world, topologies, ()) == topologies, "process 2 asks the members that it knows"
    assert list_topologies_in_force(world, topologies, {2}) == topologies[1:]
    world.configurations[2] = 1
    assert list_topologies_in_force(world, topologies, ()) == topologies[1:]
    world.configurations.update(dict.fromkeys((20, 1, 2, 3, 5), 3))
    assert list_topologies_in_force(world, topologies, ()) == topologies[3:], "whatever those that were removed did"


def lost_by(injector: FaultInjector, pool: PendingActions) -> frozenset[int]:
    """Deal once, let it happen, and let whoever may come back: who is lost by it."""
    world = pool.world
    faults = injector.draw(world)
    for fault in faults:
        perform_fault(world, pool, fault)
    forgetful = {fault.process for fault in faults if isinstance(fault, Recover) and fault.amnesia}
    return frozenset(forgetful | {fault.process for fault in faults if isinstance(fault, Crash)} & world.down.keys())


@pytest.mark.parametrize("seed", range(20))
def test_old_and_new_members_keep_their_quorums(seed: int) -> None:
    pool, topologies = changing_world()
    injector = FaultInjector(frozenset({"crash", "recovery", "amnesia"}), ALL, Random(seed), 1000, topologies)
    lost: set[int] = set()
    for number, topology in enumerate(topologies):
        pool.world.configurations.update(dict.fromkeys(topology.servers, number))
        for _ in range(20):
            lost |= lost_by(injector, pool)
        for later in topologies[number:]:
            assert majorities_survive(later, frozenset(lost)), f"{sorted(lost)} of number {later.configuration}"
    assert not lost & {3, 5}, "the group that shrinks to two needs both"
    assert 4 in lost, "nobody needs who is removed"
    assert len(lost & {1, 2, 20}) == 1
