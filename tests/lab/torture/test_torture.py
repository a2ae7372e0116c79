"""A short torture of a real cluster, as a user starts it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from amcast.cli.main import app
from amcast.live.torture.namespaces import are_namespaces_available

pytestmark = [pytest.mark.live, pytest.mark.slow]


def torture(folder: Path, *options: str) -> tuple[int, dict[str, object]]:
    done = CliRunner().invoke(app, ["torture", "--json", "--out", str(folder / "run"), *options])
    assert done.stdout.startswith("{"), done.output
    return done.exit_code, json.loads(done.stdout)


def test_cluster_behind_proxies_survives_cuts_and_kills(tmp_path: Path) -> None:
    code, result = torture(tmp_path, "--minutes", "0.1", "--network", "proxy", "--faults", "cut,kill", "--seed", "1")
    assert (code, result["verdict"], result["violations"]) == (0, "holds", [])
    assert result["strikes"]
    assert int(str(result["acknowledged"])) > 40
    assert json.loads((tmp_path / "run" / "torture.json").read_text()) == result


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
def test_wrong_settings_are_named(tmp_path: Path, options: tuple[str, str], sentence: str) -> None:
    command = [sys.executable, "-m", "amcast", "torture", "--out", str(tmp_path / "run"), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 64
    assert sentence in done.stderr
