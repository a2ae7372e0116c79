"""The calls of a survey: each function reads a share of one run and returns what it found. No Spark, no verdicts.

A large run is surveyed by many such calls in parallel, a small one by the same calls one after the other.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from amcast.check.evidence import Entry
from amcast.pipeline.check.runner import Call, Runner, run_sequentially
from amcast.pipeline.kernels.fingerprints import Fingerprint, Int64Array, find_buckets, select_in_buckets
from amcast.pipeline.kernels.merge import ChainGap, ChainRows, LateWatch, MergeResult, merge
from amcast.pipeline.kernels.pairs import SharedEntries, SharedEntriesCounter
from amcast.pipeline.kernels.replicas import SLICE_POSITIONS, PositionSlice, ReplicaComparison
from amcast.pipeline.kernels.unique_ids import AscendingIds
from amcast.pipeline.rows.late_messages import LateMessages
from amcast.pipeline.rows.sequences import SPARSE, Entries, Sequences, reorder_lists
from amcast.pipeline.rows.tables import MessageLookup, Table, read_multicasts, refuse_contradictions

MAX_SLICES: Final = 1024
"""Slices that one call compares, if they hold few rows."""
MAX_TABLE_SIZE: Final = 1 << 16

Segment = tuple[int, int, int]
"""(process, low, high): some positions of a chain, as that process recorded them."""


@dataclass(frozen=True)
class ChainPlan:
    """How to read a sequence of a group, or of one of its members: who recorded it, part by part."""

    group: int
    process: int
    """The process whose sequence it is."""
    segments: tuple[Segment, ...]
    gap: int | None = None
    """The first position that no process recorded: entries may be missing from there on."""
    certain_segments: int = 0
    """With a gap: how many of the segments come before it."""
    skipped: int = 0
    """Entries at the beginning that do not matter any more."""

    @staticmethod
    def of_process(group: int, process: int, end: int) -> "ChainPlan":
        """The sequence that one process recorded."""
        return ChainPlan(group, process, ((process, 0, end),))


def plan_longest_chain(group: int, members: Iterable[int], ends: dict[int, int]) -> ChainPlan:
    """A group's chain as its longest member recorded it."""
    longest = max(members, key=lambda member: ends.get(member, 0))
    return ChainPlan.of_process(group, longest, ends.get(longest, 0))


@dataclass(frozen=True)
class ComparisonPlan:
    """Which positions of which groups hold rows, in slices."""

    slices: dict[tuple[int, ...], list[int]]
    """The members of a group -> the numbers of the slices in which one of them has rows."""
    ends: dict[int, int]

    def build_calls(self, sequences: Sequences) -> list[Call]:
        """Calls of `compare_replicas` that cover every row of every group."""
        calls: list[Call] = []
        extents = sequences.extents()
        for members, slices in self.slices.items():
            rows = sum(extents[member].rows for member in members if member in extents)
            # Few rows over many positions: many slices share a call.
            count = max(1, min(MAX_SLICES, len(slices) * SLICE_POSITIONS // (4 * rows + 1)))
            own_ends = {member: self.ends[member] for member in members if member in self.ends}
            for at in range(0, len(slices), count):
                share = slices[at : at + count]
                low, high = share[0] * SLICE_POSITIONS, (share[-1] + 1) * SLICE_POSITIONS
                calls.append((compare_replicas, (sequences.only(members, low, high), members, own_ends, share)))
        return calls

    def find_empty(self) -> list[ReplicaComparison]:
        """The holes of each process between slices that hold rows: nothing else is there to compare."""
        found = []
        for members, slices in self.slices.items():
            for member in members:
                end, at, holes = self.ends.get(member, 0), 0, []
                for slice in [*slices, -(-end // SLICE_POSITIONS)]:
                    low, high = at, min(end, slice * SLICE_POSITIONS)
                    holes += [(low, high)] if low < high else []
                    at = (slice + 1) * SLICE_POSITIONS
                if holes:
                    found.append(ReplicaComparison(member, 0, -1, -1, -1, -1, tuple(holes)))
        return found


def plan_comparison(
    runner: Runner, groups: Iterable[tuple[int, ...]], sequences: Sequences, ends: dict[int, int]
) -> ComparisonPlan:
    """Finds the slices that hold rows. Positions may be anything up to 2^62: what costs is rows."""
    named = [members for members in groups if any(ends.get(member, 0) for member in members)]
    extents = sequences.extents()
    is_sparse = any(extent.end > SPARSE * extent.rows + SLICE_POSITIONS for extent in extents.values())
    calls: list[Call] = [(list_slices, (sequences.only(members), members)) for members in named]
    answers = (runner if is_sparse else run_sequentially)(calls)
    return ComparisonPlan(dict(zip(named, answers, strict=True)), ends)


def list_slices(sequences: Sequences, members: tuple[int, ...]) -> list[int]:
    """The slices in which a member of a group has rows."""
    return sorted({slice for member in members for slice in sequences.slices(member, SLICE_POSITIONS)})


def compare_replicas(
    sequences: Sequences, members: tuple[int, ...], ends: dict[int, int], slices: list[int]
) -> list[ReplicaComparison]:
    """Compares the replicas of a group at the positions of some slices."""
    found = []
    for number in slices:
        low = number * SLICE_POSITIONS
        high = min(low + SLICE_POSITIONS, max(ends.values()))
        if low >= high:
            continue
        piece = PositionSlice(low, high)
        found += [
            piece.absorb(member, sequences.rows(member, low, min(high, ends.get(member, 0))), ends.get(member, 0))
            for member in members
            if ends.get(member, 0) > low
        ]
    return found


def read_entries(sequences: Sequences, plan: ChainPlan) -> Iterator[Entries]:
    """The entries of a plan, in order."""
    for rows, _ in _read_segments(sequences, plan):
        yield rows


def _read_segments(sequences: Sequences, plan: ChainPlan) -> Iterator[tuple[Entries, bool]]:
    """The entries of a plan, in order, and whether they come after its gap."""
    skip = plan.skipped
    for number, (process, low, high) in enumerate(plan.segments):
        for rows in sequences.entries(process, low, high):
            if skip >= rows.messages.size:
                skip -= rows.messages.size
                continue
            yield rows if not skip else rows.skip(skip), number >= plan.certain_segments
            skip = 0


def find_gap(sequences: Sequences, plan: ChainPlan, with_group: int | None = None) -> ChainGap:
    """The number of entries of a plan before its gap, and the messages of the others, sorted.

    With `with_group`, only entries that are addressed to that group too.
    """
    certain, late = 0, [np.zeros(0, np.int64)]
    assert plan.gap is not None
    for rows, is_late in _read_segments(sequences, plan):
        common = rows.addressed_to(with_group) if with_group is not None else np.ones(rows.messages.size, np.bool_)
        if is_late:
            late.append(rows.messages[common])
        else:
            certain += int(common.sum())
    return ChainGap(certain, np.sort(np.concatenate(late)))


def merge_chains(
    sequences: Sequences, plans: list[ChainPlan], buckets: int, path: str | None = None
) -> tuple[MergeResult, Fingerprint, Table]:
    """Merges the groups' chains into one order, and fingerprints the deliveries. Returns also the messages that a later
    multicast precedes; in a file at `path`, if given and if there are many."""
    prints = Fingerprint(buckets)
    route = ChainRouting(plans)
    holes = {number: find_gap(sequences, plan) for number, plan in enumerate(plans) if plan.gap is not None}
    late = LateMessages(path)
    watch = LateWatch([plan.group for plan in plans], late.absorb)
    merged = merge([read_and_fingerprint(sequences, plan, route, prints) for plan in plans], holes, watch)
    return merged, prints, late.close()


def collect_late_window(
    sequences: Sequences, plans: list[ChainPlan], later_than: int, last: int, size: int
) -> set[int] | None:
    """The messages that a multicast later than a time precedes, or that were multicast later themselves, up to and with
    a given one, in the order of the merge; None if there are more than `size`.
    """
    window: set[int] = {last}

    def absorb(found: NDArray[np.int64]) -> bool:
        window.update(found[0].tolist())
        return last not in found[0] and len(window) <= size

    route = ChainRouting(plans)
    holes = {number: find_gap(sequences, plan) for number, plan in enumerate(plans) if plan.gap is not None}
    sources = [read_timed(sequences, plan, route) for plan in plans]
    merge(sources, holes, LateWatch([plan.group for plan in plans], absorb, later_than))
    return window if len(window) <= size else None


def read_timed(sequences: Sequences, plan: ChainPlan, route: "ChainRouting") -> Iterator[ChainRows]:
    """The entries of a plan for a merge."""
    for rows in read_entries(sequences, plan):
        yield ChainRows(rows.messages, *route.to_chain_numbers(rows), rows.sent)


def read_and_fingerprint(
    sequences: Sequences, plan: ChainPlan, route: "ChainRouting", prints: Fingerprint
) -> Iterator[ChainRows]:
    """The entries of a plan for a merge; fingerprints them on the way."""
    for rows in read_entries(sequences, plan):
        prints.add_delivered(rows.messages, rows.offsets, rows.values, rows.sent, plan.group)
        yield ChainRows(rows.messages, *route.to_chain_numbers(rows), rows.sent)


class ChainRouting:
    """From groups to the numbers of their chains: one each, or one per member where the members do not agree."""

    def __init__(self, plans: list[ChainPlan]) -> None:
        self._groups: Int64Array = np.unique(np.array([plan.group for plan in plans], np.int64))
        size = self._groups.size + 1  # the last place is for groups that have no chain
        self.first: NDArray[np.int32] = np.full(size, -1, np.int32)
        self.count: NDArray[np.int64] = np.zeros(size, np.int64)
        for number, plan in enumerate(plans):
            place = int(np.searchsorted(self._groups, plan.group))
            if self.first[place] < 0:
                self.first[place] = number
            self.count[place] += 1
        self.single = bool((self.count <= 1).all())
        self._table: NDArray[np.int64] | None = None
        """By group, where all groups are small numbers."""
        if self._groups.size and self._groups[0] >= 0 and self._groups[-1] < MAX_TABLE_SIZE:
            self._table = np.full(int(self._groups[-1]) + 2, size - 1, np.int64)
            self._table[self._groups] = np.arange(size - 1)

    def _find_places(self, groups: NDArray[np.int32]) -> NDArray[np.int64]:
        last = self.first.size - 1
        if self._table is not None:
            known = (groups >= 0) & (groups < self._table.size)
            return self._table[np.where(known, groups, self._table.size - 1)]
        places = np.searchsorted(self._groups, groups)
        known = places < last
        known[known] = self._groups[places[known]] == groups[known]
        return np.where(known, places, last)

    def to_chain_numbers(self, rows: Entries) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """The destinations of some entries as chain numbers."""
        places = self._find_places(rows.values)
        if self.single:
            return rows.offsets, self.first[places]
        counts = self.count[places]
        ends = np.concatenate([[0], np.cumsum(counts)])
        inside = np.arange(int(ends[-1])) - np.repeat(ends[:-1], counts)
        return ends[rows.offsets].astype(np.int32), (np.repeat(self.first[places], counts) + inside).astype(np.int32)


def fingerprint_chain(sequences: Sequences, plan: ChainPlan, buckets: int) -> Fingerprint:
    """The fingerprint of the deliveries of one process or chain."""
    prints = Fingerprint(buckets)
    for rows in read_entries(sequences, plan):
        prints.add_delivered(rows.messages, rows.offsets, rows.values, rows.sent, plan.group)
    return prints


def refuse_stated(sequences: Sequences, multicasts: Table, ends: dict[int, int], chosen: NDArray[np.bool_]) -> None:
    """Refuses deliveries that contradict the multicasts of the messages in the chosen buckets."""
    known = MessageLookup.build([multicasts], chosen)
    for process, end in ends.items():
        for rows in sequences.entries(process, 0, end):
            keep = np.nonzero(select_in_buckets(rows.messages, chosen))[0]
            offsets, values = reorder_lists(rows.offsets, rows.values, keep)
            stated = (pa.ListArray.from_arrays(offsets, values), pa.array(rows.sent[keep]))
            refuse_contradictions(known, "deliveries", rows.messages[keep], *stated)


def find_early(sequences: Sequences, process: int, end: int, buckets: int) -> NDArray[np.bool_]:
    """The buckets of messages that a process delivered before they were multicast."""
    messages_found: list[int] = []
    for rows in sequences.rows(process, 0, end):
        messages_found += rows.messages[rows.at < rows.sent].tolist()
    return find_buckets(messages_found, buckets)


def find_doubled(sequences: Sequences, process: int, end: int, buckets: int) -> NDArray[np.bool_]:
    """The buckets of messages that a process delivered at a position where it had delivered another one."""
    messages_found: list[int] = []
    last = (-1, -1)
    for rows in sequences.rows(process, 0, end):
        at = np.concatenate([[last[0]], rows.positions])
        message = np.concatenate([[last[1]], rows.messages])
        again = np.nonzero(at[1:] == at[:-1])[0]
        messages_found += [*message[again].tolist(), *message[again + 1].tolist()]
        last = (int(at[-1]), int(message[-1]))
    return find_buckets(messages_found, buckets)


@dataclass
class MulticastSurvey:
    """What a survey of the multicasts found."""

    prints: Fingerprint
    ids: AscendingIds = field(default_factory=AscendingIds)
    rows: int = 0
    correct: int = 0
    """Messages whose sender did not crash for good."""
    sessions: int = 0
    """Messages that have a session."""
    of_session: int | None = None
    """One of them."""
    of_sender: dict[int, int] = field(default_factory=dict)
    """Every sender, with one of its messages."""
    of_group: dict[int, int] = field(default_factory=dict)
    """Every addressed group, with one message to it."""
    without_destinations: int | None = None
    """A message without destinations."""

    def extend_with(self, later: "MulticastSurvey") -> None:
        """Adds what another task found in the rows after these."""
        self.prints += later.prints
        self.ids.extend_with(later.ids)
        self.rows += later.rows
        self.correct += later.correct
        self.sessions += later.sessions
        self.of_session = self.of_session if self.of_session is not None else later.of_session
        self.of_sender = {**later.of_sender, **self.of_sender}
        self.of_group = {**later.of_group, **self.of_group}
        if self.without_destinations is None:
            self.without_destinations = later.without_destinations


def survey_multicasts(table: Table, crashed: dict[int, int], buckets: int) -> MulticastSurvey:
    """Reads multicasts once: fingerprint, ids, senders, addressed groups."""
    sent = MulticastSurvey(Fingerprint(buckets))
    down: Int64Array = np.array(sorted(crashed), np.int64)
    for rows in read_multicasts(table):
        sent.prints.add_addressed(rows.messages, rows.offsets, rows.values, rows.at)
        sent.ids.absorb(rows.messages)
        sent.rows += rows.messages.size
        sent.correct += int((~np.isin(rows.senders, down)).sum()) if down.size else rows.messages.size
        with_session = np.nonzero(rows.in_session)[0]
        sent.sessions += with_session.size
        if sent.of_session is None and with_session.size:
            sent.of_session = int(rows.messages[with_session[0]])
        for sender, at in zip(*_find_first_places(rows.senders), strict=True):
            sent.of_sender.setdefault(sender, int(rows.messages[at]))
        used = rows.values[rows.offsets[0] : rows.offsets[-1]]
        owner = np.repeat(rows.messages, np.diff(rows.offsets))
        for group, at in zip(*_find_first_places(used), strict=True):
            sent.of_group.setdefault(group, int(owner[at]))
        if sent.without_destinations is None and (np.diff(rows.offsets) == 0).any():
            sent.without_destinations = int(rows.messages[np.diff(rows.offsets) == 0][0])
    return sent


def join_surveys(parts: list[MulticastSurvey], buckets: int) -> MulticastSurvey:
    """One survey from those of consecutive parts of the table."""
    if not parts:
        return MulticastSurvey(Fingerprint(buckets))
    for later in parts[1:]:
        parts[0].extend_with(later)
    return parts[0]


def find_repeated(multicasts: Table, chosen: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """The buckets of messages that were multicast more than once, among the chosen buckets."""
    ids = [rows.messages[select_in_buckets(rows.messages, chosen)] for rows in read_multicasts(multicasts)]
    every = np.sort(np.concatenate(ids)) if ids else np.zeros(0, np.int64)
    return find_buckets(set(every[1:][every[1:] == every[:-1]].tolist()), chosen.size)


def _find_first_places(values: NDArray[np.int32] | Int64Array) -> tuple[list[int], list[int]]:
    """Distinct values, and where each occurs first."""
    low = int(values.min()) if values.size else 0
    if values.size and int(values.max()) - low < 1 << 20:
        place = np.full(int(values.max()) - low + 1, -1, np.int64)
        place[values[::-1] - low] = np.arange(values.size - 1, -1, -1)
        there = np.nonzero(place >= 0)[0]
        return (there + low).tolist(), place[there].tolist()
    names, at = np.unique(values, return_index=True)
    return names.tolist(), at.tolist()


def find_shared_entries(
    sequences: Sequences, plans: list[ChainPlan], number: int, limits: dict[int, int] | None = None
) -> SharedEntries:
    """The entries that one chain shares with each of the others, in its order."""
    route, counter = ChainRouting(plans), SharedEntriesCounter(number, len(plans), limits)
    for rows in read_entries(sequences, plans[number]):
        counter.absorb(ChainRows(rows.messages, *route.to_chain_numbers(rows)))
    return counter.result()


def find_blocked_pair(sequences: Sequences, one: ChainPlan, other: ChainPlan) -> tuple[int, int] | None:
    """The messages at which the merge of two chains, restricted to messages addressed to both, stops; None if it does
    not.
    """
    pair = ((one, other.group), (other, one.group))
    holes = {at: find_gap(sequences, plan, group) for at, (plan, group) in enumerate(pair) if plan.gap is not None}
    merged = merge([_read_shared_rows(sequences, plan, group) for plan, group in pair], holes)
    return (merged.heads[0].message, merged.heads[1].message) if merged.heads else None


def _read_shared_rows(sequences: Sequences, plan: ChainPlan, group: int) -> Iterator[ChainRows]:
    for rows in read_entries(sequences, plan):
        messages = rows.messages[rows.addressed_to(group)]
        both = np.tile(np.array([0, 1], np.int32), messages.size)
        yield ChainRows(messages, np.arange(0, both.size + 1, 2, dtype=np.int32), both)


def collect_first_messages(sequences: Sequences, plans: list[ChainPlan], size: int) -> set[int]:
    """The first messages of each chain, at most `size` of them."""
    messages_found: set[int] = set()
    for plan in plans:
        left = size
        for rows in read_entries(sequences, plan):
            messages_found.update(rows.messages[:left].tolist())
            left -= rows.messages.size
            if left <= 0:
                break
    return messages_found


def select_rows(sequences: Sequences, process: int, end: int, chosen: NDArray[np.bool_]) -> list[Entry]:
    """A process' rows (position, message, at_ns) about messages in the chosen buckets."""
    messages_found: list[Entry] = []
    for rows in sequences.rows(process, 0, end):
        keep = select_in_buckets(rows.messages, chosen)
        columns = (rows.positions[keep], rows.messages[keep], rows.at[keep])
        messages_found += zip(*(column.tolist() for column in columns), strict=True)
    return messages_found
