"""Same seed, same run: whatever the hash seed and whatever the interpreter, the tables are byte-equal."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from functools import cache
from importlib.metadata import version
from pathlib import Path

import pytest

from amcast.protocols.catalogue import CATALOGUE
from tests import ROOT
from tests.conformance.plans import sizes_of

NEEDED = ("msgspec", "pyarrow", "rich", "typer")
COMMAND = """
import json, sys
from amcast.cli.main import run
for arguments in json.loads(sys.argv[1]):
    if code := run(arguments):
        sys.exit(f"{arguments} ended with {code}")
"""


def arguments_of(name: str, out: Path) -> list[str]:
    arguments = ["simulate", "--protocol", name, "--seed", "11", "--messages", "60", "--destinations", "1..3"]
    return [
        *arguments,
        "--replicas",
        str(sizes_of(CATALOGUE[name])[-1]),
        "--faults",
        "all",
        "--out",
        str(out),
        "--json",
    ]


@cache
def digests(python: Path | str, hash_seed: int, path: str = "") -> dict[str, str]:
    """For every protocol a digest over every byte of every table of one simulated run, all made by one interpreter."""
    environment = {**os.environ, "PYTHONHASHSEED": str(hash_seed)} | ({"PYTHONPATH": path} if path else {})
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        runs = {name: Path(folder) / name for name in CATALOGUE}
        given = json.dumps([arguments_of(name, out) for name, out in runs.items()])
        done = subprocess.run(
            [str(python), "-c", COMMAND, given], env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr + done.stdout
        for name, out in runs.items():
            digest = hashlib.sha256()
            for file in sorted(out.rglob("*.parquet")):
                digest.update(str(file.relative_to(out)).encode() + file.read_bytes())
            found[name] = digest.hexdigest()
    return found


@cache
def other_interpreter() -> tuple[Path, str] | None:
    """Another Python with what a run needs: one of another version in a small venv, made once."""
    mine = f"{sys.version_info.major}.{sys.version_info.minor}"
    wanted = [f"3.{minor}" for minor in (14, 13, 12, 11) if f"3.{minor}" != mine]
    for other in wanted:
        installed = [str(path) for path in sorted(Path.home().glob(f".pyenv/versions/{other}.*/bin/python"))]
        for found in [shutil.which(f"python{other}"), *installed]:
            if not found or subprocess.run([found, "-c", ""], capture_output=True, check=False).returncode:
                continue
            venv = Path(sysconfig.get_paths()["data"]) / "others" / other
            python = venv / "bin" / "python"
            if not (venv / "done").exists():
                # This interpreter's pip installs into it: setting up another one takes longer than the runs.
                subprocess.run([found, "-m", "venv", "--clear", "--without-pip", str(venv)], check=True)
                pins = [f"{package}=={version(package)}" for package in NEEDED]
                pip = [sys.executable, "-m", "pip", "--python", str(python)]
                install = [*pip, "install", "--quiet", "--no-compile", *pins]
                subprocess.run(install, check=True, capture_output=True)
                (venv / "done").touch()
            return python, str(ROOT / "src")
    return None


def test_hash_seed_changes_nothing() -> None:
    assert digests(sys.executable, 1) == digests(sys.executable, 4242)


def test_interpreter_changes_nothing() -> None:
    other = other_interpreter()
    if other is None:
        pytest.skip("no other Python 3.11+ on this machine; install one (for example python3.12) to run this")
    python, path = other
    assert digests(sys.executable, 1) == digests(python, 0, path)
