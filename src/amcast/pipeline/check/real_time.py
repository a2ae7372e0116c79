"""P9 of one run: the merge reports messages that a later multicast precedes, and tasks compare these with completions.

Few are complete that early; if any is, the plain checker finds the shortest cycle among the messages around it.
"""

from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from amcast.check.order import check_order
from amcast.check.real_time import has_unknown_clocks
from amcast.check.verdict import Finding
from amcast.pipeline.check.evidence import ExactFindings, reduce_evidence
from amcast.pipeline.check.run_view import RunView
from amcast.pipeline.check.survey import ChainPlan, collect_late_window
from amcast.pipeline.check.surveyed_run import SurveyedRun
from amcast.pipeline.kernels.fingerprints import Int64Array, find_buckets
from amcast.pipeline.kernels.merge import MergeResult
from amcast.pipeline.rows.late_messages import COLUMNS
from amcast.pipeline.rows.sequences import Sequences, to_int64
from amcast.pipeline.rows.tables import Table

PART_MESSAGES: Final = 8_000_000
"""Reported messages that one task compares with completions."""
WHOLE_ENTRIES: Final = 200_000
"""Deliveries up to which the plain checker searches the whole run for the shortest cycle; in a larger run it searches
at most so many messages around one that was complete too early."""
MAX_EARLY: Final = 1000
"""Messages that a task reports as complete too early: the first ones."""
_UNSET: Final = np.iinfo(np.int64).max


@dataclass(frozen=True)
class MergedOrder:
    """One order of a run's messages, as a merge found it."""

    sequences: Sequences
    plans: list[ChainPlan]
    merged: MergeResult
    late: Table
    """Messages that a later multicast precedes (`rows/late_messages.py`)."""
    messages: int
    """Messages that an addressed process delivered."""
    acyclic: Finding
    """P5."""


@dataclass(frozen=True, order=True)
class EarlyCompletion:
    """A message that was complete before the multicast of a message that precedes it."""

    completed_ns: int
    message: int
    latest_ns: int
    """The latest multicast among the messages that precede it."""


def judge_real_time(run: SurveyedRun, order: MergedOrder, exact: list[ExactFindings]) -> Finding:
    """Judges P9."""
    view = run.view
    pending = {message: row for part in exact for message, row in part.pending.items()}
    finding = _judge(run, order, pending)
    finding.checked = {**finding.checked, "messages": order.messages + len(pending)}
    if view.answers is not None:
        finding.checked["answers"] = view.answers.rows
    return finding


def _judge(run: SurveyedRun, order: MergedOrder, pending: dict[int, tuple[int, int, tuple[int, ...]]]) -> Finding:
    if order.merged.heads:
        count = order.acyclic.checked.get(order.acyclic.verdict)
        checked = {} if count is None else {str(order.acyclic.verdict): count}
        return replace(order.acyclic, property="P9", checked=checked)
    # One message of every sender shows whose clocks are compared; no delivery is needed for that.
    some = set(run.multicasts.of_sender.values())
    evidence = reduce_evidence(run.view, find_buckets(some, run.buckets), {}, {}, run.gaps.first, some)
    doubts = check_order(evidence)[2]
    doubts.checked = {name: count for name, count in doubts.checked.items() if name == doubts.verdict}
    if doubts.verdict == "unknown" and has_unknown_clocks(evidence):
        return doubts
    early = _find_early(run, order, pending)
    return _tell(run, order, early) if early else doubts


def _find_early(
    run: SurveyedRun, order: MergedOrder, pending: dict[int, tuple[int, int, tuple[int, ...]]]
) -> list[EarlyCompletion]:
    """Messages that were complete too early, the first ones if there are many."""
    view, bound = run.view, run.view.meta.clock_bound_ns or 0
    ends = {p: extent.end for p, extent in order.sequences.extents().items() if view.group_of.get(p) is not None}
    calls = [(find_early_completions, (view, order.sequences, ends, part)) for part in order.late.split(PART_MESSAGES)]
    found = [one for part in run.runner(calls if order.late.rows else []) for one in part]
    for message, (completed, sent, groups) in pending.items():
        latest = [order.merged.latest[at] for at, plan in enumerate(order.plans) if plan.group in groups]
        if completed + bound < max([sent, *latest]):
            found.append(EarlyCompletion(completed, message, max([sent, *latest])))
    # A message at the beginning of a segment may be reported twice; the latest multicast that precedes it counts.
    return sorted({(one.message): one for one in sorted(found, key=lambda one: one.latest_ns)}.values())


def find_early_completions(
    view: RunView, sequences: Sequences, ends: dict[int, int], late: Table
) -> list[EarlyCompletion]:
    """The first of the reported messages that were complete before the latest multicast that precedes them."""
    batches = list(late.batches(list(COLUMNS)))
    columns = [np.concatenate([to_int64(batch.column(name)) for batch in batches]) for name in COLUMNS]
    by_message = np.argsort(columns[0], kind="stable")
    message, sent, latest, groups = (column[by_message] for column in columns)
    if view.answers is not None:
        completed = _find_answers(view.answers, message)
    else:
        completed = _find_first_deliveries(view, sequences, ends, message, groups)
    known = completed != _UNSET
    completed = np.maximum(completed, sent)
    early = np.nonzero(known & (latest - completed > (view.meta.clock_bound_ns or 0)))[0]
    first = early[np.lexsort((message[early], completed[early]))][:MAX_EARLY]
    return [
        EarlyCompletion(*row)
        for row in zip(completed[first].tolist(), message[first].tolist(), latest[first].tolist(), strict=True)
    ]


def _lower(times: Int64Array, messages: Int64Array, some: Int64Array, at: Int64Array) -> None:
    """Lowers the times of messages to those of some rows about them; `messages` is sorted."""
    place = np.minimum(np.searchsorted(messages, some), messages.size - 1)
    known = messages[place] == some
    np.minimum.at(times, place[known], at[known])


def _find_answers(answers: Table, messages: Int64Array) -> NDArray[np.int64]:
    found: NDArray[np.int64] = np.full(messages.size, _UNSET, np.int64)
    for batch in answers.batches(["message", "at_ns"]):
        _lower(found, messages, to_int64(batch.column("message")), to_int64(batch.column("at_ns")))
    return found


def _find_first_deliveries(
    view: RunView, sequences: Sequences, ends: dict[int, int], messages: Int64Array, groups: Int64Array
) -> NDArray[np.int64]:
    """When the last destination group of each message had a process that had delivered it.

    `sequences` have valid deliveries only, and say which groups responded; a second delivery may have been earlier.
    """
    completed = np.full(messages.size, np.iinfo(np.int64).min, np.int64)
    responded = np.zeros(messages.size, np.int64)
    every = {process: extent.end for process, extent in view.sequences.extents().items()}
    for members in view.members.values():
        first = _find_earliest(sequences, members, ends, messages)
        there = first != _UNSET
        if sequences is not view.sequences:
            first = _find_earliest(view.sequences, members, every, messages)
        responded += there
        completed[there] = np.maximum(completed[there], first[there])
    return np.where(responded == groups, completed, _UNSET)


def _find_earliest(
    sequences: Sequences, members: tuple[int, ...], ends: dict[int, int], messages: Int64Array
) -> NDArray[np.int64]:
    first: NDArray[np.int64] = np.full(messages.size, _UNSET, np.int64)
    for member in members:
        for rows in sequences.rows(member, 0, ends.get(member, 0)):
            _lower(first, messages, rows.messages, rows.at)
    return first


def _tell(run: SurveyedRun, order: MergedOrder, early: list[EarlyCompletion]) -> Finding:
    """The plain checker's finding about the run, or about the messages around the first that was complete too early."""
    view, first = run.view, early[0]
    if sum(extent.rows for extent in view.sequences.extents().values()) <= WHOLE_ENTRIES:
        every = np.ones(run.buckets, np.bool_)
        finding = check_order(reduce_evidence(view, every, run.ends, run.gaps.fills, run.gaps.first))[2]
        finding.checked = {"violated": 1}
        return finding
    threshold = first.completed_ns + (view.meta.clock_bound_ns or 0)
    call = (collect_late_window, (order.sequences, order.plans, threshold, first.message, WHOLE_ENTRIES))
    window = run.runner([call])[0]
    if window is not None:
        chosen = find_buckets(window, run.buckets)
        finding = check_order(reduce_evidence(view, chosen, run.ends, run.gaps.fills, run.gaps.first, window))[2]
        if finding.verdict == "violated":
            if len(early) > 1:
                others = len(early) - 1
                finding.story.append(f"{others} other messages were complete too early: a shorter cycle may exist")
            finding.checked = {"violated": 1}
            return finding
    sentence = (
        f"{first.message} was complete at {first.completed_ns} ns, but a message that precedes it, directly or over"
        f" others, was multicast at {first.latest_ns} ns"
    )
    witness = [{"message": first.message, "completed_ns": first.completed_ns, "multicast_ns": first.latest_ns}]
    return Finding("P9", "violated", True, {"violated": 1}, [sentence], witness)
