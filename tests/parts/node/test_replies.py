"""Replies of nodes to the senders of messages."""

from amcast.assembly import build_node_spec
from amcast.kernel.effects import Resolve, Send
from amcast.kernel.events import Receive, Started, Submit
from amcast.kernel.ids import message_id
from amcast.kernel.message import Message, Reply, Request
from amcast.kernel.topology import Topology
from amcast.parts.node.messages import NodeConfig
from amcast.parts.node.node import Node
from amcast.protocols.catalogue import CATALOGUE


def sends(effects: list) -> list[tuple[tuple[int, ...], object]]:
    return [(effect.targets, effect.body) for effect in effects if isinstance(effect, Send)]


def node(replies: str = "leader", me: int = 0) -> Node:
    spec = build_node_spec(CATALOGUE["skeen"], NodeConfig(omega=None, replies=replies))  # type: ignore[arg-type]
    process = spec.process(me, Topology.grid(2, 1, 1), spec.configure())
    assert isinstance(process, Node)
    process.step((Started(),), 0)
    return process


def test_node_replies_on_delivery_and_to_a_retry() -> None:
    replica = node()
    message = Message(message_id(2, 0), 2, (0,))
    propose = sends(replica.step((Receive(2, Request(message)),), 0))[0][1]
    answer = ((2,), Reply(message.id, 0))
    assert answer in sends(replica.step((Receive(0, propose),), 0))
    assert sends(replica.step((Receive(2, Request(message)),), 0)) == [answer]


def test_follower_replies_only_to_a_retry() -> None:
    topology = Topology({0: (0, 1, 2)}, (3,))
    spec = CATALOGUE["multipaxos"]
    follower = Node(spec.process(1, topology, spec.configure()), NodeConfig(omega=None))
    follower.protocol._ordered_ids.add(message_id(3, 0))
    message = Message(message_id(3, 0), 3, (0,))
    assert sends(follower.step((Receive(3, Request(message)),), 0)) == [((3,), Reply(message.id, 0))]


def test_node_resolves_its_own_message_after_every_reply() -> None:
    replica = node()
    message = Message(message_id(0, 0), 0, (0, 1))
    replica.step((Submit(message),), 0)
    assert Resolve(message.id) not in replica.step((Receive(0, Reply(message.id, 0)),), 0)
    assert Resolve(message.id) in replica.step((Receive(1, Reply(message.id, 1)),), 0)
