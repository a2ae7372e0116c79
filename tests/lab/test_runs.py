"""Runs of plans: what they record."""

from typing import Any

import pytest

from amcast.kernel.errors import UsageError
from amcast.lab.runs import prepare_run
from amcast.simulation.inputs.plan import parse_plan
from amcast.simulation.simulate import Simulation
from amcast.trace.recorder import Recorder
from amcast.trace.run import Run


def simulate(**values: Any) -> Run:
    plan = {"protocol": "primcast", "workload": {"messages": 20}, **values}
    prepared, recorder = prepare_run(parse_plan(plan)), Recorder()
    Simulation(prepared.make_setup(), recorder).run()
    return Run.from_recorder(recorder, prepared.make_meta("run"))


@pytest.mark.parametrize("gateways", [False, True])
def test_answers_of_clients_are_recorded(gateways: bool) -> None:
    run = simulate(gateways=gateways)
    assert run.answers is not None
    answered = run.answers["message"]  # the run ends with the last delivery, before the last answers
    assert len(answered) == len(set(answered)) >= 10
    sent = dict(zip(run.multicasts["message"], run.multicasts["at_ns"], strict=True))
    assert all(at > sent[m] for m, at in zip(run.answers["message"], run.answers["at_ns"], strict=True))


def test_nobody_answers_without_nodes() -> None:
    assert simulate(nodes=False).answers is None


def test_plan_with_more_changes_than_old_instances_is_rejected() -> None:
    events = [
        {"at_ns": 0, "do": "change", "group": 0, "add": 30},
        {"at_ns": 0, "do": "change", "group": 0, "remove": 0},
    ]
    plan = {"protocol": "primcast", "topology": {"groups": 2, "replicas": 3}, "faults": {"events": events}}
    prepare_run(parse_plan({**plan, "membership": {"max_old_instances": 2}}))
    with pytest.raises(UsageError, match=r"membership.max_old_instances = 1, and 2 changes; expected at least as many"):
        prepare_run(parse_plan({**plan, "membership": {"max_old_instances": 1}}))
