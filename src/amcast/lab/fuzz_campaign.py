"""A fuzzing campaign: many seeds of one plan, on all cores. Results are counted, failures are kept."""

from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context

from amcast.lab.runs import PreparedRun, fuzz_seed, prepare_run
from amcast.simulation.inputs.plan import Plan
from amcast.simulation.schedulers.fuzz import FuzzOutcome

CHUNK = 8
"""Seeds per task: enough to hide the cost of a task, few enough to show progress."""
MAX_KEPT = 100
"""Failures that are kept with their scripts; more are only counted."""
ENOUGH_RUNS = 50
"""Runs from which on a goal that was never reached makes a campaign untrustworthy."""


@dataclass
class Campaign:
    """Results of many seeds."""

    tally: dict[str, int] = field(default_factory=lambda: {"holds": 0, "violated": 0, "stuck": 0})
    failures: list[FuzzOutcome] = field(default_factory=list)
    notes: dict[str, int] = field(default_factory=dict)

    @property
    def runs(self) -> int:
        return sum(self.tally.values())

    def add(self, outcome: FuzzOutcome) -> None:
        self.tally[outcome.status] += 1
        for name, count in outcome.notes.items():
            self.notes[name] = self.notes.get(name, 0) + count
        if outcome.status != "holds" and len(self.failures) < MAX_KEPT:
            self.failures.append(outcome)

    def list_missed_goals(self, goals: tuple[str, ...]) -> list[str]:
        """Goals that so many runs should have reached and did not."""
        return [goal for goal in goals if goal not in self.notes] if self.runs >= ENOUGH_RUNS else []


def run_campaign(
    prepared: PreparedRun,
    seeds: range,
    jobs: int = 1,
    keep_going: bool = False,
    progress: Callable[[int], None] = lambda done: None,
) -> Campaign:
    """Runs the seeds in order; stops at the first failure unless `keep_going`. The result does not depend on `jobs`."""
    result = Campaign()
    outcomes = _one_by_one(prepared, seeds) if jobs <= 1 or len(seeds) <= CHUNK else _spread(prepared, seeds, jobs)
    for outcome in outcomes:
        result.add(outcome)
        progress(result.runs)
        if result.failures and not keep_going:
            break
    return result


def _one_by_one(prepared: PreparedRun, seeds: range) -> Iterator[FuzzOutcome]:
    for seed in seeds:
        yield fuzz_seed(prepared, seed)


def _spread(prepared: PreparedRun, seeds: range, jobs: int) -> Iterator[FuzzOutcome]:
    """Distributes the seeds in chunks over worker processes; results keep the order of the seeds."""
    chunks = [seeds[start : start + CHUNK] for start in range(0, len(seeds), CHUNK)]
    with ProcessPoolExecutor(jobs, get_context("spawn"), _begin, (prepared.plan,)) as pool:
        try:
            for outcomes in pool.map(_chunk, chunks):
                yield from outcomes
        finally:
            pool.shutdown(cancel_futures=True)


_prepared: PreparedRun


def _begin(plan: Plan) -> None:
    global _prepared
    _prepared = prepare_run(plan)


def _chunk(seeds: range) -> list[FuzzOutcome]:
    outcomes = [fuzz_seed(_prepared, seed) for seed in seeds]
    for outcome in outcomes:
        if outcome.status == "holds":
            outcome.script = []
    return outcomes
