"""The mutation campaign: plants every mutant of the sample and looks for it.

    python -m tests.mutation                       all mutants, 1,000 seeds each, results in runs/mutation.json
    python -m tests.mutation --only weaken-quorum  mutants whose id contains this text
    python -m tests.mutation --list                the sample, without running anything

All seeds run once without a mutant, to see which of them execute the line of which mutant: only these can find it.
Seeds are runs of `amcast fuzz`; for checkers, random traces and histories whose answers are known (`judges.py`).
Every mutant is looked for within 60 seeds, and by the tests of its package if these do not find it; then, those that
seeds have not found, within 250 seeds, then within all.
Results are written after each mutant, and mutants come in the order of their rank, so that those of an interrupted
campaign are a sample, too. It continues as long as the source is the same.
Exit code 0: at least 95 % of the mutants that are not exempt were found; 1: fewer; 64: wrong use.
"""

import argparse
import json
import os
import sys
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final

from tests.mutation.exemptions import read_exemptions
from tests.mutation.hits import measure_hits
from tests.mutation.look_for import Finding, look_for
from tests.mutation.operators import Mutant
from tests.mutation.sample import digest_source, draw_sample, list_all, rank

GOAL: Final = 0.95
ROUNDS: Final = (60, 250)
"""Within so many seeds all mutants are looked for before any is looked for within more: most are found at once."""
EXEMPT_SEEDS: Final = 60
"""A mutant that is exempt is looked for within so many seeds: an argument that is wrong may show."""


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
    source = digest_source()
    found = {} if options.fresh else _read_findings(options.results, source)
    for seeds in sorted({min(seeds, options.seeds) for seeds in (*ROUNDS, options.seeds)}):
        _search_round(sample, seeds, found, source, options)
    return _report([(mutant, found[mutant.id]) for mutant in sample], options.seeds)


def _search_round(
    sample: Sequence[Mutant], seeds: int, found: dict[str, Finding], source: str, options: argparse.Namespace
) -> None:
    """Looks for every mutant that is neither found nor exempt within a number of seeds."""
    exemptions = read_exemptions()
    todo = [one for one in sample if one.id not in found or not found[one.id].is_final(seeds)]
    todo = sorted((one for one in todo if seeds <= EXEMPT_SEEDS or one.id not in exemptions), key=rank)
    if not todo:
        return
    hits_file = options.results.with_name("mutation-hits.json")
    hits = measure_hits(draw_sample(), todo, seeds, options.jobs, hits_file, source)
    with ProcessPoolExecutor(options.jobs, get_context("spawn")) as pool:
        tasks = [pool.submit(look_for, one, hits.get(one.id, {}), seeds, found.get(one.id)) for one in todo]
        for done, task in enumerate(tasks, 1):
            finding = task.result()
            found[finding.id] = finding
            _write_findings(options.results, source, options.seeds, found)
            print(f"{seeds} seeds [{done}/{len(todo)}] {finding.id}: {_describe(finding)}", flush=True)


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


def _describe(finding: Finding) -> str:
    if finding.found_by == "tests":
        return f"tests ({finding.story})"
    if finding.found_by:
        return f"{finding.found_by} (seed {finding.seeds}, {finding.cpu_s} s)"
    return f"NOT FOUND ({finding.runs} runs execute it, {finding.cpu_s} s)"


def _report(findings: list[tuple[Mutant, Finding]], seeds: int) -> int:
    exemptions = read_exemptions()
    judged = [(one, finding) for one, finding in findings if finding.found_by or finding.id not in exemptions]
    missed = [finding for _, finding in judged if not finding.found_by]
    by_operator = Counter(mutant.operator for mutant, _ in judged)
    by_operator_found = Counter(mutant.operator for mutant, finding in judged if finding.found_by)
    print(f"\n{'operator':22}{'judged':>8}{'found':>8}")
    for operator, count in sorted(by_operator.items()):
        print(f"{operator:22}{count:>8}{by_operator_found[operator]:>8}")
    seeds_needed = sorted(finding.seeds for _, finding in judged if finding.found_by == "fuzz")
    if seeds_needed:
        median, late = seeds_needed[len(seeds_needed) // 2], seeds_needed[len(seeds_needed) * 9 // 10]
        print(f"seeds until found: median {median}, 90 % within {late}")
    for finding in missed:
        never = "" if finding.runs or not finding.seeds else "; no seed executes it"
        change = f"{_shorten(finding.before)} -> {_shorten(finding.after)}"
        print(f"not found: {finding.id} (line {finding.line}: {change}{never})")
    share = 1 - len(missed) / len(judged) if judged else 1.0
    exempt = len(findings) - len(judged)
    print(
        f"{len(findings)} mutants, {exempt} exempt; {len(judged) - len(missed)} of {len(judged)} found"
        f" ({share:.1%}) within {seeds} seeds; goal {GOAL:.0%}"
    )
    return 0 if share >= GOAL else 1


def _read_findings(file: Path, source: str) -> dict[str, Finding]:
    """Findings of an interrupted campaign on the same source."""
    if not file.exists():
        return {}
    data: dict[str, Any] = json.loads(file.read_text())
    if data["source"] != source:
        return {}
    return {row["id"]: Finding(**row) for row in data["findings"]}


def _write_findings(file: Path, source: str, seeds: int, found: dict[str, Finding]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    rows = [asdict(finding) for _, finding in sorted(found.items())]
    data = {"source": source, "seeds": seeds, "sample": len(draw_sample()), "findings": rows}
    file.write_text(json.dumps(data, indent=1) + "\n")


def _shorten(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 70 else line[:67] + "..."


if __name__ == "__main__":
    sys.exit(main())
