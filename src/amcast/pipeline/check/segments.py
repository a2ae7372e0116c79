"""The merge of a large run in segments of time, by as many calls.

A cut is a position in every chain such that no message is on both sides: each message is delivered before the cut by
all of its groups, or after it by all. The segments between cuts are merged apart, and one order after the other is one
order of the run. A cut begins at a time; where a message is on both sides, the cut of the chain that has it before is
moved back to it, until none is. That search sees only what is near. Whether a segment is closed is therefore counted by
its merge: no message may be removed that is addressed to a chain whose segment has ended while the chain goes on. If a
segment is not closed, or its merge stops, the chains are merged in one piece instead.

The latest multicast that precedes a message (P9) is carried from one segment to the next: the beginning of each segment
is merged once more with what precedes it, until that does not matter any more. docs/spark.md proves both.
"""

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from amcast.pipeline.check.runner import Call, Runner
from amcast.pipeline.check.survey import ChainPlan, ChainRouting, read_and_fingerprint, read_timed
from amcast.pipeline.kernels.fingerprints import Fingerprint, Int64Array
from amcast.pipeline.kernels.merge import NEVER, LateWatch, MergeResult, merge
from amcast.pipeline.rows.late_messages import LateMessages
from amcast.pipeline.rows.sequences import FileSequences, Sequences
from amcast.pipeline.rows.tables import Table, TableParts

SEGMENT_ENTRIES: Final = 32_000_000
"""Entries of all chains that one call merges."""
WINDOW: Final = 1 << 14
"""Entries of a chain on both sides of a cut among which a message on the wrong side is searched."""

Cut = tuple[int, ...]
"""A position in each chain."""
Merged = tuple[MergeResult, Fingerprint, Table]


@dataclass(frozen=True)
class Segment:
    """The part of every chain between two cuts."""

    plans: list[ChainPlan]
    continued: tuple[bool, ...]
    """By chain: whether it goes on after this segment."""

    def is_closed(self, merged: MergeResult) -> bool:
        """Whether the merge removed no message of a chain that goes on after it had passed the chain's part."""
        return not any(count for count, goes_on in zip(merged.passed, self.continued, strict=True) if goes_on)


def plan_segments(
    runner: Runner, sequences: Sequences, plans: list[ChainPlan], entries: int = SEGMENT_ENTRIES
) -> list[Segment]:
    """Segments of about so many entries; a single one if the run is small or footers do not say where to cut."""
    total = sum(_end(plan) for plan in plans)
    count = total // max(1, entries)
    cuts: list[Cut] = []
    if count > 1 and isinstance(sequences, FileSequences):
        longest = max(plans, key=_end)
        times = [sequences.find_time(longest.process, _end(longest) * at // count) for at in range(1, count)]
        processes = [plan.process for plan in plans]
        calls: list[Call] = [
            (find_cut, (sequences.find_around(processes, time), plans, time)) for time in times if time is not None
        ]
        cuts = [cut for cut in runner(calls) if cut is not None]
    return _split_plans(plans, cuts)


def _end(plan: ChainPlan) -> int:
    return plan.segments[0][2]


def _split_plans(plans: list[ChainPlan], cuts: list[Cut]) -> list[Segment]:
    """Segments between the cuts that lie behind each other."""
    bounds = [tuple(0 for _ in plans)]
    last = tuple(_end(plan) for plan in plans)
    for cut in sorted(cuts, key=sum):
        ascends = all(a <= b <= end for a, b, end in zip(bounds[-1], cut, last, strict=True))
        if ascends and bounds[-1] != cut != last:
            bounds.append(cut)
    return [
        Segment(
            [
                replace(plan, segments=((plan.process, low, high),))
                for plan, low, high in zip(plans, begin, end, strict=True)
            ],
            tuple(high < stop for high, stop in zip(end, last, strict=True)),
        )
        for begin, end in pairwise([*bounds, last])
    ]


def find_cut(sequences: FileSequences, plans: list[ChainPlan], at_ns: int) -> Cut | None:
    """A cut near a time; None if there is none in sight."""
    cut: Int64Array = np.zeros(len(plans), np.int64)
    begin: Int64Array = np.zeros(len(plans), np.int64)
    columns: tuple[list[Int64Array], ...] = ([], [], [])
    for number, plan in enumerate(plans):
        position, message, at = sequences.moments(plan.process)
        # Times need not ascend along a chain: the cut is before the first entry that is as late.
        place = int(np.argmax(at >= at_ns)) if (at >= at_ns).any() else position.size
        cut[number] = position[place] if place < position.size else _end(plan)
        near = slice(max(0, place - WINDOW), place + WINDOW)
        begin[number] = position[near.start] if near.start < position.size else 0
        for column, values in zip(columns, (message[near], position[near]), strict=False):
            column.append(values)
        columns[2].append(np.full(message[near].size, number, np.int64))
    messages, positions, chains = (np.concatenate(column) for column in columns)
    if not messages.size or not close_cut(cut, messages, positions, chains):
        return None
    # Something that a cut was moved back to may concern what is no longer in sight.
    in_sight = (cut > begin) | (begin == 0)
    return tuple(cut.tolist()) if in_sight.all() and cut.any() else None


def close_cut(cut: Int64Array, messages: Int64Array, positions: Int64Array, chains: Int64Array) -> bool:
    """Moves the cut of a chain back to a message that another chain has behind its own, until there is none."""
    codes = np.unique(messages, return_inverse=True)[1]
    count = int(codes.max()) + 1
    for _ in range(messages.size):
        is_behind = positions >= cut[chains]
        on_both: NDArray[np.bool_] = np.zeros(count, np.bool_)
        on_both[codes[is_behind]] = True
        wrong = ~is_behind & on_both[codes]
        if not wrong.any():
            return True
        np.minimum.at(cut, chains[wrong], positions[wrong])
    return False


@dataclass(frozen=True)
class SegmentMerge:
    """What the merge of one segment found."""

    merged: MergeResult
    prints: Fingerprint
    late: Table


def merge_segment(sequences: Sequences, segment: Segment, buckets: int, path: str | None) -> SegmentMerge:
    """Merges one segment as if nothing preceded it; fingerprints its deliveries."""
    prints, route, late = Fingerprint(buckets), ChainRouting(segment.plans), LateMessages(path)
    watch = LateWatch([plan.group for plan in segment.plans], late.absorb)
    merged = merge([read_and_fingerprint(sequences, plan, route, prints) for plan in segment.plans], None, watch)
    return SegmentMerge(merged, prints, late.close())


def merge_beginning(
    sequences: Sequences, segment: Segment, begun: tuple[int, ...], path: str | None
) -> tuple[MergeResult, Table]:
    """Merges the beginning of a segment, of which it is known what precedes it, as far as that matters."""
    route, late = ChainRouting(segment.plans), LateMessages(path)
    watch = LateWatch([plan.group for plan in segment.plans], late.absorb, begun=begun)
    merged = merge([read_timed(sequences, plan, route) for plan in segment.plans], None, watch)
    return merged, late.close()


def build_merge_calls(
    sequences: Sequences, segments: list[Segment], buckets: int, paths: list[str | None]
) -> list[Call]:
    """A call for each segment, which carries only what it reads."""
    return [
        (merge_segment, (restrict_sequences(sequences, segment), segment, buckets, path))
        for segment, path in zip(segments, paths, strict=True)
    ]


def restrict_sequences(sequences: Sequences, segment: Segment) -> Sequences:
    if not isinstance(sequences, FileSequences):
        return sequences
    return sequences.restrict({plan.process: plan.segments[0][1:] for plan in segment.plans})


def join_segments(
    runner: Runner,
    sequences: Sequences,
    segments: list[Segment],
    found: list[SegmentMerge],
    paths: list[str | None],
) -> Merged | None:
    """The merge of the run, from those of its segments; None if it must be merged in one piece."""
    if any(one.merged.heads or not part.is_closed(one.merged) for part, one in zip(segments, found, strict=True)):
        return None
    begun = [found[0].merged.latest]
    for one in found[1:]:
        begun.append(tuple(max(pair) for pair in zip(begun[-1], one.merged.latest, strict=True)))
    calls: list[Call] = [
        (merge_beginning, (restrict_sequences(sequences, part), part, before, path))
        for part, before, path in zip(segments[1:], begun, paths, strict=False)
    ]
    beginnings = runner(calls)
    for (merged, _), after in zip(beginnings, begun[1:], strict=True):
        if not merged.is_settled and merged.latest != after:
            return None  # what precedes this segment matters behind its end, too
    prints = found[0].prints
    for one in found[1:]:
        prints += one.prints
    late = TableParts((*(one.late for one in found), *(table for _, table in beginnings)))
    removed = sum(one.merged.removed for one in found)
    return MergeResult(removed, (), begun[-1] if begun else (NEVER,)), prints, late
