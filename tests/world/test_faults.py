"""Profiles name faults that a protocol claims to survive; a dealer never deals more than is claimed."""

from random import Random

import pytest

from amcast.kernel.errors import WrongUse
from amcast.kernel.spec import FAULTS, Claims, majorities_survive
from amcast.kernel.topology import Topology
from amcast.world.faults import Dealer, perform, profile
from amcast.world.pool import Pool
from amcast.world.world import World
from world.puppets import Puppet

ALL = Claims("no", faults=frozenset(FAULTS), tolerates=majorities_survive)  # type: ignore[arg-type]
MILD = Claims("no", faults=frozenset({"pause", "slow"}))


def test_profiles() -> None:
    assert profile("none", MILD, "p") == frozenset()
    assert profile("all", MILD, "p") == {"pause", "slow"}
    assert profile("pause", MILD, "p") == {"pause"}
    with pytest.raises(WrongUse, match="no kind 'earthquake'"):
        profile("pause+earthquake", MILD, "p")
    with pytest.raises(WrongUse, match="p does not claim to survive 'crash'; it claims pause, slow"):
        profile("crash", MILD, "p")


@pytest.mark.parametrize("seed", range(30))
def test_a_dealer_keeps_within_the_claims_and_heals_everything(seed: int) -> None:
    topology = Topology.grid(2, 3, 1)
    pool = Pool()
    pool.world = world = World(topology, lambda me: Puppet(me, topology, lambda puppet, event: None, {}), pool)
    world.start()
    random = Random(seed)
    dealer = Dealer(frozenset(FAULTS), ALL, random, 1000)
    ends = []
    dealt = set()
    for _ in range(200):
        faults = dealer.deal(world)
        for fault in faults[:1]:
            dealt.add(type(fault).__name__)
            perform(world, pool, fault)
        ends += faults[1:]
        if ends and random.random() < 0.5:
            perform(world, pool, ends.pop(random.randrange(len(ends))))
    for fault in dealer.heal(world):
        perform(world, pool, fault)
    assert majorities_survive(topology, frozenset(world.down))
    assert not world.paused
    assert not world.blocked
    assert not pool.slow
    assert pool.loss == 0.0
    assert len(dealt) >= 7
