"""What `amcast check` prints about many runs: counts, and the bad ones in full. No Spark."""

from pathlib import Path

import pytest

from amcast.cli.main import run
from tests.mutants.planted import healthy
from tests.pipeline.small_runs import planted_runs, write


def test_many_runs_are_counted_and_failures_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(8):
        write(tmp_path / f"good-{number}", healthy())
    assert run(["check", str(tmp_path)]) == 0
    output = capsys.readouterr().out
    assert "8 runs, by property" in output
    assert "8 runs: holds" in output
    assert "run good-3" not in output
    write(tmp_path / "bad", planted_runs()["cycle_of_three"])
    assert run(["check", str(tmp_path)]) == 1
    output = capsys.readouterr().out
    assert "run bad: violated" in output
    assert "precede each other in a cycle" in output
    assert "run good-3" not in output
    assert output.rstrip().endswith("9 runs: violated")


def test_few_runs_are_shown_one_by_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(3):
        write(tmp_path / f"good-{number}", healthy())
    assert run(["check", str(tmp_path)]) == 0
    output = capsys.readouterr().out
    assert [f"run good-{number}: holds" in output for number in range(3)] == [True] * 3
    assert "by property" not in output
