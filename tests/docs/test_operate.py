"""The instructions of docs/operate.md are run unchanged; the files of deploy/ are validated."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from amcast.cli.main import run as command
from amcast.live.config.cluster import read_cluster
from amcast.live.operations.local_cluster import find_free_ports
from tests import ROOT

PAGE = (ROOT / "docs" / "operate.md").read_text()


def blocks(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```", PAGE, re.M | re.S)


@pytest.mark.live
@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux answers on all of 127.0.0.0/8")
def test_first_section_runs_unchanged(tmp_path: Path) -> None:
    """Only the ports differ, so that tests can run side by side."""
    (config,) = blocks("toml")
    (script,) = blocks("sh")
    used = sorted(set(re.findall(r":(\d{4})\b", config)))
    for old, new in zip(used, find_free_ports(len(used)), strict=True):
        config = config.replace(f":{old}", f":{new}")
        script = script.replace(f":{old}", f":{new}")
    (tmp_path / "cluster.toml").write_text(config)
    amcast = tmp_path / "bin" / "amcast"
    amcast.parent.mkdir()
    amcast.write_text(f"#!/bin/sh\nexec {sys.executable} -c 'from amcast.cli import main; main()' \"$@\"\n")
    amcast.chmod(0o755)
    found = subprocess.run(
        ["bash", "-m", "-e", "-o", "pipefail", "-c", script.replace("kill %1 && wait", "kill %1 && wait || true")],
        cwd=tmp_path,
        env={**os.environ, "PATH": f"{amcast.parent}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert found.returncode == 0, found.stdout + found.stderr + (tmp_path / "up.log").read_text()
    assert "was ordered in 2 groups" in found.stdout
    assert "\nready\n" in found.stdout
    assert re.search(r"^amcast_position \d", found.stdout, re.M)
    assert (tmp_path / "status.json").read_text().count('"ready": true') == 6
    assert "stopping" in (tmp_path / "up.log").read_text()


def test_commands_and_options_of_the_page_exist(capsys: pytest.CaptureFixture[str]) -> None:
    named = set(re.findall(r"amcast ([a-z]+) (?:--|\")|`amcast ([a-z]+)`", PAGE))
    names = {one or other for one, other in named}
    assert {"certs", "status", "explain", "roll", "replace", "up", "send"} <= names
    for name in sorted(names):
        assert command([name, "--help"]) == 0, name
    capsys.readouterr()
    flags = set(re.findall(r"amcast ([a-z]+)[^\n`]*?(--[a-z]+)", PAGE))
    for name, flag in sorted(flags):
        command([name, "--help"])
        assert flag in capsys.readouterr().out, f"amcast {name} has no {flag}"


@pytest.mark.parametrize("file", ["cluster.toml", "compose/cluster.toml"])
def test_example_cluster_files_are_valid(file: str) -> None:
    cluster = read_cluster(ROOT / "deploy" / file)
    assert cluster.security.mode == "tls"
    assert len(cluster.nodes()) % 3 == 0


def test_kubernetes_cluster_file_is_valid(tmp_path: Path) -> None:
    text = (ROOT / "deploy" / "kubernetes.yaml").read_text()
    inside = re.search(r"cluster\.toml: \|\n((?:    .*\n|\n)+)", text)
    assert inside
    (tmp_path / "cluster.toml").write_text(re.sub(r"^    ", "", inside[1], flags=re.M))
    cluster = read_cluster(tmp_path / "cluster.toml")
    assert list(cluster.nodes()) == ["orders/1", "orders/2", "orders/3"]
    assert cluster.listen_addresses[0] == ("0.0.0.0", 7001)


def test_unit_and_compose_file_start_existing_nodes() -> None:
    unit = (ROOT / "deploy" / "amcast@.service").read_text()
    assert "amcast serve --config /etc/amcast/cluster.toml --node %I" in unit
    nodes = re.findall(r"--node (\S+)", (ROOT / "deploy" / "compose.yaml").read_text())
    assert nodes == list(read_cluster(ROOT / "deploy" / "compose" / "cluster.toml").nodes())
