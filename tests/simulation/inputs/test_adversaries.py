"""Adversaries: plots go through all their stages, wait for no longer than their patience, and heal what they cut."""

from random import Random

import pytest

from amcast.kernel.events import Event
from amcast.kernel.spec import FAULTS, Claims, majorities_survive
from amcast.kernel.topology import Topology
from amcast.simulation.inputs.adversaries import PATIENCE, Adversary
from amcast.simulation.inputs.faults import FaultInjector, perform_fault
from amcast.simulation.schedulers.pending_actions import PendingActions
from amcast.simulation.world.actions import Block, Fault, Heal, Suggest, Sync
from amcast.simulation.world.world import World
from tests.simulation.puppets import Puppet

CLAIMS = Claims("no", faults=frozenset(FAULTS), tolerates=majorities_survive)  # type: ignore[arg-type]
KINDS = frozenset({"partition", "leaders", "amnesia", "recovery"})


class LedGroup(Puppet):
    """The first member of a group of five leads."""

    @property
    def is_leader(self) -> bool:
        return self.me == 0


def start_world() -> tuple[World, PendingActions]:
    def ignore(puppet: Puppet, event: Event) -> None:
        pass

    topology = Topology.grid(1, 5, 1)
    pool = PendingActions()
    pool.world = world = World(topology, lambda me: LedGroup(me, topology, ignore, {}), pool)
    world.start()
    return world, pool


def run_plot(name: str, seed: int) -> tuple[World, list[Fault], int]:
    """Draws until a plot begins, and follows it to its end; returns its faults and how many actions it heard."""
    world, pool = start_world()
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


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("name", ["duel", "memory"])
def test_plot_ends_although_nothing_happens_and_heals_what_it_cut(name: str, seed: int) -> None:
    world, faults, actions = run_plot(name, seed)
    assert isinstance(faults[0], Block)
    assert isinstance(faults[-1], Heal)
    assert not world.blocked
    assert actions < 4 * PATIENCE


def test_deposed_leader_is_cut_off_from_its_group_alone_and_leads_again() -> None:
    world, faults, _ = run_plot("duel", 1)
    assert isinstance(faults[0], Block)
    assert {process for pair in faults[0].pairs for process in pair} == set(world.topology.members(0))
    assert all(0 in pair for pair in faults[0].pairs)
    leaders = [fault.leader for fault in faults if isinstance(fault, Suggest)]
    assert leaders[0] != 0
    assert leaders[-1] == 0


def test_member_that_answered_nobody_keeps_its_memory() -> None:
    world, faults, _ = run_plot("memory", 1)
    assert {type(fault) for fault in faults} == {Block, Suggest, Heal}
    assert not world.down
