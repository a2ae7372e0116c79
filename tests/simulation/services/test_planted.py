"""The simulator finds planted mistakes of services, and mutants of the executor, within 200 seeds each."""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from amcast.cli.main import run as run_command
from amcast.lab.service_search import ServiceSearch
from amcast.services.declaration import Service, describe_service
from amcast.services.executor import Executor
from amcast.simulation.services import replicas
from amcast.simulation.services.drawn_calls import make_load
from tests.simulation.services import planted

SEEDS = 200


def search(
    service: type[Service], *invariants: Callable[[Mapping[str, Any]], object], faults: str = "all"
) -> tuple[int, str]:
    """The first seed that fails, and its story."""
    for outcome in ServiceSearch(make_load(describe_service(service)), invariants, faults).run(range(SEEDS)):
        if outcome.status != "holds":
            return outcome.seed, outcome.story
    return SEEDS, ""


@pytest.mark.parametrize(
    ("service", "sentence"),
    [
        (planted.Tags, "have different states after add"),
        (planted.Clock, "have different states after touch"),
        (planted.Dice, "have different states after roll"),
        (planted.Forgetful, "have different states after add"),
        (planted.Hasty, "pay yields, and the state has changed"),
        (planted.Eager, "have different states"),
        (planted.Amnesiac, "computed another value|have different states"),
        (planted.Careless, "gave another value at yield 0 when it was executed again|have different states"),
        (planted.Unkeyed, "has no argument of type amcast.Key with this value"),
        (planted.Browsing, "look is a query, and the state has changed"),
        (planted.Uneven, "returned after . yields: expected that every group comes to the same yields"),
        (planted.Cached, "have different states after add"),
        (planted.Shared, "have different states after add"),
        (planted.Partial, "have different states after find"),
        (planted.Weighted, "have different states after add"),
        (planted.Aliasing, "have different states|another value"),
    ],
)
def test_planted_mistake_is_found(service: type[Service], sentence: str) -> None:
    seed, story = search(service)
    assert seed < SEEDS
    assert re.search(sentence, story)
    assert "before that:" in story


def test_invariant_between_groups_is_judged() -> None:
    seed, story = search(planted.Trusting, planted.money_is_conserved)
    assert seed < SEEDS
    assert "money_is_conserved does not hold at the end" in story


@pytest.mark.parametrize(
    "mutant",
    [
        planted.WithoutSessions,
        planted.WithoutQueue,
        planted.WithoutReceived,
        planted.WithoutOwed,
        planted.Silent,
        planted.Impatient,
    ],
)
def test_mutant_of_the_executor_is_found(mutant: type[Executor], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicas, "Executor", mutant)
    monkeypatch.setattr("amcast.simulation.services.fuzzer.SETTLE_STEPS", 5_000)
    seed, story = search(planted.Votes)
    assert seed < SEEDS
    assert story


@pytest.mark.parametrize("service", [planted.Votes, planted.Drawer])
def test_the_service_under_the_mutants_is_sound(service: type[Service]) -> None:
    outcomes = ServiceSearch(make_load(describe_service(service))).run(range(6))
    assert [outcome.story for outcome in outcomes if outcome.status != "holds"] == []
    assert len(outcomes) == 6


def test_a_seed_repeats_its_run() -> None:
    runs = [ServiceSearch(make_load(describe_service(planted.Tags))).run_seed(3) for _ in range(2)]
    assert runs[0].story == runs[1].story
    assert runs[0].script == runs[1].script


def test_members_change_while_commands_wait_for_other_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Values that groups exchange come through joins and removals, also of who was to send them."""
    seen: set[str] = set()
    join = replicas.SimulatedReplicas._join
    retire = replicas.SimulatedReplicas._drop

    def record_join(self: Any, process: int, replica: Any) -> None:
        waiting = any(one.executor.describe_waiting() for one in self.replicas.values())
        join(self, process, replica)
        if "with the state" in self.events[-1]:
            seen.add("joined while one waits" if waiting else "joined")

    def record_drop(self: Any, process: int, replica: Any) -> None:
        if process in self._world.absent:
            seen.add("removed while it owes a value" if replica.executor.owed else "removed")
        retire(self, process, replica)

    monkeypatch.setattr(replicas.SimulatedReplicas, "_join", record_join)
    monkeypatch.setattr(replicas.SimulatedReplicas, "_drop", record_drop)
    search = ServiceSearch(make_load(describe_service(planted.Votes)))
    for seed in range(30, SEEDS):
        outcome = search.run_seed(seed)
        assert outcome.status == "holds", outcome.story
        if {"joined while one waits", "removed while it owes a value"} <= seen:
            break
    assert {"joined while one waits", "removed while it owes a value"} <= seen


def test_a_member_that_joins_without_a_state_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def join(self: Any, process: int, replica: Any) -> None:
        self._joining.discard(process)
        replica.position = self._world.positions[process]

    monkeypatch.setattr(replicas.SimulatedReplicas, "_join", join)
    seed, story = search(planted.Votes)
    assert seed < SEEDS
    assert "have different states" in story or "another value" in story


@pytest.mark.parametrize(("service", "code"), [("Hashed", 1), ("Votes", 0)])
def test_the_order_of_a_set_that_is_no_state_is_found_in_another_process(
    service: str, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    name = f"{planted.__name__}:{service}"
    assert run_command(["fuzz", "--service", name, "--seeds", "0..1", "--json"]) == code
    found = json.loads(capsys.readouterr().out)
    assert found["failures"] == []
    assert ("leads to other states in another process" in found["difference"]) is bool(code)
