"""What tasks import: only the packages that the documentation requires of a worker's Python."""

import gc
import importlib
import pickle
import re
import subprocess
import sys

import pytest

from amcast.pipeline.spark.tasks import run_packed_call
from tests import ROOT

JOBS = ("amcast.pipeline.check.job", "amcast.pipeline.measure.job", "amcast.pipeline.sweep.worker")
PROGRAM = """
import importlib, sys
from importlib.metadata import packages_distributions
allowed = {name.lower() for name in sys.argv[1].split(",")}
owners = packages_distributions()

class Missing:
    def find_spec(self, name, path=None, target=None):
        own = owners.get(name.split(".")[0], [])
        if own and allowed.isdisjoint(owner.lower() for owner in own):
            raise ModuleNotFoundError(f"no module {name}: it is in {own}, which is not documented", name=name)

sys.meta_path.insert(0, Missing())
for name in sys.argv[2:]:
    importlib.import_module(name)
"""
OF_SPARK_OR_PANDAS = ("amcast", "pyspark", "py4j", "llvmlite", "python-dateutil", "six", "pytz", "tzdata")
"""What comes with the documented packages, and Spark itself, which every worker has."""


def test_tasks_need_only_the_documented_packages() -> None:
    text = (ROOT / "docs" / "spark.md").read_text()
    (sentence,) = re.findall(r"# workers whose Python has ([^:]*): ship only amcast", text)
    documented = re.split(r", | and ", sentence)
    assert "numba" in documented
    allowed = ",".join((*documented, *OF_SPARK_OR_PANDAS))
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, allowed, *JOBS], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr[-2000:]


def test_what_a_call_loads_is_exempt_from_garbage_collection(monkeypatch: pytest.MonkeyPatch) -> None:
    """PySpark collects garbage after every task; a worker imports the kernels with its first calls."""
    frozen: list[int] = []
    monkeypatch.setattr(gc, "freeze", lambda: frozen.append(len(sys.modules)))
    sys.modules.pop("colorsys", None)
    run_packed_call(_pack("json"))
    frozen.clear()
    for name, times in (("json", 0), ("colorsys", 1), ("colorsys", 1)):
        run_packed_call(_pack(name))
        assert len(frozen) == times


def _pack(name: str) -> bytes:
    return pickle.dumps((_load, (name,)))


def _load(name: str) -> None:
    importlib.import_module(name)
