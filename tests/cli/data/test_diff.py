"""`amcast diff` on folders and on commits."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

import amcast
from amcast.cli.main import run as run_command

PLAN = """
protocol = "skeen"
[topology]
groups = 2
replicas = 1
[workload]
messages = 20
"""


def simulate(folder: Path, protocol: str, seed: int) -> None:
    words = ["simulate", "-p", protocol, "--groups", "2", "--messages", "30", "--seed", str(seed)]
    assert run_command([*words, "--out", str(folder / str(seed))]) == 0


def test_folders_are_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for protocol in ("primcast", "basecast"):
        for seed in (1, 2):
            simulate(tmp_path / protocol, protocol, seed)
    first, second = str(tmp_path / "primcast"), str(tmp_path / "basecast")
    capsys.readouterr()
    assert run_command(["diff", first, first]) == 0
    assert "the second is not worse" in capsys.readouterr().out
    assert run_command(["diff", first, second, "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["verdict"] == "violated"
    assert found["settings"][0]["not_in_order"] == [0, 0]
    assert {one["number"]: one["change"] for one in found["settings"][0]["numbers"]}["bytes_per_multicast"] == "worse"
    assert not (tmp_path / "primcast" / "measures").exists()
    assert run_command(["diff", first, str(tmp_path / "nothing")]) == 64
    assert run_command(["diff", first, second, "--gate", "speed"]) == 64
    assert "--gate speed; expected" in capsys.readouterr().err


def test_commits_are_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The second commit makes every message larger."""
    shutil.copytree(Path(amcast.__file__).parent, tmp_path / "src/amcast", ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plan.toml").write_text(PLAN)

    def commit() -> None:
        for words in (["add", "-A"], ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "x"]):
            subprocess.run(["git", *words], check=True, capture_output=True)

    subprocess.run(["git", "init", "-q", "."], check=True)
    commit()
    recorder = tmp_path / "src/amcast/trace/recorder.py"
    recorder.write_text(recorder.read_text().replace("target, size, sent_ns", "target, 2 * size, sent_ns"))
    commit()
    words = ["--plan", "plan.toml", "--seeds", "0..1", "--json"]
    assert run_command(["diff", "HEAD~1", "HEAD", *words]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["worse"] == ["skeen: bytes_per_multicast is worse"]
    size = found["settings"][0]["numbers"][-1]
    assert (size["number"], size["share"], size["runs"]) == ("bytes_per_multicast", 1.0, [2, 2])
    assert subprocess.run(["git", "worktree", "list"], capture_output=True, text=True).stdout.count("\n") == 1
    assert run_command(["diff", "HEAD", "elsewhere", *words]) == 64
    assert "revision 'elsewhere': not in the git repository" in capsys.readouterr().err
    assert run_command(["diff", "HEAD", "HEAD", "--plan", "missing.toml"]) == 64
