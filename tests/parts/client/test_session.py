"""Clients that do not give up, and nodes that answer once more."""

from amcast.assembly import build_node_spec
from amcast.kernel.effects import Resolve, Send, SetTimer
from amcast.kernel.events import LinkReset, PeerDown, Receive, Started, Submit, Timer
from amcast.kernel.ids import message_id
from amcast.kernel.message import Message, Reply, Request
from amcast.kernel.topology import Topology
from amcast.parts.client.messages import LeaderHint, SessionConfig
from amcast.parts.client.session import TIMER, ClientSession
from amcast.parts.node.messages import NodeConfig
from amcast.parts.node.node import Node
from amcast.parts.ordering.messages import WINDOW
from amcast.protocols.catalogue import CATALOGUE

TOPOLOGY = Topology.grid(2, 3, 1)
ME = 6


def message(sequence: int, *destinations: int) -> Message:
    return Message(message_id(ME, sequence), ME, destinations)


def client(leader_only: bool = False) -> ClientSession:
    def contact(topology: Topology, said: Message) -> tuple[int, ...]:
        if leader_only:
            return tuple(topology.members(group)[0] for group in said.destinations)
        return topology.processes_of(said.destinations)

    made = ClientSession(ME, TOPOLOGY, contact, SessionConfig())
    made.step((Started(),), 0)
    return made


def sends(effects: list) -> list[tuple[tuple[int, ...], object]]:
    return [(effect.targets, effect.body) for effect in effects if isinstance(effect, Send)]


def test_a_message_is_done_when_every_group_has_answered() -> None:
    one = client()
    said = message(0, 0, 1)
    effects = one.step((Submit(said),), 0)
    assert sends(effects) == [((0, 1, 2, 3, 4, 5), Request(said))]
    assert [e.name for e in effects if isinstance(e, SetTimer)] == [TIMER]
    assert one.step((Receive(0, Reply(said.id, 0)),), 0) == []
    assert one.step((Receive(1, Reply(said.id, 0)),), 0) == [], "the same group once more"
    assert Resolve(said.id) in one.step((Receive(3, Reply(said.id, 1)),), 0)
    assert one.step((Receive(4, Reply(said.id, 1)),), 0) == [], "a late answer is nothing new"


def test_what_is_not_answered_is_asked_again_from_everybody() -> None:
    one = client(leader_only=True)
    said = message(0, 0, 1)
    assert sends(one.step((Submit(said),), 0)) == [((0, 3), Request(said))]
    assert sends(one.step((Timer(TIMER),), 0)) == [], "it had not waited a whole time yet"
    assert sends(one.step((Timer(TIMER),), 0)) == [((0, 1, 2, 3, 4, 5), Request(said))]


def test_a_hint_moves_the_contact() -> None:
    one = client(leader_only=True)
    one.step((Receive(1, LeaderHint(0, 2)),), 0)
    said = message(0, 0, 1)
    assert sends(one.step((Submit(said),), 0)) == [((2, 3), Request(said))]


def test_a_link_that_begins_anew_is_asked_again() -> None:
    one = client(leader_only=True)
    said = message(0, 0, 1)
    one.step((Submit(said),), 0)
    assert sends(one.step((LinkReset(3, 1),), 0)) == [((3,), Request(said))]
    assert sends(one.step((LinkReset(4, 1),), 0)) == []


def test_a_client_never_runs_further_ahead_than_groups_remember() -> None:
    one = client()
    for sequence in range(WINDOW):
        assert sends(one.step((Submit(message(sequence, 0)),), 0))
    assert sends(one.step((Submit(message(WINDOW, 0)),), 0)) == []
    assert sends(one.step((Receive(0, Reply(message(1, 0).id, 0)),), 0)) == [], "not the oldest"
    assert sends(one.step((Receive(0, Reply(message(0, 0).id, 0)),), 0)) == [((0, 1, 2), Request(message(WINDOW, 0)))]


def test_a_snapshot_of_a_client_is_complete() -> None:
    one = client()
    one.step((Submit(message(0, 0, 1)), Submit(message(1, 1)), Receive(1, LeaderHint(0, 2))), 0)
    one.step((Timer(TIMER), Receive(4, Reply(message(0, 0).id, 1))), 0)
    other = client()
    other.restore(one.snapshot())
    assert other.snapshot() == one.snapshot()
    assert sends(other.step((Timer(TIMER),), 0)) == sends(one.step((Timer(TIMER),), 0)) != []


def node(replies: str = "leader", process: int = 0) -> Node:
    spec = build_node_spec(CATALOGUE["skeen"], NodeConfig(omega=None, replies=replies))  # type: ignore[arg-type]
    made = spec.process(process, Topology.grid(2, 1, 1), spec.configure())
    assert isinstance(made, Node)
    made.step((Started(),), 0)
    return made


def test_a_node_answers_when_it_delivers_and_again_when_asked_again() -> None:
    one = node()
    said = Message(message_id(2, 0), 2, (0,))
    propose = sends(one.step((Receive(2, Request(said)),), 0))[0][1]
    answer = ((2,), Reply(said.id, 0))
    assert answer in sends(one.step((Receive(0, propose),), 0))
    assert sends(one.step((Receive(2, Request(said)),), 0)) == [answer]


def test_a_node_that_does_not_lead_answers_only_who_asks_again() -> None:
    topology = Topology({0: (0, 1, 2)}, (3,))
    spec = CATALOGUE["multipaxos"]
    follower = Node(spec.process(1, topology, spec.configure()), NodeConfig(omega=None))
    follower.protocol._ordered_ids.add(message_id(3, 0))
    said = Message(message_id(3, 0), 3, (0,))
    assert sends(follower.step((Receive(3, Request(said)),), 0)) == [((3,), Reply(said.id, 0))]


def test_a_node_counts_the_answers_to_its_own_messages() -> None:
    one = node()
    said = Message(message_id(0, 0), 0, (0, 1))
    one.step((Submit(said),), 0)
    assert Resolve(said.id) not in one.step((Receive(0, Reply(said.id, 0)),), 0)
    assert Resolve(said.id) in one.step((Receive(1, Reply(said.id, 1)),), 0)


def test_a_gateway_that_is_gone_is_not_waited_for() -> None:
    one = ClientSession(
        ME, TOPOLOGY, lambda topology, said: topology.processes_of(said.destinations), SessionConfig(gateways=True)
    )
    one.step((Started(),), 0)
    said = message(0, 0)
    assert sends(one.step((Submit(said),), 0)) == [((0,), Request(said))]
    assert sends(one.step((PeerDown(1),), 0)) == [], "it asked somebody else"
    assert sends(one.step((PeerDown(0),), 0)) == [((1,), Request(said))]
    later = message(1, 0)
    assert sends(one.step((Submit(later),), 0)) == [((1,), Request(later))]


def test_a_gateway_that_answers_for_its_group_alone_is_not_the_only_one_to_be_asked() -> None:
    one = ClientSession(
        ME, TOPOLOGY, lambda topology, said: topology.processes_of(said.destinations), SessionConfig(gateways=True)
    )
    one.step((Started(),), 0)
    said = message(0, 0, 1)
    assert sends(one.step((Submit(said),), 0)) == [((3,), Request(said))]
    assert sends(one.step((PeerDown(3),), 0)) == [((4,), Request(said))]
    assert sends(one.step((Receive(4, Reply(said.id, 1)),), 0)) == [((1,), Request(said))], "4 will say no more"
    assert sends(one.step((Receive(4, Reply(said.id, 1)),), 0)) == [], "once"
    assert Resolve(said.id) in one.step((Receive(1, Reply(said.id, 0)),), 0)
