"""Positions that a process did not record: which they are, what stands for them, and who recorded them instead.

A note `installed` says that a snapshot stands for the group's messages below a position: the rows of the other members
fill these in, each position from the first member that recorded it. A hole that nothing fills is a gap. Before its
first gap a process' sequence is exact; after it, only what was recorded is certain.
"""

from collections.abc import Sequence

from amcast.pipeline.check.run_view import RunView
from amcast.pipeline.check.survey import ChainPlan, Segment
from amcast.pipeline.kernels.replicas import ReplicaComparison


class PositionGaps:
    """The holes of a run."""

    def __init__(self, view: RunView, ends: dict[int, int], replicas: Sequence[ReplicaComparison] = ()) -> None:
        self._members = view.members
        self._group_of = view.group_of
        self._notes = view.notes
        self._ends = ends
        self.ranges: dict[int, tuple[tuple[int, int], ...]] = {}
        """process -> ranges of positions that it did not record."""
        self.fills: dict[int, tuple[Segment, ...]] = {}
        """process -> what stands for a part of them."""
        self.first: dict[int, int] = {}
        """process -> the first position that nothing accounts for."""
        for replica in replicas:
            if replica.holes:
                self.ranges[replica.process] = self.ranges.get(replica.process, ()) + replica.holes
        told = sorted({*self.ranges, *self._notes})
        for process in told:
            end, reached = ends.get(process, 0), self._snapshot_end(process)
            if reached > end:
                self.ranges[process] = (*self.ranges.get(process, ()), (end, reached))
        for process in told:
            self._account_for(process)

    def _snapshot_end(self, process: int) -> int:
        """How far a process' snapshots reach."""
        said = self._notes.get(process, [])
        return max((int(value) for name, value in said if name == "installed" and value is not None), default=0)

    def _account_for(self, process: int) -> None:
        group, reached = self._group_of.get(process), self._snapshot_end(process)
        peers = [peer for peer in self._members.get(group, ()) if peer != process] if group is not None else []
        missing: list[int] = []
        for low, high in self.ranges.get(process, ()):
            filled = self._find_recorders(peers, low, min(high, reached))
            self.fills[process] = (*self.fills.get(process, ()), *filled)
            at = low
            for _, begin, end in filled:
                at = end if begin == at else at
            missing += [at] if at < high else []
        lost = [value for name, value in self._notes.get(process, []) if name == "trace-gap"]
        whole = max(self._ends.get(process, 0), reached)
        if None in lost:
            missing = [0]
        elif not missing and any(value is not None and not 0 <= int(value) < whole for value in lost):
            # A note about rows that are there after all, recorded again or filled in, is no gap.
            missing = [whole]
        if missing:
            self.first[process] = min(missing)

    # Sequences in spite of holes

    def plan_group_chain(self, group: int) -> ChainPlan:
        """A group's chain, each part from a member that recorded it; what nobody recorded is left out."""
        members = self._members[group]
        reach = {member: max(self._ends.get(member, 0), self._snapshot_end(member)) for member in members}
        segments = self._find_recorders(members, 0, max(reach.values(), default=0))
        return ChainPlan(group, max(members, key=lambda member: reach[member]), segments)

    def plan_member_chain(self, group: int, member: int) -> ChainPlan:
        """What one member recorded, its snapshots filled in from the others."""
        segments, at = list(self.fills.get(member, ())), 0
        for low, high in sorted(self.ranges.get(member, ())):
            segments += [(member, at, low)] if low > at else []
            at = high
        if at < self._ends.get(member, 0):
            segments.append((member, at, self._ends[member]))
        in_order = tuple(sorted(segments, key=lambda segment: segment[1]))
        return ChainPlan(group, member, in_order, self.first.get(member))

    def _find_recorders(self, members: Sequence[int], at: int, end: int) -> tuple[Segment, ...]:
        """Who recorded the positions at .. end - 1, part by part: each by the first of the members that did."""
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
        """From a position on, how far a process recorded without a hole."""
        for low, high in sorted(self.ranges.get(process, ())):
            if low <= at < high:
                return at
            if low > at:
                return low
        return max(at, self._ends.get(process, 0))

    def _next_recorded(self, process: int, at: int, end: int) -> int:
        """Where a process that did not record a position goes on recording."""
        return next((min(end, high) for low, high in self.ranges.get(process, ()) if low <= at < high), end)
