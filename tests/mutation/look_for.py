"""Looks for one mutant with the seeds that execute its line, in this process if the mutant can be planted here."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tests.mutation.operators import Mutant
from tests.mutation.patch import PatchError, plant_source
from tests.mutation.sample import SOURCE, Target, find_targets, list_tests
from tests.mutation.search import find_failure

SEARCH_S: Final = 1800.0
"""A search in an interpreter of its own that takes longer has met a mutant that does not end: it is found."""


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
    """How many seeds, over all searches, until it was found; those that do not execute its line are counted, too."""
    runs: int = 0
    """How many of them execute its line."""
    is_tested: bool = False
    """Whether the tests of its package have looked for it, too: once, after the first seeds did not find it."""
    searched: int = 0
    """Within how many seeds, over all searches, it has been looked for."""
    story: str = ""
    cpu_s: float = 0.0

    def is_final(self, seeds: int) -> bool:
        """Whether more seeds, up to this number, change nothing. What tests have found, fuzzing alone may find, too."""
        return self.found_by in ("fuzz", "hang") or self.searched >= seeds


def look_for(mutant: Mutant, hits: Mapping[str, Sequence[int]], seeds: int, before: Finding | None = None) -> Finding:
    """Looks for a mutant within a number of seeds; `hits`: by target, the seeds that execute its line. A search that
    found nothing within fewer seeds is continued."""
    finding = before or Finding(mutant.id, mutant.line, mutant.before, mutant.after, "")
    targets = find_targets(mutant.module)
    began = time.process_time()
    if targets:
        seeds_of_target = range(finding.searched // len(targets), seeds // len(targets))
        if any(seed in seeds_of_target for target in targets for seed in hits.get(target.name, ())):
            file = SOURCE.joinpath(*mutant.module.split(".")).with_suffix(".py")
            try:
                with plant_source(mutant.module, mutant.apply(file.read_text())):
                    _fuzz_targets(finding, targets, hits, seeds_of_target)
            except PatchError:
                _fuzz_apart(finding, targets, seeds_of_target)
        else:
            finding.seeds = seeds
    finding.searched = seeds
    tests = list_tests(mutant.module)
    if not finding.found_by and not finding.is_tested and tests:
        _run_tests(finding, tests)
    finding.cpu_s = round(finding.cpu_s + time.process_time() - began, 1)
    return finding


def _fuzz_targets(
    finding: Finding, targets: Sequence[Target], hits: Mapping[str, Sequence[int]], searched: range
) -> None:
    for target in targets:
        finding.target = target.name
        seeds = [seed for seed in hits.get(target.name, ()) if seed in searched]
        failure = find_failure(target.make_judge(), seeds)
        if failure is not None:
            finding.found_by = "hang" if failure.status == "hang" else "fuzz"
            finding.status, finding.story = failure.status, failure.story[:300]
            finding.seeds += failure.seed + 1 - searched.start
            finding.runs += failure.runs
            return
        finding.seeds += len(searched)
        finding.runs += len(seeds)


def _fuzz_apart(finding: Finding, targets: Sequence[Target], searched: range) -> None:
    """The same in an interpreter of its own, for changes outside functions."""
    for target in targets:
        finding.target = target.name
        seeds = ("--seeds", f"{searched.start}..{searched.stop - 1}", "--jobs", "1", "--json", "--script", os.devnull)
        try:
            done = _run_planted(finding.id, (*target.arguments, *seeds))
        except subprocess.TimeoutExpired:
            finding.found_by = "hang"
            return
        finding.runs += len(searched)
        if done.returncode in (0, 2):
            finding.seeds += len(searched)
            continue
        finding.found_by = "fuzz"
        if done.stdout.startswith("{"):
            failure = json.loads(done.stdout)["failures"][0]
            finding.status, finding.story = failure["status"], failure["story"][:300]
            finding.seeds += failure["seed"] + 1 - searched.start
        else:
            finding.status, finding.story = "error", done.stderr.strip()[-300:]
            finding.seeds += 1
        return


def _run_tests(finding: Finding, tests: Sequence[str]) -> None:
    finding.is_tested = True
    try:
        done = _run_planted(finding.id, ("pytest", "-q", "-x", "-p", "no:cacheprovider", *tests))
    except subprocess.TimeoutExpired:
        finding.found_by, finding.target = "hang", " ".join(tests)
        return
    if done.returncode != 0:
        failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
        finding.found_by, finding.target = "tests", " ".join(tests)
        finding.story = "".join(failed[:1])[:300]


def _run_planted(id: str, arguments: tuple[str, ...]) -> "subprocess.CompletedProcess[str]":
    command = (sys.executable, "-m", "tests.mutation.plant", id, *arguments)
    return subprocess.run(command, capture_output=True, text=True, timeout=SEARCH_S, check=False, cwd=SOURCE.parent)
