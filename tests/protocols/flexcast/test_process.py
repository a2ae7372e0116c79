"""FlexCast: the figures of the paper, its corrected mistakes as mutants, delays, genuineness and bounded memory."""

from collections import Counter
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from amcast.check.judge import judge
from amcast.kernel.errors import UsageError
from amcast.kernel.message import Message
from amcast.kernel.topology import Topology
from amcast.lab.exhaustive_search import Pattern, SearchResult, list_patterns, search_patterns
from amcast.lab.overlays import find_overlay
from amcast.lab.runs import PreparedRun, fuzz_seed, prepare_run
from amcast.protocols.flexcast.messages import Ack, FlexCastConfig, Msg, Notif
from amcast.protocols.flexcast.process import SPEC, FlexCast
from amcast.simulation.inputs.plan import parse_plan
from amcast.simulation.schedulers.scope import Budget
from amcast.simulation.simulate import Simulation
from amcast.trace.recorder import Recorder
from amcast.trace.run import Run
from tests.mutants.outcome import is_caught
from tests.mutants.protocols.flexcast import MUTANTS, SCENARIO_MUTANTS, Mutant
from tests.protocols.flexcast.scenarios import SCENARIOS, make_line
from tests.protocols.manual_network import ManualNetwork


def make_plan(mutant: Mutant | None = None, seed: int = 0, **changes: Any) -> PreparedRun:
    mutant = mutant or Mutant(FlexCast, frozenset())
    values = {
        "protocol": "flexcast",
        "seed": seed,
        "options": {**mutant.options, **changes.get("options", {})},
        "topology": {"groups": changes.get("groups", mutant.groups), "replicas": 1, "clients": 4},
        "workload": {
            "messages": changes.get("messages", mutant.messages),
            "outstanding": 3,
            "destinations": list(changes.get("destinations", mutant.destinations)),
        },
        "network": {"links": mutant.links},
        "faults": {"profile": "all"},
    }
    return prepare_run(parse_plan(values), mutant.spec())


def test_local_messages_enter_no_history_and_others_keep_their_order() -> None:
    world = make_line(FlexCast, 3)
    world.multicast(1, 0, 2)
    for local in (11, 12, 13):
        world.multicast(local, 0)
    world.multicast(2, 0, 1)
    assert world.delivered[0] == [1, 11, 12, 13, 2]
    assert world.processes[0].status()["history"] == 2
    world.carry(0, 1)
    assert world.processes[1].status()["history"] == 2, "group 1 knows that 1 precedes 2, and no local message"
    world.multicast(21, 1)
    world.multicast(3, 1, 2)
    world.carry(1, 2)
    assert world.delivered[2] == [], "3 came first, but 1 precedes it by way of 2"
    world.carry_all()
    assert world.delivered[2] == [1, 3]


# Figure 3 of the paper: A, B, C are 0, 1, 2


def test_figure_3a_histories_carry_dependencies_of_other_groups() -> None:
    world = make_line(FlexCast, 3)
    m1, m2, m3 = 1, 2, 3
    world.multicast(m1, 0, 2)
    world.multicast(m2, 0, 1)
    world.carry(0, 1)
    world.multicast(m3, 1, 2)
    world.carry(1, 2)
    assert world.delivered[2] == [], "m3 came first, but m1 precedes it by way of m2"
    world.carry_all()
    assert world.delivered[2] == [m1, m3]


def test_figure_3b_destination_waits_for_acks_of_lower_destinations() -> None:
    world = make_line(FlexCast, 3)
    m1, m2 = 1, 2
    world.multicast(m2, 0, 1, 2)
    world.multicast(m1, 1, 2)
    world.carry(0, 2)
    assert world.delivered[2] == []
    world.carry(1, 2)
    world.carry_all()
    assert world.delivered[2] == [m1, m2]


def test_figure_3c_notified_group_sends_what_it_knows() -> None:
    world = make_line(FlexCast, 3)
    m1, m2, m3 = 1, 2, 3
    world.multicast(m1, 1, 2)
    world.multicast(m2, 0, 1)
    world.multicast(m3, 0, 2)
    world.carry(0, 2)
    assert world.delivered[2] == [], "B was notified and has not acknowledged"
    world.carry_all()
    assert world.delivered[2] == [m1, m3]
    kinds = Counter((type(body).__name__, source, target) for source, target, body in world.carried)
    assert kinds[("Notif", 0, 1)] == 1
    assert kinds[("Ack", 1, 2)] == 1


def test_no_notification_for_messages_that_the_destination_receives() -> None:
    world = make_line(FlexCast, 3)
    world.multicast(1, 0, 1, 2)
    world.multicast(2, 0, 2)
    world.carry_all()
    assert not any(isinstance(body, Notif) for _, _, body in world.carried)
    assert world.delivered[2] == [1, 2]


def test_notify_next_notifies_each_group_at_most_once() -> None:
    prepared = make_plan(groups=8, messages=120, destinations=(2, 3), options={"notify": "next"})
    recorder = Recorder()
    Simulation(prepared.make_setup(), recorder).run()
    notified = Counter((row[0], row[3]) for row in recorder.packets if row[1] == "Notif")
    assert len(notified) > 50
    assert set(notified.values()) == {1}
    acknowledged = Counter((row[0], row[2]) for row in recorder.packets if row[1] == "Ack")
    assert set(acknowledged.values()) == {1}, "each group acknowledges once, to one destination or to those above"


def test_each_link_is_sent_to_each_descendant_once() -> None:
    world = make_line(FlexCast, 3)
    for id in range(1, 6):
        world.multicast(id, 0, 1)
    world.multicast(6, 0, 2)
    world.carry_all()
    sent: Counter[tuple[int, int, int]] = Counter()
    for source, target, body in world.carried:
        assert isinstance(body, Msg | Ack | Notif)
        sent.update((source, target, link.id) for link in body.links)
    assert sent[(0, 2, 1)] == 1
    assert all(count == 1 for count in sent.values())


# Mutants and searches


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_mutant_is_caught_by_random_runs(mutant: Mutant) -> None:
    prepared = make_plan(mutant)
    for seed in range(mutant.seeds):
        outcome = fuzz_seed(prepared, seed)
        if is_caught(outcome):
            assert outcome.status in mutant.status, f"seed {seed}: {outcome.story}"
            return
    pytest.fail(f"{mutant.name} survived {mutant.seeds} seeds")


@pytest.mark.parametrize(("scenario", "mutant"), SCENARIO_MUTANTS, ids=lambda value: getattr(value, "__name__", value))
def test_mutant_is_caught_by_a_scenario(scenario: str, mutant: type[FlexCast]) -> None:
    broken = SCENARIOS[scenario](mutant).find_violation()
    assert broken is not None
    assert "cycle" in broken


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_flexcast_passes_the_scenarios(scenario: str) -> None:
    world = SCENARIOS[scenario](FlexCast)
    assert world.find_violation() is None
    assert world.list_undelivered() == []


@pytest.mark.parametrize("notify", ["all", "next"])
def test_random_runs_with_many_groups_and_flushes_hold(notify: str) -> None:
    notes: Counter[str] = Counter()
    options = {"flush_every": 3, "order": [3, 1, 5, 0, 2, 4], "notify": notify}
    prepared = make_plan(groups=6, messages=24, options=options)
    for seed in range(60):
        outcome = fuzz_seed(prepared, seed)
        assert outcome.status == "holds", f"seed {seed}: {outcome.story}"
        notes.update(outcome.notes)
    assert {"flushed", "notified", "blocked", "early"} <= set(notes)
    assert ("covered" in notes) == (notify == "all"), "with next, a group is notified once only"


@pytest.mark.parametrize(("messages", "flush_every"), [(3, 0), (2, 1)])
def test_all_interleavings_of_all_patterns_with_three_groups_hold(messages: int, flush_every: int) -> None:
    result = explore(Mutant(FlexCast, frozenset()), messages, flush_every)
    assert result.counterexample is None
    assert result.exhausted == result.patterns == result.chosen
    assert flush_every or not result.missed_goals


def test_all_interleavings_with_a_flush_between_notifications_hold() -> None:
    """Figure 3 (c) and its neighbours: a flush before the third message leaves no group to notify."""
    chosen: list[Pattern] = [((0, 1), (0, 2), (1, 2)), ((0, 1), (0, 2), (0, 1, 2))]
    result = explore(Mutant(FlexCast, frozenset()), 3, 3, chosen)
    assert result.counterexample is None
    assert result.share == 1
    assert not result.missed_goals


def test_both_notify_modes_reach_the_same_orders() -> None:
    """Four groups in every pattern of three messages to two groups each: both modes reach the same final states."""
    chosen = [pattern for pattern in list_patterns((0, 1, 2, 3), 3) if all(len(groups) == 2 for groups in pattern)]
    endings = []
    for notify in ("all", "next"):
        mutant = Mutant(FlexCast, frozenset(), options={"notify": notify}, groups=4)
        result = explore(mutant, 3, 0, chosen)
        assert result.counterexample is None
        assert result.share == 1
        assert not result.missed_goals
        endings.append(result.endings)
    assert endings[0] == endings[1]


@pytest.mark.parametrize("name", ["EarlyAcksLost", "EdgesLost", "NotifiesNobody"])
def test_exploration_finds_mutants(name: str) -> None:
    mutant = next(mutant for mutant in MUTANTS if mutant.name == name)
    result = explore(mutant, 3, 0)
    assert result.counterexample is not None
    assert is_caught(result.counterexample)
    assert result.counterexample.status in mutant.status


def explore(mutant: Mutant, messages: int, flush_every: int, chosen: list[Pattern] | None = None) -> SearchResult:
    values = {
        "protocol": "flexcast",
        "options": {**mutant.options, "flush_every": flush_every},
        "topology": {"groups": mutant.groups if chosen else 3, "replicas": 1, "clients": messages},
    }
    spec = mutant.spec()
    if flush_every:
        spec = replace(spec, goals=(*spec.goals, "flushed"))
    prepared = prepare_run(parse_plan(values), spec)
    chosen = chosen or list(list_patterns(prepared.topology.groups, messages))
    return search_patterns(prepared, chosen, Budget(), max_states=200_000)


# Genuineness


def test_run_is_genuine_but_single_messages_are_not() -> None:
    prepared = make_plan(groups=5, messages=60)
    recorder = Recorder()
    Simulation(prepared.make_setup(), recorder).run()
    report = judge(Run.from_recorder(recorder, prepared.make_meta("flexcast").with_claims(complete=True)))
    assert report.properties["P6"].verdict == "holds"
    assert report.properties["P6'"].verdict == "violated", "a Notif leaves the destinations"
    assert any("Notif" in sentence for sentence in report.properties["P6'"].story)


def test_without_notifications_only_destinations_take_part() -> None:
    world = make_line(FlexCast, 5)
    world.multicast(1, 1, 3, 4)
    world.carry_all()
    assert {process for source, target, _ in world.carried for process in (source, target)} == {1, 3, 4}


# Memory


def soak(messages: int, groups: int, flush_every: int, seed: int = 1) -> tuple[ManualNetwork, list[int]]:
    """Sends random messages over random links; returns the sampled sizes of all groups' state."""
    random = Random(seed)
    config = FlexCastConfig(flush_every=flush_every)
    world = ManualNetwork(lambda me, topology: FlexCast(me, topology, config), Topology.grid(groups, 1))
    sizes = []
    for id in range(1, messages + 1):
        world.multicast(id, *sorted(random.sample(range(groups), random.choice((1, 2, 2, 2, 3)))))
        for _ in range(60):
            full = [pair for pair, wire in world.links.items() if wire and pair[1] in world.processes]
            if sum(len(world.links[pair]) for pair in full) < 12:
                break
            world.carry(*random.choice(full))
        world.carried.clear()
        if id % 100 == 0:
            sizes.append(sum(state_size(process) for process in world.processes.values()))
    world.carry_all()
    return world, sizes


def state_size(process: Any) -> int:
    history = process.history
    links = sum(len(vertex.before) for vertex in history._vertices.values())
    waiting = (
        len(process._pending) + len(process._notifications) + len(process._blocked) + len(process._notified_versions)
    )
    return len(history) + len(history._log) + links + waiting


def test_flushes_bound_memory() -> None:
    world, sizes = soak(messages=20_000, groups=4, flush_every=100)
    assert world.list_undelivered() == []
    assert world.find_violation() is None
    early, late = max(sizes[20:60]), max(sizes[-40:])
    assert late < 2 * early, f"{early} items in the state early in the run, {late} late"
    _, unflushed = soak(messages=2_000, groups=4, flush_every=0)
    assert unflushed[-1] > 4 * unflushed[len(unflushed) // 8]


def test_long_chain_of_blocked_messages_is_delivered_at_once() -> None:
    world = make_line(FlexCast, 3)
    world.multicast(0, 0, 1, 2)
    for id in range(1, 5_001):
        world.multicast(id, 0, 2)
    world.carry(0, 2, 5_001)
    assert world.delivered[2] == [], "1 has not acknowledged the first one"
    world.carry_all()
    assert world.delivered[2] == list(range(5_001))


class _Counting(dict[int, Any]):
    reads = 0

    def __getitem__(self, key: int) -> Any:
        _Counting.reads += 1
        return super().__getitem__(key)


def test_cost_of_dependency_checks_is_independent_of_history_length() -> None:
    costs = []
    for messages in (500, 4_000):
        world = make_line(FlexCast, 3)
        for process in world.processes.values():
            assert isinstance(process, FlexCast)
            process.history._vertices = _Counting()
        _Counting.reads = 0
        for id in range(messages):
            world.multicast(id, *((0, 1), (0, 2), (1, 2), (0, 1, 2))[id % 4])
            world.carry_all()
        costs.append(_Counting.reads / messages)
    assert costs[1] < 1.2 * costs[0], f"vertices read per message: {costs}"


# Options


def test_contact_is_the_lowest_destination_of_the_configured_order() -> None:
    config = FlexCastConfig(order=(2, 0, 1))
    topology = Topology.grid(3, 1, 1)
    assert SPEC.contacts_for(config)(topology, Message(1, 3, (0, 1))) == (0,)
    assert SPEC.contacts_for(config)(topology, Message(1, 3, (1, 2))) == (2,)
    assert FlexCast(0, topology, config).contacts(Message(1, 3, (0, 1, 2))) == (2,)


def test_orders_of_the_paper_have_twelve_groups() -> None:
    for name in ("O1", "O2"):
        config = SPEC.configure(find_overlay(name))
        assert isinstance(config, FlexCastConfig)
        assert len(FlexCast(0, Topology.grid(12, 1), config).order.groups) == 12


def test_invalid_options_are_rejected() -> None:
    with pytest.raises(UsageError, match="flush_every"):
        SPEC.configure({"flush_every": -1})
    config = SPEC.configure({"order": [0, 1, 1]})
    assert isinstance(config, FlexCastConfig)
    with pytest.raises(UsageError, match=r"missing: \[2\]"):
        FlexCast(0, Topology.grid(3, 1), config)
