"""A fuzzing campaign: many seeds of one plan, on all cores. Results are counted, failures are kept.

The plan is either whole, and every seed runs it with another schedule, or leaves its shape open, and every seed draws
the rest of it (`simulation/inputs/swarm.py`).
"""

import gc
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from multiprocessing import get_context
from typing import Any

from amcast.kernel.errors import UsageError
from amcast.lab.protocol_lookup import find_protocol
from amcast.lab.runs import PreparedRun, fuzz_lineage, fuzz_seed, prepare_run
from amcast.parts.membership.messages import ReconfigurableConfig
from amcast.parts.node.messages import GatewayConfig, RealTimeConfig
from amcast.simulation.inputs.plan import Plan, parse_plan
from amcast.simulation.inputs.swarm import Swarm
from amcast.simulation.schedulers.feedback import AbstractState, Corpus, Lineage
from amcast.simulation.schedulers.fuzz import FuzzOutcome

CHUNK = 8
"""Seeds per task: enough to hide the cost of a task, few enough to show progress."""
GENERATION = 16
"""Runs that are drawn with the same knowledge of abstract states."""
MAX_KEPT = 100
"""Failures that are kept with their scripts; more are only counted."""
ENOUGH_RUNS = 50
"""Runs from which on a goal that was never reached makes a campaign untrustworthy."""


@dataclass(frozen=True)
class FixedRuns:
    """The same run for every seed; only its schedule differs."""

    plan: Plan

    @cached_property
    def _prepared(self) -> PreparedRun:
        return prepare_run(self.plan)

    def prepare(self, seed: int) -> PreparedRun:
        return self._prepared


@dataclass(frozen=True)
class SwarmRuns:
    """Another run for every seed: the seed draws what the plan leaves open."""

    values: Mapping[str, Any]
    """The plan as plain data."""
    where: str = "plan"
    """Names the plan in errors."""

    @cached_property
    def _swarm(self) -> Swarm:
        spec = find_protocol(self.values["protocol"])
        return Swarm(
            self.values,
            spec,
            GatewayConfig.search_values,
            ReconfigurableConfig.search_values,
            RealTimeConfig.search_values,
        )

    def prepare(self, seed: int) -> PreparedRun:
        try:
            return prepare_run(parse_plan(self._swarm.draw(seed), self.where))
        except UsageError as error:
            raise UsageError(f"{error} (in the plan that seed {seed} draws; --no-swarm draws none)") from None


Campaigner = FixedRuns | SwarmRuns
"""What a campaign runs: a run for every seed."""
LineageResult = tuple[FuzzOutcome, dict[AbstractState, int]]
"""The outcome of a run, and the abstract states that it reached."""


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
    runs: Campaigner,
    seeds: range,
    jobs: int = 1,
    keep_going: bool = False,
    progress: Callable[[int], None] = lambda done: None,
) -> Campaign:
    """Runs the seeds in order; stops at the first failure unless `keep_going`. The result does not depend on `jobs`."""
    result = Campaign()
    outcomes = _one_by_one(runs, seeds) if jobs <= 1 or len(seeds) <= CHUNK else _spread(runs, seeds, jobs)
    for outcome in outcomes:
        result.add(outcome)
        progress(result.runs)
        if result.failures and not keep_going:
            break
    return result


def run_feedback_campaign(
    runs: Campaigner,
    seeds: range,
    jobs: int = 1,
    keep_going: bool = False,
    progress: Callable[[int], None] = lambda done: None,
) -> Campaign:
    """The same with feedback: each seed begins a new run, or repeats a run that reached a new abstract state up to
    there and draws the rest. Generations of a fixed size make the result independent of `jobs`."""
    result, corpus = Campaign(), Corpus()
    with _open_pool(runs, jobs) as spread:
        for start in range(0, len(seeds), GENERATION):
            lineages = [corpus.breed(seed) for seed in seeds[start : start + GENERATION]]
            for lineage, (outcome, states) in zip(lineages, spread(lineages), strict=False):
                corpus.learn(lineage, states)
                result.add(outcome)
                progress(result.runs)
                if result.failures and not keep_going:
                    return result
    return result


@contextmanager
def _open_pool(runs: Campaigner, jobs: int) -> Iterator[Callable[[list[Lineage]], Iterator[LineageResult]]]:
    """Opens what runs lineages in order: this process, or worker processes."""
    if jobs <= 1:
        yield lambda lineages: (fuzz_lineage(runs.prepare(lineage.seed), lineage) for lineage in lineages)
        return
    # A copy without what was prepared already, which cannot be sent to another process.
    with ProcessPoolExecutor(jobs, get_context("spawn"), _begin, (replace(runs),)) as pool:
        try:
            yield lambda lineages: pool.map(_fuzz_lineage, lineages)
        finally:
            pool.shutdown(cancel_futures=True)


def _fuzz_lineage(lineage: Lineage) -> LineageResult:
    outcome, states = fuzz_lineage(_runs.prepare(lineage.seed), lineage)
    if outcome.status == "holds":
        outcome.script = []
    return outcome, states


def fuzz_chunk(runs: Campaigner, seeds: range) -> list[FuzzOutcome]:
    """Runs a few seeds. Garbage is collected once at the end: a run allocates much that lives until it ends, so that
    collections in between find little and cost a tenth of its time."""
    _freeze_garbage()
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return [fuzz_seed(runs.prepare(seed), seed) for seed in seeds]
    finally:
        if was_enabled:
            gc.enable()
            gc.collect()


@cache
def _freeze_garbage() -> None:
    """Once per process: exempts what was imported from garbage collection."""
    gc.collect()
    gc.freeze()


def _one_by_one(runs: Campaigner, seeds: range) -> Iterator[FuzzOutcome]:
    for seed in seeds:
        yield from fuzz_chunk(runs, range(seed, seed + 1))


def _spread(runs: Campaigner, seeds: range, jobs: int) -> Iterator[FuzzOutcome]:
    """Distributes the seeds in chunks over worker processes; results keep the order of the seeds."""
    chunks = [seeds[start : start + CHUNK] for start in range(0, len(seeds), CHUNK)]
    # A copy without what was prepared already, which cannot be sent to another process.
    with ProcessPoolExecutor(jobs, get_context("spawn"), _begin, (replace(runs),)) as pool:
        try:
            for outcomes in pool.map(_chunk, chunks):
                yield from outcomes
        finally:
            pool.shutdown(cancel_futures=True)


_runs: Campaigner


def _begin(runs: Campaigner) -> None:
    global _runs
    _runs = runs


def _chunk(seeds: range) -> list[FuzzOutcome]:
    outcomes = fuzz_chunk(_runs, seeds)
    for outcome in outcomes:
        if outcome.status == "holds":
            outcome.script = []
    return outcomes
