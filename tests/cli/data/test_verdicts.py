"""What `amcast check` prints about many runs: counts, and the bad ones in full. No Spark."""

from pathlib import Path

import pytest

from amcast.cli.main import run
from tests.mutants.planted import healthy
from tests.pipeline.small_runs import planted_runs, write


def test_many_runs_are_counted_and_the_bad_ones_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(8):
        write(tmp_path / f"good-{number}", healthy())
    assert run(["check", str(tmp_path)]) == 0
    told = capsys.readouterr().out
    assert "8 runs, by property" in told
    assert "8 runs: holds" in told
    assert "run good-3" not in told
    write(tmp_path / "bad", planted_runs()["cycle_of_three"])
    assert run(["check", str(tmp_path)]) == 1
    told = capsys.readouterr().out
    assert "run bad: violated" in told
    assert "precede each other in a circle" in told
    assert "run good-3" not in told
    assert told.rstrip().endswith("9 runs: violated")


def test_a_few_runs_are_shown_one_by_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(3):
        write(tmp_path / f"good-{number}", healthy())
    assert run(["check", str(tmp_path)]) == 0
    told = capsys.readouterr().out
    assert [f"run good-{number}: holds" in told for number in range(3)] == [True] * 3
    assert "by property" not in told
