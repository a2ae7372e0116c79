"""A swarm draws a plan from each seed: the same plan from the same seed, whatever the plan names unchanged, and every
size, feature, fault and small limit now and then."""

from collections import Counter
from typing import Any

import pytest

from amcast.kernel.spec import FAULTS
from amcast.lab.failure_scripts import make_script, prepare_script
from amcast.lab.fuzz_campaign import SwarmRuns, run_campaign
from amcast.lab.runs import fuzz_seed, make_judge, prepare_run
from amcast.protocols.catalogue import CATALOGUE
from amcast.simulation.inputs.plan import describe_plan, parse_plan
from amcast.simulation.inputs.swarm import MAX_SERVERS, REQUEST_LOSSES, Swarm
from amcast.simulation.schedulers.replay import replay
from amcast.simulation.schedulers.script import read_script

BROKEN = "tests.simulation.broken_protocols:FORGETFUL"


def draw(protocol: str, seeds: int, **values: Any) -> list[dict[str, Any]]:
    swarm = Swarm({"protocol": protocol, **values}, CATALOGUE[protocol], {"bundle_messages": (1, 2, 3)})
    return [swarm.draw(seed) for seed in range(seeds)]


def test_same_seed_draws_same_plan() -> None:
    assert draw("basecast", 20) == draw("basecast", 20)


def test_fields_of_the_plan_are_fixed() -> None:
    fixed = {
        "topology": {"groups": 2, "replicas": 5, "clients": 3},
        "workload": {"messages": 7, "outstanding": 2, "destinations": 1, "payload": 9},
        "faults": {"profile": "recovery", "events": []},
        "options": {
            "keep": 17,
            "batch": 6,
            "confirmation_batch": 5,
            "consensus": "ring",
            "stamps": "all",
            "retry_ns": [7, 9],
            "pace_ns": 3,
        },
        "nodes": True,
        "gateways": True,
        "network": {"links": "fifo"},
    }
    for plan in draw("basecast", 50, **fixed):
        assert {name: plan[name] for name in fixed} == fixed


def test_every_size_feature_and_limit_is_drawn() -> None:
    plans = draw("primcast", 400)
    seen = Counter[Any]()
    for plan in plans:
        seen.update((f"{table}.{name}", str(value)) for table in plan for name, value in _items(plan[table]))
    for name, values in {
        "topology.groups": range(1, 8),
        "topology.replicas": range(1, 6),
        "options.keep": range(1, 5),
        "workload.messages": (4, 12, 30, 100, 150),
        "gateway.bundle_messages": range(1, 4),
    }.items():
        assert not [value for value in values if not seen[(name, str(value))]], name
    assert {plan["nodes"] for plan in plans} == {True, False}
    assert {plan.get("gateways", False) for plan in plans} == {True, False}
    assert any("events" in plan["faults"] for plan in plans)
    kinds = Counter(kind for plan in plans for kind in plan["faults"]["profile"].split("+"))
    assert all(kinds[kind] for kind in FAULTS if kind in CATALOGUE["primcast"].claims.faults)
    assert kinds["none"]


def _items(table: Any) -> list[tuple[str, Any]]:
    return list(table.items()) if isinstance(table, dict) else []


def test_servers_multicast_where_no_request_is_lost_and_they_stay() -> None:
    plans = [plan for plan in draw("primcast", 400) if plan.get("senders") == "all"]
    assert plans
    assert all(plan["nodes"] for plan in plans)
    assert not any("max_early_bodies" in plan.get("membership", {}) for plan in plans)
    assert not any("senders" in plan for plan in draw("a-dt", 100))
    kinds = {kind for plan in plans for kind in plan["faults"]["profile"].split("+")}
    assert not kinds & REQUEST_LOSSES
    removal = {"at_ns": 0, "do": "change", "group": 0, "remove": 0}
    values = {"topology": {"groups": 1, "replicas": 3, "clients": 2}, "faults": {"events": [removal]}}
    prepared = prepare_run(parse_plan({"protocol": "primcast", "senders": "all", **values}))
    assert prepared.senders == (3, 4, 1, 2), "process 5 is the operator, and process 0 is removed"


def test_trees_of_groups_are_drawn() -> None:
    trees = [plan["options"]["edges"] for plan in draw("treecast", 200) if "edges" in plan["options"]]
    heights = [_measure_height(tree) for tree in trees]
    assert {1, 2, 3} <= set(heights)


def test_messages_cross_in_many_ordered_groups() -> None:
    def count_crossings(protocol: str, **values: Any) -> int:
        return sum(
            plan["topology"]["groups"] >= 4
            and plan["workload"]["messages"] == 30
            and plan["workload"]["outstanding"] == 8
            and plan["workload"]["destinations"][0] == 2
            for plan in draw(protocol, 100, **values)
        )

    assert count_crossings("flexcast") > 20
    assert count_crossings("primcast") < 5, "its groups have no order"
    assert not count_crossings("flexcast", topology={"groups": 3})


def _measure_height(edges: list[list[int]]) -> int:
    above = {child: parent for parent, child in edges}

    def measure(group: int) -> int:
        return 1 + measure(above[group]) if group in above else 0

    return max(map(measure, above))


def test_long_runs_have_few_servers() -> None:
    for plan in draw("primcast", 400):
        sizes = plan["topology"]
        most = next(most for least, most in MAX_SERVERS.items() if plan["workload"]["messages"] >= least)
        assert sizes["groups"] * sizes["replicas"] <= most


@pytest.mark.parametrize("name", CATALOGUE)
def test_every_drawn_plan_can_run(name: str) -> None:
    runs = SwarmRuns({"protocol": name})
    for seed in range(40):
        runs.prepare(seed)


@pytest.mark.parametrize("name", ["skeen", "primcast"])
def test_given_faults_are_survived_by_every_drawn_shape(name: str) -> None:
    """Groups of one claim less, and clients of bare processes send each request once."""
    for kind in ("crash", "links+pause", "emptied"):
        runs = SwarmRuns({"protocol": name, "faults": {"profile": kind}})
        assert all(runs.prepare(seed).nodes for seed in range(60))
    runs = SwarmRuns({"protocol": name, "faults": {"profile": "pause"}})
    prepared = [runs.prepare(seed) for seed in range(60)]
    assert any(not one.nodes for one in prepared)
    assert any(one.plan.topology.replicas == 1 for one in prepared)


def test_variant_keeps_its_options() -> None:
    for plan in draw("a-ge-star", 40):
        assert not CATALOGUE["a-ge-star"].options.keys() & plan["options"].keys()


def test_script_of_a_failure_carries_what_its_seed_drew(tmp_path: Any) -> None:
    runs = SwarmRuns({"protocol": BROKEN})
    found = run_campaign(runs, range(200))
    assert found.failures, "a process that forgets every vote is not found"
    failure = found.failures[0]
    prepared = runs.prepare(failure.seed)
    make_script(prepared, failure).write(tmp_path / "failure.script")
    script = read_script(tmp_path / "failure.script")
    again = prepare_script(script, "script")
    assert describe_plan(again.plan) == describe_plan(prepared.plan)
    judge = make_judge(again, failure.seed)
    result = replay(
        script, again.make, again.spec.claims, judge, node_bodies=again.node_bodies, monitoring=again.monitoring
    )
    assert result.status == failure.status
    assert fuzz_seed(prepared, failure.seed).script == failure.script
