"""Hand-written runs of FlexCast that are too rare for random search."""

from collections.abc import Callable
from typing import Any

from amcast.kernel.topology import Topology
from amcast.protocols.flexcast.messages import FlexCastConfig, FlushRequest
from amcast.protocols.flexcast.process import FlexCast
from tests.protocols.manual_network import ManualNetwork


def make_line(process: type[FlexCast], groups: int) -> ManualNetwork:
    config = FlexCastConfig(flush_every=0)
    return ManualNetwork(lambda me, topology: process(me, topology, config), Topology.grid(groups, 1))


def notified_twice(process: type[FlexCast]) -> ManualNetwork:
    """Group 2 notifies group 3 about x twice: early for p0, and again when it has learned that p comes before x. Only
    the second acknowledgement shows that y comes before p, and so before x."""
    world = make_line(process, 5)
    p0, s, r, x, y, p, q = 1, 2, 3, 4, 5, 6, 7
    world.multicast(p0, 2, 3)
    world.carry(2, 3)
    world.multicast(s, 0, 2)
    world.multicast(r, 0, 1)
    world.multicast(x, 0, 4)
    world.carry(0, 2, 2)  # s, and the notification of x: 2 notifies 3 because of p0
    world.carry(2, 3)  # 3 knows no predecessor of x yet
    world.multicast(y, 3, 4)
    world.multicast(p, 2, 3)
    world.carry(2, 3)  # y before p at 3
    world.multicast(q, 1, 2)
    world.carry(1, 2)  # p before q at 2
    world.carry(0, 1, 2)  # q before r at 1, and the notification of x
    world.carry(1, 2)  # 2 is notified again and knows p < q < r < x
    world.carry(0, 4)  # x
    for source in (1, 2):
        world.carry(source, 4, len(world.links[(source, 4)]))
    world.carry(3, 4)  # 3's first acknowledgement; y and the second one are still in flight
    world.carry_all()
    return world


def acknowledged_after_a_flush(process: type[FlexCast]) -> ManualNetwork:
    """The notification of x reaches group 3 while q, which is unrelated to x, is missing there, and q comes after a
    flush. If 3 waits for q, it has pruned p when it acknowledges; 4, which knows y < p < r < x, is not notified."""
    world = make_line(process, 6)
    y, p, r, x, q = 1, 2, 3, 4, 5
    world.multicast(y, 4, 5)
    world.multicast(p, 3, 4)
    world.carry(3, 4)  # y before p at 4
    world.multicast(r, 0, 3)
    world.carry(0, 3)  # p before r at 3
    world.multicast(x, 0, 5)
    world.receive(0, FlushRequest(0), sender=1)  # the flush: x before it at 0
    world.carry(0, 1)  # the flush at 1, and q after it
    world.multicast(q, 1, 2, 3)
    world.carry(1, 3, 2)  # 3 learns of q and waits for 2
    world.carry(0, 3)  # the notification of x
    world.carry(0, 3)  # the flush; 3 waits for 2
    world.carry(0, 2)
    world.carry(1, 2)  # the flush at 2
    world.carry(2, 3)  # the flush at 3: p is pruned there, and q is still missing
    world.carry(1, 2)
    world.carry(2, 3)  # q at 3
    while world.links[(0, 5)]:
        world.carry(0, 5)  # x
    for source in (1, 2, 3):
        world.carry(source, 5, len(world.links[(source, 5)]))
    world.carry_all()
    return world


SCENARIOS: dict[str, Callable[[Any], ManualNetwork]] = {
    "notified twice": notified_twice,
    "acknowledged after a flush": acknowledged_after_a_flush,
}
