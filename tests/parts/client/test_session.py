"""Clients that retry, their window, and their choice of gateways."""

from amcast.kernel.effects import Resolve, Send, SetTimer
from amcast.kernel.events import LinkReset, PeerDown, Receive, Started, Submit, Timer
from amcast.kernel.ids import message_id
from amcast.kernel.message import Message, Reply, Request
from amcast.kernel.topology import Topology
from amcast.parts.client.messages import LeaderHint, SessionConfig
from amcast.parts.client.session import TIMER, ClientSession
from amcast.parts.ordering.messages import WINDOW

TOPOLOGY = Topology.grid(2, 3, 1)
ME = 6


def message(sequence: int, *destinations: int) -> Message:
    return Message(message_id(ME, sequence), ME, destinations)


def make_client(leader_only: bool = False) -> ClientSession:
    def contacts(topology: Topology, sent: Message) -> tuple[int, ...]:
        if leader_only:
            return tuple(topology.members(group)[0] for group in sent.destinations)
        return topology.processes_of(sent.destinations)

    client = ClientSession(ME, TOPOLOGY, contacts, SessionConfig())
    client.step((Started(),), 0)
    return client


def sends(effects: list) -> list[tuple[tuple[int, ...], object]]:
    return [(effect.targets, effect.body) for effect in effects if isinstance(effect, Send)]


def test_message_resolves_when_every_group_has_replied() -> None:
    client = make_client()
    sent = message(0, 0, 1)
    effects = client.step((Submit(sent),), 0)
    assert sends(effects) == [((0, 1, 2, 3, 4, 5), Request(sent))]
    assert [e.name for e in effects if isinstance(e, SetTimer)] == [TIMER]
    assert client.step((Receive(0, Reply(sent.id, 0)),), 0) == []
    assert client.step((Receive(1, Reply(sent.id, 0)),), 0) == [], "the same group again"
    assert Resolve(sent.id) in client.step((Receive(3, Reply(sent.id, 1)),), 0)
    assert client.step((Receive(4, Reply(sent.id, 1)),), 0) == [], "a late reply has no effect"


def test_unanswered_request_is_retried_at_all_members() -> None:
    client = make_client(leader_only=True)
    sent = message(0, 0, 1)
    assert sends(client.step((Submit(sent),), 0)) == [((0, 3), Request(sent))]
    assert sends(client.step((Timer(TIMER),), 0)) == [], "it has not waited a whole period"
    assert sends(client.step((Timer(TIMER),), 0)) == [((0, 1, 2, 3, 4, 5), Request(sent))]


def test_leader_hint_changes_the_contact() -> None:
    client = make_client(leader_only=True)
    client.step((Receive(1, LeaderHint(0, 2)),), 0)
    sent = message(0, 0, 1)
    assert sends(client.step((Submit(sent),), 0)) == [((2, 3), Request(sent))]


def test_link_reset_resends_requests_to_contacts() -> None:
    client = make_client(leader_only=True)
    sent = message(0, 0, 1)
    client.step((Submit(sent),), 0)
    assert sends(client.step((LinkReset(3, 1),), 0)) == [((3,), Request(sent))]
    assert sends(client.step((LinkReset(4, 1),), 0)) == []


def test_client_stays_within_the_window() -> None:
    client = make_client()
    for sequence in range(WINDOW):
        assert sends(client.step((Submit(message(sequence, 0)),), 0))
    assert sends(client.step((Submit(message(WINDOW, 0)),), 0)) == []
    assert sends(client.step((Receive(0, Reply(message(1, 0).id, 0)),), 0)) == [], "not the oldest"
    assert sends(client.step((Receive(0, Reply(message(0, 0).id, 0)),), 0)) == [
        ((0, 1, 2), Request(message(WINDOW, 0)))
    ]


def test_restored_client_equals_the_original() -> None:
    client = make_client()
    client.step((Submit(message(0, 0, 1)), Submit(message(1, 1)), Receive(1, LeaderHint(0, 2))), 0)
    client.step((Timer(TIMER), Receive(4, Reply(message(0, 0).id, 1))), 0)
    other = make_client()
    other.restore(client.snapshot())
    assert other.snapshot() == client.snapshot()
    assert sends(other.step((Timer(TIMER),), 0)) == sends(client.step((Timer(TIMER),), 0)) != []


def test_requests_move_to_the_next_gateway_when_one_is_down() -> None:
    client = ClientSession(
        ME,
        TOPOLOGY,
        lambda topology, sent: topology.processes_of(sent.destinations),
        SessionConfig(gateways=True),
    )
    client.step((Started(),), 0)
    sent = message(0, 0)
    assert sends(client.step((Submit(sent),), 0)) == [((0,), Request(sent))]
    assert sends(client.step((PeerDown(1),), 0)) == [], "the request went to another gateway"
    assert sends(client.step((PeerDown(0),), 0)) == [((1,), Request(sent))]
    later = message(1, 0)
    assert sends(client.step((Submit(later),), 0)) == [((1,), Request(later))]


def test_reply_for_one_group_sends_the_request_to_the_others() -> None:
    client = ClientSession(
        ME,
        TOPOLOGY,
        lambda topology, sent: topology.processes_of(sent.destinations),
        SessionConfig(gateways=True),
    )
    client.step((Started(),), 0)
    sent = message(0, 0, 1)
    assert sends(client.step((Submit(sent),), 0)) == [((3,), Request(sent))]
    assert sends(client.step((PeerDown(3),), 0)) == [((4,), Request(sent))]
    assert sends(client.step((Receive(4, Reply(sent.id, 1)),), 0)) == [((1,), Request(sent))], (
        "gateway 4 will not reply for group 0"
    )
    assert sends(client.step((Receive(4, Reply(sent.id, 1)),), 0)) == [], "once"
    assert Resolve(sent.id) in client.step((Receive(1, Reply(sent.id, 0)),), 0)
