"""Clients that retry, their window, and their choice of gateways."""

from amcast.kernel.config import MILLISECOND
from amcast.kernel.effects import Resolve, Send, SetTimer
from amcast.kernel.events import LinkReset, PeerDown, Receive, Started, Submit, Timer
from amcast.kernel.ids import message_id
from amcast.kernel.message import Message, Reply, Request
from amcast.kernel.reconfiguration import change_topology, encode_topology
from amcast.kernel.topology import Topology
from amcast.parts.client.messages import AbsentGroups, ConfigurationStarted, Done, LeaderHint, SessionConfig
from amcast.parts.client.session import SILENCE_TIMER, TIMER, ClientSession
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


def test_late_hint_of_a_removed_leader_is_ignored() -> None:
    """The removed member would answer each request with the configuration, and the client that with each request."""
    client = make_client(leader_only=True)
    sent = message(0, 0)
    client.step((Submit(sent),), 0)
    after = change_topology(TOPOLOGY, 0, None, 2)
    client.step((Receive(1, ConfigurationStarted(1, encode_topology(after))),), 0)
    client.step((Receive(1, LeaderHint(0, 2)),), 0)
    assert sends(client.step((Receive(2, ConfigurationStarted(1, encode_topology(after))),), 0)) == []
    client.step((Receive(1, LeaderHint(0, 1)),), 0)
    assert sends(client.step((Receive(1, ConfigurationStarted(1, encode_topology(after))),), 0)) == [
        ((1,), Request(sent))
    ]


def make_gateway_client() -> ClientSession:
    """A client of gateways whose first message was answered in a millisecond, at 1 ms."""
    client = ClientSession(
        ME, TOPOLOGY, lambda topology, sent: topology.processes_of(sent.destinations), SessionConfig(gateways=True)
    )
    client.step((Started(),), 0)
    client.step((Submit(message(0, 0)),), 0)
    client.step((Receive(0, Done((message(0, 0).id,))),), MILLISECOND)
    return client


def test_client_leaves_a_gateway_that_answers_nothing() -> None:
    client, silence_ns = make_gateway_client(), SessionConfig().silence_ns
    begin = MILLISECOND * 10
    assert sends(client.step((Submit(message(1, 0)),), begin)) == [((0,), Request(message(1, 0)))]
    assert sends(client.step((Timer(SILENCE_TIMER),), begin + silence_ns - 1)) == []
    assert sends(client.step((Timer(SILENCE_TIMER),), begin + silence_ns)) == [((1,), Request(message(1, 0)))]
    again = begin + 2 * silence_ns
    assert sends(client.step((Timer(SILENCE_TIMER),), again)) == [], "it waits twice as long for the second one"
    copy = make_gateway_client()
    copy.restore(client.snapshot())
    assert copy.snapshot() == client.snapshot()
    assert sends(copy.step((Timer(SILENCE_TIMER),), again + silence_ns)) == [((2,), Request(message(1, 0)))]


def test_client_stays_with_a_gateway_that_answers_something() -> None:
    client, silence_ns = make_gateway_client(), SessionConfig().silence_ns
    client.step((Submit(message(1, 0)),), MILLISECOND)
    client.step((Submit(message(2, 0)),), 2 * MILLISECOND)
    client.step((Receive(0, Done((message(2, 0).id,))),), 3 * MILLISECOND)
    assert sends(client.step((Timer(SILENCE_TIMER),), 2 * MILLISECOND + silence_ns)) == []


def test_client_waits_longer_where_answers_take_long() -> None:
    client, took_ns = make_gateway_client(), 400 * MILLISECOND
    now = MILLISECOND
    for number in range(1, 30):
        client.step((Submit(message(number, 0)),), now)
        now += took_ns
        client.step((Receive(0, Done((message(number, 0).id,))),), now)
    client.step((Submit(message(30, 0)),), now)
    assert sends(client.step((Timer(SILENCE_TIMER),), now + 2 * took_ns)) == []
    assert len(sends(client.step((Timer(SILENCE_TIMER),), now + SessionConfig().retry_ns[0]))) == 1


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


# Groups that are lost


def lose_message(client: ClientSession, sequence: int) -> Message:
    """A message that only group 1 could deliver, which is lost."""
    sent = message(sequence, 1)
    client.step((Submit(sent),), 0)
    assert Resolve(sent.id, (1,)) in [effect for _ in range(3) for effect in client.step((Timer(TIMER),), 0)]
    return sent


def test_message_of_a_lost_group_is_sent_again_when_the_link_to_it_is_reset() -> None:
    """The group may have been unreachable only, and nobody else has the message."""
    client = make_client()
    client.step((Receive(0, AbsentGroups(1, (1,))),), 0)
    sent = lose_message(client, 0)
    assert sends(client.step((LinkReset(0, 1),), 0)) == []
    assert sends(client.step((LinkReset(4, 1),), 0)) == [((4,), Request(sent))]


def test_late_reply_of_a_lost_group_does_not_bring_it_back_for_ever() -> None:
    """The next retry is answered with the same view of the groups."""
    client = make_client()
    client.step((Receive(0, AbsentGroups(1, (1,))),), 0)
    lost = lose_message(client, 0)
    client.step((Receive(4, Reply(lost.id, 1)), Receive(0, AbsentGroups(1, (1,)))), 0)
    lose_message(client, 1)


def test_client_prefers_a_gateway_in_its_region() -> None:
    regions = {process: "east" if process < 3 else "west" for process in TOPOLOGY.servers}
    topology = Topology({0: (0, 1, 2), 1: (3, 4, 5)}, (ME,), regions)
    for region, gateways in (("east", (0, 0, 3)), ("west", (3, 0, 3)), ("north", (3, 0, 3))):
        config = SessionConfig(gateways=True, region=region)
        client = ClientSession(ME, topology, lambda topology, sent: (), config)
        chosen = [client.contacts(message(0, *groups)) for groups in ((0, 1), (0,), (1,))]
        assert chosen == [(gateway,) for gateway in gateways]
