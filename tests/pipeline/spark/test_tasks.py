"""What tasks import: only the packages that the documentation requires of a worker's Python."""

import re
import subprocess
import sys

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
