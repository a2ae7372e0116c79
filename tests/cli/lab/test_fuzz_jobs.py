"""Fuzzing on several cores gives what one core gives."""

import json
from pathlib import Path

import pytest

from amcast.cli.main import run


@pytest.mark.parametrize("option", ["--swarm", "--no-swarm", "--feedback"])
def test_seeds_spread_over_processes_give_the_same_result(
    option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = []
    for jobs in ("1", "2"):
        arguments = ("fuzz", "--protocol", "skeen", "--replicas", "1", "--seeds", "0..19", option, "--jobs", jobs)
        assert run([*arguments, "--script", str(tmp_path / "script"), "--json"]) == 0
        found.append(json.loads(capsys.readouterr().out))
    assert found[0] == found[1]
