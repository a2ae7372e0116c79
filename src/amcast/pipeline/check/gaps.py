"""Positions that a process did not record: which they are, what stands for them, and which process recorded them.

A note `installed` says that a snapshot stands for the group's messages below a position: the rows of the other members
fill these in, each position from the first member that recorded it. A hole that nothing fills is a gap. Before its
first gap a process' sequence is exact; after it, only recorded deliveries are certain.
"""

from collections.abc import Sequence

from amcast.check.evidence import find_snapshot_end
from amcast.pipeline.check.run_view import RunView
from amcast.pipeline.check.survey import ChainPlan, Segment
from amcast.pipeline.kernels.replicas import ReplicaComparison


class PositionGaps:
    """The holes and gaps of a run."""

    def __init__(self, view: RunView, ends: dict[int, int], replicas: Sequence[ReplicaComparison] = ()) -> None:
        self._members = view.members
        self._group_of = view.group_of
        self._notes = view.notes
        self._ends = ends
        self.ranges: dict[int, tuple[tuple[int, int], ...]] = {}
        """process -> ranges of positions that it did not record."""
        self.fills: dict[int, tuple[Segment, ...]] = {}
        """process -> the segments of other processes that stand for a part of them."""
        self.first: dict[int, int] = {}
        """process -> the first position that nothing accounts for."""
        for replica in replicas:
            if replica.holes:
                self.ranges[replica.process] = self.ranges.get(replica.process, ()) + replica.holes
        affected = sorted({*self.ranges, *self._notes})
        for process in affected:
            end, snapshot_end = ends.get(process, 0), self._snapshot_end(process)
            if snapshot_end > end:
                self.ranges[process] = (*self.ranges.get(process, ()), (end, snapshot_end))
        for process in affected:
            self._account_for(process)

    def _snapshot_end(self, process: int) -> int:
        """The end of the positions that a process' snapshots stand for."""
        return find_snapshot_end(self._notes.get(process, []))

    def _account_for(self, process: int) -> None:
        group, snapshot_end = self._group_of.get(process), self._snapshot_end(process)
        peers = [peer for peer in self._members.get(group, ()) if peer != process] if group is not None else []
        missing: list[int] = []
        for low, high in self.ranges.get(process, ()):
            filled = self._find_recorders(peers, low, min(high, snapshot_end))
            self.fills[process] = (*self.fills.get(process, ()), *filled)
            at = low
            for _, begin, end in filled:
                at = end if begin == at else at
            missing += [at] if at < high else []
        lost_from = [value for name, value in self._notes.get(process, []) if name == "trace-gap"]
        known_end = max(self._ends.get(process, 0), snapshot_end)
        if None in lost_from:
            missing = [0]
        elif not missing and any(value is not None and not 0 <= int(value) < known_end for value in lost_from):
            # A note about rows that exist after all, recorded again or filled in, is no gap.
            missing = [known_end]
        if missing:
            self.first[process] = min(missing)

    # Sequences in spite of gaps

    def plan_group_chain(self, group: int) -> ChainPlan:
        """A group's chain, each part from a member that recorded it; positions that no member recorded are omitted."""
        members = self._members[group]
        reach = {member: max(self._ends.get(member, 0), self._snapshot_end(member)) for member in members}
        segments = self._find_recorders(members, 0, max(reach.values(), default=0))
        return ChainPlan(group, max(members, key=lambda member: reach[member]), segments)

    def plan_member_chain(self, group: int, member: int) -> ChainPlan:
        """The positions that one member recorded, its snapshots filled in from the others."""
        segments, at = list(self.fills.get(member, ())), 0
        for low, high in sorted(self.ranges.get(member, ())):
            segments += [(member, at, low)] if low > at else []
            at = high
        if at < self._ends.get(member, 0):
            segments.append((member, at, self._ends[member]))
        in_order = tuple(sorted(segments, key=lambda segment: segment[1]))
        gap = self.first.get(member)
        certain = 0 if gap is None else sum(high <= gap for _, _, high in in_order)
        return ChainPlan(group, member, in_order, gap, certain)

    def _find_recorders(self, members: Sequence[int], at: int, end: int) -> tuple[Segment, ...]:
        """The members that recorded the positions at .. end - 1, part by part: each from the first member that did."""
        segments: list[Segment] = []
        while at < end:
            first = next((place for place, member in enumerate(members) if self._recorded_until(member, at) > at), None)
            stop = min([end, *(self._next_recorded(member, at, end) for member in members[:first])])
            if first is not None:
                stop = min(stop, self._recorded_until(members[first], at))
                segments.append((members[first], at, stop))
            at = stop
        return tuple(segments)

    def _recorded_until(self, process: int, at: int) -> int:
        """The end of the positions that a process recorded from a position on, without a hole."""
        for low, high in sorted(self.ranges.get(process, ())):
            if low <= at < high:
                return at
            if low > at:
                return low
        return max(at, self._ends.get(process, 0))

    def _next_recorded(self, process: int, at: int, end: int) -> int:
        """The next position that a process recorded, from one that it did not record."""
        return next((min(end, high) for low, high in self.ranges.get(process, ()) if low <= at < high), end)
