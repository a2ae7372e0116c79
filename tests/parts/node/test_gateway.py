"""Gateways: many clients' messages in one bundle, each delivered once whoever asks for it how often."""

from collections.abc import Sequence
from random import Random

import pytest

from amcast.kernel.bundle import (
    FIRST_GATEWAY,
    bundle_headers,
    bundle_messages,
    gateway_process,
    gateway_sender,
    is_bundle,
    make_bundle,
)
from amcast.kernel.effects import Deliver, Effect, Resolve, Send, SetTimer
from amcast.kernel.errors import UsageError
from amcast.kernel.events import Receive, Requests, Started, Submit, Timer
from amcast.kernel.ids import MESSAGES_PER_SENDER, message_id
from amcast.kernel.message import Body, Message, Reply, Request
from amcast.kernel.topology import Topology
from amcast.kernel.units import MILLISECOND
from amcast.lab.runs import fuzz_one, prepare, record
from amcast.parts.client.messages import Done, SessionConfig
from amcast.parts.client.session import TIMER, ClientSession
from amcast.parts.groups import leader_group as member
from amcast.parts.node.gateway import MAX_WINDOWS, WINDOW_TIMER, Gateway
from amcast.parts.node.gather_window import (
    FULL_WINDOW_ROUNDS,
    LONG_WINDOW_NS,
    MAX_EMPTY_ROUNDS,
    MAX_WINDOW_NS,
    MIN_PHASE_NS,
    PHASE_BUNDLES,
    TRIAL_INTERVAL,
    GatherWindow,
)
from amcast.parts.node.messages import GatewayConfig, NodeConfig
from amcast.parts.node.node import Node
from amcast.parts.ordering.delivered_set import DeliveredSet
from amcast.protocols.catalogue import CATALOGUE
from amcast.protocols.skeen.process import Skeen
from amcast.simulation.inputs.plan import plan_of

TOPOLOGY = Topology.grid(2, 3, 4)
GATHERS = GatewayConfig().gather_ns[0]
EVERY_NS = MIN_PHASE_NS // PHASE_BUNDLES
"""Bundles come in such intervals: a phase has PHASE_BUNDLES of them, and one."""
BOTH = (0, 1)


def message(client: int, sequence: int, destinations: tuple[int, ...] = BOTH, size: int = 1) -> Message:
    return Message(message_id(client, sequence), client, destinations, bytes(size))


def sends(effects: list[Effect]) -> list[tuple[tuple[int, ...], Body]]:
    return [(effect.targets, effect.body) for effect in effects if isinstance(effect, Send)]


def gateway(**options: int) -> Gateway:
    return Gateway(
        0, TOPOLOGY, lambda topology, said: topology.processes_of(said.destinations), GatewayConfig(**options)
    )


def bundles(effects: list[Effect]) -> list[Message]:
    return [body.message for _, body in sends(effects) if isinstance(body, Request)]


def test_a_bundle_gives_back_what_went_in() -> None:
    inside = [message(6, 0), message(7, 3, size=100)]
    made = make_bundle(gateway_sender(2, 5), 9, BOTH, inside)
    assert bundle_messages(made) == inside
    assert is_bundle(made.id)
    assert not is_bundle(inside[1].id)
    assert gateway_process(made.sender) == 2
    assert made.id < 2**63
    assert bundle_messages(Message(made.id, made.sender, BOTH, b"\xff")) == []


def test_incarnations_and_processes_have_numbers_of_their_own() -> None:
    numbers = {gateway_sender(process, incarnation) for process in (0, 1, 4095) for incarnation in (0, 1, 2**20 - 1)}
    assert len(numbers) == 9
    assert min(numbers) == FIRST_GATEWAY
    assert max(numbers) * MESSAGES_PER_SENDER + MESSAGES_PER_SENDER - 1 < 2**63
    with pytest.raises(UsageError, match="process 4096 is a gateway"):
        gateway_sender(4096, 0)
    with pytest.raises(UsageError, match="fewer than 1048576 incarnations"):
        gateway_sender(0, 2**20)


def test_what_one_step_brings_for_the_same_destinations_is_one_bundle() -> None:
    one = gateway()
    for said in (message(6, 0), message(7, 0), message(8, 0, (1,)), message(6, 1)):
        one.add(said)
    made = bundles(one.step([], 0))
    assert [[part.id for part in bundle_messages(bundle)] for bundle in made] == [
        [message_id(6, 0), message_id(7, 0), message_id(6, 1)],
        [message_id(8, 0)],
    ]
    one.add(message(6, 2, (0,)))
    assert len(bundles(one.step([], 0))) == 1, "nothing else is on its way there: a lone message waits for nobody"


def test_while_a_bundle_is_on_its_way_the_next_one_gathers() -> None:
    one = gateway()
    one.add(message(6, 0))
    first = bundles(one.step([], 0))[0]
    one.add(message(7, 0))
    effects = one.step([], 0)
    assert bundles(effects) == []
    assert [type(effect) for effect in effects] == [SetTimer]
    one.add(message(8, 0))
    assert one.step([], 0) == []
    effects = one.step([Receive(0, Reply(first.id, 0)), Receive(3, Reply(first.id, 1))], 0)
    (second,) = bundles(effects)
    assert [part.sender for part in bundle_messages(second)] == [7, 8]


def test_who_was_answered_may_join_the_next_bundle_and_a_lone_client_never_waits() -> None:
    one = gateway()
    one.add(message(6, 0))
    first = bundles(one.step([], 0))[0]
    one.add(message(7, 0))
    one.step([], 0)
    effects = one.step([Receive(0, Reply(first.id, 0)), Receive(3, Reply(first.id, 1))], 4000)
    assert bundles(effects) == []
    assert SetTimer(WINDOW_TIMER, 8000, 8000) in effects
    one.add(message(8, 0))
    assert bundles(one.step([], 4200)) == [], "another one, not who was answered"
    one.add(message(6, 1))
    (second,) = bundles(one.step([], 4500))
    assert [part.sender for part in bundle_messages(second)] == [7, 8, 6], (
        "all who were answered are back: no need to wait"
    )

    alone = gateway()
    for sequence, now in enumerate((0, 4000, 8000)):
        alone.add(message(6, sequence))
        (made,) = bundles(alone.step([], now))
        told = alone.step([Receive(0, Reply(made.id, 0)), Receive(3, Reply(made.id, 1))], now + 4000)
        assert not any(isinstance(effect, SetTimer) for effect in told)


def test_what_is_known_of_sets_of_destinations_is_bounded() -> None:
    topology = Topology.grid(11, 1, 2)
    one = Gateway(0, topology, lambda topology, said: topology.processes_of(said.destinations), GatewayConfig())
    sets = [tuple(group for group in range(11) if bits >> group & 1) for bits in range(1, MAX_WINDOWS + 100)]
    for round, groups in enumerate(sets):
        for client in topology.clients:
            one.add(message(client, round, groups))
        one.expire_window_timer()
        (made,) = bundles(one.step([], 10 * round))
        one.step([Receive(group, Reply(made.id, group)) for group in groups], 10 * round + 5)
    assert (len(one._windows), one._in_flight, one._sent_ns) == (99, {}, {})
    assert len(one.snapshot().windows) == 99


def rests_of(pairs: list[tuple[int, int]], took_ns: int = 4000) -> list[int]:
    """How long the gateway would rest after each bundle of two clients, if every answer takes so long."""
    one, told = gateway(), []
    for round, clients in enumerate(pairs):
        for client in clients:
            one.add(message(client, round))
        one.expire_window_timer()
        begun = EVERY_NS * round
        (made,) = bundles(one.step([], begun))
        effects = one.step([Receive(0, Reply(made.id, 0)), Receive(3, Reply(made.id, 1))], begun + took_ns)
        told += [effect.low_ns for effect in effects if isinstance(effect, SetTimer) and effect.name == WINDOW_TIMER]
        copy = gateway()
        copy.restore(one.snapshot())
        assert copy.snapshot() == one.snapshot()
    return told


def test_the_rest_is_long_for_clients_that_come_back_and_short_for_those_that_do_not() -> None:
    assert rests_of([(6, 7)] * 5) == [8000] * 5
    assert rests_of([(6, client) for client in range(7, 12)]) == [8000] * 5, "one of two comes back"
    assert rests_of([(6, 7)] * 2, 10**9) == [MAX_WINDOW_NS] * 2
    passing = rests_of([(client, client + 1) for client in range(6, 6 + 2 * 100, 2)])
    assert passing[:PHASE_BUNDLES] == [8000] + [1000] * (PHASE_BUNDLES - 1)
    tried = [LONG_WINDOW_NS] * MAX_EMPTY_ROUNDS + [1000] * (PHASE_BUNDLES - MAX_EMPTY_ROUNDS)
    assert passing[PHASE_BUNDLES : 2 * PHASE_BUNDLES] == tried, "patience is tried, and not for long"
    later = passing[2 * PHASE_BUNDLES + 1 :]
    assert later[:FULL_WINDOW_ROUNDS] == [8000] + [1000] * (FULL_WINDOW_ROUNDS - 1)
    assert later[FULL_WINDOW_ROUNDS] == 8000, "with a trial now and then"


def patience_of(hasty_ns: int, patient_ns: int, rounds: int, clients: int = 3, away_ns: int = 20_000_000) -> list[bool]:
    """Whether the gateway had patience after each bundle, if messages wait so long without and so long with it, and
    clients stay away for so long if it has patience, and 20 ms if not."""
    one, told, now = gateway(), [False], 0
    for round in range(rounds):
        for client in range(6, 6 + clients):
            one.add(message(client, round))
        one.expire_window_timer()
        (made,) = bundles(one.step([], now))
        now += patient_ns if told[-1] else hasty_ns
        effects = one.step([Receive(0, Reply(made.id, 0)), Receive(3, Reply(made.id, 1))], now)
        (rest_ns,) = [
            effect.low_ns for effect in effects if isinstance(effect, SetTimer) and effect.name == WINDOW_TIMER
        ]
        told.append(rest_ns == LONG_WINDOW_NS)
        now += away_ns if told[-1] else 20 * MILLISECOND  # nobody is here: that does not count as waiting
    return told[1:]


def test_patience_is_tried_and_kept_if_it_costs_little() -> None:
    long = 40 * PHASE_BUNDLES
    assert not any(patience_of(MILLISECOND, MILLISECOND, PHASE_BUNDLES)), "the first phase has none"
    kept = patience_of(MILLISECOND, MILLISECOND, long)
    assert sum(kept) > 0.85 * long
    assert not all(kept[2 * PHASE_BUNDLES :]), "what is found better is doubted from time to time"
    assert sum(patience_of(10 * MILLISECOND, 20 * MILLISECOND, long)) < 0.15 * long
    assert sum(patience_of(2 * MILLISECOND, MILLISECOND, long)) > 0.85 * long
    as_soon = patience_of(10 * MILLISECOND, 19 * MILLISECOND, long, away_ns=11 * MILLISECOND)
    assert sum(as_soon) > 0.85 * long, "who waits longer here but less elsewhere is answered as soon"
    assert sum(patience_of(MILLISECOND, 4 * MILLISECOND, long, away_ns=10 * MILLISECOND)) < 0.15 * long, "too long"


def test_a_single_bad_moment_does_not_end_patience() -> None:
    window = GatherWindow()
    window.is_long, window.is_trial, window.phases, window.next_trial = False, True, 10, 10
    window.long_result, window.short_result = (4 * MILLISECOND, 4 * MILLISECOND), (MILLISECOND, MILLISECOND)
    window._choose_next_phase()
    assert (window.is_long, window.is_trial, window.next_trial) == (True, False, 11), (
        "haste, tried once, seemed four times as good"
    )
    window.phases = 11
    window._choose_next_phase()
    assert (window.is_long, window.is_trial) == (False, True), "so it is tried again"
    window._choose_next_phase()
    assert not window.is_long
    assert window.next_trial == 11 + 2 * TRIAL_INTERVAL
    window.is_long = window.is_trial = True
    window.long_result = (MILLISECOND, MILLISECOND)
    window._choose_next_phase()
    assert (window.is_long, window.failed_trials, window.trial_interval) == (True, 0, TRIAL_INTERVAL), (
        "where patience pays, once is enough"
    )


def test_nobody_has_patience_with_clients_that_are_far_away_or_come_and_go() -> None:
    far = rests_of([(6, 7)] * 3 * PHASE_BUNDLES, LONG_WINDOW_NS)
    assert far == [MAX_WINDOW_NS] * len(far)
    passing = rests_of([(client, client + 1) for client in range(6, 6 + 200 * PHASE_BUNDLES, 2)])
    assert passing.count(LONG_WINDOW_NS) == 3 * MAX_EMPTY_ROUNDS, (
        "a few bundles of a trial tell, and trials become rare"
    )
    assert LONG_WINDOW_NS in rests_of([(6, 7)] * 3 * PHASE_BUNDLES)


def test_what_gathers_does_not_wait_for_an_answer_that_never_comes() -> None:
    one = gateway()
    one.add(message(6, 0))
    one.step([], 0)
    one.add(message(7, 0))
    one.step([], 0)
    one.expire_gather_timer()
    assert one.has_work
    assert not bundles(one.step([], GATHERS - 1)), "the timer was set for what gathered before"
    one.expire_gather_timer()
    assert [part.sender for part in bundle_messages(bundles(one.step([], GATHERS))[0])] == [7]


def test_bundles_keep_to_their_limits() -> None:
    one = gateway(bundle_messages=2, bundle_bytes=100)
    for sequence, size in enumerate((10, 10, 10, 60, 60, 500, 1)):
        one.add(message(6, sequence, size=size))
    shares = [[len(part.payload) for part in bundle_messages(bundle)] for bundle in bundles(one.step([], 0))]
    assert shares == [[10, 10], [10, 60], [60], [500], [1]]


def test_clients_are_told_once_every_group_has_answered() -> None:
    one = gateway()
    for said in (message(6, 0), message(7, 0), message(6, 1), message(0, 5)):
        one.add(said)
    bundle = bundles(one.step([], 0))[0]
    one.add(message(6, 0))
    assert one.step([Receive(0, Reply(bundle.id, 0))], 0) == [], "asked again meanwhile: nothing new to order"
    effects = one.step([Receive(3, Reply(bundle.id, 1))], 0)
    assert sends(effects) == [
        ((6,), Done((message_id(6, 0), message_id(6, 1)))),
        ((7,), Done((message_id(7, 0),))),
    ]
    assert Resolve(message_id(0, 5)) in effects, "its own user hears of it, too"


def test_a_gateway_asks_again_for_what_is_not_answered() -> None:
    one = gateway()
    one.add(message(6, 0))
    bundle = bundles(one.step([], 0))[0]
    one.step([Timer(TIMER)], 0)
    assert sends(one.step([Timer(TIMER)], 0)) == [((0, 1, 2, 3, 4, 5), Request(bundle))]


def test_a_snapshot_of_a_gateway_is_complete() -> None:
    one, other = gateway(), gateway()
    one.add(message(6, 0))
    bundle = bundles(one.step([], 0))[0]
    other.restore(one.snapshot())
    assert other.snapshot() == one.snapshot()
    answers = [Receive(0, Reply(bundle.id, 0)), Receive(3, Reply(bundle.id, 1))]
    assert other.step(list(answers), 0) == one.step(list(answers), 0) != []


def node(process: int = 0, incarnation: int = 0) -> Node:
    spec = CATALOGUE["primcast"]
    config = NodeConfig(omega=None, gateway=GatewayConfig())
    made = Node(spec.process(process, TOPOLOGY, spec.configure()), config, spec.contacts)
    made.step((Started((), incarnation),), 0)
    return made


class Remembers(Skeen):
    """A protocol that delivered message 1 of process 8 in an earlier incarnation."""

    def has_delivered(self, message: int) -> bool:
        return message == message_id(8, 1)


def test_a_node_bundles_for_clients_and_not_for_servers() -> None:
    one = node()
    effects = one.step((Receive(6, Request(message(6, 0))), Receive(7, Request(message(7, 0)))), 0)
    (bundle,) = bundles(effects)
    assert [part.id for part in bundle_messages(bundle)] == [message_id(6, 0), message_id(7, 0)]
    assert bundles(one.step((Receive(1, Request(bundle)),), 0)) == []


@pytest.mark.parametrize("seed", range(20))
def test_many_asked_for_at_once_are_taken_as_if_one_by_one(seed: int) -> None:
    chance = Random(seed)
    one, other = gateway(), gateway()
    for now in range(0, 40 * MILLISECOND, MILLISECOND):
        sets = chance.choice([[BOTH], [BOTH], [BOTH, (0,)]])
        clients = chance.choice([chance.sample(range(6, 10), chance.randint(1, 4)), chance.choices(range(6, 10), k=5)])
        asked = [message(client, now // MILLISECOND // 2, chance.choice(sets), client) for client in clients]
        one.fast_add_all(asked)
        for said in asked:
            other.add(said)
        assert (one.snapshot(), one.unordered_bytes, one.has_work) == (
            other.snapshot(),
            other.unordered_bytes,
            other.has_work,
        )
        answers = [
            Receive(0, Reply(bundle, group))
            for bundle, groups in one.open_bundles().items()
            if chance.random() < 0.5
            for group in groups
        ]
        assert one.step(list(answers), now) == other.step(list(answers), now), f"seed {seed}"


def test_of_what_one_step_asks_for_the_delivered_is_answered_and_the_rest_bundled_once() -> None:
    spec = CATALOGUE["skeen"]
    remembers = Remembers(0, TOPOLOGY, spec.configure())
    one = Node(remembers, NodeConfig(omega=None, gateway=GatewayConfig()), spec.contacts)
    one.step((Started((), 0),), 0)
    asked = (message(6, 0), message(7, 0), message(8, 1), message(7, 0), message(9, 0, (0,)))
    effects = one.step([Receive(said.sender, Request(said)) for said in asked], 0)
    replies = [(targets, body) for targets, body in sends(effects) if isinstance(body, Reply)]
    assert replies == [((8,), Reply(message_id(8, 1), 0))]
    assert sorted([part.id for part in bundle_messages(bundle)] for bundle in bundles(effects)) == [
        [message_id(6, 0), message_id(7, 0)],
        [message_id(9, 0)],
    ]


def test_a_later_incarnation_bundles_under_another_name() -> None:
    first, second = node(), node(incarnation=1)
    asked = (Receive(6, Request(message(6, 0))),)
    assert bundles(first.step(asked, 0))[0].sender != bundles(second.step(asked, 0))[0].sender


def test_what_is_about_a_bundle_is_told_to_be_about_its_messages() -> None:
    one = node()
    effects = one.step((Receive(6, Request(message(6, 0))), Receive(7, Request(message(7, 0)))), 0)
    told = [effect.about for effect in one.attribute_to_messages(effects) if isinstance(effect, Send)]
    assert told == [(message_id(6, 0), message_id(7, 0))]


def test_a_client_goes_from_gateway_to_gateway() -> None:
    config = SessionConfig(gateways=True)
    one = ClientSession(6, TOPOLOGY, lambda topology, said: topology.processes_of(said.destinations), config)
    said = message(6, 0)
    assert sends(one.step((Submit(said),), 0)) == [((3,), Request(said))], "the same one for all clients of this set"
    one.step((Timer(TIMER),), 0)
    assert sends(one.step((Timer(TIMER),), 0)) == [((1, 4), Request(said))], "one in every silent group"
    assert sends(one.step((Submit(message(6, 1)),), 0)) == [((4,), Request(message(6, 1)))], "the silent one no more"
    assert one.step((Receive(1, Done((said.id,))),), 0) == [Resolve(said.id)]
    assert one.step((Receive(4, Done((said.id,))),), 0) == []


def test_many_at_once_are_seen_as_one_by_one() -> None:
    numbers = ((1, 0), (2, 5), (1, 1), (1, 1), (2, 4), (1, 3), (1, 2), (2, 5))
    many = [message(sender, n) for sender, n in numbers]
    one, other = DeliveredSet(), DeliveredSet()
    again = one.add_all(many)
    assert again == tuple(place for place, said in enumerate(many) if not other.add(said.id)) == (3, 7)
    assert one.snapshot() == other.snapshot()


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
def test_each_message_is_delivered_once_whatever_fails(kinds: str) -> None:
    prepared = prepare(plan_of({**PLAN, "faults": {"profile": kinds}}))
    notes: dict[str, int] = {}
    for seed in range(SEEDS):
        outcome = fuzz_one(prepared, seed)
        assert outcome.status == "holds", f"{kinds}, seed {seed}: {outcome.story}"
        for name, count in outcome.notes.items():
            notes[name] = notes.get(name, 0) + count
    missed = [name for name in ("repeated", "retried", "installed", "epoch") if name not in notes]
    assert not missed, f"seeds below {SEEDS} of {kinds} never reached {missed}: they prove too little"


def test_a_group_that_forgets_what_was_in_a_bundle_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutant: a message that comes in a second bundle is delivered again."""

    class Forgetful(DeliveredSet):
        def add_all(self, messages: Sequence[Message]) -> tuple[int, ...]:
            super().add_all(messages)
            return ()

    monkeypatch.setattr(member, "DeliveredSet", Forgetful)
    prepared = prepare(plan_of({**PLAN, "faults": {"profile": "crash+recovery"}}))
    stories = (fuzz_one(prepared, seed).story for seed in range(4 * SEEDS))
    assert any("twice" in story for story in stories)


def test_a_simulated_run_with_gateways_is_genuine(tmp_path_factory: pytest.TempPathFactory) -> None:
    prepared = prepare(plan_of({**PLAN, "workload": {"messages": 60, "outstanding": 3}}))
    result = record(prepared, tmp_path_factory.mktemp("gateways") / "run")
    assert result.report.verdict == "holds", "\n".join(result.report.story())
    assert result.report.properties["P6'"].verdict == "holds"


def test_a_protocol_that_opens_no_bundles_has_no_gateways() -> None:
    with pytest.raises(UsageError, match="skeen does not open bundles"):
        prepare(plan_of({**PLAN, "protocol": "skeen", "options": {}, "nodes": None}))


def test_deliveries_of_a_bundle_are_opened_in_order() -> None:
    parts = (message(6, 0), message(7, 0))
    bundle = make_bundle(gateway_sender(0, 0), 0, BOTH, list(parts))
    effect = Deliver(bundle, 10, 5, bundle.id, message_count=2)
    assert [(one.message.id, one.position) for one in effect.expand()] == [(parts[0].id, 10), (parts[1].id, 11)]
    again = Deliver(bundle, 12, 5, bundle.id, message_count=1, duplicate_places=(0,))
    assert again.messages() == [parts[1]]
    assert Deliver(bundle, 12, 5, bundle.id, message_count=0, duplicate_places=(0, 1)).expand() == []
    with pytest.raises(AssertionError, match="2 messages; expected 1"):
        Deliver(bundle, 12, 5, bundle.id, message_count=1).messages()
    assert [(one.id, one.sender) for one in bundle_headers(bundle)] == [(part.id, part.sender) for part in parts]
    assert Deliver(parts[0], 3).expand() == [Deliver(parts[0], 3)]


def test_many_clients_that_ask_at_once_are_heard_as_if_one_by_one() -> None:
    messages = [message(6, 0), message(7, 0), message(6, 1)]
    asked = Requests(messages)
    assert [(event.sender, event.body) for event in asked.expand()] == [(m.sender, Request(m)) for m in messages]
    served, told = noded("primcast"), noded("primcast")
    assert served.step([asked], 5) == told.step(asked.expand(), 5)
    assert served.snapshot() == told.snapshot()
    plain = [Node(Skeen(0, TOPOLOGY, CATALOGUE["skeen"].configure()), NodeConfig(omega=None)) for _ in range(2)]
    assert plain[0].step([asked], 5) == plain[1].step(asked.expand(), 5) != []
    bare = [Skeen(0, TOPOLOGY, CATALOGUE["skeen"].configure()) for _ in range(2)]
    assert bare[0].step([asked], 5) == bare[1].step(asked.expand(), 5) != []


def noded(name: str) -> Node:
    spec = CATALOGUE[name]
    process = spec.process(0, TOPOLOGY, spec.configure())
    return Node(process, NodeConfig(omega=None, gateway=GatewayConfig()), spec.contacts)
