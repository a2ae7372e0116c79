"""`spark-submit --py-files` as docs/spark.md says: workers get amcast in an archive, and have nothing else of it."""

import json
import os
import re
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from amcast.pipeline.spark.java import find_java_home
from tests import ROOT
from tests.pipeline.spark.standalone import HOME, QUICK_JVM, cluster

INDIRECT = ("llvmlite", "dateutil", "pytz", "tzdata", "six")
"""What the documented packages need themselves."""
PLAN = """
protocol = "primcast"
[topology]
groups = 2
replicas = 3
clients = 2
[workload]
messages = 20
[grid]
seed = [0, 1]
"""
MAIN = """
import json, sys
from amcast.cli.main import run
from amcast.pipeline.spark.session import open_session

with open_session():  # one session for all three commands
    print(json.dumps([run(arguments) for arguments in json.loads(sys.argv[1])]))
"""


def list_documented_packages() -> list[str]:
    """What docs/spark.md says that the Python of the workers must have."""
    text = (ROOT / "docs" / "spark.md").read_text()
    found = re.search(r"workers whose Python has ([a-z, ]+): ship only amcast", text)
    assert found, "docs/spark.md does not say what workers need"
    return re.split(r", | and ", found.group(1))


def make_worker_python(folder: Path) -> Path:
    """A Python that has the documented packages and what they need, from this environment, and no other."""
    venv.create(folder, with_pip=False, symlinks=True)
    (target,) = folder.glob("lib/python*/site-packages")
    for name in (*list_documented_packages(), *INDIRECT):
        source = Path(sys.modules[name].__file__ or "") if name in sys.modules else find_module(name)
        if source.name == "__init__.py":
            for part in source.parent.parent.glob(f"{name}*"):  # with the libraries beside it
                (target / part.name).symlink_to(part)
        else:
            (target / source.name).symlink_to(source)
    python = folder / "bin" / "python"
    for name in ("amcast", "rich", "typer", "pyspark"):
        missing = subprocess.run([python, "-c", f"import {name}"], cwd=folder, capture_output=True, check=False)
        assert missing.returncode == 1, f"the workers' Python has {name}"
    return python


def find_module(name: str) -> Path:
    from importlib.util import find_spec

    found = find_spec(name)
    assert found is not None, f"{name} is not installed"
    assert found.origin is not None
    return Path(found.origin)


@pytest.mark.slow
def test_documented_submission_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = make_worker_python(tmp_path / "workers" / "python")
    archive = shutil.make_archive(str(tmp_path / "amcast"), "zip", ROOT / "src", "amcast")
    (tmp_path / "plan.toml").write_text(PLAN)
    (tmp_path / "amcast_main.py").write_text(MAIN)
    shared, home = tmp_path / "shared", tmp_path / "somebody"
    home.mkdir()
    commands = [
        ["sweep", str(tmp_path / "plan.toml"), "--out", str(shared), "--traces", "--json"],
        ["check", str(shared / "runs"), "--engine", "spark", "--json"],
        ["measure", str(shared), "--json"],
    ]
    for name in ("PYTHONPATH", "VIRTUAL_ENV"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(home))  # that of the workers, too
    monkeypatch.setenv("XDG_CACHE_HOME", str(home / "cache"))
    settings = ("spark.executor.memory=512m", f"spark.executor.extraJavaOptions={QUICK_JVM}")
    with cluster(tmp_path / "workers" / "cluster") as spark_cluster:
        done = subprocess.run(
            [
                *(HOME / "bin" / "spark-submit", "--master", spark_cluster.master),
                *("--driver-java-options", QUICK_JVM, "--driver-memory", "512m"),
                *(part for setting in settings for part in ("--conf", setting)),
                *("--py-files", archive, tmp_path / "amcast_main.py", json.dumps(commands)),
            ],
            env=os.environ
            | {
                "JAVA_HOME": str(find_java_home()),
                "SPARK_LOCAL_IP": "127.0.0.1",
                "PYSPARK_DRIVER_PYTHON": sys.executable,
                "PYSPARK_PYTHON": str(python),
            },
            cwd=home,
            capture_output=True,
            text=True,
            timeout=400,
            check=False,
        )
    codes = re.search(r"^\[\d.*\]$", done.stdout, re.MULTILINE)
    assert codes, f"{done.returncode} {done.stdout[-2000:]} {done.stderr[-3000:]}"
    assert json.loads(codes.group()) == [0, 0, 0], done.stdout[-3000:]
    summary = pq.read_table(shared / "measures" / "summary.parquet").to_pylist()
    assert [row["multicasts"] for row in summary] == [20, 20]
    assert all(row["packets_per_multicast"] > 0 for row in summary)
