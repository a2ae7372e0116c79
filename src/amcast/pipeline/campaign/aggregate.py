"""The aggregate of a campaign: a few numbers for each protocol and fault class, small enough to be committed."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from amcast.pipeline.campaign.job import FINAL

MILLION: Final = 1_000_000
ENOUGH_RUNS: Final = 50
"""Runs from which on a goal that no run reached makes a class untrustworthy."""
MAX_FAILURES: Final = 20
"""Failures of one class that the aggregate names; more are only counted."""


@dataclass
class ClassTally:
    """The runs of one protocol under one fault class."""

    seeds: set[int] = field(default_factory=set)
    """Seeds with a final result."""
    statuses: dict[str, int] = field(default_factory=dict)
    steps: int = 0
    messages: int = 0
    real_logs: int = 0
    cpu_s: float = 0.0
    fired: dict[str, list[int]] = field(default_factory=dict)
    """By kind of fault: runs in which it happened, and how often it happened."""
    reached: dict[str, int] = field(default_factory=dict)
    """By note: runs that made it."""
    failures: list[dict[str, Any]] = field(default_factory=list)
    unfinished: dict[int, dict[str, Any]] = field(default_factory=dict)
    """Seeds that a timeout or a crash of a worker ended."""

    def add(self, row: Mapping[str, Any]) -> None:
        seed, status = row["seed"], row["status"]
        if seed in self.seeds:
            return
        if status not in FINAL:
            self.unfinished[seed] = {"seed": seed, "status": status, "story": row["story"]}
            return
        self.unfinished.pop(seed, None)
        self.seeds.add(seed)
        self.statuses[status] = self.statuses.get(status, 0) + 1
        if status != "holds":
            self.failures.append({"seed": seed, "status": status, "story": row["story"]})
        self.steps += row["steps"] or 0
        self.messages += row["messages"] or 0
        self.real_logs += bool(row["real_log"])
        self.cpu_s += row["cpu_s"] or 0.0
        for name, count in row["fired"]:
            known = self.fired.setdefault(name, [0, 0])
            known[0] += 1
            known[1] += count
        for name, _ in row["reached"]:
            self.reached[name] = self.reached.get(name, 0) + 1


def aggregate_runs(
    rows: Iterable[Mapping[str, Any]],
    classes: Sequence[tuple[str, str]],
    goals: Callable[[str, str], tuple[str, ...]],
) -> list[dict[str, Any]]:
    """One object for each class, in the order of the classes; classes without runs are left out."""
    tallies = {one: ClassTally() for one in classes}
    for row in rows:
        tally = tallies.get((row["protocol"], row["faults"]))
        if tally is not None:
            tally.add(row)
    return [
        describe_class(protocol, faults, tally, goals(protocol, faults))
        for (protocol, faults), tally in tallies.items()
        if tally.seeds or tally.unfinished
    ]


def describe_class(protocol: str, faults: str, tally: ClassTally, goals: tuple[str, ...]) -> dict[str, Any]:
    runs = len(tally.seeds)
    failures = sorted([*tally.failures, *tally.unfinished.values()], key=lambda failure: failure["seed"])
    missed = [goal for goal in goals if goal not in tally.reached] if runs >= ENOUGH_RUNS else []
    return {
        "protocol": protocol,
        "faults": faults,
        "runs": runs,
        "seeds": format_ranges(tally.seeds),
        "statuses": dict(sorted(tally.statuses.items())),
        "unfinished": len(tally.unfinished),
        "steps": tally.steps,
        "messages": tally.messages,
        "runs_on_real_logs": tally.real_logs,
        "cpu_s": round(tally.cpu_s, 1),
        "cpu_hours_of_a_million_runs": round(tally.cpu_s / runs * MILLION / 3600, 1) if runs else None,
        "fired": {name: {"runs": count[0], "times": count[1]} for name, count in sorted(tally.fired.items())},
        "goals": {goal: tally.reached.get(goal, 0) for goal in goals},
        "goals_missed": missed,
        "failures": failures[:MAX_FAILURES],
    }


def format_ranges(numbers: Iterable[int]) -> str:
    """Numbers as ranges, both ends included: 0..9,12."""
    ranges: list[list[int]] = []
    for number in sorted(numbers):
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ",".join(f"{first}..{last}" if last > first else str(first) for first, last in ranges)


def decide_verdict(classes: Sequence[Mapping[str, Any]], left: int) -> str:
    """Violated if a run was violated or stuck; unknown if a seed has no result or a goal was missed; else holds."""
    statuses = {status for one in classes for status in one["statuses"]}
    if statuses & {"violated", "stuck"}:
        return "violated"
    is_doubtful = left or "error" in statuses or any(one["unfinished"] or one["goals_missed"] for one in classes)
    return "unknown" if is_doubtful or not classes else "holds"
