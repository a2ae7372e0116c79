"""Gateways: messages of many clients in one bundle, each delivered once however often it is requested."""

from collections.abc import Sequence
from random import Random

import pytest

from amcast.kernel.bundle import bundle_messages
from amcast.kernel.config import MILLISECOND
from amcast.kernel.effects import Resolve, Send, SetTimer
from amcast.kernel.errors import UsageError
from amcast.kernel.events import Receive, Requests, Started, Submit, Timer
from amcast.kernel.ids import message_id
from amcast.kernel.message import Message, Reply, Request
from amcast.lab.runs import fuzz_seed, prepare_run, record_run
from amcast.parts.client.messages import Done, SessionConfig
from amcast.parts.client.session import TIMER, ClientSession
from amcast.parts.groups import leader_group
from amcast.parts.node.messages import GatewayConfig, NodeConfig
from amcast.parts.node.node import Node
from amcast.parts.ordering.delivered_set import DeliveredSet
from amcast.protocols.catalogue import CATALOGUE
from amcast.protocols.skeen.process import Skeen
from amcast.simulation.inputs.plan import parse_plan
from tests.mutants.outcome import is_caught
from tests.parts.node.gateway_scene import (
    BOTH,
    TOPOLOGY,
    bundles_in,
    make_gateway,
    make_message,
    replies_to,
    sends_in,
)

GATHER_NS = GatewayConfig().gather_ns[0]

# Bundling


def test_requests_of_one_step_are_bundled_by_destinations() -> None:
    gateway = make_gateway()
    for message in (make_message(6, 0), make_message(7, 0), make_message(8, 0, (1,)), make_message(6, 1)):
        gateway.add(message)
    bundles = bundles_in(gateway.step([], 0))
    assert [[message.id for message in bundle_messages(bundle)] for bundle in bundles] == [
        [message_id(6, 0), message_id(7, 0), message_id(6, 1)],
        [message_id(8, 0)],
    ]
    gateway.add(make_message(6, 2, (0,)))
    assert len(bundles_in(gateway.step([], 0))) == 1, "no bundle is in flight there: a lone message does not wait"


def test_messages_gather_while_as_many_bundles_as_may_be_are_in_flight() -> None:
    gateway = make_gateway(max_in_flight=1)
    gateway.add(make_message(6, 0))
    first = bundles_in(gateway.step([], 0))[0]
    gateway.add(make_message(7, 0))
    effects = gateway.step([], 0)
    assert bundles_in(effects) == []
    assert [type(effect) for effect in effects] == [SetTimer]
    gateway.add(make_message(8, 0))
    assert gateway.step([], 0) == []
    (second,) = bundles_in(gateway.step(replies_to(first), 0))
    assert [message.sender for message in bundle_messages(second)] == [7, 8]


def test_bundles_overlap_before_the_first_answer() -> None:
    gateway = make_gateway()
    for client in (6, 7, 8):
        gateway.add(make_message(client, 0))
        assert len(bundles_in(gateway.step([], 0))) == 1, "nothing is known of the path yet"
    assert len(gateway.open_bundles()) == 3


def test_gateway_rests_while_all_messages_wait_for_their_pace() -> None:
    gateway = make_gateway()
    for client in (6, 7):
        gateway.add(make_message(client, 0))
    (bundle,) = bundles_in(gateway.step([], 0))
    assert gateway.rest_until_ns == 0
    gateway.step(replies_to(bundle), 1 * MILLISECOND)
    gateway.add(make_message(6, 1))
    assert bundles_in(gateway.step([], 2 * MILLISECOND)) == []
    assert gateway.rest_until_ns == 4 * MILLISECOND, "four times the answer after the last bundle; client 7 is missing"
    gateway.add(make_message(7, 1))
    assert len(bundles_in(gateway.step([], 3 * MILLISECOND))) == 1, "nobody is missing"
    assert gateway.rest_until_ns == 0


def test_pace_ends_with_its_timer_although_the_clock_stands_still() -> None:
    gateway = make_gateway()
    for client in (6, 7):
        gateway.add(make_message(client, 0))
    (bundle,) = bundles_in(gateway.step([], 0))
    gateway.step(replies_to(bundle), 1 * MILLISECOND)
    gateway.add(make_message(6, 1))
    assert bundles_in(gateway.step([], 2 * MILLISECOND)) == []
    gateway.expire_pace_timer()
    assert len(bundles_in(gateway.step([], 2 * MILLISECOND))) == 1, "the clock was put back"


def test_lone_client_never_waits() -> None:
    gateway = make_gateway()
    for sequence, now in enumerate((0, 4000, 8000)):
        gateway.add(make_message(6, sequence))
        (bundle,) = bundles_in(gateway.step([], now))
        effects = gateway.step(replies_to(bundle), now + 4000)
        assert not any(isinstance(effect, SetTimer) for effect in effects)


def test_gathered_messages_leave_if_no_answer_comes() -> None:
    gateway = make_gateway(max_in_flight=1)
    gateway.add(make_message(6, 0))
    gateway.step([], 0)
    gateway.add(make_message(7, 0))
    gateway.step([], 0)
    gateway.expire_gather_timer()
    assert gateway.has_work
    assert not bundles_in(gateway.step([], GATHER_NS - 1)), "the timer was set for earlier messages"
    gateway.expire_gather_timer()
    assert [message.sender for message in bundle_messages(bundles_in(gateway.step([], GATHER_NS))[0])] == [7]


def test_bundles_keep_to_their_limits() -> None:
    gateway = make_gateway(bundle_messages=2, bundle_bytes=100)
    for sequence, size in enumerate((10, 10, 10, 60, 60, 500, 1)):
        gateway.add(make_message(6, sequence, size=size))
    bundles = bundles_in(gateway.step([], 0))
    sizes = [[len(message.payload) for message in bundle_messages(bundle)] for bundle in bundles]
    assert sizes == [[10, 10], [10, 60], [60], [500], [1]]


@pytest.mark.parametrize("seed", range(20))
def test_fast_add_all_equals_add_for_each(seed: int) -> None:
    random = Random(seed)
    fast, slow = make_gateway(), make_gateway()
    for now in range(0, 40 * MILLISECOND, MILLISECOND):
        sets = random.choice([[BOTH], [BOTH], [BOTH, (0,)]])
        clients = random.choice([random.sample(range(6, 10), random.randint(1, 4)), random.choices(range(6, 10), k=5)])
        sequence = now // MILLISECOND // 2
        messages = [make_message(client, sequence, random.choice(sets), client) for client in clients]
        fast.fast_add_all(messages)
        for message in messages:
            slow.add(message)
        assert fast.snapshot() == slow.snapshot()
        assert (fast.unordered_bytes, fast.has_work) == (slow.unordered_bytes, slow.has_work)
        replies = [
            Receive(0, Reply(bundle, group))
            for bundle, groups in fast.open_bundles().items()
            if random.random() < 0.5
            for group in groups
        ]
        assert fast.step(list(replies), now) == slow.step(list(replies), now), f"seed {seed}"


# Replies and retries


def test_client_is_answered_once_every_group_has_replied() -> None:
    gateway = make_gateway()
    for message in (make_message(6, 0), make_message(7, 0), make_message(6, 1), make_message(0, 5)):
        gateway.add(message)
    bundle = bundles_in(gateway.step([], 0))[0]
    gateway.add(make_message(6, 0))
    assert gateway.step([Receive(0, Reply(bundle.id, 0))], 0) == [], "the repeated request is not ordered again"
    effects = gateway.step([Receive(3, Reply(bundle.id, 1))], 0)
    assert sends_in(effects) == [
        ((6,), Done((message_id(6, 0), message_id(6, 1)))),
        ((7,), Done((message_id(7, 0),))),
    ]
    assert Resolve(message_id(0, 5)) in effects, "the message of the gateway's own user"


def test_gateway_retries_an_unanswered_bundle() -> None:
    gateway = make_gateway()
    gateway.add(make_message(6, 0))
    bundle = bundles_in(gateway.step([], 0))[0]
    gateway.step([Timer(TIMER)], 0)
    assert sends_in(gateway.step([Timer(TIMER)], 0)) == [((0, 1, 2, 3, 4, 5), Request(bundle))]


def test_snapshot_of_a_gateway_is_complete() -> None:
    gateway, copy = make_gateway(), make_gateway()
    gateway.add(make_message(6, 0))
    bundle = bundles_in(gateway.step([], 0))[0]
    copy.restore(gateway.snapshot())
    assert copy.snapshot() == gateway.snapshot()
    assert copy.step(replies_to(bundle), 0) == gateway.step(replies_to(bundle), 0) != []


def test_client_moves_to_another_gateway() -> None:
    config = SessionConfig(gateways=True)
    client = ClientSession(6, TOPOLOGY, lambda topology, message: topology.processes_of(message.destinations), config)
    message = make_message(6, 0)
    assert sends_in(client.step((Submit(message),), 0)) == [((3,), Request(message))], "the same for all such clients"
    client.step((Timer(TIMER),), 0)
    assert sends_in(client.step((Timer(TIMER),), 0)) == [((1, 4), Request(message))], "one in every silent group"
    following = make_message(6, 1)
    assert sends_in(client.step((Submit(following),), 0)) == [((4,), Request(following))], "not the silent one"
    assert client.step((Receive(1, Done((message.id,))),), 0) == [Resolve(message.id)]
    assert client.step((Receive(4, Done((message.id,))),), 0) == []


# Gateways in nodes


def make_node(name: str = "primcast") -> Node:
    spec = CATALOGUE[name]
    config = NodeConfig(omega=None, gateway=GatewayConfig())
    return Node(spec.process(0, TOPOLOGY, spec.configure()), config, spec.contacts)


def start_node(incarnation: int = 0) -> Node:
    node = make_node()
    node.step((Started((), incarnation),), 0)
    return node


class RememberingSkeen(Skeen):
    """A protocol that delivered message 1 of process 8 in an earlier incarnation."""

    def has_delivered(self, message: int) -> bool:
        return message == message_id(8, 1)


def test_node_bundles_for_clients_and_not_for_servers() -> None:
    node = start_node()
    events = (Receive(6, Request(make_message(6, 0))), Receive(7, Request(make_message(7, 0))))
    (bundle,) = bundles_in(node.step(events, 0))
    assert [message.id for message in bundle_messages(bundle)] == [message_id(6, 0), message_id(7, 0)]
    assert bundles_in(node.step((Receive(1, Request(bundle)),), 0)) == []


def test_node_replies_for_delivered_requests_and_bundles_the_rest() -> None:
    spec = CATALOGUE["skeen"]
    protocol = RememberingSkeen(0, TOPOLOGY, spec.configure())
    node = Node(protocol, NodeConfig(omega=None, gateway=GatewayConfig()), spec.contacts)
    node.step((Started((), 0),), 0)
    messages = (
        make_message(6, 0),
        make_message(7, 0),
        make_message(8, 1),
        make_message(7, 0),
        make_message(9, 0, (0,)),
    )
    effects = node.step([Receive(message.sender, Request(message)) for message in messages], 0)
    replies = [(targets, body) for targets, body in sends_in(effects) if isinstance(body, Reply)]
    assert replies == [((8,), Reply(message_id(8, 1), 0))]
    assert sorted([message.id for message in bundle_messages(bundle)] for bundle in bundles_in(effects)) == [
        [message_id(6, 0), message_id(7, 0)],
        [message_id(9, 0)],
    ]


def test_next_incarnation_bundles_under_another_sender() -> None:
    first, second = start_node(), start_node(incarnation=1)
    events = (Receive(6, Request(make_message(6, 0))),)
    assert bundles_in(first.step(events, 0))[0].sender != bundles_in(second.step(events, 0))[0].sender


def test_packets_of_a_bundle_are_attributed_to_its_messages() -> None:
    node = start_node()
    effects = node.step((Receive(6, Request(make_message(6, 0))), Receive(7, Request(make_message(7, 0)))), 0)
    abouts = [effect.about for effect in node.attribute_to_messages(effects) if isinstance(effect, Send)]
    assert abouts == [(message_id(6, 0), message_id(7, 0))]


def test_requests_event_equals_single_receives() -> None:
    requests = Requests([make_message(6, 0), make_message(7, 0), make_message(6, 1)])
    one, other = make_node(), make_node()
    assert one.step([requests], 5) == other.step(requests.expand(), 5)
    assert one.snapshot() == other.snapshot()
    config = CATALOGUE["skeen"].configure()
    nodes = [Node(Skeen(0, TOPOLOGY, config), NodeConfig(omega=None)) for _ in range(2)]
    assert nodes[0].step([requests], 5) == nodes[1].step(requests.expand(), 5) != []
    bare = [Skeen(0, TOPOLOGY, config) for _ in range(2)]
    assert bare[0].step([requests], 5) == bare[1].step(requests.expand(), 5) != []


# Whole runs

PLAN = {
    "protocol": "primcast",
    "gateways": True,
    "nodes": True,
    "options": {"keep": 3},
    "topology": {"groups": 2, "replicas": 3, "clients": 4},
    "workload": {"messages": 16, "outstanding": 2},
}
SEEDS = 80


@pytest.mark.parametrize("kinds", ["all", "crash+recovery+amnesia"])
def test_messages_are_delivered_once_under_faults(kinds: str) -> None:
    prepared = prepare_run(parse_plan({**PLAN, "faults": {"profile": kinds}}))
    notes: dict[str, int] = {}
    for seed in range(SEEDS):
        outcome = fuzz_seed(prepared, seed)
        assert outcome.status == "holds", f"{kinds}, seed {seed}: {outcome.story}"
        for name, count in outcome.notes.items():
            notes[name] = notes.get(name, 0) + count
    missed = [name for name in ("repeated", "retried", "installed", "epoch") if name not in notes]
    assert not missed, f"seeds below {SEEDS} of {kinds} never reached {missed}: they prove too little"


def test_mutant_that_forgets_bundled_messages_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutant delivers a message again that comes in a second bundle."""

    class ForgetfulSet(DeliveredSet):
        def add_all(self, messages: Sequence[Message]) -> tuple[int, ...]:
            super().add_all(messages)
            return ()

    monkeypatch.setattr(leader_group, "DeliveredSet", ForgetfulSet)
    prepared = prepare_run(parse_plan({**PLAN, "faults": {"profile": "crash+recovery"}}))
    caught = next(outcome for seed in range(SEEDS) if is_caught(outcome := fuzz_seed(prepared, seed)))
    assert "twice" in caught.story or "as the rank of message" in caught.story, f"seed {caught.seed}: {caught.story}"


def test_run_with_gateways_is_genuine(tmp_path_factory: pytest.TempPathFactory) -> None:
    prepared = prepare_run(parse_plan({**PLAN, "workload": {"messages": 60, "outstanding": 3}}))
    result = record_run(prepared, tmp_path_factory.mktemp("gateways") / "run")
    assert result.report.verdict == "holds", "\n".join(result.report.story())
    assert result.report.properties["P6'"].verdict == "holds"


def test_protocol_that_cannot_open_bundles_has_no_gateways() -> None:
    with pytest.raises(UsageError, match="skeen does not open bundles"):
        prepare_run(parse_plan({**PLAN, "protocol": "skeen", "options": {}, "nodes": None}))
