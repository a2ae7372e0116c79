"""Order of an unfinished run: the deliveries so far, and whether they already contradict each other.

Rows come in batches, of any processes, in any order. Each process' rows are put in sequence; the replicas of a group
are compared; the groups' chains are merged as far as all of them have got. Merged entries are forgotten. Heads that
wait for each other form a cycle, which is certain at once, because an undelivered message can only come later.

A chain that is merely behind waits, it does not contradict. Where a process falls so far behind that its group's
entries were forgotten, or a chain waits too long, the check reports a doubt instead of using ever more memory.
"""

from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from amcast.pipeline.kernels.fingerprints import Int32Array, Int64Array
from amcast.pipeline.kernels.merge import NO_GAP, BlockedHead, advance, find_head_cycle

MAX_REMEMBERED: Final = 1_000_000
"""Entries of a group that are kept for replicas that are behind."""
MAX_WAITING: Final = 5_000_000
"""Entries that may wait to be merged, over all groups."""


@dataclass
class ReplicaProgress:
    """The progress of one process."""

    group: int
    next: int = 0
    early: dict[int, int] = field(default_factory=dict)
    """position -> message, of rows that arrived before the rows of lower positions."""


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

    @property
    def end(self) -> int:
        return self.base + int(self.messages.size)


class IncrementalOrder:
    """The order of a run so far."""

    def __init__(self, remembered: int = MAX_REMEMBERED, waiting: int = MAX_WAITING) -> None:
        self.members: dict[int, ReplicaProgress] = {}
        self.chains: dict[int, GroupChain] = {}
        self.destinations: dict[int, tuple[int, ...]] = {}
        """Of messages that are delivered at some process and not merged yet."""
        self.merged = 0
        self.story: list[str] = []
        """Why the order is violated; empty as long as it is not."""
        self.doubts: list[str] = []
        self._remembered = remembered
        self._waiting = waiting

    def absorb(
        self,
        processes: Int64Array,
        groups: Int64Array,
        positions: Int64Array,
        messages: Int64Array,
        offsets: Int32Array,
        values: Int32Array,
    ) -> None:
        """Adds deliveries, with the groups that each message is addressed to."""
        for row in np.lexsort((positions, processes)).tolist():
            process, message = int(processes[row]), int(messages[row])
            member = self.members.setdefault(process, ReplicaProgress(int(groups[row])))
            addressed = tuple(values[offsets[row] : offsets[row + 1]].tolist())
            if not addressed:
                self._add_doubt(
                    f"deliveries of {message} do not state its destinations: order between groups is not judged"
                )
            self.destinations.setdefault(message, addressed)
            member.early[int(positions[row])] = message
        for process, member in sorted(self.members.items()):
            self._extend(process, member)
        if not self.story:
            self._merge()

    def _extend(self, process: int, member: ReplicaProgress) -> None:
        """Appends a process' next entries to its group's chain, or compares them with it."""
        chain = self.chains.setdefault(member.group, GroupChain())
        new_messages: list[int] = []
        while member.next in member.early:
            message = member.early.pop(member.next)
            at, member.next = member.next, member.next + 1
            if at < chain.base:
                self._add_doubt(f"process {process} is too far behind group {member.group} to be compared with it")
            elif at < chain.end:
                self._compare(process, chain, at, message)
            else:
                new_messages.append(message)
        if new_messages:
            chain.messages = np.concatenate([chain.messages, np.array(new_messages, np.int64)])
            chain.first_process = np.concatenate([chain.first_process, np.full(len(new_messages), process, np.int64)])

    def _compare(self, process: int, chain: GroupChain, at: int, message: int) -> None:
        known = int(chain.messages[at - chain.base])
        if known != message and not self.story:
            other = int(chain.first_process[at - chain.base])
            self.story = [
                f"replicas of one group disagree: at position {at} process {other} delivered {known},"
                f" but process {process} delivered {message}"
            ]

    def _merge(self) -> None:
        """Removes messages that every addressed chain has reached; then searches heads that wait for each other."""
        names = sorted(self.chains)
        number = {group: at for at, group in enumerate(names)}
        waiting = [
            self.chains[group].messages[self.chains[group].merged - self.chains[group].base :] for group in names
        ]
        index = self._advance_chains(waiting, number)
        heads = []
        for at, group in enumerate(names):
            chain, taken = self.chains[group], int(index[at])
            if taken < waiting[at].size:
                message = int(waiting[at][taken])
                heads.append(BlockedHead(at, chain.merged + taken, message, self._chain_numbers(message, number)))
            chain.merged += taken
            self._forget(chain)
        cycle = find_head_cycle(heads)
        if cycle:
            self.story = self._describe_cycle(cycle, names)
        if sum(chain.end - chain.merged for chain in self.chains.values()) > self._waiting:
            self._add_doubt(
                "too much waits for a group that delivers nothing: order between groups is no longer judged"
            )
            for chain in self.chains.values():
                chain.merged = chain.end
        needed = {m for chain in self.chains.values() for m in chain.messages[chain.merged - chain.base :].tolist()}
        needed |= {message for member in self.members.values() for message in member.early.values()}
        self.destinations = {message: groups for message, groups in self.destinations.items() if message in needed}

    def _advance_chains(self, waiting: list[Int64Array], number: dict[int, int]) -> Int64Array:
        """The number of entries of each chain that can be removed.

        A chain that is merely behind ends in a guard entry that is never removed: it is addressed to the first of two
        extra chains whose heads wait for each other for ever.
        """
        count = len(waiting)
        width = max((entries.size for entries in waiting), default=0) + 1
        messages = np.full((count + 2, width), -1, np.int64)
        offsets = np.zeros((count + 2, width + 1), np.int32)
        lists: list[list[int]] = []
        for at, entries in enumerate(waiting):
            messages[at, : entries.size] = entries
            messages[at, entries.size] = -2 - at
            flat: list[int] = []
            for row, message in enumerate(entries.tolist()):
                flat += self._chain_numbers(message, number)
                offsets[at, row + 1] = len(flat)
            flat.append(count)
            offsets[at, entries.size + 1 :] = len(flat)
            lists.append(flat)
        messages[count, 0], messages[count + 1, 0] = -2 - count, -3 - count
        offsets[count, 1:], offsets[count + 1, 1:] = 1, 1
        lists += [[count + 1], [count]]
        values = np.zeros((count + 2, max(len(flat) for flat in lists)), np.int32)
        for at, flat in enumerate(lists):
            values[at, : len(flat)] = flat
        index = np.zeros(count + 2, np.int64)
        end = np.array([*(entries.size + 1 for entries in waiting), 1, 1], np.int64)
        done, queued = np.zeros(count + 2, np.bool_), np.zeros(count + 2, np.bool_)
        none = (np.full(count + 2, NO_GAP, np.int64), np.zeros(0, np.int64), np.zeros(count + 3, np.int64))
        stack = np.zeros(count + 2, np.int64)
        self.merged += int(advance(messages, offsets, values, index, end, done, stack, queued, *none))
        return index[:count]

    def _chain_numbers(self, message: int, number: dict[int, int]) -> tuple[int, ...]:
        """The chains of a message's destinations; a group that has delivered nothing yet holds it back like
        the guard.
        """
        return tuple(number.get(group, len(number)) for group in self.destinations[message])

    def _forget(self, chain: GroupChain) -> None:
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
            process = int(chain.first_process[head.index - chain.base])
            start = f"process {process} delivered {head.message} at position {head.index}"
            later = np.nonzero(chain.messages[head.index - chain.base :] == after)[0]
            if later.size:
                story.append(f"{start}, before {after} at position {head.index + int(later[0])}")
            else:
                story.append(f"{start} and has not delivered {after}, which is addressed to it, so far")
        return story

    def _add_doubt(self, sentence: str) -> None:
        if sentence not in self.doubts and len(self.doubts) < 10:
            self.doubts.append(sentence)

    def lag(self) -> dict[int, int]:
        """process -> the number of messages that it is behind the longest of its group."""
        return {
            process: self.chains[member.group].end - member.next
            for process, member in sorted(self.members.items())
            if member.group in self.chains
        }
