"""Protocols that claim other things where every group is one process: the conformance suite runs them in groups, this
runs the bare ones."""

import pytest

from amcast.lab.runs import PreparedRun
from amcast.protocols.catalogue import CATALOGUE
from tests.conformance.plans import planned
from tests.conformance.test_worlds import fuzzed, hold

ALONE = [name for name, spec in CATALOGUE.items() if spec.unreplicated is not None]


def bare(name: str, seed: int = 0, **tables: dict[str, object]) -> PreparedRun:
    spec = CATALOGUE[name]
    assert spec.unreplicated is not None
    network = {"links": spec.unreplicated.links, **tables.pop("network", {})}
    return planned(name, seed, topology={"replicas": 1}, network=network, **tables)


@pytest.mark.parametrize("name", ALONE)
def test_timed_worlds(name: str) -> None:
    hold(bare(name, workload={"messages": 200}))
    for seed in range(3):
        hold(bare(name, seed, network={"distribution": "exponential", "spread": 3.0}))
    hold(bare(name, network={"cpu_ns": 300_000, "burst": True}))
    hold(bare(name, faults={"profile": "all"}))


@pytest.mark.parametrize("name", ALONE)
def test_random_worlds_reach_every_goal(name: str) -> None:
    prepared = bare(name, workload={"messages": 12}, faults={"profile": "all"})
    notes = fuzzed(prepared, range(150))
    assert not [goal for goal in CATALOGUE[name].goals if goal not in notes]
