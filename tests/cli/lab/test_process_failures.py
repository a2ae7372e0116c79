"""A process that raises is a violation with a story, a script and a command to repeat it: exit code 1, never 70."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from amcast.cli.main import run
from amcast.kernel.ids import ProcessId
from amcast.kernel.message import Body
from amcast.protocols.skeen import process
from amcast.protocols.skeen.process import Skeen


class Failing(Skeen):
    """Process 1 fails when the first body of another server reaches it."""

    def on_receive(self, sender: ProcessId, body: Body) -> None:
        if self.me == 1 and sender == 0:
            raise AssertionError(f"process 1 trusts nobody, and not {sender}")
        super().on_receive(sender, body)


SIMULATE = ["simulate", "--protocol", "skeen", "--groups", "2", "--replicas", "1", "--destinations", "2"]
STORY = "process 1 fails with AssertionError in on_receive: process 1 trusts nobody, and not 0 (step "


@pytest.fixture(autouse=True)
def failing_skeen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(process, "SPEC", replace(process.SPEC, process=Failing))
    monkeypatch.chdir(tmp_path)


def run_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    code = run([*arguments, "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_simulate_reports_a_failed_process_as_a_violation(capsys: pytest.CaptureFixture[str]) -> None:
    code, data = run_json(capsys, *SIMULATE, "--no-packets")
    assert (code, data["verdict"], data["end"]) == (1, "violated", "failed")
    assert data["violations"][0].startswith(STORY)
    assert "process 1 receives " in data["violations"][0], "the story names the event of the step"
    assert "from 0" in data["violations"][0]
    assert run([*data["replay"].split()[1:]]) == 1
    printed = capsys.readouterr().out
    assert data["violations"][0] in printed
    assert f"run it again:  {data['replay']}" in printed


def test_run_of_a_failed_process_is_not_called_complete(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*SIMULATE, "--out", "run", "--json"]) == 1
    capsys.readouterr()
    assert run(["check", "run"]) == 2, "the trace of a run that stopped early proves nothing"


def test_fuzz_saves_a_script_of_a_failed_process_that_replays_and_shrinks(capsys: pytest.CaptureFixture[str]) -> None:
    code, data = run_json(capsys, "fuzz", "--protocol", "skeen", "--replicas", "1", "--seeds", "0..9", "--jobs", "1")
    assert (code, data["verdict"]) == (1, "violated")
    assert data["failures"][0]["status"] == "violated"
    assert data["failures"][0]["story"].startswith(STORY)
    assert run(["replay", data["script"]]) == 1
    assert f"violated: {data['failures'][0]['story']}" in capsys.readouterr().out
    assert run(["shrink", data["script"], "--json"]) == 0
    small = json.loads(capsys.readouterr().out)
    assert small["status"] == "violated"
    assert small["story"].startswith(STORY)
    assert small["steps"] <= data["failures"][0]["steps"]


def test_explore_reports_a_failed_process_as_a_violation(capsys: pytest.CaptureFixture[str]) -> None:
    code, data = run_json(capsys, "explore", "--protocol", "skeen", "--groups", "2", "--messages", "1")
    assert (code, data["verdict"]) == (1, "violated")
    assert data["story"].startswith(STORY)
    assert run(["replay", data["script"], "--quiet"]) == 1
    assert capsys.readouterr().out == f"violated: {data['story']}\n"
