"""The examination of one run: a survey of everything, then exact checks of the few messages that need them.

1. The survey reads everything once: it compares replicas position by position, merges the chains, and fingerprints the
   multicasts and the chains.
2. Where fingerprints differ, or a replica deviates or lags, the messages concerned are few. The plain checker judges
   exactly these, with every row about them (P1, P2, P3).
3. If the merge stopped, the cycle is found: among pairs of chains first (P4), else among the messages at which it
   stopped (P5).
4. If the merge removed everything, it has also reported the messages that a later multicast precedes; tasks compare
   these with completions (P9).
5. Packets (P6) and sessions (P7, P8) are judged the same way: a kernel reads all, the plain checker judges the few.

`docs/spark.md` says why each step is sound. The calls of a step are independent: a `Runner` makes them one after the
other, or in as many Spark tasks.
"""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from amcast.check.judge import build_report
from amcast.check.verdict import Finding, Report
from amcast.kernel.errors import Error
from amcast.pipeline.check.evidence import ExactFindings, check_exactly, join_findings, reduce_evidence
from amcast.pipeline.check.gaps import PositionGaps
from amcast.pipeline.check.genuineness import judge_genuineness
from amcast.pipeline.check.order import judge_order
from amcast.pipeline.check.real_time import judge_real_time
from amcast.pipeline.check.run_view import RunView
from amcast.pipeline.check.runner import Call, Runner, run_sequentially
from amcast.pipeline.check.segments import (
    SEGMENT_ENTRIES,
    Segment,
    build_merge_calls,
    join_segments,
    plan_segments,
)
from amcast.pipeline.check.sessions import judge_sessions
from amcast.pipeline.check.survey import (
    ChainPlan,
    MulticastSurvey,
    find_doubled,
    find_early,
    find_repeated,
    fingerprint_chain,
    join_surveys,
    merge_chains,
    plan_comparison,
    plan_longest_chain,
    refuse_stated,
    survey_multicasts,
)
from amcast.pipeline.check.surveyed_run import PACKET_ROWS, SurveyedRun, make_scratch_path
from amcast.pipeline.kernels.fingerprints import Fingerprint, choose_bucket_count, find_buckets
from amcast.pipeline.kernels.merge import MergeResult
from amcast.pipeline.kernels.replicas import ReplicaComparison
from amcast.pipeline.rows.tables import Table

TABLE_ROWS: Final = 4_000_000
"""Rows of the multicasts that one call surveys."""
EXACT_ROWS: Final = 1_000_000
"""Rows that one call of an exact check holds in memory, about."""


class UnsortedRowsError(Error):
    """Rows of a process are not sorted by position, against the trace's contract: they must be sorted first."""


class PositionGapError(Error):
    """The trace has gaps or doubled positions, and is small enough for the plain checker to judge it instead."""


class Examination:
    """The judgement of one run."""

    def __init__(
        self,
        view: RunView,
        runner: Runner = run_sequentially,
        gapped_rows: int = 0,
        scratch: str | None = None,
        segment_entries: int = SEGMENT_ENTRIES,
        packet_rows: int = PACKET_ROWS,
    ) -> None:
        self._view = view
        self._packet_rows = packet_rows
        self._segment_entries = segment_entries
        self._runner = runner
        self._scratch = scratch
        self._gapped_rows = gapped_rows
        """A trace with gaps and at most this many deliveries is left to the plain checker, which uses every row."""
        self._extents = view.sequences.extents()
        self.ends = {process: extent.end for process, extent in self._extents.items()}
        self._rows = sum(extent.rows for extent in self._extents.values())
        self.buckets = choose_bucket_count(max(self._rows, view.multicasts.rows))

    def report(self) -> Report:
        """Judges every property. UnsortedRowsError or PositionGapError: the run must be judged in another way."""
        comparisons, merged, multicasts = self._survey()
        order, delivered, late = merged if merged is not None else (None, None, None)
        gaps = self._find_gaps(comparisons)
        run = SurveyedRun(
            self._view, self._runner, self.ends, self.buckets, gaps, multicasts, self._scratch, self._packet_rows
        )
        if order is not None and order.heads:
            delivered = None  # a merge that stopped has not read all that was delivered
        suspects = self._find_suspects(run, comparisons, delivered)
        findings, exact = self._check_integrity(run, suspects)
        ordering, merged_order = judge_order(run, comparisons, order, late, exact)
        findings += ordering
        findings += judge_genuineness(run)
        findings += judge_sessions(run)
        findings.append(judge_real_time(run, merged_order, exact))
        return build_report(self._view.meta, findings)

    # 1. The survey

    def _survey(
        self,
    ) -> tuple[list[ReplicaComparison], tuple[MergeResult, Fingerprint, Table] | None, MulticastSurvey]:
        """Replica comparisons; what the merge of the chains found, if no trace has gaps; the multicasts."""
        view = self._view
        plans = [plan_longest_chain(group, members, self.ends) for group, members in view.members.items()]
        is_dense = all(self._extents[p].rows == self.ends[p] for p in self._extents) and not view.notes
        outside = [(process,) for process in self._extents if view.group_of.get(process) is None]
        compared_groups = [*view.members.values(), *outside]  # processes outside of groups are only searched for gaps
        slices = plan_comparison(self._runner, compared_groups, view.sequences, self.ends)
        comparing = slices.build_calls(view.sequences)
        surveying = [
            (survey_multicasts, (part, view.crashed, self.buckets)) for part in view.multicasts.split(TABLE_ROWS)
        ]
        segments = plan_segments(self._runner, view.sequences, plans, self._segment_entries) if is_dense else []
        merging = self._plan_merge(plans, segments)
        answers = self._runner([*merging, *comparing, *surveying])
        multicasts = join_surveys(answers[len(merging) + len(comparing) :], self.buckets)
        self._refuse_unknown_groups(multicasts)
        compared = answers[len(merging) : len(merging) + len(comparing)]
        comparisons = [comparison for piece in compared for comparison in piece] + slices.find_empty()
        merged = self._join_merge(plans, segments, answers[: len(merging)]) if is_dense else None
        return comparisons, merged, multicasts

    def _plan_merge(self, plans: list[ChainPlan], segments: list[Segment]) -> list[Call]:
        if len(segments) > 1:
            paths = [make_scratch_path(self._scratch) for _ in segments]
            return build_merge_calls(self._view.sequences, segments, self.buckets, paths)
        path = make_scratch_path(self._scratch)
        return [(merge_chains, (self._view.sequences, plans, self.buckets, path))] if segments else []

    def _join_merge(
        self, plans: list[ChainPlan], segments: list[Segment], answers: list[Any]
    ) -> tuple[MergeResult, Fingerprint, Table]:
        if len(segments) > 1:
            paths = [make_scratch_path(self._scratch) for _ in segments]
            joined = join_segments(self._runner, self._view.sequences, segments, answers, paths)
            answers = [joined] if joined is not None else self._runner(self._plan_merge(plans, segments[:1]))
        merged: tuple[MergeResult, Fingerprint, Table] = answers[0]
        return merged

    def _refuse_unknown_groups(self, multicasts: MulticastSurvey) -> None:
        wrong = {message for group, message in multicasts.of_group.items() if group not in self._view.members}
        if multicasts.without_destinations is not None:
            wrong.add(multicasts.without_destinations)
        if wrong:
            # The plain checker refuses these messages, with its own sentence.
            reduce_evidence(self._view, find_buckets(wrong, self.buckets), {}, {}, {}, only=wrong)

    def _find_gaps(self, comparisons: list[ReplicaComparison]) -> PositionGaps:
        is_doubled = any(comparison.disorder >= 0 for comparison in comparisons)
        if is_doubled and not self._view.is_sorted:
            raise UnsortedRowsError
        has_gaps = is_doubled or bool(self._view.notes) or any(comparison.holes for comparison in comparisons)
        if has_gaps and self._rows <= self._gapped_rows:
            raise PositionGapError
        return PositionGaps(self._view, self.ends, comparisons)

    # 2. What needs an exact check, and P1, P2, P3

    def _find_suspects(
        self, run: SurveyedRun, comparisons: list[ReplicaComparison], delivered: Fingerprint | None
    ) -> NDArray[np.bool_]:
        """The buckets of all messages that may violate P1, P2 or P3, or leave one of them unknown."""
        view, multicasts = self._view, run.multicasts
        suspects: NDArray[np.bool_] = np.zeros(self.buckets, np.bool_)
        calls: list[Call] = []
        for process, extent in self._extents.items():
            if view.group_of.get(process) is None:
                plan = ChainPlan.of_process(0, process, extent.end)
                calls.append((fingerprint_chain, (view.sequences, plan, self.buckets)))
        for prints in self._runner(calls):
            suspects |= prints.words[0] > 0
        suspects |= self._find_deviating(run.gaps, comparisons)
        if delivered is None:
            delivered = Fingerprint(self.buckets)
            plans = [run.gaps.plan_group_chain(group) for group in view.members]
            calls = [(fingerprint_chain, (view.sequences, plan, self.buckets)) for plan in plans]
            for prints in self._runner(calls):
                delivered += prints
        suspects |= delivered.find_differences(multicasts.prints)
        if not multicasts.ids.is_ascending:
            parts = self._split_buckets(view.multicasts.rows)
            for found in self._runner([(find_repeated, (view.multicasts, part)) for part in parts]):
                suspects |= found
        return suspects

    def _find_deviating(self, gaps: PositionGaps, comparisons: list[ReplicaComparison]) -> NDArray[np.bool_]:
        """The buckets in which members differ from their group's longest, or are correct and shorter."""
        view = self._view
        suspects: NDArray[np.bool_] = np.zeros(self.buckets, np.bool_)
        deviating = {comparison.process for comparison in comparisons if not comparison.is_clean}
        calls: list[Call] = []
        for group, members in view.members.items():
            longest = plan_longest_chain(group, members, self.ends)
            end = self.ends.get(longest.process, 0)
            lagging = {m for m in members if m not in view.crashed and self.ends.get(m, 0) < end}
            gapped = {m for m in members if m in gaps.ranges}
            examined = sorted((deviating & set(members)) | lagging | gapped)
            if deviating & set(members) or gapped:
                # The longest itself may be the one that deviates: prefixes of crashed members then prove nothing.
                examined = sorted(members)
            for member in examined:
                plans = (gaps.plan_member_chain(group, member), longest)
                calls += [(fingerprint_chain, (view.sequences, plan, self.buckets)) for plan in plans]
        answers = self._runner(calls)
        for own, other in zip(answers[::2], answers[1::2], strict=True):
            suspects |= own.find_differences(other)
        early = sorted({comparison.process for comparison in comparisons if comparison.early >= 0})
        doubled = sorted({comparison.process for comparison in comparisons if comparison.disorder >= 0})
        calls = [(find_early, (view.sequences, p, self.ends[p], self.buckets)) for p in early]
        calls += [(find_doubled, (view.sequences, p, self.ends[p], self.buckets)) for p in doubled]
        for found in self._runner(calls):
            suspects |= found
        return suspects

    def _split_buckets(self, rows: int, chosen: NDArray[np.bool_] | None = None) -> list[NDArray[np.bool_]]:
        """The chosen buckets in parts, each about as many of the given rows as fit into memory."""
        chosen = np.ones(self.buckets, np.bool_) if chosen is None else chosen
        there = np.nonzero(chosen)[0]
        share = rows * there.size / self.buckets
        parts = []
        for piece in np.array_split(there, max(1, min(there.size, int(np.ceil(share / EXACT_ROWS))))):
            part = np.zeros(self.buckets, np.bool_)
            part[piece] = True
            parts.append(part)
        return parts

    def _check_integrity(
        self, run: SurveyedRun, suspects: NDArray[np.bool_]
    ) -> tuple[list[Finding], list[ExactFindings]]:
        """P1, P2 and P3, with the exact findings about suspect messages."""
        view, multicasts, gaps = self._view, run.multicasts, run.gaps
        exact: list[ExactFindings] = []
        if suspects.any() or gaps.first:
            parts = self._split_buckets(self._rows + multicasts.rows, suspects)
            self._runner([(refuse_stated, (view.sequences, view.multicasts, self.ends, part)) for part in parts])
            exact = self._runner([(check_exactly, (view, part, self.ends, gaps.fills, gaps.first)) for part in parts])
        others = multicasts.rows - sum(part.rows for part in exact)
        processes = {*self._extents, *view.notes, *(m for members in view.members.values() for m in members)}
        checked = {
            "P1": {"deliveries": self._rows, "processes": len(processes)},
            "P2": {"messages": multicasts.correct + sum(part.correct - part.correct_rows for part in exact)},
            "P3": {"messages": others + sum(part.delivered for part in exact)},
        }
        findings = []
        for place, (name, counts) in enumerate(checked.items()):
            finding = join_findings([part.findings[place] for part in exact]) if exact else Finding(name, "holds")
            finding.checked = {**finding.checked, **counts}
            findings.append(finding)
        return findings, exact
