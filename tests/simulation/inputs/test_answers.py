"""Answers in place of bare processes, loads that end by time, and clients that do not begin together."""

from itertools import pairwise
from typing import Any

import pytest

from amcast.kernel.errors import UsageError
from amcast.kernel.ids import sender_of
from amcast.lab.runs import PreparedRun, prepare_run
from amcast.simulation.inputs.plan import parse_plan
from amcast.simulation.simulate import RunSummary, Simulation
from amcast.trace.recorder import Recorder

Times = dict[int, int]


def _run(answers: str, **workload: Any) -> tuple[PreparedRun, RunSummary, Recorder, Times]:
    """A run of BaseCast on wan-3, whose delays do not vary; and when each message was multicast."""
    plan = {
        "protocol": "basecast",
        "topology": {"environment": "wan-3", "groups": 2, "replicas": 3, "clients": 3, "options": {"sd_percent": 0.0}},
        "workload": {"destinations": 2, "messages": 30, **workload},
        "nodes": False,
        "answers": answers,
    }
    prepared = prepare_run(parse_plan(plan))
    recorder = Recorder()
    summary = Simulation(prepared.make_setup(), recorder).run()
    assert summary.end == "delivered"
    return prepared, summary, recorder, {int(str(row[0])): int(str(row[3])) for row in recorder.multicasts}


def _latency_by_client(recorder: Recorder, sent: Times) -> dict[int, set[int]]:
    found: dict[int, set[int]] = {}
    for row in recorder.answers:
        message, at_ns = int(str(row[0])), int(str(row[1]))
        found.setdefault(sender_of(message), set()).add(at_ns - sent[message])
    return found


@pytest.mark.parametrize("rule", ["nearest", "first", "groups"])
def test_answers_arrive_after_the_deliveries_that_the_rule_names(rule: str) -> None:
    prepared, _, recorder, sent = _run(rule)
    delays = prepared.network.matrix_ns
    region = prepared.topology.region
    answered = {int(str(row[0])): int(str(row[1])) for row in recorder.answers}
    assert answered.keys() == sent.keys()
    arrivals: dict[int, dict[int, list[tuple[int, int, int]]]] = {}
    for row in recorder.deliveries:
        process, group, message, at_ns = (int(str(row[place])) for place in (0, 1, 3, 4))
        way_back = delays[region(process)][region(sender_of(message))]
        arrivals.setdefault(message, {}).setdefault(group, []).append((way_back, process, at_ns + way_back))
    for message, groups in arrivals.items():
        every = [one for ones in groups.values() for one in ones]
        expected = {
            "nearest": min(every)[2],
            "first": min(at for _, _, at in every),
            "groups": max(min(at for _, _, at in ones) for ones in groups.values()),
        }[rule]
        assert answered[message] == expected


def test_clients_go_on_when_their_nearest_replica_has_delivered() -> None:
    _, _, recorder, sent = _run("nearest")
    after = {int(str(row[0])): int(str(row[1])) for row in recorder.answers}
    by_client: dict[int, list[int]] = {}
    for message in sent:
        by_client.setdefault(sender_of(message), []).append(message)
    for messages in by_client.values():
        for earlier, later in pairwise(messages):
            assert sent[later] == after[earlier]


def test_load_ends_after_its_seconds_and_everything_is_delivered() -> None:
    _, summary, recorder, sent = _run("nearest", seconds=2.0, messages=1_000_000)
    assert 1.5e9 < max(sent.values()) < 2e9
    assert summary.undelivered == 0
    assert len(recorder.answers) == len(sent)


def test_open_loop_ends_after_its_seconds() -> None:
    _, _, _, sent = _run("first", seconds=2.0, messages=1_000_000, rate_per_s=50.0)
    assert 200 < len(sent) < 400
    assert max(sent.values()) < 2e9


def test_staggered_clients_begin_apart_and_draw_the_same_messages() -> None:
    _, _, together, sent_together = _run("nearest", messages=3)
    _, _, apart, sent_apart = _run("nearest", messages=3, stagger_ns=100_000_000)
    assert set(sent_together.values()) == {0}
    assert len(set(sent_apart.values())) == 3
    assert max(sent_apart.values()) < 100_000_000
    assert {row[0]: row[2] for row in together.multicasts} == {row[0]: row[2] for row in apart.multicasts}


@pytest.mark.parametrize(
    ("nodes", "answers", "expected"),
    [(True, "nearest", "leader, all"), (False, "all", "everywhere, nearest, first, groups")],
)
def test_answers_that_processes_cannot_give_are_rejected(nodes: bool, answers: str, expected: str) -> None:
    plan = {"protocol": "basecast", "nodes": nodes, "answers": answers, "topology": {"replicas": 3}}
    with pytest.raises(UsageError, match=f"answers = '{answers}'.*expected one of: {expected}"):
        prepare_run(parse_plan(plan))


def test_nodes_answer_by_all_members_sooner_than_by_leaders() -> None:
    """A client of R1 hears its own replica before the leader in R2."""
    latency = {}
    for rule in ("leader", "all"):
        plan = {
            "protocol": "multipaxos",
            "topology": {"environment": "wan-3", "groups": 2, "replicas": 3, "clients": 1},
            "workload": {"destinations": 2, "messages": 5},
            "answers": rule,
        }
        recorder = Recorder()
        Simulation(prepare_run(parse_plan(plan)).make_setup(), recorder).run()
        sent = {int(str(row[0])): int(str(row[3])) for row in recorder.multicasts}
        latency[rule] = sorted(int(str(row[1])) - sent[int(str(row[0]))] for row in recorder.answers)[2]
    assert latency["all"] < latency["leader"] - 5_000_000, latency


@pytest.mark.parametrize("seconds", [-1, "long", 1e9])
def test_wrong_seconds_are_rejected(seconds: Any) -> None:
    with pytest.raises(UsageError, match=r"workload\.seconds = .*; expected a number from 0 to 1000000"):
        parse_plan({"protocol": "skeen", "workload": {"seconds": seconds}})
