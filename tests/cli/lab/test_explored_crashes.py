"""Explored scopes with crashes have clients that ask again: nothing gets stuck because a request died with a leader."""

import json
from pathlib import Path

import pytest

from amcast.cli.main import run


@pytest.mark.parametrize("protocol", ["whitebox", "primcast", "fastcast"])
@pytest.mark.parametrize("sizes", [("--groups", "2", "--destinations", "0"), ("--groups", "1", "--replicas", "3")])
def test_crash_of_a_leader_leaves_no_message_behind(
    protocol: str, sizes: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    limits = ("--crashes", "1", "--messages", "1", "--max-states", "500", "--script", str(tmp_path / "script"))
    run(["explore", "--protocol", protocol, *sizes, *limits, "--json"])
    found = json.loads(capsys.readouterr().out)
    assert found["story"] is None, found["story"]
    assert found["endings"], "some path ended"


def test_crash_that_a_protocol_does_not_claim_is_judged_by_safety_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    limits = ("--crashes", "1", "--messages", "1", "--script", str(tmp_path / "script"))
    run(["explore", "--protocol", "skeen", "--groups", "2", *limits, "--json"])
    found = json.loads(capsys.readouterr().out)
    assert found["story"] is None, found["story"]
    assert found["patterns_exhausted"] == 3


@pytest.mark.parametrize("workers", ["1", "2"])
def test_change_of_leaders_is_explored_in_parts(workers: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A search forgets what led to a state, and must not accuse a new leader of ignoring promises that it has heard."""
    scope = ("--groups", "1", "--replicas", "3", "--messages", "1", "--suggestions", "1", "--max-states", "4000")
    run(["explore", "--protocol", "whitebox", *scope, "--workers", workers, "--json"])
    found = json.loads(capsys.readouterr().out)
    assert found["story"] is None, found["story"]
    assert found["parts"] > 1
    assert found["symmetries"] == 2
    assert found["goals"]["epoch"], "some process led a new epoch"
    assert found["verdict"] == "unknown", "there are more states"
