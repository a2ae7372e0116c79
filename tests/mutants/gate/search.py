"""Looks for a planted bug with the seeds of `amcast fuzz`, and says which judge found it.

    python -m tests.mutants.gate.search NAME fuzz --protocol primcast --seeds 0..99

runs a command of amcast with a bug planted. The mutated module is compiled when it is first imported; no file changes.
"""

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from tests.mutants.gate.bug import SOURCE, Bug
from tests.mutants.gate.catalogue import BUGS
from tests.mutation.patch import plant_source
from tests.mutation.plant import MutantFinder
from tests.mutation.sample import Target
from tests.mutation.search import find_failure


@dataclass(frozen=True)
class Finding:
    """The first seed that found a bug, and its judge."""

    bug: Bug
    seed: int
    """-1: not found."""
    judge: str = ""
    story: str = ""


def look_for(bug: Bug, seeds: int, first: int = 0) -> Finding:
    """Fuzzes the protocol with the bug planted, seed by seed until one fails, which must hold without the bug."""
    judge = Target(bug.protocol, order=bug.order).make_judge()
    with plant_source(f"amcast.{bug.module}", bug.apply(bug.file.read_text())):
        failure = find_failure(judge, range(first, first + seeds))
    if failure is None:
        return Finding(bug, -1)
    own = find_failure(judge, (failure.seed,))
    if own is not None:
        raise RuntimeError(f"seed {own.seed} of {bug.protocol} fails without any planted bug: {own.story}")
    return Finding(bug, failure.seed, name_judge(failure.status, failure.story), failure.story)


def name_judge(status: str, story: str) -> str:
    """Which judge found a failure: a rule of the monitors, a property of the checker, liveness, an assertion."""
    rule = re.search(r"breaks the rule '([^']*(?:'s [^']*)?)'", story)
    if rule:
        return f"monitor: {rule[1]}"
    property_name = re.match(r"(P\d'?): ", story)
    if property_name:
        return f"checker: {property_name[1]}"
    if status in ("hang", "error"):
        return status
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
