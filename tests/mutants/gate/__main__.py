"""The gate: plants every bug and fuzzes until it is found.

    python -m tests.mutants.gate                    all bugs, up to 2,000 seeds each
    python -m tests.mutants.gate --only primcast    bugs whose name contains this text
    python -m tests.mutants.gate --list             the bugs, without running anything
    python -m tests.mutants.gate --results FILE     writes each finding to a file, and continues what is there

Prints, for each bug, the first seed that found it and the judge: a rule of the monitors, a property of the checker,
liveness, or an assertion of the protocol. Findings in a file count as long as the source is the same; those of another
source stay there, with its digest, until their bugs have been looked for again. Exit code 0:
every bug was found within its number of seeds; 1: not; 64: wrong use.
"""

import argparse
import json
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from tests.mutants.gate.bug import MOST_SEEDS
from tests.mutants.gate.catalogue import BUGS
from tests.mutants.gate.search import Finding, look_for
from tests.mutation.sample import digest_source


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants.gate", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--only", default="", help="bugs whose name contains this text")
    parser.add_argument("--seeds", type=int, default=MOST_SEEDS, help="the most seeds per bug")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="bugs at the same time")
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")
    parser.add_argument("--results", type=Path, help="the file of findings, written after each bug")
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
    known = read_findings(options.results) if options.results else {}
    todo = [bug for bug in chosen if bug.name not in known]
    with ProcessPoolExecutor(options.jobs, get_context("spawn")) as pool:
        tasks = [pool.submit(look_for, bug, min(options.seeds, bug.most_seeds), options.first) for bug in todo]
        for task in tasks:
            finding = task.result()
            known[finding.bug.name] = finding
            if options.results:
                write_findings(options.results, known, options.seeds)
            print(describe(finding), file=sys.stderr if options.json else sys.stdout, flush=True)
    findings = [known[bug.name] for bug in chosen]
    missed = [finding for finding in findings if finding.seed < 0]
    if options.json:
        print(json.dumps([asdict(finding) for finding in findings], indent=1))
    else:
        print(f"{len(findings) - len(missed)} of {len(findings)} planted bugs found")
    return 1 if missed else 0


def read_findings(file: Path) -> dict[str, Finding]:
    """Findings of an interrupted gate on the same source, by bug."""
    rows = [row for row in read_rows(file) if row["source"] == digest_source()]
    return {row["bug"]: Finding(BUGS[row["bug"]], row["seed"], row["judge"], row["story"]) for row in rows}


def read_rows(file: Path) -> list[dict[str, Any]]:
    """The findings of a file, of whatever source, for bugs that there are."""
    data = json.loads(file.read_text()) if file.exists() else {"findings": []}
    return [{"source": data["source"], **row} for row in data["findings"] if row["bug"] in BUGS]


def write_findings(file: Path, findings: dict[str, Finding], seeds: int) -> None:
    """Writes what is certain: a bug that was not found within fewer seeds than it has is looked for again."""
    source = digest_source()
    rows = [
        {
            "source": source,
            "bug": one.bug.name,
            "protocol": one.bug.protocol,
            "module": one.bug.module,
            "most_seeds": one.bug.most_seeds,
            "seed": one.seed,
            "judge": one.judge,
            "story": one.story[:300],
        }
        for one in findings.values()
        if one.seed >= 0 or one.bug.most_seeds <= seeds
    ]
    renewed = {row["bug"] for row in rows}
    rows += [row for row in read_rows(file) if row["source"] != source and row["bug"] not in renewed]
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({"source": source, "bugs": len(BUGS), "findings": rows}, indent=1) + "\n")


def describe(finding: Finding) -> str:
    found = f"seed {finding.seed:5}  {finding.judge}" if finding.seed >= 0 else "NOT FOUND"
    return f"{finding.bug.name:56} {finding.bug.protocol:12} {found}"


if __name__ == "__main__":
    sys.exit(main())
