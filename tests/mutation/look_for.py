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
from tests.mutation.sample import CHECKER_TESTS, SOURCE, Target, find_targets
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
    story: str = ""
    cpu_s: float = 0.0


def look_for(mutant: Mutant, hits: Mapping[str, Sequence[int]], seeds: int) -> Finding:
    """Looks for a mutant; `hits`: by target, the seeds that execute its line."""
    finding = Finding(mutant.id, mutant.line, mutant.before, mutant.after, "")
    targets = find_targets(mutant.module)
    began = time.process_time()
    if not targets:
        _run_tests(finding)
    elif any(hits.get(target.name) for target in targets):
        file = SOURCE.joinpath(*mutant.module.split(".")).with_suffix(".py")
        try:
            with plant_source(mutant.module, mutant.apply(file.read_text())):
                _fuzz_targets(finding, targets, hits, seeds // len(targets))
        except PatchError:
            _fuzz_apart(finding, targets, seeds // len(targets))
    else:
        finding.seeds = seeds
    finding.cpu_s = round(time.process_time() - began, 1)
    return finding


def _fuzz_targets(finding: Finding, targets: Sequence[Target], hits: Mapping[str, Sequence[int]], share: int) -> None:
    for target in targets:
        finding.target = target.name
        seeds = hits.get(target.name, ())
        failure = find_failure(target.make_runs(), seeds)
        if failure is not None:
            finding.found_by = "hang" if failure.status == "hang" else "fuzz"
            finding.status, finding.story = failure.status, failure.story[:300]
            finding.seeds += failure.seed + 1
            finding.runs += failure.runs
            return
        finding.seeds += share
        finding.runs += len(seeds)


def _fuzz_apart(finding: Finding, targets: Sequence[Target], share: int) -> None:
    """The same in an interpreter of its own, for changes outside functions."""
    for target in targets:
        finding.target = target.name
        seeds = ("--seeds", f"0..{share - 1}", "--jobs", "1", "--json", "--script", os.devnull)
        try:
            done = _run_planted(finding.id, ("fuzz", *target.arguments, *seeds))
        except subprocess.TimeoutExpired:
            finding.found_by = "hang"
            return
        finding.runs += share
        if done.returncode in (0, 2):
            finding.seeds += share
            continue
        finding.found_by = "fuzz"
        if done.stdout.startswith("{"):
            failure = json.loads(done.stdout)["failures"][0]
            finding.status, finding.story = failure["status"], failure["story"][:300]
            finding.seeds += failure["seed"] + 1
        else:
            finding.status, finding.story = "error", done.stderr.strip()[-300:]
            finding.seeds += 1
        return


def _run_tests(finding: Finding) -> None:
    finding.target = " ".join(CHECKER_TESTS)
    done = _run_planted(finding.id, ("pytest", "-q", "-x", "-p", "no:cacheprovider", *CHECKER_TESTS))
    if done.returncode != 0:
        failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
        finding.found_by, finding.story = "tests", "".join(failed[:1])[:300]


def _run_planted(id: str, arguments: tuple[str, ...]) -> "subprocess.CompletedProcess[str]":
    command = (sys.executable, "-m", "tests.mutation.plant", id, *arguments)
    return subprocess.run(command, capture_output=True, text=True, timeout=SEARCH_S, check=False, cwd=SOURCE.parent)
