"""Runs of FlexCast that were found by thinking, and are too rare for chance."""

from collections.abc import Callable
from typing import Any

from amcast.kernel.topology import Topology
from amcast.protocols.flexcast.messages import FlexCastConfig, Full
from amcast.protocols.flexcast.process import FlexCast
from tests.protocols.manual_network import Wires


def line(process: type[FlexCast], groups: int) -> Wires:
    config = FlexCastConfig(flush_every=0)
    return Wires(lambda me, topology: process(me, topology, config), Topology.grid(groups, 1))


def notified_twice(process: type[FlexCast]) -> Wires:
    """Group 2 notifies group 3 about x twice: early for p0, and again when it has learned that p comes before x. Only
    the second answer says that y comes before p, and so before x."""
    world = line(process, 5)
    p0, s, r, x, y, p, q = 1, 2, 3, 4, 5, 6, 7
    world.multicast(p0, 2, 3)
    world.carry(2, 3)
    world.multicast(s, 0, 2)
    world.multicast(r, 0, 1)
    world.multicast(x, 0, 4)
    world.carry(0, 2, 2)  # s, and the notification of x: 2 passes it on to 3 because of p0
    world.carry(2, 3)  # 3 knows nothing that matters yet
    world.multicast(y, 3, 4)
    world.multicast(p, 2, 3)
    world.carry(2, 3)  # y before p at 3
    world.multicast(q, 1, 2)
    world.carry(1, 2)  # p before q at 2
    world.carry(0, 1, 2)  # q before r at 1, and the notification of x
    world.carry(1, 2)  # 2 is notified again, and now knows p < q < r < x
    world.carry(0, 4)  # x
    for source in (1, 2):
        world.carry(source, 4, len(world.wires[(source, 4)]))
    world.carry(3, 4)  # 3's first answer; y and the second answer are still on their way
    world.carry_all()
    return world


def answered_after_a_flush(process: type[FlexCast]) -> Wires:
    """The notification of x reaches group 3 while q, which has nothing to do with x, is missing there, and q comes
    after a flush. If 3 waits for q, it has forgotten p when it answers; nobody asks 4, which knows y < p < r < x."""
    world = line(process, 6)
    y, p, r, x, q = 1, 2, 3, 4, 5
    world.multicast(y, 4, 5)
    world.multicast(p, 3, 4)
    world.carry(3, 4)  # y before p at 4
    world.multicast(r, 0, 3)
    world.carry(0, 3)  # p before r at 3
    world.multicast(x, 0, 5)
    world.tell(0, Full(0), sender=1)  # the flush: x before it at 0
    world.carry(0, 1)  # the flush at 1, and q after it
    world.multicast(q, 1, 2, 3)
    world.carry(1, 3, 2)  # 3 hears of q; it will wait for 2
    world.carry(0, 3)  # the notification of x
    world.carry(0, 3)  # the flush; 3 waits for 2
    world.carry(0, 2)
    world.carry(1, 2)  # the flush at 2
    world.carry(2, 3)  # the flush at 3: p is forgotten there, and q is still missing
    world.carry(1, 2)
    world.carry(2, 3)  # q at 3
    while world.wires[(0, 5)]:
        world.carry(0, 5)  # x
    for source in (1, 2, 3):
        world.carry(source, 5, len(world.wires[(source, 5)]))
    world.carry_all()
    return world


STORIES: dict[str, Callable[[Any], Wires]] = {
    "notified twice": notified_twice,
    "answered after a flush": answered_after_a_flush,
}
