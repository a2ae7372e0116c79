"""Nodes: all instances of the protocol follow the leader oracle, and senders get replies whoever leads."""

import pytest

from amcast.assembly import assemble_simulation
from amcast.kernel.effects import Effect, Note, Send
from amcast.kernel.events import Event, Leader, PeerDown, Receive, Started, Timer
from amcast.kernel.ids import message_id
from amcast.kernel.message import Body, Message, Reply, Request
from amcast.kernel.reconfiguration import change_topology, encode_topology
from amcast.kernel.topology import Topology
from amcast.parts.client.messages import AbsentGroups, Farewell, LeaderHint
from amcast.parts.consensus.messages import Nack, Promised
from amcast.parts.membership.messages import ConfigurationInfo, ConfigurationStart
from amcast.parts.node.messages import Heartbeat, NodeConfig
from amcast.parts.node.node import Node
from amcast.protocols.catalogue import CATALOGUE

MS = 1_000_000
NEWCOMER = 9
CLIENT = 3


class TwoConfigurations:
    """Process 1 of group 0 in configuration 1, which a new member leads; the instance of configuration 0 still runs."""

    def __init__(self) -> None:
        topology = Topology.grid(1, 3, 1)
        spec = CATALOGUE["multipaxos"]
        node = assemble_simulation(spec, spec.configure({}), MS, changes=True).make(1, topology)
        assert isinstance(node, Node)
        self.node = node
        self.now = 100 * MS
        self.step(Started((Promised(0, (0, 0, 0)),), 1))
        for member in (0, 2):
            self.step(Receive(member, Heartbeat(1, 99 * MS)))
        later = change_topology(topology, 0, add=NEWCOMER)
        self.step(Receive(0, ConfigurationInfo(ConfigurationStart(1, encode_topology(later)), 0)))
        self.step(Receive(NEWCOMER, Heartbeat(0, 50 * MS)))
        assert (node.status()["leader"], node.status()["instances"]) == (NEWCOMER, 2)

    def step(self, *events: Event) -> list[Effect]:
        self.now += MS
        return self.node.step(events, self.now)

    def count_campaigns(self, effects: list[Effect]) -> int:
        """How many instances campaign in these effects: only the old one can, while the newcomer is trusted."""
        assert self.node.status()["leader"] == NEWCOMER
        return sum(type(effect) is Note and effect.name == "campaign" for effect in effects)


@pytest.mark.parametrize(
    "suspicion", [PeerDown(0), Timer("omega-0"), Receive(0, Farewell(1))], ids=["down", "silent", "farewell"]
)
def test_next_member_leads_old_configuration_when_its_leader_is_suspected(suspicion: Event) -> None:
    scene = TwoConfigurations()
    assert scene.count_campaigns(scene.step(Timer("omega"))) == 0, "process 0 leads configuration 0"
    assert scene.count_campaigns(scene.step(suspicion)) == 1


def test_wrong_suspicion_returns_the_lead_of_an_old_configuration() -> None:
    scene = TwoConfigurations()
    assert scene.count_campaigns(scene.step(PeerDown(0))) == 1
    scene.step(Receive(2, Nack(1 << 40)))
    assert scene.count_campaigns(scene.step(Timer("paxos"))) == 1, "it campaigns again while process 0 is suspected"
    scene.step(Receive(2, Nack(1 << 41)))
    scene.step(Receive(0, Heartbeat(1, 99 * MS)))
    assert scene.count_campaigns(scene.step(Timer("paxos"))) == 0


# Replies


class TwoMembers:
    """Processes 0 and 1 of a group of three, and a client of theirs. Bodies for other processes are lost."""

    def __init__(self) -> None:
        topology = Topology({0: (0, 1, 2)}, (CLIENT,))
        spec = CATALOGUE["multipaxos"]
        self.nodes = {me: Node(spec.process(me, topology, spec.configure({})), NodeConfig()) for me in (0, 1)}
        for me in self.nodes:
            self.step(me, Started((), 0))

    def step(self, me: int, event: Event) -> list[Send]:
        """Handles an event and all bodies that follow from it; returns all sends."""
        sends: list[Send] = []
        events = [(me, event)]
        while events:
            at, event = events.pop(0)
            for effect in self.nodes[at].step((event,), 0):
                if isinstance(effect, Send):
                    sends.append(effect)
                    events += [(to, Receive(at, effect.body)) for to in effect.targets if to in self.nodes]
        return sends

    def multicast(self, sequence: int) -> Message:
        message = Message(message_id(CLIENT, sequence), CLIENT, (0,))
        sends = self.step(0, Receive(CLIENT, Request(message)))
        assert all(node.has_delivered(message.id) for node in self.nodes.values())
        assert replies_in(sends) == [message.id], "the leader alone replies"
        return message


def replies_in(sends: list[Send]) -> list[int]:
    return [send.body.message for send in sends if isinstance(send.body, Reply) and send.targets == (CLIENT,)]


def test_new_leader_replies_for_its_recent_deliveries() -> None:
    group = TwoMembers()
    first, second = group.multicast(0), group.multicast(1)
    assert replies_in(group.step(1, PeerDown(0))) == [first.id, second.id], "replies of process 0 may be lost"
    assert replies_in(group.step(1, Receive(0, Heartbeat(0)))) == []
    assert replies_in(group.step(1, PeerDown(0))) == [], "once"


def test_new_leader_does_not_reply_for_deliveries_before_two_heartbeats() -> None:
    group = TwoMembers()
    group.multicast(0)
    group.step(1, Receive(0, Heartbeat(0)))
    recent = group.multicast(1)
    group.step(1, Receive(2, Heartbeat(0)))
    group.step(1, Receive(0, Heartbeat(0)))
    other = Node(group.nodes[1].protocol, NodeConfig())
    other.restore(group.nodes[1].snapshot())
    group.nodes[1] = other
    assert replies_in(group.step(1, Leader(0, 1))) == [recent.id]


@pytest.mark.parametrize("body", [LeaderHint(0, 1), AbsentGroups(0, ())])
def test_node_ignores_what_members_tell_the_sender_of_a_message(body: Body) -> None:
    """It is one itself while it is in doubt, and the protocol has no such bodies."""
    scene = TwoConfigurations()
    assert scene.step(Receive(0, body)) == []


# Multicasts of servers


@pytest.mark.parametrize(("sender", "targets"), [(CLIENT, [(CLIENT,)]), (4, [])])
def test_clients_alone_are_told_the_leader(sender: int, targets: list[tuple[int, ...]]) -> None:
    """The protocol of a server, which multicasts itself, does not know the body."""
    topology = Topology({0: (0, 1, 2), 1: (4,)}, (CLIENT,))
    spec = CATALOGUE["primcast"]
    node = Node(spec.process(2, topology, spec.configure({})), NodeConfig())
    node.step((Started((), 0),), 0)
    node.step((Leader(0, 1),), 0)
    message = Message(message_id(sender, 0), sender, (0, 1))
    effects = node.step((Receive(sender, Request(message)),), 0)
    hints = [effect for effect in effects if isinstance(effect, Send) and isinstance(effect.body, LeaderHint)]
    assert [hint.targets for hint in hints] == targets
