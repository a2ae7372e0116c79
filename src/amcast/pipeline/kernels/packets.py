"""Genuineness of packets, row by row.

Strictly genuine (P6'): a packet about a message runs between processes that are its sender or belong to its
destinations. At run level (P6): a process that takes part in any packet about a message is concerned by some message of
the run. A row that states its message's sender and destinations can be judged alone; other rows need the multicasts.
"""

from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from amcast.pipeline.kernels.fingerprints import Int32Array, Int64Array, compile_kernel

IntArray = NDArray[np.int32] | NDArray[np.int64]
MAX_TABLE_SIZE: Final = 1 << 22
NO_GROUP: Final = np.iinfo(np.int64).min
"""The group of a process that is in none; groups are 32-bit numbers."""


class ProcessTable:
    """Process ids as dense numbers, and the group of each (NO_GROUP: none)."""

    def __init__(self, groups: dict[int, int | None]) -> None:
        self.ids: Int64Array = np.array(sorted(groups), np.int64)
        found = [groups[process] for process in self.ids.tolist()]
        # The last place is for every process that is not listed.
        self.groups: Int64Array = np.array([*(NO_GROUP if g is None else g for g in found), NO_GROUP], np.int64)
        low, high = (int(self.ids[0]), int(self.ids[-1])) if self.ids.size else (0, 0)
        self.numbers: NDArray[np.int32] | None = None
        """By id, where ids are small enough for a table."""
        if low >= 0 and high < MAX_TABLE_SIZE:
            self.numbers = np.full(high + 1, self.ids.size, np.int32)
            self.numbers[self.ids] = np.arange(self.ids.size, dtype=np.int32)

    def to_dense(self, processes: IntArray) -> IntArray:
        """Ids as the table expects them: unchanged, or searched if there is no table."""
        if self.numbers is not None:
            return processes
        if not self.ids.size:
            return np.zeros_like(processes)
        places = np.searchsorted(self.ids, processes)
        places[places == self.ids.size] = 0
        return np.where(self.ids[places] == processes, places, self.ids.size)

    @property
    def table(self) -> NDArray[np.int32]:
        return self.numbers if self.numbers is not None else np.arange(self.ids.size + 1, dtype=np.int32)


@dataclass
class PacketAudit:
    """What the packets read so far showed."""

    members: ProcessTable
    packets: int = 0
    """Packets about a message."""
    outsider_pairs: int = 0
    """Pairs (packet, message) with an end that is neither the message's sender nor in its destinations."""
    took_part: NDArray[np.bool_] = field(init=False)
    """Which processes were an end of a packet about a message; the last place is for unknown processes."""

    def __post_init__(self) -> None:
        self.took_part = np.zeros(self.members.ids.size + 1, np.bool_)

    def judge(
        self,
        ends: tuple[IntArray, IntArray],
        pairs: tuple[Int64Array, Int32Array],
        messages: tuple[Int64Array, Int32Array, Int32Array],
    ) -> NDArray[np.bool_]:
        """Judges pairs of a packet and a message that it is about; returns which are not strictly genuine.

        `ends`: source and target of each packet; `pairs`: the packet, and the place of the message or -1; `messages`:
        senders, and offsets and values of destinations, by place.
        """
        members = self.members
        dense = (members.to_dense(ends[0]), members.to_dense(ends[1]))
        wrong = np.zeros(pairs[0].size, np.bool_)
        _judge_pairs(*dense, *ends, *pairs, *messages, members.table, members.groups, self.took_part, wrong)
        self.outsider_pairs += int(wrong.sum())
        return wrong

    def __iadd__(self, other: "PacketAudit") -> "PacketAudit":
        self.packets += other.packets
        self.outsider_pairs += other.outsider_pairs
        self.took_part |= other.took_part
        return self


@compile_kernel
def _is_concerned(process: Any, group: Any, sender: Any, values: Any, low: Any, high: Any) -> Any:
    if process == sender:
        return True
    if group == NO_GROUP:
        return False
    for place in range(low, high):  # noqa: SIM110 (numba compiles no generators)
        if values[place] == group:
            return True
    return False


@compile_kernel
def _judge_pairs(
    source: Any,
    target: Any,
    sources: Any,
    targets: Any,
    packets: Any,
    places: Any,
    senders: Any,
    offsets: Any,
    values: Any,
    table: Any,
    groups: Any,
    took_part: Any,
    wrong: Any,
) -> None:
    unknown = groups.size - 1
    for pair in range(packets.size):
        row, message = packets[pair], places[pair]
        source_place, other = source[row], target[row]
        source_place = table[source_place] if 0 <= source_place < table.size else unknown
        other = table[other] if 0 <= other < table.size else unknown
        took_part[source_place] = True
        took_part[other] = True
        if message < 0:  # nothing that anybody multicast: it concerns nobody
            wrong[pair] = True
            continue
        low, high = offsets[message], offsets[message + 1]
        sender = senders[message]
        wrong[pair] = not (
            _is_concerned(sources[row], groups[source_place], sender, values, low, high)
            and _is_concerned(targets[row], groups[other], sender, values, low, high)
        )


@compile_kernel
def _agree(
    packets: Any,
    places: Any,
    known_senders: Any,
    known_offsets: Any,
    known_values: Any,
    senders: Any,
    states_sender: Any,
    offsets: Any,
    values: Any,
    states_destinations: Any,
) -> Any:
    for pair in range(packets.size):
        row, message = packets[pair], places[pair]
        if message < 0:
            continue
        if states_sender.size and states_sender[row] and senders[row] != known_senders[message]:
            return False
        if not states_destinations.size or not states_destinations[row]:
            continue
        low, at = offsets[row], known_offsets[message]
        if offsets[row + 1] - low != known_offsets[message + 1] - at:
            return False
        for step in range(offsets[row + 1] - low):
            if values[low + step] != known_values[at + step]:
                return False
    return True


def fast_agree(
    pairs: tuple[Int64Array, Int32Array],
    messages: tuple[Int64Array, Int32Array, Int32Array],
    senders: tuple[IntArray, NDArray[np.bool_]],
    destinations: tuple[Int32Array, Int32Array, NDArray[np.bool_]],
) -> bool:
    """Whether every packet states the sender and the destinations of its message as they are known, value by value.

    False proves nothing: destinations may be listed in another order. `senders` and `destinations` end with which
    packets state them; an empty array if none does. The slow twin is `refuse_contradictions`.
    """
    return bool(_agree(*pairs, *messages, *senders, *destinations))
