"""Integrity and order of an unfinished run: what was read so far, and whether it already violates P1, P4 or P5.

Rows come in batches, of any processes, in any order. Each process' rows are put in sequence; the replicas of a group
are compared; the groups' chains are merged as far as all of them have got, and merged entries are forgotten. What is
left is merged once more, as if every chain had ended: heads that then wait for each other are a cycle, which is certain
at once, because an undelivered message can only come later.

A chain that is merely behind contradicts nothing. What is not known is an open question, as long as it is open: a
position that a process lacks although it recorded later ones, or a multicast that was not read although its message was
delivered. Where something was forgotten that would be needed, a doubt remains for good.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import count, islice
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from amcast.check.evidence import contradiction_error
from amcast.kernel.errors import UsageError
from amcast.pipeline.kernels.fingerprints import Int64Array
from amcast.pipeline.kernels.merge import (
    NEVER,
    NO_GAP,
    BlockedHead,
    ChainRows,
    advance,
    build_idle_walk,
    find_head_cycle,
    merge,
)
from amcast.pipeline.watch.id_intervals import IdIntervals
from amcast.trace.columns import LIMIT

MAX_REMEMBERED: Final = 1_000_000
"""Entries of a group that are kept for replicas that are behind."""
MAX_WAITING: Final = 5_000_000
"""Entries that may wait to be merged, over all groups; and rows that may wait for others."""
MAX_INTERVALS: Final = 4_000_000
"""Intervals of merged ids that are kept, to notice a second delivery."""
MAX_DOUBTS: Final = 10
_ORIGIN: Final = ("sender", "session", "sequence")


class DeliveredRow(NamedTuple):
    """One row of the deliveries."""

    process: int
    group: int
    position: int
    message: int
    at_ns: int
    destinations: tuple[int, ...] | None
    """Sorted, if the row states them."""
    multicast_ns: int | None


class KnownMessage(NamedTuple):
    """What the multicasts say about a message."""

    destinations: tuple[int, ...]
    at_ns: int
    origin: tuple[int | None, ...] = ()
    """Sender, session, and number in the session, as far as they are given."""


@dataclass
class ReplicaProgress:
    """The progress of one process."""

    group: int
    next: int = 0
    """Everything below is recorded, by this process or, below `installed`, by others of its group."""
    installed: int = 0
    """The end of the positions that a snapshot stands for."""
    early: dict[int, int] = field(default_factory=dict)
    """position -> message, of rows that arrived before the rows of lower positions and are not compared yet."""
    compared: set[int] = field(default_factory=set)
    """Positions above `next` that were compared with the group's chain."""


@dataclass
class GroupChain:
    """A group's sequence: the entries still kept, and how far it was merged."""

    base: int = 0
    """The position of the first entry that is kept."""
    messages: Int64Array = field(default_factory=lambda: np.zeros(0, np.int64))
    first_process: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    """The process that recorded each entry first."""
    merged: int = 0
    """The position up to which entries were merged."""
    waiting: dict[int, int] = field(default_factory=dict)
    """message -> position, of entries that were not merged yet."""

    @property
    def end(self) -> int:
        return self.base + int(self.messages.size)


def _describe(row: DeliveredRow) -> str:
    return f"process {row.process} delivered {row.message} at position {row.position}"


class IncrementalOrder:
    """Integrity and order of a run so far."""

    def __init__(self, remembered: int = MAX_REMEMBERED, waiting: int = MAX_WAITING) -> None:
        self.members: dict[int, ReplicaProgress] = {}
        self.chains: dict[int, GroupChain] = {}
        self.known: dict[int, KnownMessage] = {}
        """Messages that were multicast and are not merged yet."""
        self.merged = 0
        self.story: list[str] = []
        """Why the run is violated; empty as long as it is not."""
        self.doubts: list[str] = []
        """What will never be known."""
        self._remembered = remembered
        self._max_waiting = waiting
        self._merged_ids = IdIntervals(MAX_INTERVALS)
        self._recent: dict[int, KnownMessage] = {}
        """The latest merged messages, oldest first: rows of replicas that are behind are compared with them."""
        self._snapshots: dict[int, int] = {}
        """process -> the end of the positions that its snapshots stand for."""
        self._unknown: dict[int, list[DeliveredRow]] = {}
        """Rows about messages whose multicast was not read yet."""
        self._mistimed: dict[int, list[DeliveredRow]] = {}
        """Rows that are earlier than the multicast that was read, or state another time of it."""
        self._group_of: dict[int, int | None] = {}
        """The table of processes, as far as it was read; a run writes it at its end."""
        self._addressed: dict[int, int] = {}
        """Every group that was addressed, with one message to it."""

    # Rows

    def add_multicasts(self, rows: Iterable[tuple[Any, ...]]) -> None:
        """Adds multicasts: message, destinations, time, and sender, session and number in it. A retry must have the
        same, but for its time.
        """
        for message, destinations, at_ns, *origin in rows:
            found = KnownMessage(tuple(sorted(set(destinations))), at_ns, tuple(origin))
            if not found.destinations:
                raise UsageError(f"multicasts: message {message} has no destinations; expected at least one group")
            for group in found.destinations:
                self._addressed.setdefault(group, message)
            before = self.known.get(message) or self._recent.get(message)
            if before is not None:
                if before.destinations != found.destinations:
                    pair = (list(found.destinations), list(before.destinations))
                    raise contradiction_error("destinations", f"message {message}", *pair, stating="multicasts")
                for column, stated, first in zip(_ORIGIN, found.origin, before.origin, strict=False):
                    if stated != first:
                        raise contradiction_error(column, f"message {message}", stated, first, stating="multicasts")
                if at_ns >= before.at_ns:
                    continue
                self._add_doubt(f"an earlier multicast of {message} was read after its deliveries were judged")
            elif self._merged_ids.contains(message):
                self._add_doubt(f"{message} was multicast again, too late to be compared with its first multicast")
                continue
            (self._recent if message in self._recent else self.known)[message] = found
            for row in [*self._unknown.pop(message, ()), *self._mistimed.pop(message, ())]:
                self._check_row(row, found)

    def add_processes(self, rows: Iterable[tuple[int, int | None]]) -> None:
        """Adds processes and their groups."""
        for process, group in rows:
            if self._group_of.setdefault(process, group) != group:
                pair = (self._group_of[process], group)
                raise UsageError(f"processes: process {process} has group {pair[0]} and {pair[1]}; expected one value")
            if group is None:
                continue
            member = self.members.setdefault(process, ReplicaProgress(group))
            if member.group != group:
                raise contradiction_error("group", f"process {process}", member.group, group, "processes")

    def add_deliveries(self, rows: Iterable[DeliveredRow]) -> None:
        """Adds deliveries, and judges what is known now."""
        for row in sorted(rows, key=lambda row: (row.process, row.position)):
            self._add_delivery(row)
        self.judge()

    def add_snapshot(self, process: int, end: float) -> None:
        """A process installed a snapshot: the group's messages below a position count as delivered by it."""
        self._snapshots[process] = max(self._snapshots.get(process, 0), min(int(end), LIMIT))

    def add_lost_rows(self, process: int, position: float | None) -> None:
        """The trace of a process lost rows."""
        where = "an unknown position" if position is None else f"position {int(position)}"
        self._add_doubt(f"process {process}'s trace lacks {where}: what it delivered there is unknown")

    def _add_delivery(self, row: DeliveredRow) -> None:
        member = self.members.setdefault(row.process, ReplicaProgress(row.group))
        if member.group != row.group:
            pair = (row.group, member.group)
            raise contradiction_error("group", f"process {row.process}", *pair, table="other rows")
        known = self.known.get(row.message) or self._recent.get(row.message)
        if known is not None:
            self._check_row(row, known)
        elif self._merged_ids.contains(row.message):
            self._add_doubt(f"process {row.process} is too far behind group {row.group} to be compared with it")
        elif len(self._unknown) < self._max_waiting:
            self._unknown.setdefault(row.message, []).append(row)
        else:
            self._add_doubt("too many deliveries of messages whose multicast was not read: not all are judged")
        before = member.early.get(row.position)
        if before is not None and before != row.message:
            self._report_second_message(row.process, row.position, before, row.message)
        elif row.position < member.next or row.position in member.compared:
            self._compare(row.process, self.chains.setdefault(member.group, GroupChain()), row.position, row.message)
        elif len(member.early) < self._max_waiting:
            member.early[row.position] = row.message
        else:
            self._add_doubt(f"too many rows of process {row.process} wait for earlier ones: not all are judged")

    def _check_row(self, row: DeliveredRow, known: KnownMessage) -> None:
        """P1 of one row, and whether it contradicts the multicast."""
        subject = f"message {row.message}"
        if row.destinations is not None and row.destinations != known.destinations:
            raise contradiction_error("destinations", subject, list(row.destinations), list(known.destinations))
        if row.group not in known.destinations:
            groups = list(known.destinations)
            self._report([f"{_describe(row)}, but it is addressed to groups {groups}, not to {row.group}"])
        if row.at_ns < known.at_ns or row.multicast_ns not in (None, known.at_ns):
            # An earlier multicast of the same message may still be read.
            self._mistimed.setdefault(row.message, []).append(row)

    def finish(self) -> None:
        """Judges what remains open when the run is over and everything was read."""
        groups = sorted({group for group in self._group_of.values() if group is not None})
        for group, message in self._addressed.items():
            if group not in groups:
                raise UsageError(
                    f"multicasts: message {message} is addressed to group {group}, of which processes lists no member;"
                    f" expected some of {groups[:8]}"
                )
        for process, member in self.members.items():
            if self._group_of.get(process) is None:
                where = f"process {process} delivered as a member of group {member.group}"
                self._report([f"{where}, but the table processes does not list it as one"])
        for message, rows in self._mistimed.items():
            known = self.known.get(message) or self._recent[message]
            for row in rows:
                if row.multicast_ns not in (None, known.at_ns):
                    raise contradiction_error("multicast_ns", f"message {message}", row.multicast_ns, known.at_ns)
                self._report([f"{_describe(row)} and time {row.at_ns} ns, before its multicast at {known.at_ns} ns"])
        for rows in self._unknown.values():
            self._report([f"{_describe(rows[0])}, but nobody multicast it"])

    # Sequences of processes and groups

    def judge(self) -> None:
        """Judges what was read so far."""
        has_moved = True
        while has_moved:
            # A chain that one member extends may let another one go on.
            grown = [self._extend(process, member) for process, member in sorted(self.members.items())]
            has_moved = any(grown)
        if not self.story:
            self._merge()

    def _extend(self, process: int, member: ReplicaProgress) -> bool:
        """Appends a process' next entries to its group's chain, or compares them with it. Whether the chain grew."""
        chain = self.chains.setdefault(member.group, GroupChain())
        fresh: list[int] = []
        member.installed = self._snapshots.get(process, 0)
        while member.early or member.compared or member.next < member.installed:
            if member.next in member.compared:
                member.compared.remove(member.next)
            elif member.next in member.early and member.next <= chain.end + len(fresh):
                message = member.early.pop(member.next)
                if member.next < chain.end:
                    self._compare(process, chain, member.next, message)
                else:
                    self._note_repetition(process, chain, member.next, message)
                    chain.waiting[message] = member.next
                    fresh.append(message)
            elif not member.next < min(member.installed, chain.end):
                break
            member.next += 1
        if fresh:
            chain.messages = np.concatenate([chain.messages, np.array(fresh, np.int64)])
            chain.first_process = np.concatenate([chain.first_process, np.full(len(fresh), process, np.int64)])
        self._compare_early(process, member, chain)
        return bool(fresh)

    def _compare_early(self, process: int, member: ReplicaProgress, chain: GroupChain) -> None:
        """Compares what a process recorded behind a hole of its own with what others of its group recorded.

        Another message at a position proves nothing yet: what the process lacks may explain it. Two messages in
        opposite orders do.
        """
        differs = False
        for position in [at for at in member.early if at < chain.end]:
            if position >= chain.base and int(chain.messages[position - chain.base]) != member.early[position]:
                differs = True
                continue
            self._compare(process, chain, position, member.early.pop(position))
            member.compared.add(position)
        if not differs:
            return
        place = {int(message): at for at, message in enumerate(chain.messages.tolist(), chain.base)}
        own = [(at, place[message], message) for at, message in member.early.items() if message in place]
        own += [
            (at, at, int(chain.messages[at - chain.base])) for at in member.compared if chain.base <= at < chain.end
        ]
        own.sort()
        last = (-1, -1, 0)
        for row in own:
            if row[1] < last[1]:
                first, second = last[2], row[2]
                self._report(
                    [
                        f"process {process} delivered {first} at position {last[0]}, before {second} at position"
                        f" {row[0]}; in its group, {second} at position {row[1]} comes before {first} at"
                        f" position {last[1]}"
                    ]
                )
                return
            last = max(last, row, key=lambda one: one[1])

    def _note_repetition(self, process: int, chain: GroupChain, at: int, message: int) -> None:
        first = chain.waiting.get(message)
        if first is not None:
            self._report([f"process {process} delivered {message} twice, at positions {first} and {at}"])
        elif self._merged_ids.contains(message):
            self._report([f"process {process} delivered {message} at position {at}, and before"])

    def _compare(self, process: int, chain: GroupChain, at: int, message: int) -> None:
        if at < chain.base:
            group = self.members[process].group
            self._add_doubt(f"process {process} is too far behind group {group} to be compared with it")
            return
        if at >= chain.end:
            return  # in a snapshot: no member recorded it so far
        known, other = int(chain.messages[at - chain.base]), int(chain.first_process[at - chain.base])
        if known == message:
            return
        if other == process:
            self._report_second_message(process, at, known, message)
            return
        self._report(
            [
                f"replicas of one group disagree: at position {at} process {other} delivered {known},"
                f" but process {process} delivered {message}"
            ]
        )

    def _report_second_message(self, process: int, at: int, first: int, second: int) -> None:
        self._report([f"process {process} delivered {second} at position {at}, where it had delivered {first}"])

    # Order between groups

    def _merge(self) -> None:
        """Removes messages that every addressed chain has reached; then searches cycles among what is left."""
        names = sorted(self.chains)
        number = {group: at for at, group in enumerate(names)}
        waiting = [self._list_waiting(self.chains[group]) for group in names]
        index = self._advance_chains(waiting, number)
        for at, group in enumerate(names):
            self._forget(self.chains[group], waiting[at][: int(index[at])])
        rest = [entries[int(index[at]) :] for at, entries in enumerate(waiting)]
        self._find_cycle(rest, names, number)
        if sum(len(chain.waiting) for chain in self.chains.values()) > self._max_waiting:
            self._add_doubt(
                "too much waits for a group that delivers nothing: order between groups is no longer judged"
            )
            for chain in self.chains.values():
                self._forget(chain, chain.messages[chain.merged - chain.base :].tolist())

    def _list_waiting(self, chain: GroupChain) -> list[int]:
        """A chain's next entries, up to the first whose multicast was not read."""
        entries: list[int] = chain.messages[chain.merged - chain.base :].tolist()
        end = next((at for at, message in enumerate(entries) if message not in self.known), len(entries))
        return entries[:end]

    def _advance_chains(self, waiting: list[list[int]], number: dict[int, int]) -> Int64Array:
        """The number of entries of each chain that can be removed.

        A chain that is merely behind ends in a guard entry that is never removed: it is addressed to the first of two
        extra chains whose heads wait for each other for ever. A group that has delivered nothing yet holds its messages
        back in the same way.
        """
        chains = len(waiting)
        taken = {message for entries in waiting for message in entries}
        guards = list(islice((id for id in count(NEVER) if id not in taken), chains + 2))
        width = max((len(entries) for entries in waiting), default=0) + 1
        messages = np.full((chains + 2, width), guards[-1], np.int64)
        offsets = np.zeros((chains + 2, width + 1), np.int32)
        lists: list[list[int]] = []
        for at, entries in enumerate(waiting):
            messages[at, : len(entries)] = entries
            messages[at, len(entries)] = guards[at]
            flat: list[int] = []
            for row, message in enumerate(entries):
                flat += [number.get(group, chains) for group in self.known[message].destinations]
                offsets[at, row + 1] = len(flat)
            flat.append(chains)
            offsets[at, len(entries) + 1 :] = len(flat)
            lists.append(flat)
        messages[chains, 0], messages[chains + 1, 0] = guards[-2:]
        offsets[chains, 1:], offsets[chains + 1, 1:] = 1, 1
        lists += [[chains + 1], [chains]]
        values = np.zeros((chains + 2, max(len(flat) for flat in lists)), np.int32)
        for at, flat in enumerate(lists):
            values[at, : len(flat)] = flat
        index = np.zeros(chains + 2, np.int64)
        end = np.array([*(len(entries) + 1 for entries in waiting), 1, 1], np.int64)
        done, queued = np.zeros(chains + 2, np.bool_), np.zeros(chains + 2, np.bool_)
        none = (np.full(chains + 2, NO_GAP, np.int64), np.zeros(0, np.int64), np.zeros(chains + 3, np.int64))
        stack, idle = np.zeros(chains + 2, np.int64), build_idle_walk(chains + 2)
        self.merged += int(advance(messages, offsets, values, index, end, done, stack, queued, *none, idle))
        return index[:chains]

    def _find_cycle(self, rest: list[list[int]], names: list[int], number: dict[int, int]) -> None:
        """Merges what is left as if every chain ended there: an undelivered message can only come later."""
        sources = []
        for entries in rest:
            lists = [[number.get(group, -1) for group in self.known[m].destinations] for m in entries]
            ends = np.cumsum([0, *(len(numbers) for numbers in lists)]).astype(np.int32)
            flat = np.array([n for numbers in lists for n in numbers], np.int32)
            sources.append(iter([ChainRows(np.array(entries, np.int64), ends, flat)]))
        heads = merge(sources).heads if any(rest) else ()
        cycle = find_head_cycle(heads)
        if cycle:
            self._report(self._describe_cycle(cycle, names))

    def _forget(self, chain: GroupChain, entries: list[int]) -> None:
        """Counts the next entries of a chain as merged, and drops those that are too old to be needed."""
        chain.merged += len(entries)
        fresh = []
        for message in entries:
            chain.waiting.pop(message, None)
            known = self.known.pop(message, None)
            if known is not None:
                self._recent[message] = known
                fresh.append(message)
        if not self._merged_ids.add(fresh):
            self._add_doubt("too many ids to remember: a second delivery of a message is not always noticed")
        limit = self._remembered * max(1, len(self.chains))
        for message in list(islice(self._recent, max(0, len(self._recent) - limit))):
            del self._recent[message]
        surplus = chain.merged - chain.base - self._remembered
        if surplus > self._remembered // 4:
            chain.base += surplus
            chain.messages, chain.first_process = chain.messages[surplus:], chain.first_process[surplus:]

    def _describe_cycle(self, cycle: tuple[BlockedHead, ...], names: list[int]) -> list[str]:
        # Each head waits for the next one, so the next one precedes it: the story is in the order of delivery.
        ring = list(reversed(cycle))
        messages = [head.message for head in ring]
        story = [
            f"{len(ring)} messages precede each other in a cycle: {' -> '.join(map(str, [*messages, messages[0]]))}"
        ]
        for head, after in zip(ring, [*messages[1:], messages[0]], strict=True):
            chain = self.chains[names[head.chain]]
            at = chain.merged + head.index
            start = f"process {int(chain.first_process[at - chain.base])} delivered {head.message} at position {at}"
            later = chain.waiting.get(after)
            if later is not None:
                story.append(f"{start}, before {after} at position {later}")
            else:
                story.append(f"{start} and has not delivered {after}, which is addressed to it, so far")
        return story

    # What is known

    def holes(self) -> dict[int, int]:
        """process -> the first position that it lacks, although it has later ones."""
        return {
            process: member.next
            for process, member in sorted(self.members.items())
            if member.early or member.compared or member.next < member.installed
        }

    def open_questions(self) -> list[str]:
        """What is missing now, and may still come."""
        found = []
        for process, position in self.holes().items():
            member = self.members[process]
            later = len(member.early) + len(member.compared) or "a snapshot of"
            found.append(f"process {process} lacks position {position}, and has {later} later ones")
        for process, end in sorted(self._snapshots.items()):
            if process not in self.members:
                found.append(f"process {process} has a snapshot of {end} positions, and no group that is known")
        if self._unknown:
            row = next(iter(self._unknown.values()))[0]
            found.append(f"{_describe(row)}, whose multicast was not read ({len(self._unknown)} such messages)")
        if self._mistimed:
            rows = next(iter(self._mistimed.values()))
            found.append(f"{_describe(rows[0])}, at or before another time than that of the multicast that was read")
        return found

    def lag(self) -> dict[int, int]:
        """process -> the number of messages that it is behind the longest of its group."""
        return {
            process: max(0, self.chains[member.group].end - member.next)
            for process, member in sorted(self.members.items())
            if member.group in self.chains
        }

    def _report(self, story: list[str]) -> None:
        self.story = self.story or story

    def _add_doubt(self, sentence: str) -> None:
        if sentence not in self.doubts and len(self.doubts) < MAX_DOUBTS:
            self.doubts.append(sentence)
