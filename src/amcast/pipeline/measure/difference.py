"""Two sets of runs side by side: how much each number differs, with an interval, and whether the second set is worse.

It reads measures of runs, never traces. Runs of one setting under the same seeds are compared seed by seed; under other
seeds, by the means over their runs; one run each, by the intervals inside the runs, where the measures have some. A
number is the same or worse only if its interval shows that; otherwise it is unknown.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import hypot, sqrt
from typing import Final, Literal

from amcast.check.verdict import Verdict
from amcast.kernel.errors import UsageError
from amcast.pipeline.measure.comparison import NUMBERS, Row, confidence_interval, flatten_plan
from amcast.pipeline.measure.student_t import T95
from amcast.pipeline.sweep.grid import to_canonical_json

Change = Literal["same", "better", "worse", "unknown"]
HIGHER_IS_BETTER: Final = frozenset({"throughput_per_s"})
GATED: Final = ("throughput_per_s", "latency_ns_p50", "latency_ns_p99", "bytes_per_multicast")
"""The numbers that decide, unless a user names others."""
TOLERANCE: Final = 0.05


@dataclass(frozen=True)
class NumberChange:
    """One number, before and after."""

    number: str
    before: float
    after: float
    runs: tuple[int, int]
    method: Literal["paired", "means", "inside", "none"]
    """Where the interval comes from: pairs of runs with one seed, means over runs, the single runs, nowhere."""
    low: float | None
    high: float | None
    """The ends of the 95 % interval of the difference."""
    change: Change
    gated: bool

    @property
    def difference(self) -> float:
        return self.after - self.before

    def to_share(self, difference: float | None) -> float | None:
        """A difference relative to what was before."""
        return difference / abs(self.before) if difference is not None and self.before else None

    def as_dict(self) -> Row:
        return {
            "number": self.number,
            "before": self.before,
            "after": self.after,
            "difference": self.difference,
            "low": self.low,
            "high": self.high,
            "share": self.to_share(self.difference),
            "share_low": self.to_share(self.low),
            "share_high": self.to_share(self.high),
            "runs": list(self.runs),
            "method": self.method,
            "change": self.change,
            "gated": self.gated,
        }


@dataclass
class SettingChange:
    """One setting, before and after."""

    name: str
    numbers: list[NumberChange]
    violated: tuple[int, int]
    """Runs that are not in order, or ended with an error."""
    undecided: tuple[int, int] = (0, 0)
    """Runs of which it is unknown whether they are in order."""


@dataclass
class RunsDifference:
    """Everything that differs between two sets of runs."""

    settings: list[SettingChange]
    only_before: list[str] = field(default_factory=list)
    only_after: list[str] = field(default_factory=list)

    @property
    def worse(self) -> list[str]:
        """What is worse, in words."""
        found = []
        for setting in self.settings:
            before, after = setting.violated
            if after > before:
                found.append(f"{setting.name}: {after} runs are not in order, {before} before")
            found += [
                f"{setting.name}: {one.number} is worse"
                for one in setting.numbers
                if one.gated and one.change == "worse"
            ]
        return found

    @property
    def unknown(self) -> list[str]:
        """What the runs do not show, in words."""
        found = [f"{name}: only in the first" for name in self.only_before]
        found += [f"{name}: only in the second" for name in self.only_after]
        for setting in self.settings:
            if setting.undecided[1] > setting.undecided[0]:
                found.append(f"{setting.name}: whether {setting.undecided[1]} runs are in order")
            decisive = [one for one in setting.numbers if one.gated]
            if not decisive:
                found.append(f"{setting.name}: no number that decides was measured in both")
            found += [f"{setting.name}: {one.number}" for one in decisive if one.change == "unknown"]
        return found

    @property
    def verdict(self) -> Verdict:
        """Of "the second is not worse than the first"."""
        return "violated" if self.worse else "unknown" if self.unknown or not self.settings else "holds"


def compare_runs(
    before: Sequence[Row],
    after: Sequence[Row],
    inside: tuple[Mapping[str, Row], Mapping[str, Row]],
    tolerance: float = TOLERANCE,
    gated: Sequence[str] = GATED,
) -> RunsDifference:
    """Compares the summaries of two sets of runs; `inside` has, by run of each set, intervals of its latencies."""
    for name in gated:
        if name not in NUMBERS:
            raise UsageError(f"--gate {name}; expected some of {', '.join(NUMBERS)}")
    settings = [_group_settings(rows) for rows in (before, after)]
    pairs, names = _pair_settings(*settings)
    found = []
    for first, second in pairs:
        runs = (settings[0][first], settings[1][second])
        numbers = [_compare_number(name, *runs, inside, tolerance, name in gated) for name in NUMBERS]
        counts = [(_count_violated(own), sum(row["status"] == "unknown" for row in own)) for own in runs]
        violated, undecided = ((counts[0][at], counts[1][at]) for at in (0, 1))
        found.append(SettingChange(names[first], [one for one in numbers if one is not None], violated, undecided))
    alone = [[key for key in own if key not in {pair[side] for pair in pairs}] for side, own in enumerate(settings)]
    labels = [[_describe(settings[side][key][0]) for key in own] for side, own in enumerate(alone)]
    return RunsDifference(found, *labels)


def _group_settings(rows: Iterable[Row]) -> dict[str, list[Row]]:
    settings: dict[str, list[Row]] = {}
    for row in rows:
        settings.setdefault(row["setting"], []).append(row)
    return settings


def _pair_settings(
    before: dict[str, list[Row]], after: dict[str, list[Row]]
) -> tuple[list[tuple[str, str]], dict[str, str]]:
    """Which settings are compared: equal plans, but for what differs between the two sets as a whole.

    A field that has one value in all of the first and another one in all of the second (a protocol, a version, the name
    of a run) is what the user compares. Returns also a name for each setting of the first.
    """
    plans = [{key: flatten_plan(rows[0]) for key, rows in side.items()} for side in (before, after)]
    values = [{path: _find_values(side, path) for path in _list_paths(plans)} for side in plans]
    compared = {
        path
        for path, found in values[0].items()
        if len(found) == len(values[1][path]) == 1 and found != values[1][path]
    }
    varied = [path for path in values[0] if path not in compared and len(values[0][path] | values[1][path]) > 1]
    keys = [
        {to_canonical_json({p: plan.get(p) for p in values[0] if p not in compared}): key for key, plan in side.items()}
        for side in plans
    ]
    pairs = [(key, keys[1][common]) for common, key in keys[0].items() if common in keys[1]]
    if not pairs and len(before) == len(after) == 1:
        pairs = [(next(iter(before)), next(iter(after)))]
    names = {
        key: ", ".join(f"{path}={plan.get(path)}" for path in varied) or _describe(before[key][0])
        for key, plan in plans[0].items()
    }
    return pairs, names


def _list_paths(plans: Sequence[Mapping[str, Row]]) -> list[str]:
    return list(dict.fromkeys(path for side in plans for plan in side.values() for path in plan))


def _find_values(plans: Mapping[str, Row], path: str) -> set[str]:
    return {to_canonical_json(plan.get(path)) for plan in plans.values()}


def _describe(row: Row) -> str:
    parts = (row["protocol"], row["environment"], row["workload"])
    return " ".join(str(part) for part in parts if part) or str(row["run"])


def _count_violated(rows: Iterable[Row]) -> int:
    return sum(1 for row in rows if row["status"] not in (None, "ok", "holds", "unknown"))


def _compare_number(
    name: str,
    before: Sequence[Row],
    after: Sequence[Row],
    inside: tuple[Mapping[str, Row], Mapping[str, Row]],
    tolerance: float,
    gated: bool,
) -> NumberChange | None:
    """None: one of the sides did not measure it."""
    first, second = ([row for row in rows if row[name] is not None] for rows in (before, after))
    if not first or not second:
        return None
    old, new = (sum(float(row[name]) for row in rows) / len(rows) for rows in (first, second))
    method, low, high = _find_interval(name, first, second, inside)
    change = _judge_change(old, new, low, high, tolerance, name in HIGHER_IS_BETTER)
    return NumberChange(name, old, new, (len(first), len(second)), method, low, high, change, gated)


def _find_interval(
    name: str, before: Sequence[Row], after: Sequence[Row], inside: tuple[Mapping[str, Row], Mapping[str, Row]]
) -> tuple[Literal["paired", "means", "inside", "none"], float | None, float | None]:
    """The 95 % interval of the difference of the means."""
    by_seed = [{row["seed"]: float(row[name]) for row in rows} for rows in (before, after)]
    is_paired = by_seed[0].keys() == by_seed[1].keys() and None not in by_seed[0]
    if is_paired and len(by_seed[0]) == len(before) == len(after) >= 2:
        return "paired", *confidence_interval([by_seed[1][seed] - by_seed[0][seed] for seed in by_seed[0]])[1:]
    values = [[float(row[name]) for row in rows] for rows in (before, after)]
    if len(before) >= 2 and len(after) >= 2:
        return "means", *_find_welch_interval(*values)
    if len(before) == len(after) == 1:
        first, second = (own.get(rows[0]["run"], {}) for own, rows in zip(inside, (before, after), strict=True))
        ends = [
            one[key] for one in (first, second) for key in (f"{name}_low", f"{name}_high") if one.get(key) is not None
        ]
        if len(ends) == 4:
            return "inside", *_find_joint_interval(values[0][0], ends[:2], values[1][0], ends[2:])
    return "none", None, None


def _find_welch_interval(before: Sequence[float], after: Sequence[float]) -> tuple[float, float]:
    """Welch's interval: the two sides may vary differently."""
    means, errors = [], []
    for values in (before, after):
        mean = sum(values) / len(values)
        means.append(mean)
        errors.append(sum((value - mean) ** 2 for value in values) / (len(values) - 1) / len(values))
    difference, error = means[1] - means[0], errors[0] + errors[1]
    if not error:
        return difference, difference
    parts = (errors[0] ** 2 / (len(before) - 1), errors[1] ** 2 / (len(after) - 1))
    freedom = max(1, int(error**2 / sum(parts)))
    half = T95[min(freedom, len(T95)) - 1] * sqrt(error)
    return difference - half, difference + half


def _find_joint_interval(
    before: float, ends_before: Sequence[float], after: float, ends_after: Sequence[float]
) -> tuple[float, float]:
    """The interval of a difference from the intervals of its two sides (Zou and Donner's square-and-add)."""
    difference = after - before
    low = difference - hypot(after - ends_after[0], ends_before[1] - before)
    high = difference + hypot(ends_after[1] - after, before - ends_before[0])
    return low, high


def _judge_change(
    before: float, after: float, low: float | None, high: float | None, tolerance: float, higher_is_better: bool
) -> Change:
    if low is None or high is None:
        return "same" if before == after else "unknown"
    allowed = tolerance * abs(before)
    if -allowed <= low and high <= allowed:
        return "same"
    if (low > 0 or high < 0) and abs(after - before) > allowed:
        return "better" if (after > before) == higher_is_better else "worse"
    return "unknown"
