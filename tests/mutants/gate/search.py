"""Looks for a planted bug with `amcast fuzz`, in a process of its own, and says which judge found it.

    python -m tests.mutants.gate.search NAME fuzz --protocol primcast --seeds 0..99

The mutated module is compiled when it is first imported; no file changes.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from tests.mutants.gate.bug import SOURCE, Bug
from tests.mutants.gate.catalogue import BUGS
from tests.mutation.plant import MutantFinder

HANG_S = 1800.0
"""A search that takes longer has met a bug that never ends a run."""


@dataclass(frozen=True)
class Finding:
    """The first seed that found a bug, and its judge."""

    bug: Bug
    seed: int
    """-1: not found."""
    judge: str = ""
    story: str = ""


def look_for(bug: Bug, seeds: int, first: int = 0) -> Finding:
    """Fuzzes the protocol with the bug planted, seed by seed until one fails."""
    arguments = ["fuzz", "--protocol", bug.protocol, "--seeds", f"{first}..{first + seeds - 1}", "--jobs", "1"]
    command = [
        sys.executable,
        "-m",
        "tests.mutants.gate.search",
        bug.name,
        *arguments,
        "--json",
        "--script",
        os.devnull,
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=HANG_S, check=False, cwd=SOURCE.parent)
    except subprocess.TimeoutExpired:
        return Finding(bug, 0, "hang", f"no end within {HANG_S:.0f} s")
    if done.returncode in (0, 2):
        return Finding(bug, -1)
    assert done.stdout.startswith("{"), f"{' '.join(command)} failed by itself: {done.stderr[-2000:]}"
    failure = json.loads(done.stdout)["failures"][0]
    return Finding(bug, failure["seed"], name_judge(failure["status"], failure["story"]), failure["story"])


def name_judge(status: str, story: str) -> str:
    """Which judge found a failure: a rule of the monitors, a property of the checker, liveness, an assertion."""
    rule = re.search(r"breaks the rule '([^']*(?:'s [^']*)?)'", story)
    if rule:
        return f"monitor: {rule[1]}"
    property_name = re.match(r"(P\d'?): ", story)
    if property_name:
        return f"checker: {property_name[1]}"
    if status == "stuck":
        return "liveness"
    return "assertion" if re.match(r"process \d+ fails with ", story) else "world"


def main(arguments: Sequence[str]) -> None:
    name, *command = arguments
    sys.path.insert(0, str(SOURCE))
    sys.meta_path.insert(0, MutantFinder(f"amcast.{BUGS[name].module}", BUGS[name].apply))
    from amcast.cli import main as run_amcast

    sys.argv = ["amcast", *command]
    run_amcast()


if __name__ == "__main__":
    main(sys.argv[1:])
