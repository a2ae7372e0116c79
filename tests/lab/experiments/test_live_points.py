"""Points of experiments that are also run live."""

from pathlib import Path

import pytest

from amcast.kernel.errors import UsageError
from amcast.lab.experiments import live_points
from amcast.lab.experiments.experiment import find_experiment, read_experiments
from amcast.lab.experiments.live_points import list_points, read_live, run_points
from amcast.lab.runs import prepare_run
from amcast.lab.simulated_vs_live import Comparison, Latencies
from amcast.simulation.inputs.plan import Plan
from tests import ROOT

CLAIMS = '[[claim]]\nnumber = 1\npaper = "003"\nwhere = "Fig. 9"\ntext = "none"\n'
EXPERIMENT = """
title = "An ablation"
paper = "003"
figure = "Fig. 9"
question = "How long?"
setting = "wan1"
[plan]
protocol = "primcast"
answers = "nearest"
nodes = false
[plan.topology]
environment = "wan1"
groups = 2
replicas = 3
clients = 3
[plan.workload]
messages = 300
[plan.grid]
workload.destinations = [1, 2]
[[live]]
"workload.messages" = 6
[[live]]
"workload.messages" = 9
protocol = "whitebox"
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "claims.toml").write_text(CLAIMS)
    (tmp_path / "003-live").mkdir()
    (tmp_path / "003-live" / "experiment.toml").write_text(EXPERIMENT)
    return tmp_path


def test_points_are_plans_of_nodes_whose_leaders_answer(folder: Path) -> None:
    plans = list_points(find_experiment(folder, "003-live"))
    assert [(plan.protocol, plan.messages, plan.nodes, plan.answers) for plan in plans] == [
        ("primcast", 6, True, ""),
        ("whitebox", 9, True, ""),
    ]


def test_points_with_too_many_replicas_are_refused(folder: Path) -> None:
    file = folder / "003-live" / "experiment.toml"
    file.write_text(EXPERIMENT.replace("groups = 2", "groups = 9"))
    with pytest.raises(UsageError, match="live point 1: 27 replicas; expected at most 24"):
        list_points(find_experiment(folder, "003-live"))


def test_a_point_that_has_a_row_is_not_run_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    experiment, run = find_experiment(folder, "003-live"), []

    def compare(plan: Plan, runs: Path, say: object) -> Comparison:
        run.append(plan.protocol)
        kinds = ({"all": Latencies(6, mean, 10.0, 20.0)} for mean in (12.5, 15.0))
        return Comparison(*kinds, runs)

    monkeypatch.setattr(live_points, "compare_worlds", compare)
    run_points(experiment, folder / "runs", [])
    rows = read_live(experiment)
    assert [row.point["workload.messages"] for row in rows] == [6, 9]
    assert rows[0].difference == pytest.approx(0.2)
    assert run_points(experiment, folder / "runs", rows[:1]) == rows
    assert run == ["primcast", "whitebox", "whitebox"]


def test_committed_points_can_be_run_and_have_rows() -> None:
    for experiment in read_experiments(ROOT / "experiments").values():
        for plan in list_points(experiment):
            prepare_run(plan)
        assert len(read_live(experiment)) == len(experiment.file.live), experiment.name
