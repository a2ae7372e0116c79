"""A node: what its oracle says reaches every instance of its protocol; senders are answered, whoever leads."""

import pytest

from amcast.assembly import assemble_simulation
from amcast.kernel.effects import Effect, Note, Send
from amcast.kernel.events import Event, Leader, PeerDown, Receive, Started, Timer
from amcast.kernel.ids import message_id
from amcast.kernel.message import Message, Reply, Request
from amcast.kernel.reconfiguration import change_topology, encode_topology
from amcast.kernel.topology import Topology
from amcast.parts.client.messages import Farewell
from amcast.parts.consensus.messages import Nack, Promised
from amcast.parts.membership.messages import ConfigurationInfo, ConfigurationStart
from amcast.parts.node.messages import Heartbeat, NodeConfig
from amcast.parts.node.node import Node
from amcast.protocols.catalogue import CATALOGUE

MS = 1_000_000
NEWCOMER = 9
CLIENT = 3


class Scene:
    """Process 1 of group 0 is in number 1, which a member that joined leads; the number before it goes on."""

    def __init__(self) -> None:
        topology = Topology.grid(1, 3, 1)
        spec = CATALOGUE["multipaxos"]
        node = assemble_simulation(spec, spec.configure({}), MS, changes=True).make(1, topology)
        assert isinstance(node, Node)
        self.node = node
        self.now = 100 * MS
        self.step(Started((Promised(0, (0, 0, 0)),), 1))
        for fellow in (0, 2):
            self.step(Receive(fellow, Heartbeat(1, 99 * MS)))
        later = change_topology(topology, 0, add=NEWCOMER)
        self.step(Receive(0, ConfigurationInfo(ConfigurationStart(1, encode_topology(later)), 0)))
        self.step(Receive(NEWCOMER, Heartbeat(0, 50 * MS)))
        assert (node.status()["leader"], node.status()["instances"]) == (NEWCOMER, 2)

    def step(self, *events: Event) -> list[Effect]:
        self.now += MS
        return self.node.step(events, self.now)

    def campaigns(self, effects: list[Effect]) -> int:
        """How many instances want to lead: only the old one can, as long as the newcomer is trusted."""
        assert self.node.status()["leader"] == NEWCOMER
        return sum(type(effect) is Note and effect.name == "campaign" for effect in effects)


@pytest.mark.parametrize(
    "doubt", [PeerDown(0), Timer("omega-0"), Receive(0, Farewell(1))], ids=["gone", "silent", "farewell"]
)
def test_the_next_one_leads_an_old_number_at_once_when_its_leader_is_doubted(doubt: Event) -> None:
    scene = Scene()
    assert scene.campaigns(scene.step(Timer("omega"))) == 0, "process 0 leads there"
    assert scene.campaigns(scene.step(doubt)) == 1


def test_who_led_an_old_number_by_mistake_gives_it_back() -> None:
    scene = Scene()
    assert scene.campaigns(scene.step(PeerDown(0))) == 1
    scene.step(Receive(2, Nack(1 << 40)))
    assert scene.campaigns(scene.step(Timer("paxos"))) == 1, "it tries again while it is told to"
    scene.step(Receive(2, Nack(1 << 41)))
    scene.step(Receive(0, Heartbeat(1, 99 * MS)))
    assert scene.campaigns(scene.step(Timer("paxos"))) == 0


# Answers


class Group:
    """Processes 0 and 1 of a group of three, and a client that asks them; what is said to others is lost."""

    def __init__(self) -> None:
        topology = Topology({0: (0, 1, 2)}, (CLIENT,))
        spec = CATALOGUE["multipaxos"]
        self.nodes = {me: Node(spec.process(me, topology, spec.configure({})), NodeConfig()) for me in (0, 1)}
        for me in self.nodes:
            self.step(me, Started((), 0))

    def step(self, me: int, event: Event) -> list[Send]:
        """One event and all that follows from it; what everybody said."""
        said: list[Send] = []
        events = [(me, event)]
        while events:
            at, event = events.pop(0)
            for effect in self.nodes[at].step((event,), 0):
                if isinstance(effect, Send):
                    said.append(effect)
                    events += [(to, Receive(at, effect.body)) for to in effect.targets if to in self.nodes]
        return said

    def multicast(self, sequence: int) -> Message:
        message = Message(message_id(CLIENT, sequence), CLIENT, (0,))
        said = self.step(0, Receive(CLIENT, Request(message)))
        assert all(node.has_delivered(message.id) for node in self.nodes.values())
        assert answers(said) == [message.id], "by the leader alone"
        return message


def answers(said: list[Send]) -> list[int]:
    return [send.body.message for send in said if isinstance(send.body, Reply) and send.targets == (CLIENT,)]


def test_who_takes_the_lead_answers_for_what_it_delivered_of_late() -> None:
    group = Group()
    first, second = group.multicast(0), group.multicast(1)
    assert answers(group.step(1, PeerDown(0))) == [first.id, second.id], "the answers of process 0 may be lost with it"
    assert answers(group.step(1, Receive(0, Heartbeat(0)))) == []
    assert answers(group.step(1, PeerDown(0))) == [], "once"


def test_what_was_delivered_before_the_leaders_last_heartbeats_was_answered() -> None:
    group = Group()
    group.multicast(0)
    group.step(1, Receive(0, Heartbeat(0)))
    lately = group.multicast(1)
    group.step(1, Receive(2, Heartbeat(0)))
    group.step(1, Receive(0, Heartbeat(0)))
    other = Node(group.nodes[1].protocol, NodeConfig())
    other.restore(group.nodes[1].snapshot())
    group.nodes[1] = other
    assert answers(group.step(1, Leader(0, 1))) == [lately.id]
