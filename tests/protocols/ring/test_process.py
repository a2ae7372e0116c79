"""The ring: locked until the end, one after the other."""

from random import Random
from typing import Any

import pytest

from amcast.kernel.errors import UsageError
from amcast.kernel.message import Body
from amcast.kernel.topology import Topology
from amcast.protocols.ring.messages import End, Pass, RingConfig
from amcast.protocols.ring.process import SPEC, Ring
from tests.protocols.manual_network import Wires


def ring(groups: int, process: type[Ring] = Ring, **options: Any) -> Wires:
    config = RingConfig(**options)
    return Wires(lambda me, topology: process(me, topology, config), Topology.grid(groups, 1))


def shuffled(world: Wires, seed: int) -> None:
    """Everything arrives, in any order of wires."""
    random = Random(seed)
    while full := [pair for pair, wire in sorted(world.wires.items()) if wire]:
        world.carry(*random.choice(full))


def test_groups_stay_locked_until_the_final_ack() -> None:
    world = ring(3)
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


def test_the_lowest_common_group_orders() -> None:
    """Messages to {g1, g2, g3} and {g2, g3, g4} are ordered by g2, as section 3.1 says."""
    world = ring(4)
    world.multicast(1, 0, 1, 2)
    world.multicast(2, 1, 2, 3)
    world.carry_all()
    assert world.delivered == {0: [1], 1: [2, 1], 2: [2, 1], 3: [2]}


def test_nobody_waits_in_a_circle() -> None:
    for seed in range(30):
        world = ring(4, order=(2, 0, 3, 1))
        random = Random(seed)
        for id in range(40):
            world.multicast(id, *sorted(random.sample(range(4), random.randint(1, 4))))
        shuffled(world, seed)
        assert world.missing() == []
        assert world.broken() is None


class NotLocked(Ring):
    """Goes on at once."""

    def _go_on(self) -> None:
        super()._go_on()
        self._locked = None
        if self._queue:
            self._go_on()

    def on_receive(self, sender: int, body: Body) -> None:
        if not isinstance(body, End):
            super().on_receive(sender, body)


def test_without_locks_the_order_breaks() -> None:
    broken = 0
    for seed in range(30):
        world = ring(4, NotLocked)
        random = Random(seed)
        for id in range(20):
            world.multicast(id, *sorted(random.sample(range(4), 2)))
        shuffled(world, seed)
        broken += world.broken() is not None
    assert broken > 0


def test_a_wrong_order_is_refused() -> None:
    config = SPEC.configure({"order": [0, 5]})
    assert isinstance(config, RingConfig)
    with pytest.raises(UsageError, match=r"unknown: \[5\]"):
        Ring(0, Topology.grid(2, 1), config)
