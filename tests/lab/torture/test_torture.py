"""A short torture of a real cluster, as a user starts it."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from amcast.cli.main import app, run
from amcast.lab.torture.campaign import TorturePlan, run_torture
from amcast.live.torture.namespaces import are_namespaces_available

pytestmark = [pytest.mark.live, pytest.mark.slow]


def torture(folder: Path, *options: str) -> tuple[int, dict[str, Any]]:
    done = CliRunner().invoke(app, ["torture", "--json", "--out", str(folder / "run"), *options])
    assert done.stdout.startswith("{"), done.output
    return done.exit_code, json.loads(done.stdout)


def test_cluster_behind_proxies_survives_faults_of_links_nodes_disks_and_members(tmp_path: Path) -> None:
    """A torture goes on until each kind of fault has struck."""
    faults = "cut,kill,torn,rollback,full,members"
    code, result = torture(tmp_path, "--minutes", "0.1", "--network", "proxy", "--faults", faults, "--seed", "1")
    assert (code, result["verdict"], result["violations"]) == (0, "holds", [])
    assert {strike["kind"] for strike in result["strikes"]} == set(faults.split(","))
    assert result["acknowledged"] > 40
    assert json.loads((tmp_path / "run" / "torture.json").read_text()) == result


def test_planted_bugs_of_live_nodes_are_found(tmp_path: Path) -> None:
    """Each by another judge: the trace, the programs, the observers, the clients."""
    plan = TorturePlan(minutes=0.05, faults=("slow",), network="proxy", groups=1)
    result = run_torture(plan, tmp_path / "run", lambda line: None, "tests.lab.torture.planted.faulty_node")
    assert result.verdict == "violated"
    assert result.properties["P2"] == "violated"
    for sentence in ("where group0/1 executed", "an observer read", "was acknowledged as message"):
        assert any(sentence in violation for violation in result.violations), (sentence, result.violations)


@pytest.mark.skipif(not are_namespaces_available(), reason="network namespaces need root and the command ip")
def test_cluster_in_network_namespaces_survives_one_way_cuts(tmp_path: Path) -> None:
    """In a process of its own, because it leaves this network namespace for good."""
    command = [sys.executable, "-m", "amcast", "torture", "--json", "--out", str(tmp_path / "run")]
    command += ["--minutes", "0.1", "--network", "namespaces", "--faults", "cut,flap,stop", "--replicas", "3"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout)["network"] == "namespaces"


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--faults", "flood"), "faults: 'flood'; expected some of kill"),
        (("--minutes", "0"), "minutes = 0"),
        (("--durability", "memory"), "durability"),
        (("--network", "carrier"), "network"),
    ],
)
def test_wrong_settings_are_named(
    tmp_path: Path, options: tuple[str, str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["torture", "--out", str(tmp_path / "run"), *options]) == 64
    assert sentence in capsys.readouterr().err
