"""`amcast reproduce`: listing, a reduced run of a committed experiment, the page, and mistakes."""

import json
import shutil
from pathlib import Path

import pytest

from amcast.cli.main import run

COMMITTED = Path(__file__).parents[3] / "experiments"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "docs").mkdir()
    shutil.copytree(COMMITTED, tmp_path / "experiments")
    return tmp_path / "experiments"


def test_experiments_are_listed_with_verdicts(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["reproduce", "--list", "--json", "--folder", str(folder)]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["003-wan"]["claims"]["42"] == "holds"
    assert rows["003-wan"]["finished"] == rows["003-wan"]["cells"]
    assert run(["reproduce", "--list", "--folder", str(folder)]) == 0
    assert "003-wan" in capsys.readouterr().out


def test_reduced_run_of_an_experiment_agrees_with_its_table(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One round trip for FastCast and two for BaseCast, wherever the client is; the table stays as it is."""
    before = (folder / "003-wan" / "table.csv").read_text()
    assert run(["reproduce", "003-wan", "--quick", "--seed", "5", "--json", "--folder", str(folder)]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert (found["left"], found["failures"]) == (0, [])
    checks = {check["say"]: check["holds"] for claim in found["claims"] for check in claim["checks"]}
    assert {say for say, holds in checks.items() if holds is False} == set()
    assert sum(holds is True for holds in checks.values()) >= 4
    assert (folder / "003-wan" / "table.csv").read_text() == before


def test_finished_experiment_runs_nothing_and_the_page_is_written(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["reproduce", "002-delays", "--json", "--folder", str(folder)]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert found["run"] == 0
    assert found["claims"][0]["verdict"] == "holds"
    assert run(["reproduce", "--page", "--folder", str(folder)]) == 0
    page = (folder.parent / "docs" / "reproduction.md").read_text()
    assert page == (COMMITTED.parent / "docs" / "reproduction.md").read_text()


def test_unfinished_experiment_is_unknown(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "002-delays" / "table.csv").unlink()
    assert run(["reproduce", "002-delays", "--minutes", "0", "--json", "--folder", str(folder)]) == 2
    (found,) = json.loads(capsys.readouterr().out)
    assert (found["run"], found["claims"][0]["verdict"]) == (0, "not run")
    assert run(["reproduce", "002-delays", "--folder", str(folder)]) == 0
    assert "claim 30 holds" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["nope"], "experiment 'nope' does not exist; `amcast reproduce --list` has: "),
        ([], "expected one of: NAME, --all, --list, --page"),
        (["003-wan", "--all"], "expected one of: NAME, --all, --list, --page"),
        (["003-wan", "--seed", "x"], "expected a range such as 0..99"),
        (["003-wan", "--folder", "/nowhere"], "no claims.toml; expected the folder experiments/"),
    ],
)
def test_mistakes_are_refused(
    folder: Path, arguments: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    place = [] if "--folder" in arguments else ["--folder", str(folder)]
    assert run(["reproduce", *arguments, *place]) == 64
    assert expected in capsys.readouterr().err
