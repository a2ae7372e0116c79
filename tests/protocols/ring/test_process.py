"""The ring: locks, order, and a mutant without locks."""

from random import Random
from typing import Any

import pytest

from amcast.kernel.errors import UsageError
from amcast.kernel.message import Body
from amcast.kernel.topology import Topology
from amcast.protocols.ring.messages import End, Pass, RingConfig
from amcast.protocols.ring.process import SPEC, Ring
from tests.protocols.manual_network import ManualNetwork


def make_ring(groups: int, process: type[Ring] = Ring, **options: Any) -> ManualNetwork:
    config = RingConfig(**options)
    return ManualNetwork(lambda me, topology: process(me, topology, config), Topology.grid(groups, 1))


def deliver_in_random_order(world: ManualNetwork, seed: int) -> None:
    """Carries every body, links in random order."""
    random = Random(seed)
    while full := [pair for pair, wire in sorted(world.links.items()) if wire]:
        world.carry(*random.choice(full))


def test_group_is_locked_until_the_last_destination_delivers() -> None:
    world = make_ring(3)
    world.multicast(1, 0, 1, 2)
    world.multicast(2, 0)
    assert world.delivered[0] == [1], "2 waits although it is local"
    world.carry(0, 1)
    world.carry(1, 2)
    assert world.delivered == {0: [1], 1: [1], 2: [1]}
    world.multicast(3, 1)
    assert world.delivered[1] == [1]
    world.carry(2, 0)
    assert world.delivered[0] == [1, 2]
    world.carry(2, 1)
    assert world.delivered[1] == [1, 3]
    assert [type(body) for _, _, body in world.carried] == [Pass, Pass, End, End]


def test_lowest_common_group_orders_messages() -> None:
    """Messages to {g1, g2, g3} and {g2, g3, g4} are ordered by g2, as in section 3.1."""
    world = make_ring(4)
    world.multicast(1, 0, 1, 2)
    world.multicast(2, 1, 2, 3)
    world.carry_all()
    assert world.delivered == {0: [1], 1: [2, 1], 2: [2, 1], 3: [2]}


def test_random_runs_do_not_deadlock() -> None:
    for seed in range(30):
        world = make_ring(4, order=(2, 0, 3, 1))
        random = Random(seed)
        for id in range(40):
            world.multicast(id, *sorted(random.sample(range(4), random.randint(1, 4))))
        deliver_in_random_order(world, seed)
        assert world.list_undelivered() == []
        assert world.find_violation() is None


class NotLocked(Ring):
    """Delivers the next message without waiting for End."""

    def _deliver_ready(self) -> None:
        super()._deliver_ready()
        self._locked = None
        if self._queue:
            self._deliver_ready()

    def on_receive(self, sender: int, body: Body) -> None:
        if not isinstance(body, End):
            super().on_receive(sender, body)


def test_mutant_without_locks_violates_the_order() -> None:
    broken = 0
    for seed in range(30):
        world = make_ring(4, NotLocked)
        random = Random(seed)
        for id in range(20):
            world.multicast(id, *sorted(random.sample(range(4), 2)))
        deliver_in_random_order(world, seed)
        broken += world.find_violation() is not None
    assert broken > 0


def test_order_with_unknown_group_is_rejected() -> None:
    config = SPEC.configure({"order": [0, 5]})
    assert isinstance(config, RingConfig)
    with pytest.raises(UsageError, match=r"unknown: \[5\]"):
        Ring(0, Topology.grid(2, 1), config)
