"""Compares blind search with feedback: how many runs each needs to find planted bugs, from several first seeds.

    python -m tests.mutants.gate.feedback --only NAME --only NAME --starts 5 --runs 1000

Both searches of a bug run one after the other in the same process, and draw the same first runs.
"""

import argparse
import statistics
import sys

from amcast.lab.fuzz_campaign import run_campaign, run_feedback_campaign
from tests.mutants.gate.bug import Bug
from tests.mutants.gate.catalogue import BUGS
from tests.mutation.patch import plant_source
from tests.mutation.sample import Target

STRIDE = 100_000
"""How far the first seeds are apart."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants.gate.feedback", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--only", action="append", required=True, choices=sorted(BUGS), metavar="NAME", help="a bug")
    parser.add_argument("--starts", type=int, default=5, help="searches of each kind")
    parser.add_argument("--runs", type=int, default=1000, help="the most runs of a search")
    options = parser.parse_args()
    print(f"{'bug':52}{'blind: median (each)':>36}{'feedback: median (each)':>36}")
    for name in options.only:
        blind, led = compare(BUGS[name], options.starts, options.runs)
        print(f"{name:52}{describe(blind, options.runs):>36}{describe(led, options.runs):>36}", flush=True)
    return 0


def compare(bug: Bug, starts: int, runs: int) -> tuple[list[int], list[int]]:
    """The runs that each search needed from each start; a search that found nothing counts one more than its most."""
    found: tuple[list[int], list[int]] = ([], [])
    with plant_source(f"amcast.{bug.module}", bug.apply(bug.file.read_text())):
        for start in range(starts):
            first = start * STRIDE
            for search, needed in zip((run_campaign, run_feedback_campaign), found, strict=True):
                campaign = search(Target(bug.protocol).make_runs(), range(first, first + runs))
                needed.append(campaign.runs if campaign.failures else runs + 1)
    return found


def describe(needed: list[int], runs: int) -> str:
    """The median, and all of them."""
    listed = " ".join(str(count) if count <= runs else f">{runs}" for count in sorted(needed))
    return f"{statistics.median(needed):g} ({listed})"


if __name__ == "__main__":
    sys.exit(main())
