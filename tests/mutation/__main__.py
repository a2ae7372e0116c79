"""The mutation campaign: plants every mutant of the sample and looks for it.

    python -m tests.mutation                       all mutants, 1,000 seeds each, results in runs/mutation.json
    python -m tests.mutation --only weaken-quorum  mutants whose id contains this text
    python -m tests.mutation --list                the sample, without running anything

Results are written after each mutant. A campaign that was interrupted continues, as long as the source is the same.
Exit code 0: at least 95 % of the mutants that are not exempt were found; 1: fewer; 64: wrong use.
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from tests.mutation.exemptions import read_exemptions
from tests.mutation.operators import Mutant
from tests.mutation.sample import CHECKER_TESTS, SOURCE, draw_sample, find_targets, list_all

GOAL: Final = 0.95
HANG_S: Final = 900.0
"""A search that takes longer has met a mutant that does not end, which counts as found."""


@dataclass
class Finding:
    """What became of one mutant."""

    id: str
    line: int
    before: str
    after: str
    found_by: str
    """fuzz, tests, hang, or "" if it was not found."""
    status: str = ""
    """violated, stuck or error, as fuzzing reports it."""
    target: str = ""
    seeds: int = 0
    """How many seeds were run, over all searches, until it was found."""
    story: str = ""
    cpu_s: float = 0.0


def main() -> int:
    options = _parse_options()
    sample = [mutant for mutant in draw_sample() if options.only in mutant.id]
    if options.list:
        for mutant in sample:
            print(f"{mutant.id}  line {mutant.line}: {_shorten(mutant.before)} -> {_shorten(mutant.after)}")
        print(f"{len(sample)} mutants of {len(list_all())}")
        return 0
    if not sample:
        print(f"--only {options.only!r}: no mutant of the sample has this in its id; see --list", file=sys.stderr)
        return 64
    source = _digest_source()
    found = {} if options.fresh else _read_findings(options.results, source, options.seeds)
    todo = [mutant for mutant in sample if mutant.id not in found]
    with ThreadPoolExecutor(options.jobs) as pool:
        for done, finding in enumerate(pool.map(lambda mutant: _look_for(mutant, options.seeds), todo), 1):
            found[finding.id] = finding
            _write_findings(options.results, source, options.seeds, found)
            verdict = f"{finding.found_by} ({finding.seeds} seeds)" if finding.found_by else "NOT FOUND"
            print(f"[{done}/{len(todo)}] {finding.id}: {verdict}", flush=True)
    return _report([found[mutant.id] for mutant in sample], options.seeds)


def _parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--seeds", type=int, default=1000, help="seeds per mutant, shared by its searches")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="mutants at the same time")
    parser.add_argument("--only", default="", help="mutants whose id contains this text")
    parser.add_argument("--results", type=Path, default=Path("runs/mutation.json"), help="the file of results")
    parser.add_argument("--fresh", action="store_true", help="forget earlier results")
    parser.add_argument("--list", action="store_true", help="print the sample and stop")
    return parser.parse_args()


def _look_for(mutant: Mutant, seeds: int) -> Finding:
    finding = Finding(mutant.id, mutant.line, mutant.before, mutant.after, "")
    targets = find_targets(mutant.module)
    began = time.monotonic()
    try:
        if not targets:
            _run_tests(finding)
        share = seeds // max(1, len(targets))
        for target in targets:
            _fuzz(finding, target, share)
            if finding.found_by:
                break
    except subprocess.TimeoutExpired:
        finding.found_by = "hang"
    finding.cpu_s = round(time.monotonic() - began, 1)
    return finding


def _fuzz(finding: Finding, target: tuple[str, ...], seeds: int) -> None:
    finding.target = " ".join(target)
    arguments = ("fuzz", *target, "--seeds", f"0..{seeds - 1}", "--jobs", "1", "--json", "--script", os.devnull)
    done = _run_planted(finding.id, arguments)
    if done.returncode == 1 and not done.stdout.startswith("{"):
        raise RuntimeError(f"{finding.id}: the search failed by itself: {done.stderr[-2000:]}")
    if done.returncode == 1:
        failure = json.loads(done.stdout)["failures"][0]
        finding.found_by, finding.status = "fuzz", failure["status"]
        finding.story = failure["story"][:300]
        finding.seeds += failure["seed"] + 1
    elif done.returncode in (0, 2):
        finding.seeds += seeds
    else:
        finding.found_by, finding.status = "fuzz", "error"
        finding.story = done.stderr.strip()[-300:]
        finding.seeds += 1


def _run_tests(finding: Finding) -> None:
    finding.target = " ".join(CHECKER_TESTS)
    done = _run_planted(finding.id, ("pytest", "-q", "-x", "-p", "no:cacheprovider", *CHECKER_TESTS))
    if done.returncode != 0:
        failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
        finding.found_by, finding.story = "tests", "".join(failed[:1])[:300]


def _run_planted(id: str, arguments: tuple[str, ...]) -> "subprocess.CompletedProcess[str]":
    command = (sys.executable, "-m", "tests.mutation.plant", id, *arguments)
    return subprocess.run(command, capture_output=True, text=True, timeout=HANG_S, check=False)


def _report(findings: list[Finding], seeds: int) -> int:
    exemptions = read_exemptions()
    judged = [finding for finding in findings if finding.found_by or finding.id not in exemptions]
    missed = [finding for finding in judged if not finding.found_by]
    by_operator = Counter(finding.id.split(":")[2] for finding in judged)
    by_operator_found = Counter(finding.id.split(":")[2] for finding in judged if finding.found_by)
    print(f"\n{'operator':22}{'judged':>8}{'found':>8}")
    for operator, count in sorted(by_operator.items()):
        print(f"{operator:22}{count:>8}{by_operator_found[operator]:>8}")
    seeds_needed = sorted(finding.seeds for finding in judged if finding.found_by == "fuzz")
    if seeds_needed:
        median, late = seeds_needed[len(seeds_needed) // 2], seeds_needed[len(seeds_needed) * 9 // 10]
        print(f"seeds until found: median {median}, 90 % within {late}")
    for finding in missed:
        print(f"not found: {finding.id} (line {finding.line}: {_shorten(finding.before)} -> {_shorten(finding.after)})")
    share = 1 - len(missed) / len(judged) if judged else 1.0
    exempt = len(findings) - len(judged)
    print(
        f"{len(findings)} mutants, {exempt} exempt; {len(judged) - len(missed)} of {len(judged)} found"
        f" ({share:.1%}) within {seeds} seeds; goal {GOAL:.0%}"
    )
    return 0 if share >= GOAL else 1


def _digest_source() -> str:
    digest = hashlib.sha256()
    for file in sorted((SOURCE / "amcast").rglob("*.py")):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def _read_findings(file: Path, source: str, seeds: int) -> dict[str, Finding]:
    """Findings of an interrupted campaign on the same source."""
    if not file.exists():
        return {}
    data: dict[str, Any] = json.loads(file.read_text())
    if data["source"] != source or data["seeds"] != seeds:
        return {}
    return {row["id"]: Finding(**row) for row in data["findings"]}


def _write_findings(file: Path, source: str, seeds: int, found: dict[str, Finding]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    rows = [asdict(finding) for _, finding in sorted(found.items())]
    file.write_text(json.dumps({"source": source, "seeds": seeds, "findings": rows}, indent=1) + "\n")


def _shorten(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 70 else line[:67] + "..."


if __name__ == "__main__":
    sys.exit(main())
