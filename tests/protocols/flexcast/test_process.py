"""FlexCast: the paper's figures, its corrected mistakes as mutants, delays, genuineness, and memory that stays flat."""

from collections import Counter
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from amcast.check.judge import judge
from amcast.kernel.errors import UsageError
from amcast.kernel.message import Message
from amcast.kernel.topology import Topology
from amcast.lab.exhaustive_search import Pattern, Search, patterns, search
from amcast.lab.overlays import overlay
from amcast.lab.runs import Prepared, fuzz_one, prepare
from amcast.protocols.flexcast.messages import Ack, FlexCastConfig, Msg, Notif
from amcast.protocols.flexcast.process import SPEC, FlexCast
from amcast.simulation.inputs.plan import plan_of
from amcast.simulation.schedulers.scope import Budget
from amcast.simulation.simulate import Simulation
from amcast.trace.recorder import Recorder
from amcast.trace.run import Run
from tests.mutants.protocols.flexcast import MUTANTS, TOLD, Mutant
from tests.protocols.flexcast.scenarios import STORIES, line
from tests.protocols.manual_network import Wires


def planned(mutant: Mutant | None = None, seed: int = 0, **changes: Any) -> Prepared:
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
    return prepare(plan_of(values), mutant.spec())


# The paper's Figure 3: A, B, C are 0, 1, 2


def test_figure_3a_histories_carry_dependencies_between_messages_to_others() -> None:
    world = line(FlexCast, 3)
    m1, m2, m3 = 1, 2, 3
    world.multicast(m1, 0, 2)
    world.multicast(m2, 0, 1)
    world.carry(0, 1)
    world.multicast(m3, 1, 2)
    world.carry(1, 2)
    assert world.delivered[2] == [], "m3 came first, but m1 precedes it by way of m2"
    world.carry_all()
    assert world.delivered[2] == [m1, m3]


def test_figure_3b_a_destination_waits_for_the_acks_of_lower_ones() -> None:
    world = line(FlexCast, 3)
    m1, m2 = 1, 2
    world.multicast(m2, 0, 1, 2)
    world.multicast(m1, 1, 2)
    world.carry(0, 2)
    assert world.delivered[2] == []
    world.carry(1, 2)
    world.carry_all()
    assert world.delivered[2] == [m1, m2]


def test_figure_3c_a_notified_group_tells_what_it_knows() -> None:
    world = line(FlexCast, 3)
    m1, m2, m3 = 1, 2, 3
    world.multicast(m1, 1, 2)
    world.multicast(m2, 0, 1)
    world.multicast(m3, 0, 2)
    world.carry(0, 2)
    assert world.delivered[2] == [], "B was notified and has not answered"
    world.carry_all()
    assert world.delivered[2] == [m1, m3]
    kinds = Counter((type(body).__name__, source, target) for source, target, body in world.carried)
    assert kinds[("Notif", 0, 1)] == 1
    assert kinds[("Ack", 1, 2)] == 1


def test_nobody_is_notified_for_a_message_that_the_destination_gets_itself() -> None:
    world = line(FlexCast, 3)
    world.multicast(1, 0, 1, 2)
    world.multicast(2, 0, 2)
    world.carry_all()
    assert not any(isinstance(body, Notif) for _, _, body in world.carried)
    assert world.delivered[2] == [1, 2]


def test_with_next_every_group_between_is_asked_at_most_once() -> None:
    prepared = planned(groups=8, messages=120, destinations=(2, 3), options={"notify": "next"})
    recorder = Recorder()
    Simulation(prepared.setup(), recorder).run()
    asked = Counter((row[0], row[3]) for row in recorder.packets if row[1] == "Notif")
    assert len(asked) > 50
    assert set(asked.values()) == {1}
    answered = Counter((row[0], row[2]) for row in recorder.packets if row[1] == "Ack")
    assert set(answered.values()) == {1}, "each group acknowledges once, to one destination or to those above"


def test_diffs_tell_every_descendant_everything_once() -> None:
    world = line(FlexCast, 3)
    for id in range(1, 6):
        world.multicast(id, 0, 1)
    world.multicast(6, 0, 2)
    world.carry_all()
    told: Counter[tuple[int, int, int]] = Counter()
    for source, target, body in world.carried:
        assert isinstance(body, Msg | Ack | Notif)
        told.update((source, target, link.id) for link in body.links)
    assert told[(0, 2, 1)] == 1
    assert all(count == 1 for count in told.values())


# What was wrong


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_is_caught_by_chance(mutant: Mutant) -> None:
    prepared = planned(mutant)
    for seed in range(mutant.seeds):
        outcome = fuzz_one(prepared, seed)
        if outcome.status != "holds":
            assert outcome.status in mutant.status, f"seed {seed}: {outcome.story}"
            return
    pytest.fail(f"{mutant.name} survived {mutant.seeds} seeds")


@pytest.mark.parametrize(("story", "mutant"), TOLD, ids=lambda value: getattr(value, "__name__", value))
def test_a_mutant_is_caught_by_a_story(story: str, mutant: type[FlexCast]) -> None:
    broken = STORIES[story](mutant).broken()
    assert broken is not None
    assert "circle" in broken


@pytest.mark.parametrize("story", STORIES)
def test_flexcast_itself_survives_the_stories(story: str) -> None:
    world = STORIES[story](FlexCast)
    assert world.broken() is None
    assert world.missing() == []


@pytest.mark.parametrize("notify", ["all", "next"])
def test_random_runs_with_many_groups_and_constant_flushing(notify: str) -> None:
    notes: Counter[str] = Counter()
    options = {"flush_every": 3, "order": [3, 1, 5, 0, 2, 4], "notify": notify}
    prepared = planned(groups=6, messages=24, options=options)
    for seed in range(60):
        outcome = fuzz_one(prepared, seed)
        assert outcome.status == "holds", f"seed {seed}: {outcome.story}"
        notes.update(outcome.notes)
    assert {"flushed", "notified", "blocked", "early"} <= set(notes)
    assert ("covered" in notes) == (notify == "all"), "who is asked once has never answered before"


@pytest.mark.parametrize(("messages", "flush_every"), [(3, 0), (2, 1)])
def test_every_interleaving_of_every_pattern_with_three_groups(messages: int, flush_every: int) -> None:
    found = explored(Mutant(FlexCast, frozenset()), messages, flush_every)
    assert found.counterexample is None
    assert found.exhausted == found.patterns == found.chosen
    assert flush_every or not found.missed


def test_every_interleaving_with_a_flush_between_notifications() -> None:
    """Figure 3 (c) and its neighbours: flushes that come sooner than after the third message leave nobody to notify."""
    chosen: list[Pattern] = [((0, 1), (0, 2), (1, 2)), ((0, 1), (0, 2), (0, 1, 2))]
    found = explored(Mutant(FlexCast, frozenset()), 3, 3, chosen)
    assert found.counterexample is None
    assert found.share == 1
    assert not found.missed


def test_asking_one_group_after_the_other_ends_in_the_same_orders() -> None:
    """Four groups in every pattern of three messages to two groups each: the same endings, whoever asks whom."""
    chosen = [pattern for pattern in patterns((0, 1, 2, 3), 3) if all(len(groups) == 2 for groups in pattern)]
    endings = []
    for notify in ("all", "next"):
        mutant = Mutant(FlexCast, frozenset(), options={"notify": notify}, groups=4)
        found = explored(mutant, 3, 0, chosen)
        assert found.counterexample is None
        assert found.share == 1
        assert not found.missed
        endings.append(found.endings)
    assert endings[0] == endings[1]


@pytest.mark.parametrize("name", ["EarlyAcksLost", "EdgesLost", "NotifiesNobody"])
def test_exploration_finds_mutants_by_a_shortest_way(name: str) -> None:
    mutant = next(mutant for mutant in MUTANTS if mutant.name == name)
    found = explored(mutant, 3, 0)
    assert found.counterexample is not None
    assert found.counterexample.status in mutant.status


def explored(mutant: Mutant, messages: int, flush_every: int, chosen: list[Pattern] | None = None) -> Search:
    values = {
        "protocol": "flexcast",
        "options": {**mutant.options, "flush_every": flush_every},
        "topology": {"groups": mutant.groups if chosen else 3, "replicas": 1, "clients": messages},
    }
    spec = mutant.spec()
    if flush_every:
        spec = replace(spec, goals=(*spec.goals, "flushed"))
    prepared = prepare(plan_of(values), spec)
    chosen = chosen or list(patterns(prepared.topology.groups, messages))
    return search(prepared, chosen, Budget(), max_states=200_000)


# Genuineness: both levels


def test_genuine_at_the_level_of_the_run_and_not_message_by_message() -> None:
    prepared = planned(groups=5, messages=60)
    recorder = Recorder()
    Simulation(prepared.setup(), recorder).run()
    report = judge(Run.from_recorder(recorder, prepared.meta("flexcast").with_claims(complete=True)))
    assert report.properties["P6"].verdict == "holds"
    assert report.properties["P6'"].verdict == "violated", "a Notif leaves the destinations"
    assert any("Notif" in sentence for sentence in report.properties["P6'"].story)


def test_without_notifications_only_sender_and_destinations_take_part() -> None:
    world = line(FlexCast, 5)
    world.multicast(1, 1, 3, 4)
    world.carry_all()
    assert {process for source, target, _ in world.carried for process in (source, target)} == {1, 3, 4}


# Memory


def soak(messages: int, groups: int, flush_every: int, seed: int = 1) -> tuple[Wires, list[int]]:
    """Random messages and random wires; how much all groups kept, sampled."""
    random = Random(seed)
    config = FlexCastConfig(flush_every=flush_every)
    world = Wires(lambda me, topology: FlexCast(me, topology, config), Topology.grid(groups, 1))
    sizes = []
    for id in range(1, messages + 1):
        world.multicast(id, *sorted(random.sample(range(groups), random.choice((1, 2, 2, 2, 3)))))
        for _ in range(60):
            full = [pair for pair, wire in world.wires.items() if wire and pair[1] in world.processes]
            if sum(len(world.wires[pair]) for pair in full) < 12:
                break
            world.carry(*random.choice(full))
        world.carried.clear()
        if id % 100 == 0:
            sizes.append(sum(kept(process) for process in world.processes.values()))
    world.carry_all()
    return world, sizes


def kept(process: Any) -> int:
    history = process.history
    links = sum(len(vertex.before) for vertex in history._vertices.values())
    waiting = len(process._pending) + len(process._asked) + len(process._blocked) + len(process._covered)
    return len(history) + len(history._log) + links + waiting


def test_memory_is_flat_with_flushes_and_grows_without() -> None:
    world, sizes = soak(messages=20_000, groups=4, flush_every=100)
    assert world.missing() == []
    assert world.broken() is None
    early, late = max(sizes[20:60]), max(sizes[-40:])
    assert late < 2 * early, f"{early} things were kept early in the run, {late} late"
    _, unflushed = soak(messages=2_000, groups=4, flush_every=0)
    assert unflushed[-1] > 4 * unflushed[len(unflushed) // 8]


def test_a_long_chain_of_waiting_messages_goes_at_once() -> None:
    world = line(FlexCast, 3)
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


def test_dependency_tests_do_not_depend_on_the_length_of_the_history() -> None:
    costs = []
    for messages in (500, 4_000):
        world = line(FlexCast, 3)
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


def test_the_lowest_destination_is_the_contact_in_any_order() -> None:
    config = FlexCastConfig(order=(2, 0, 1))
    topology = Topology.grid(3, 1, 1)
    assert SPEC.contacts_for(config)(topology, Message(1, 3, (0, 1))) == (0,)
    assert SPEC.contacts_for(config)(topology, Message(1, 3, (1, 2))) == (2,)
    assert FlexCast(0, topology, config).contacts(Message(1, 3, (0, 1, 2))) == (2,)


def test_orders_of_the_paper_fit_twelve_groups() -> None:
    for name in ("O1", "O2"):
        config = SPEC.configure(overlay(name))
        assert isinstance(config, FlexCastConfig)
        assert len(FlexCast(0, Topology.grid(12, 1), config).order.groups) == 12


def test_wrong_options_are_refused() -> None:
    with pytest.raises(UsageError, match="flush_every"):
        SPEC.configure({"flush_every": -1})
    config = SPEC.configure({"order": [0, 1, 1]})
    assert isinstance(config, FlexCastConfig)
    with pytest.raises(UsageError, match=r"missing: \[2\]"):
        FlexCast(0, Topology.grid(3, 1), config)
