"""Adversaries: plots go through all their stages, wait for no longer than their patience, and heal what they cut."""

from random import Random

import pytest

from amcast.kernel.events import Event
from amcast.kernel.spec import FAULTS, Claims, majorities_survive
from amcast.kernel.topology import Topology
from amcast.simulation.inputs.adversaries import PATIENCE, Adversary
from amcast.simulation.inputs.faults import FaultInjector, perform_fault
from amcast.simulation.schedulers.pending_actions import PendingActions
from amcast.simulation.world.actions import Block, Crash, Fault, Heal, Recover, Suggest, Sync
from amcast.simulation.world.world import World
from tests.simulation.puppets import Puppet

CLAIMS = Claims("no", faults=frozenset(FAULTS), tolerates=majorities_survive)  # type: ignore[arg-type]
KINDS = frozenset({"partition", "leaders", "amnesia", "recovery"})


class LedGroup(Puppet):
    """The first member of a group of five leads."""

    @property
    def is_leader(self) -> bool:
        return self.me == 0


def start_world(groups: int = 1) -> tuple[World, PendingActions]:
    def ignore(puppet: Puppet, event: Event) -> None:
        pass

    topology = Topology.grid(groups, 5, 1)
    pool = PendingActions()
    pool.world = world = World(topology, lambda me: LedGroup(me, topology, ignore, {}), pool)
    world.start()
    return world, pool


def run_plot(name: str, seed: int, groups: int = 1) -> tuple[World, list[Fault], int]:
    """Draws until a plot begins, and follows it to its end; returns its faults and how many actions it heard."""
    world, pool = start_world(groups)
    random = Random(seed)
    adversary = Adversary(name, KINDS, world.topology, FaultInjector(KINDS, CLAIMS, random, 1000), random)
    faults: list[Fault] = []
    for _ in range(100):
        faults = [fault for course in adversary.draw(world) for fault in course]
        if adversary.is_plotting:
            break
    actions = 0
    perform_fault(world, pool, faults[0])
    while adversary.is_plotting:
        actions += 1
        for fault in adversary.follow(Sync(0)):
            faults.append(fault)
            perform_fault(world, pool, fault)
    assert not adversary.focus
    return world, faults, actions


@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("name", ["duel", "laggard", "memory"])
def test_plot_ends_although_nothing_happens_and_heals_what_it_cut(name: str, seed: int, groups: int) -> None:
    world, faults, actions = run_plot(name, seed, groups)
    assert isinstance(faults[0], Block)
    assert any(isinstance(fault, Heal) for fault in faults)
    assert not world.blocked
    assert actions < 9 * PATIENCE


def test_deposed_leader_is_cut_off_from_its_group_alone_and_leads_again() -> None:
    world, faults, _ = run_plot("duel", 1)
    assert isinstance(faults[0], Block)
    assert {process for pair in faults[0].pairs for process in pair} == set(world.topology.members(0))
    assert all(0 in pair for pair in faults[0].pairs)
    leaders = [fault.leader for fault in faults if isinstance(fault, Suggest)]
    assert leaders[0] != 0
    assert leaders[-1] == 0


@pytest.mark.parametrize("seed", range(4))
def test_laggard_hears_nothing_of_some_and_is_alone_with_another(seed: int) -> None:
    _, faults, _ = run_plot("laggard", seed)
    block, heal = faults
    assert isinstance(block, Block)
    assert heal == Heal(block.pairs)
    (victim,) = {target for _, target in block.pairs}
    assert len(block.pairs) in (1, 3), "one other, or all but the helper"
    assert all(source != victim for source, _ in block.pairs)


def test_member_that_answered_nobody_keeps_its_memory() -> None:
    world, faults, _ = run_plot("memory", 9)
    assert {type(fault) for fault in faults} == {Block, Suggest, Heal}
    assert not world.down


def test_member_that_nobody_heard_stands_again_without_its_memory() -> None:
    _, faults, _ = run_plot("memory", 0)
    assert isinstance(faults[0], Block)
    (victim,) = set.intersection(*({*pair} for pair in faults[0].pairs))
    kinds = [type(fault) for fault in faults]
    assert kinds == [Block, Suggest, Suggest, Crash, Heal, Recover, Suggest, Suggest]
    stands = [fault.leader for fault in faults if isinstance(fault, Suggest)]
    assert stands[1] == stands[3] == victim
    assert victim not in (stands[0], stands[2])


def test_first_member_of_a_new_configuration_is_cut_off_and_loses_its_memory_once_it_has_started() -> None:
    world, pool = start_world()
    random = Random(3)
    adversary = Adversary("memory", KINDS, world.topology, FaultInjector(KINDS, CLAIMS, random, 1000), random)
    world.changes = 1  # a change is under way
    while not adversary.is_plotting:
        adversary.draw(world)
    faults: list[Fault] = []
    for action in range(50):
        faults += adversary.follow(Sync(0))
        assert not faults, f"action {action}: no member has started configuration 1"
    world.configurations[2] = 1
    while adversary.is_plotting:
        for fault in adversary.follow(Sync(0)):
            faults.append(fault)
            perform_fault(world, pool, fault)
    assert [type(fault) for fault in faults] == [Block, Crash, Recover, Heal, Heal]
    assert isinstance(faults[0], Block)
    client = world.topology.clients[0]
    assert (2, client) not in faults[0].pairs, "it is heard outside its group"
    assert {(2, other) for other in (0, 1, 3, 4)} <= set(faults[0].pairs)
    assert faults[1:3] == [Crash(2), Recover(2, True)]
    assert not world.blocked


def test_no_plot_of_a_new_configuration_without_a_change() -> None:
    world, _ = start_world()
    random = Random(3)
    adversary = Adversary("memory", KINDS, world.topology, FaultInjector(KINDS, CLAIMS, random, 1000), random)
    for _ in range(20):
        assert adversary._overtake(world) == ()
    world.changes, world.configurations = 1, dict.fromkeys(world.topology.servers, 1)
    for _ in range(20):
        assert adversary._overtake(world) == (), "every member has started it"
