"""`amcast bench` shows what it measured, for people and for programs."""

import json

import pytest

from amcast.cli.main import run

SMALL = ["bench", "--groups", "1", "--replicas", "1", "--connections", "1", "--outstanding", "2", "--seconds", "0.5"]


@pytest.mark.live
def test_bench_shows_a_table_of_what_it_measured(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(SMALL) == 0
    shown = capsys.readouterr().out
    for row in ("throughput", "CPU of all replicas", "latency p99", "interpreter", "this machine", "order"):
        assert row in shown
    assert "holds" in shown


@pytest.mark.live
def test_bench_prints_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*SMALL, "--rate", "50", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["verdict"] == "holds"
    assert result["rate"] == 50
    assert result["latency_us_p50"] > 0
