"""The bank under faults: in the simulator, and as processes that are killed and cut off."""

import json
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from amcast.apps import bank
from amcast.apps.bank import Bank, find_loss, work
from amcast.lab.service_search import ServiceSearch
from amcast.lab.torture.campaign import TorturePlan, run_torture
from amcast.services.declaration import At, Key, command
from amcast.simulation.services.drawn_calls import make_client_load


class Hurried(Bank):
    """A mutant: the group of the target does not wait for the vote of the source."""

    @command
    def transfer(self, at: At, source: Key, target: Key, amount: int) -> Generator[bool, dict[str, bool], bool]:
        if at.owns(source) and self.accounts.get(source, 0) < amount:
            return False
        if at.owns(source):
            self.accounts[source] -= amount
        if at.owns(target):
            self.accounts[target] = self.accounts.get(target, 0) + amount
        return True
        yield True


def search(seeds: int) -> list[Any]:
    found = ServiceSearch(make_client_load(work), [find_loss]).run(range(seeds))
    return [(outcome.seed, outcome.story) for outcome in found if outcome.status != "holds"]


def test_money_is_kept_under_faults() -> None:
    assert search(8) == []


def test_mutant_is_found_by_an_audit_or_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bank, "Bank", Hurried)
    [(_, story)] = search(200)
    assert "in all accounts; expected" in story


@pytest.mark.live
@pytest.mark.slow
def test_bank_survives_torture(tmp_path: Path) -> None:
    plan = TorturePlan(
        minutes=0.1,
        faults=("kill", "cut"),
        network="proxy",
        order="real-time",
        service="amcast.apps.bank:Bank",
        load="amcast.apps.bank:work",
        invariants=("amcast.apps.bank:find_loss",),
    )
    result = run_torture(plan, tmp_path / "run", lambda line: None)
    assert (result.verdict, result.violations, result.unknown) == ("holds", [], [])
    assert result.properties["P9"] == "holds"
    history = [json.loads(line) for line in (tmp_path / "run" / "history.jsonl").read_text().splitlines()]
    assert sum(line["type"] == "ok" for line in history) == result.acknowledged > 40


@pytest.mark.live
@pytest.mark.slow
def test_torture_finds_what_is_wrong_with_a_service(tmp_path: Path) -> None:
    """By the loads, by the states of replicas and by the invariant."""
    module = "tests.lab.torture.planted.faulty_bank"
    plan = TorturePlan(
        minutes=0.05,
        faults=("slow",),
        network="proxy",
        order="real-time",
        service=f"{module}:FaultyBank",
        load=f"{module}:work",
        invariants=(f"{module}:find_loss",),
    )
    result = run_torture(plan, tmp_path / "run", lambda line: None)
    assert result.verdict == "violated"
    for sentence in ("ended with AssertionError", "have different states", "find_loss does not hold at the end"):
        assert any(sentence in violation for violation in result.violations), (sentence, result.violations)
