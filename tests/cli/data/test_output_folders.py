"""Folders that commands on traces write to."""

from pathlib import Path

import pytest

from amcast.cli.main import run


@pytest.mark.parametrize("command", ["measure", "report", "compact"])
def test_uris_are_refused_as_output(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run([command, "runs/latest", "--out", "s3://bucket/tables"]) == 64
    error = capsys.readouterr().err
    assert "--out" in error
    assert "expected a local folder" in error
    assert not list(tmp_path.iterdir())
