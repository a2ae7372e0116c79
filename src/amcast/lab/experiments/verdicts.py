"""Verdicts: our numbers beside the paper's, for every check of a claim.

A claim *holds* if all its checks do, holds *in part* if some do, and *differs* if none does; it is *not run* while
rows are missing. Nothing is fitted: a check has its tolerance before a row is there.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import fmean, stdev
from typing import Any, Final, Literal

from amcast.kernel.errors import UsageError
from amcast.lab.experiments.experiment import Check, Experiment, ExperimentClaim, ListedClaim
from amcast.lab.experiments.table import Row

ClaimVerdict = Literal["holds", "holds in part", "differs", "cannot be tested here", "not run"]
MIN_SEEDS: Final = 3
STUDENT_95: Final = (4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
"""Student's t for a 95 % interval of the mean, from three seeds on; the last one serves for more, a little too wide."""


@dataclass(frozen=True)
class CheckedNumber:
    """One check with our number."""

    check: Check
    ours: float | None
    """None: rows are missing."""
    interval: tuple[float, float] | None = None
    """The 95 % confidence interval of the mean over seeds, with three or more of them."""

    @property
    def ratio(self) -> float | None:
        return None if self.ours is None else self.ours / self.check.paper

    @property
    def holds(self) -> bool | None:
        check, ours = self.check, self.ours
        if ours is None:
            return None
        low, high = check.paper * (1 - check.tolerance), check.paper * (1 + check.tolerance)
        return {"equal": low <= ours <= high, "above": ours >= low, "below": ours <= high}[check.direction]

    def as_dict(self) -> dict[str, Any]:
        check = self.check
        return {
            "say": check.say,
            "metric": check.metric,
            "of": check.of,
            "against": check.against,
            "direction": check.direction,
            "tolerance": check.tolerance,
            "paper": check.paper,
            "ours": None if self.ours is None else round(self.ours, 4),
            "interval": None if self.interval is None else [round(end, 4) for end in self.interval],
            "ratio": None if self.ratio is None else round(self.ratio, 3),
            "holds": self.holds,
        }


@dataclass(frozen=True)
class JudgedClaim:
    """A claim with its verdict."""

    number: int
    verdict: ClaimVerdict
    reason: str = ""
    experiment: str = ""
    numbers: tuple[CheckedNumber, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        return {
            "number": self.number,
            "verdict": self.verdict,
            "reason": self.reason,
            "experiment": self.experiment,
            "checks": [number.as_dict() for number in self.numbers],
        }


def judge_experiment(experiment: Experiment, rows: Sequence[Row]) -> list[JudgedClaim]:
    """The verdict of every claim of an experiment, from its rows."""
    return [judge_claim(experiment, claim, rows) for claim in experiment.file.claim]


def judge_claim(experiment: Experiment, claim: ExperimentClaim, rows: Sequence[Row]) -> JudgedClaim:
    numbers = tuple(
        CheckedNumber(check, _compute(experiment, check, rows), _find_interval(experiment, check, rows))
        for check in claim.checks
    )
    verdicts = [number.holds for number in numbers]
    if None in verdicts:
        return JudgedClaim(claim.number, "not run", "", experiment.name, numbers)
    verdict: ClaimVerdict = "holds" if all(verdicts) else "holds in part" if any(verdicts) else "differs"
    reason = "" if verdict == "holds" else claim.reason
    return JudgedClaim(claim.number, verdict, reason, experiment.name, numbers)


def judge_all(
    claims: Sequence[ListedClaim], experiments: dict[str, Experiment], tables: Mapping[str, Sequence[Row]]
) -> list[JudgedClaim]:
    """One verdict for every claim of the papers. A claim that several experiments test has the verdict of the first
    one with rows."""
    found: dict[int, JudgedClaim] = {}
    for name, experiment in experiments.items():
        for judged in judge_experiment(experiment, tables.get(name, ())):
            if judged.number not in found or found[judged.number].verdict == "not run":
                found[judged.number] = judged
    every = []
    for claim in claims:
        if claim.number in found:
            every.append(found[claim.number])
        elif claim.cannot:
            every.append(JudgedClaim(claim.number, "cannot be tested here", claim.cannot))
        else:
            every.append(JudgedClaim(claim.number, "not run", "no experiment tests it yet"))
    return every


def _compute(experiment: Experiment, check: Check, rows: Sequence[Row]) -> float | None:
    above = _combine(experiment, check, check.of, rows)
    if above is None or check.against is None:
        return above
    below = _combine(experiment, check, check.against, rows)
    if check.compare == "difference":
        return None if below is None else above - below
    return None if not below else above / below


def _find_interval(experiment: Experiment, check: Check, rows: Sequence[Row]) -> tuple[float, float] | None:
    """The check, computed for every seed by itself: how sure is its mean?"""
    seeds = sorted({row["seed"] for row in rows if "seed" in row})
    if len(seeds) < MIN_SEEDS or check.over != "mean":
        return None
    each = [_compute(experiment, check, [row for row in rows if row["seed"] == seed]) for seed in seeds]
    known = [value for value in each if value is not None]
    if len(known) < MIN_SEEDS:
        return None
    quantile = STUDENT_95[min(len(known), MIN_SEEDS + len(STUDENT_95) - 1) - MIN_SEEDS]
    half = quantile * stdev(known) / sqrt(len(known))
    return fmean(known) - half, fmean(known) + half


def _combine(experiment: Experiment, check: Check, pattern: dict[str, Any], rows: Sequence[Row]) -> float | None:
    metric = pattern.get("metric", check.metric)
    fields = {name: value for name, value in pattern.items() if name != "metric"}
    if rows:
        unknown = [name for name in fields if all(name not in row for row in rows)]
        if unknown:
            raise UsageError(
                f"experiment {experiment.name}: a check of {check.say!r} selects by {', '.join(unknown)}; expected"
                f" columns of the table"
            )
    values = [float(row[metric]) for row in rows if metric in row and all(row.get(k) == v for k, v in fields.items())]
    if not values:
        return None
    return {"mean": fmean(values), "min": min(values), "max": max(values)}[check.over]
