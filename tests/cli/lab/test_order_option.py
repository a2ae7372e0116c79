"""`--order real-time` on the commands of the laboratory: runs of that setting, with P9 judged."""

import json
from pathlib import Path

import pytest

from amcast.cli.main import run


def test_simulated_run_is_judged_by_real_time_order(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ("--groups", "2", "--replicas", "3", "--messages", "40", "--clients", "2", "--json")
    for order in ("real-time", "acyclic"):
        run(["simulate", "-p", "primcast", "--order", order, *sizes, "--out", str(tmp_path / order)])
        found = json.loads(capsys.readouterr().out)
        assert found["properties"]["P9"]["claimed"] == (order == "real-time")
        assert found["verdict"] == "holds"


def test_fuzzed_seeds_all_have_the_order_that_was_given(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["fuzz", "-p", "skeen", "--order", "real-time", "--seeds", "0..3", "--jobs", "1", "--json"]
    run([*arguments, "--script", str(tmp_path / "script")])
    found = json.loads(capsys.readouterr().out)
    assert (found["runs"], found["failures"]) == (4, [])


def test_delays_until_a_message_is_closed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["delays", "primcast", "--order", "real-time", "--world", "unit", "--replicas", "3", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [(row["destinations"], row["delays_max"], row["packets"]) for row in rows] == [
        (1, 3, 12),
        (2, 4, 48),
        (4, 4, 192),
    ]


def test_latencies_of_deliveries_have_no_order(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["worst", "skeen", "--order", "real-time", "--schedules", "1"]) == 64
    assert "--order real-time without --real-time; expected both" in capsys.readouterr().err


def test_searches_that_find_no_cycle_do_not_say_that_the_property_holds(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["worst", "-p", "multipaxos", "--real-time", "--schedules", "2"]) == 0
    printed = capsys.readouterr().out
    assert "no cycle found" in printed
    assert "holds" not in printed
    assert "skeen" not in printed, "named by the option of other commands"


def test_schedules_of_worst_are_no_scripts(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["replay", "docs/real-time/skeen.json"]) == 64
    assert "`amcast worst --schedule FILE` runs a schedule of worst" in capsys.readouterr().err
