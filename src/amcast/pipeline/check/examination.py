"""From surveys to verdicts: the order of the questions, and which of them need a closer look.

1. Survey everything once: replicas position by position, chains merged, multicasts and chains fingerprinted.
2. Where fingerprints differ, or a replica deviates or lags, the messages concerned are few: judge exactly these with
   the plain checker, every row about them at hand (P1, P2, P3).
3. If the merge stopped, find the circle: pairs of chains first (P4), else the messages at which it stopped (P5).
4. Packets (P6) and sessions (P7, P8) the same way: a kernel looks at all, the plain checker tells the story of the few.

`docs/spark.md` says why each step is sound. The calls of a step are independent: a `Runner` makes them one after the
other, or in as many Spark tasks.
"""

from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from amcast.check.verdict import Finding, Report
from amcast.pipeline.check import genuineness as genuine
from amcast.pipeline.check import order as ordered
from amcast.pipeline.check import sessions as served
from amcast.pipeline.check.evidence import Exact, exact, joined, reduced
from amcast.pipeline.check.gaps import Holes
from amcast.pipeline.check.run_view import Table, View
from amcast.pipeline.check.survey import (
    ChainPlan,
    Sent,
    compare,
    doubled,
    early,
    fingerprint,
    merge_chains,
    survey_multicasts,
)
from amcast.pipeline.kernels.fingerprints import Fingerprint, buckets_for, buckets_of
from amcast.pipeline.kernels.merge import Merged
from amcast.pipeline.kernels.replicas import SLICE_POSITIONS, Replica
from amcast.pipeline.rows.sequences import Sequences

Call = tuple[Callable[..., Any], tuple[Any, ...]]
Runner = Callable[[list[Call]], list[Any]]
"""Makes some calls, in any order or in parallel; gives back their answers in the order of the calls."""

TABLE_ROWS: Final = 4_000_000
EXACT_ROWS: Final = 1_000_000


def one_by_one(calls: list[Call]) -> list[Any]:
    """The runner of a small run."""
    return [function(*arguments) for function, arguments in calls]


class UnsortedRowsError(Exception):
    """Rows of a process are not sorted by position, against the trace's contract: they must be sorted first."""


class PositionGapError(Exception):
    """The trace has holes or doubled positions, and is small enough to be judged by the plain checker instead."""


class Examination:
    """The judgement of one run."""

    def __init__(self, view: View, runner: Runner = one_by_one, ragged_rows: int = 0) -> None:
        self.view = view
        self.runner = runner
        self.ragged_rows = ragged_rows
        """Up to so many deliveries, a trace with holes is left to the plain checker, which uses every row of it."""
        self.extents = view.sequences.extents()
        self.ends = {process: extent.end for process, extent in self.extents.items()}
        self.rows = sum(extent.rows for extent in self.extents.values())
        self.buckets = buckets_for(max(self.rows, view.multicasts.rows))
        self.holes = Holes(view, self.ends)
        self.sent: Sent | None = None
        self.clean = True
        """Nothing needed a closer look."""

    # The whole

    def report(self) -> Report:
        """Every property's verdict."""
        replicas, merged, delivered = self._survey()
        suspects = self._suspects(replicas, delivered)
        findings, close = self._integrity(suspects)
        findings += ordered.judged(self, replicas, merged, close)
        findings += genuine.judged(self)
        findings += served.judged(self)
        self.clean = self.clean and all(finding.verdict == "holds" for finding in findings[:5])
        return claimed(self.view, findings)

    # 1. The survey

    def _survey(self) -> tuple[list[Replica], Merged | None, Fingerprint | None]:
        view = self.view
        plans = [self.longest(group) for group in view.members]
        dense = all(self.extents[p].rows == self.ends[p] for p in self.extents) and not view.notes
        comparing = self.comparing(view.sequences, self.ends)
        multicasts = [
            (survey_multicasts, (part, view.crashed, self.buckets)) for part in view.multicasts.split(TABLE_ROWS)
        ]
        merging: list[Call] = [(merge_chains, (view.sequences, plans, self.buckets))] if dense else []
        answers = self.runner([*merging, *comparing, *multicasts])
        self.sent = self._followed(answers[len(merging) + len(comparing) :])
        self._refuse_unknown_groups()
        found = answers[len(merging) : len(merging) + len(comparing)]
        replicas = [replica for piece in found for replica in piece]
        self._note_holes(replicas)
        if not dense:
            return replicas, None, None
        return replicas, *answers[0]

    def comparing(self, sequences: Sequences, ends: dict[int, int]) -> list[Call]:
        calls: list[Call] = []
        for members in self.view.members.values():
            end = max((ends.get(member, 0) for member in members), default=0)
            mine = {member: ends[member] for member in members if member in ends}
            for low in range(0, end, SLICE_POSITIONS):
                calls.append((compare, (sequences, members, mine, low, min(end, low + SLICE_POSITIONS))))
        return calls

    def _followed(self, parts: list[Sent]) -> Sent:
        if not parts:
            return Sent(Fingerprint(self.buckets))
        for later in parts[1:]:
            parts[0].follow(later)
        return parts[0]

    def _refuse_unknown_groups(self) -> None:
        assert self.sent is not None
        wrong = {message for group, message in self.sent.of_group.items() if group not in self.view.members}
        if self.sent.aimless is not None:
            wrong.add(self.sent.aimless)
        if wrong:
            # The plain checker's own refusal, in its words.
            reduced(self.view, buckets_of(wrong, self.buckets), {}, {}, {}, only=wrong)

    def longest(self, group: int) -> ChainPlan:
        """A group's chain as its longest member recorded it."""
        members = self.view.members[group]
        longest = max(members, key=lambda member: self.ends.get(member, 0))
        return ChainPlan.of(group, longest, self.ends.get(longest, 0))

    def _note_holes(self, replicas: list[Replica]) -> None:
        doubled = any(replica.disorder >= 0 for replica in replicas)
        if doubled and not self.view.in_order:
            raise UnsortedRowsError
        ragged = doubled or bool(self.view.notes) or any(replica.holes for replica in replicas)
        self.clean = self.clean and not ragged
        if ragged and self.rows <= self.ragged_rows:
            raise PositionGapError
        self.holes = Holes(self.view, self.ends, replicas)

    # 2. What needs a closer look, and P1, P2, P3

    def _suspects(self, replicas: list[Replica], delivered: Fingerprint | None) -> NDArray[np.bool_]:
        """The buckets of all messages about which P1, P2 or P3 may have something to say."""
        view, sent = self.view, self.sent
        assert sent is not None
        suspects: NDArray[np.bool_] = np.zeros(self.buckets, np.bool_)
        calls: list[Call] = []
        for process, extent in self.extents.items():
            if view.group_of.get(process) is None:
                calls.append((fingerprint, (view.sequences, ChainPlan.of(0, process, extent.end), self.buckets)))
        for prints in self.runner(calls):
            suspects |= prints.words[0] > 0
        suspects |= self._deviating(replicas)
        if delivered is None:
            delivered = Fingerprint(self.buckets)
            plans = [self.holes.covered(group) for group in view.members]
            for prints in self.runner([(fingerprint, (view.sequences, plan, self.buckets)) for plan in plans]):
                delivered += prints
        suspects |= delivered.differing(sent.prints)
        if not sent.growing.sure:
            parts = self._parts(view.multicasts.rows)
            for found in self.runner([(repeated, (view.multicasts, part)) for part in parts]):
                suspects |= found
        return suspects

    def _deviating(self, replicas: list[Replica]) -> NDArray[np.bool_]:
        """Members that are not like their group's longest, or are correct and shorter: what sets them apart."""
        view = self.view
        suspects: NDArray[np.bool_] = np.zeros(self.buckets, np.bool_)
        odd = {replica.process for replica in replicas if not replica.alike}
        soon = {replica.process for replica in replicas if replica.early >= 0}
        calls: list[Call] = []
        for group, members in view.members.items():
            longest = self.longest(group)
            end = self.ends.get(longest.process, 0)
            lagging = {m for m in members if m not in view.crashed and self.ends.get(m, 0) < end}
            ragged = {m for m in members if m in self.holes.ranges}
            apart = sorted((odd & set(members)) | lagging | ragged)
            if odd & set(members) or ragged:
                # The longest itself may be the odd one: its crashed prefixes then prove nothing either.
                apart = sorted(members)
            for member in apart:
                plans = (self.holes.own(group, member), longest)
                calls += [(fingerprint, (view.sequences, plan, self.buckets)) for plan in plans]
        answers = self.runner(calls)
        for mine, other in zip(answers[::2], answers[1::2], strict=True):
            suspects |= mine.differing(other)
        doubtful: list[Call] = [(early, (view.sequences, p, self.ends[p], self.buckets)) for p in sorted(soon)]
        twice = {replica.process for replica in replicas if replica.disorder >= 0}
        doubtful += [(doubled, (view.sequences, p, self.ends[p], self.buckets)) for p in sorted(twice)]
        for found in self.runner(doubtful):
            suspects |= found
        return suspects

    def _parts(self, rows: int, chosen: NDArray[np.bool_] | None = None) -> list[NDArray[np.bool_]]:
        """The chosen buckets, cut so that each part is about so many rows of this run as fit into memory."""
        chosen = np.ones(self.buckets, np.bool_) if chosen is None else chosen
        there = np.nonzero(chosen)[0]
        share = rows * there.size / self.buckets
        parts = []
        for piece in np.array_split(there, max(1, min(there.size, int(np.ceil(share / EXACT_ROWS))))):
            part = np.zeros(self.buckets, np.bool_)
            part[piece] = True
            parts.append(part)
        return parts

    def _integrity(self, suspects: NDArray[np.bool_]) -> tuple[list[Finding], list[Exact]]:
        view, sent = self.view, self.sent
        assert sent is not None
        close: list[Exact] = []
        if suspects.any() or self.holes.gaps:
            self.clean = False
            parts = self._parts(self.rows + sent.rows, suspects)
            close = self.runner([(exact, (view, part, self.ends, self.holes.fills, self.holes.gaps)) for part in parts])
        others = sent.rows - sum(part.rows for part in close)
        people = {*self.extents, *(member for members in view.members.values() for member in members)}
        checked = {
            "P1": {"deliveries": self.rows, "processes": len(people)},
            "P2": {"messages": sent.correct + sum(part.correct - part.correct_rows for part in close)},
            "P3": {"messages": others + sum(part.delivered for part in close)},
        }
        findings = []
        for place, (name, counts) in enumerate(checked.items()):
            finding = joined([part.findings[place] for part in close]) if close else Finding(name, "holds")
            finding.checked = {**finding.checked, **counts}
            findings.append(finding)
        return findings, close


def repeated(multicasts: Table, chosen: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """The buckets of messages that were multicast more than once."""
    from amcast.pipeline.check.run_view import multicasts_in
    from amcast.pipeline.kernels.fingerprints import in_buckets

    ids = [rows.messages[in_buckets(rows.messages, chosen)] for rows in multicasts_in(multicasts)]
    every = np.sort(np.concatenate(ids)) if ids else np.zeros(0, np.int64)
    return buckets_of(set(every[1:][every[1:] == every[:-1]].tolist()), chosen.size)


def claimed(view: View, findings: list[Finding]) -> Report:
    """The report; what the run does not claim does not decide."""
    claims = view.meta.claims
    unclaimed = {
        "P6": claims.genuine == "no",
        "P6'": claims.genuine != "strict",
        "P7": not claims.fifo,
        "P8": not claims.exactly_once,
    }
    for finding in findings:
        finding.claimed = not unclaimed.get(finding.property, False)
    return Report(view.meta, {finding.property: finding for finding in findings})
