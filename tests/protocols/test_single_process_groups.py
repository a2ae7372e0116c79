"""Protocols with other claims for groups of one process: the conformance suite runs them replicated, this alone."""

import pytest

from amcast.lab.runs import PreparedRun
from amcast.protocols.catalogue import CATALOGUE
from tests.conformance.plans import planned
from tests.conformance.test_worlds import fuzzed, hold

ALONE = [name for name, spec in CATALOGUE.items() if spec.unreplicated is not None]


def prepare_alone(name: str, seed: int = 0, **tables: dict[str, object]) -> PreparedRun:
    spec = CATALOGUE[name]
    assert spec.unreplicated is not None
    network = {"links": spec.unreplicated.links, **tables.pop("network", {})}
    return planned(name, seed, topology={"replicas": 1}, network=network, **tables)


@pytest.mark.parametrize("name", ALONE)
def test_timed_runs_hold(name: str) -> None:
    hold(prepare_alone(name, workload={"messages": 200}))
    for seed in range(3):
        hold(prepare_alone(name, seed, network={"distribution": "exponential", "spread": 3.0}))
    hold(prepare_alone(name, network={"cpu_ns": 300_000, "burst": True}))
    hold(prepare_alone(name, faults={"profile": "all"}))


@pytest.mark.parametrize("name", ALONE)
def test_random_runs_reach_every_goal(name: str) -> None:
    prepared = prepare_alone(name, workload={"messages": 12}, faults={"profile": "all"})
    notes = fuzzed(prepared, range(150))
    assert not [goal for goal in CATALOGUE[name].goals if goal not in notes]
