"""Markers of processes in doubt: packets about one that nobody has delivered are about nothing that was multicast."""

from amcast.kernel.events import Event
from amcast.kernel.message import Message, Request
from amcast.kernel.reconfiguration import make_marker
from amcast.kernel.topology import Topology
from amcast.simulation.schedulers.pending_actions import PendingActions
from amcast.simulation.world.world import World
from amcast.trace.recorder import Recorder
from tests.simulation.puppets import Puppet


def test_body_is_about_a_marker_once_that_is_delivered() -> None:
    topology = Topology.grid(1, 2, 1)
    marker, plain = make_marker(0, 0, 1), Message(7, 2, (0,), b"")

    def act(puppet: Puppet, event: Event) -> None:
        if puppet.me == 0:
            puppet.send(1, Request(marker), marker.id)
            puppet.send_all((1,), Request(plain), (marker.id, plain.id))

    pool = PendingActions()
    pool.world = world = World(topology, lambda me: Puppet(me, topology, act, {}), pool, Recorder())
    world.start()
    abouts = [envelope[3] for _, envelope in pool.links[(0, 1)]]
    assert abouts == [None, (plain.id,)]
