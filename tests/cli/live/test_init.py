"""`amcast init` writes a cluster.toml that the other commands take."""

import json
from pathlib import Path

import pytest

from amcast.cli.main import run
from amcast.live.config.cluster import read_cluster


def test_file_describes_the_cluster(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "cluster.toml"
    assert (
        run(["init", "accounts", "audit-1", "--replicas", "2", "--port", "9000", "--config", str(file), "--json"]) == 0
    )
    assert json.loads(capsys.readouterr().out)["ports"] == [9000, 9003]
    cluster = read_cluster(file)
    assert list(cluster.nodes()) == ["accounts/1", "accounts/2", "audit-1/1", "audit-1/2"]
    assert [port for _, port in cluster.addresses.values()] == [9000, 9001, 9002, 9003]


def test_order_is_written_if_it_is_given(tmp_path: Path) -> None:
    for order in (None, "acyclic", "real-time"):
        file = tmp_path / f"{order}.toml"
        assert run(["init", "--config", str(file), *(("--order", order) if order else ())]) == 0
        assert read_cluster(file).order == (order or "acyclic")
        assert "order = " in file.read_text()


def test_existing_file_is_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "cluster.toml"
    file.write_text("mine")
    assert run(["init", "--config", str(file)]) == 64
    assert "exists and is not changed" in capsys.readouterr().err
    assert file.read_text() == "mine"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["a b"], "group 'a b'; expected a name of letters, digits, - and _"),
        (["a", "a"], "group 'a' is given 2 times; expected once"),
        (["a", "--port", "65534"], "--port 65534: 3 replicas need ports up to 65536; expected at most 65535"),
        (["a", "-p", "paxos"], "protocol 'paxos' does not exist"),
        (["a", "--durability", "disk"], "Invalid enum value 'disk'; expected one of: fsync, memory, os"),
    ],
)
def test_wrong_values_leave_no_file(
    arguments: list[str], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "cluster.toml"
    assert run(["init", *arguments, "--config", str(file)]) == 64
    assert sentence in capsys.readouterr().err
    assert not file.exists()
