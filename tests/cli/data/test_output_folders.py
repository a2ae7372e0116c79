"""Folders that commands on traces write to."""

from pathlib import Path

import pytest

from amcast.cli.main import run
from amcast.pipeline.rows import files
from tests.pipeline.small_runs import planted_runs, write


@pytest.mark.parametrize("command", ["measure", "report", "compact"])
def test_unknown_stores_are_refused_as_output(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """No local folder of the URI's name is made."""
    write(tmp_path / "run", planted_runs()["healthy"])
    monkeypatch.chdir(tmp_path)
    assert run([command, "run", "--out", "tape://bucket/tables"]) == 64
    error = capsys.readouterr().err
    assert "tape://bucket/tables" in error
    assert "expected a folder or a URI of a store that Arrow knows" in error
    assert [file.name for file in tmp_path.iterdir()] == ["run"]


def test_store_that_does_not_answer_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "nobody")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "nothing")
    files._open_s3.cache_clear()
    write(tmp_path / "run", planted_runs()["healthy"])
    assert run(["compact", str(tmp_path / "run"), "--out", "s3://bucket/copy"]) == 64
    assert "s3://bucket/copy: cannot be read: " in capsys.readouterr().err
    assert run(["check", "s3://bucket/run"]) == 64
    assert "s3://bucket/run" in capsys.readouterr().err
    files._open_s3.cache_clear()
