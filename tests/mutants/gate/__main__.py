"""The gate: plants every bug and fuzzes until it is found.

    python -m tests.mutants.gate                    all bugs, up to 2,000 seeds each
    python -m tests.mutants.gate --only primcast    bugs whose name contains this text
    python -m tests.mutants.gate --list             the bugs, without running anything

Prints, for each bug, the first seed that found it and the judge: a rule of the monitors, a property of the checker,
liveness, or an assertion of the protocol. Exit code 0: every bug was found within its number of seeds; 1: not; 64:
wrong use.
"""

import argparse
import json
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from multiprocessing import get_context

from tests.mutants.gate.bug import MOST_SEEDS
from tests.mutants.gate.catalogue import BUGS
from tests.mutants.gate.search import Finding, look_for


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants.gate", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--only", default="", help="bugs whose name contains this text")
    parser.add_argument("--seeds", type=int, default=MOST_SEEDS, help="the most seeds per bug")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="bugs at the same time")
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")
    parser.add_argument("--list", action="store_true", help="print the bugs and stop")
    options = parser.parse_args()
    chosen = [bug for name, bug in BUGS.items() if options.only in name]
    if not chosen or options.seeds < 1 or options.jobs < 1:
        print(f"--only {options.only!r}, --seeds {options.seeds}: nothing to do; see --list", file=sys.stderr)
        return 64
    if options.list:
        for bug in chosen:
            print(f"{bug.name:56} {bug.protocol:12} {bug.module} within {bug.most_seeds} seeds")
        return 0
    findings: list[Finding] = []
    with ProcessPoolExecutor(options.jobs, get_context("spawn")) as pool:
        tasks = [pool.submit(look_for, bug, min(options.seeds, bug.most_seeds), options.first) for bug in chosen]
        for task in tasks:
            findings.append(task.result())
            print(describe(findings[-1]), file=sys.stderr if options.json else sys.stdout, flush=True)
    missed = [finding for finding in findings if finding.seed < 0]
    if options.json:
        print(json.dumps([asdict(finding) for finding in findings], indent=1))
    else:
        print(f"{len(findings) - len(missed)} of {len(findings)} planted bugs found")
    return 1 if missed else 0


def describe(finding: Finding) -> str:
    found = f"seed {finding.seed:5}  {finding.judge}" if finding.seed >= 0 else "NOT FOUND"
    return f"{finding.bug.name:56} {finding.bug.protocol:12} {found}"


if __name__ == "__main__":
    sys.exit(main())
