"""A node: what its oracle says reaches every instance of its protocol."""

import pytest

from amcast.kernel.change import changed, encoded
from amcast.kernel.effects import Effect, Note
from amcast.kernel.events import Event, Gone, Receive, Started, Timer
from amcast.kernel.topology import Topology
from amcast.lab.runs import build
from amcast.parts.bodies.changing import Begin, Here
from amcast.parts.bodies.omega import Farewell, Heartbeat
from amcast.parts.bodies.paxos import Nack, Promised
from amcast.parts.node import Node
from amcast.protocols.catalogue import CATALOGUE

MS = 1_000_000
NEWCOMER = 9


class Scene:
    """Process 1 of group 0 is in number 1, which a member that joined leads; the number before it goes on."""

    def __init__(self) -> None:
        topology = Topology.grid(1, 3, 1)
        spec = CATALOGUE["multipaxos"]
        node = build(spec, spec.configure({}), topology, 1, MS, changes=True)
        assert isinstance(node, Node)
        self.node = node
        self.now = 100 * MS
        self.step(Started((Promised(0, (0, 0, 0)),), 1))
        for fellow in (0, 2):
            self.step(Receive(fellow, Heartbeat(1, 99 * MS)))
        later = changed(topology, 0, add=NEWCOMER)
        self.step(Receive(0, Here(Begin(1, encoded(later)), 0)))
        self.step(Receive(NEWCOMER, Heartbeat(0, 50 * MS)))
        assert (node.vitals()["leader"], node.vitals()["instances"]) == (NEWCOMER, 2)

    def step(self, *events: Event) -> list[Effect]:
        self.now += MS
        return self.node.step(events, self.now)

    def campaigns(self, effects: list[Effect]) -> int:
        """How many instances want to lead: only the old one can, as long as the newcomer is trusted."""
        assert self.node.vitals()["leader"] == NEWCOMER
        return sum(type(effect) is Note and effect.name == "campaign" for effect in effects)


@pytest.mark.parametrize(
    "doubt", [Gone(0), Timer("omega-0"), Receive(0, Farewell(1))], ids=["gone", "silent", "farewell"]
)
def test_the_next_one_leads_an_old_number_at_once_when_its_leader_is_doubted(doubt: Event) -> None:
    scene = Scene()
    assert scene.campaigns(scene.step(Timer("omega"))) == 0, "process 0 leads there"
    assert scene.campaigns(scene.step(doubt)) == 1


def test_who_led_an_old_number_by_mistake_gives_it_back() -> None:
    scene = Scene()
    assert scene.campaigns(scene.step(Gone(0))) == 1
    scene.step(Receive(2, Nack(1 << 40)))
    assert scene.campaigns(scene.step(Timer("paxos"))) == 1, "it tries again while it is told to"
    scene.step(Receive(2, Nack(1 << 41)))
    scene.step(Receive(0, Heartbeat(1, 99 * MS)))
    assert scene.campaigns(scene.step(Timer("paxos"))) == 0
