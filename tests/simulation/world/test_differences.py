"""A replica whose state differs: it stops for good, the others know, and whoever fails to do so is found."""

from collections.abc import Callable

import pytest

from amcast.lab.fuzz_campaign import SwarmRuns
from amcast.lab.runs import fuzz_seed
from amcast.parts.node.comparison_results import ComparisonResults
from amcast.parts.node.replica_comparison import ReplicaComparison
from amcast.simulation.schedulers import fuzz
from amcast.simulation.schedulers.fuzz import FuzzOutcome
from amcast.simulation.world.actions import Differ, ExpectRefusal

PLAN = {"protocol": "primcast", "topology": {"groups": 2, "replicas": 3, "clients": 2}, "nodes": True}


def run_until_one_differs() -> FuzzOutcome:
    """The first run that ends with a replica whose state differs."""
    runs = SwarmRuns(PLAN, "here")
    outcomes = (fuzz_seed(runs.prepare(seed), seed) for seed in range(30))
    return next(outcome for outcome in outcomes if any(type(action) is Differ for action in outcome.script))


@pytest.fixture
def everybody_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fuzz, "DIFFERENCES_SHARE", 1.0)


@pytest.mark.usefixtures("everybody_differs")
def test_replica_that_differs_stops_and_is_refused_after_a_restart() -> None:
    outcome = run_until_one_differs()
    assert outcome.status == "holds", outcome.story
    assert sum(type(action) is ExpectRefusal for action in outcome.script) == 2
    assert outcome.notes["comparison-minority"] == 1


def _never_differ(results: ComparisonResults, difference: object) -> None:
    """A member that does not add the differences that it finds."""


def _never_decide(comparison: ReplicaComparison) -> None:
    """A member that decides nothing."""


@pytest.mark.usefixtures("everybody_differs")
@pytest.mark.parametrize(
    ("part", "method", "wrong"),
    [(ComparisonResults, "add_difference", _never_differ), (ReplicaComparison, "_decide", _never_decide)],
)
def test_group_that_does_not_notice_is_found(
    monkeypatch: pytest.MonkeyPatch, part: type, method: str, wrong: Callable[..., None]
) -> None:
    monkeypatch.setattr(part, method, wrong)
    outcome = run_until_one_differs()
    assert outcome.status == "violated"
    assert "has another state than its group; it has not stopped" in outcome.story
