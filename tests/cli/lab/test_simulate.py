"""`amcast simulate`: what clients waited for, and plans with a grid."""

import json
from pathlib import Path

import pytest

from amcast.cli.main import run

GRID = """
protocol = "primcast"
[topology]
environment = "wan-3"
groups = 2
replicas = 3
clients = 3
[workload]
messages = 40
destinations = [1, 2]
[grid]
protocol = ["primcast", "basecast"]
"""


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    (tmp_path / "grid.toml").write_text(GRID)
    return tmp_path / "grid.toml"


def test_cells_of_a_grid_are_simulated_one_by_one(plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["simulate", "--plan", str(plan), "--seed", "4", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["protocol"] for row in rows] == ["primcast", "basecast"]
    assert all(row["answer_ms_p50_local"] > 0 and row["answer_ms_p50_global"] > 0 for row in rows)
    assert run(["simulate", "--plan", str(plan), "--seed", "4"]) == 0
    text = capsys.readouterr().out
    assert f"{rows[0]['answer_ms_p50_local']:.1f}" in text


def test_grid_is_not_recorded(plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["simulate", "--plan", str(plan), "--out", "somewhere"]) == 64
    assert "has a grid; expected a plan of one run" in capsys.readouterr().err


def test_waits_of_clients_are_apart_from_deliveries(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["-p", "whitebox", "--groups", "2", "--replicas", "3", "--destinations", "1..2", "--messages", "60"]
    folder = tmp_path / "run"
    assert run(["simulate", *flags, "--out", str(folder), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["wait_ns"]
    # 1 ms a step: to the leader, to a majority and back, to the client; one more step between two groups.
    assert (found["local"]["p50"], found["global"]["p50"]) == (4_000_000, 4_000_000)
    assert set(found) == {"all", "local", "global"}
