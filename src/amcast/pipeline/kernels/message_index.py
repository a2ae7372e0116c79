"""Message ids as places in a table, by open addressing; and rows in the order of buckets of their messages."""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from amcast.pipeline.kernels.fingerprints import Int64Array, compile_kernel, mix

LEAST_SLOTS: Final = 16


@compile_kernel
def _find_slot(message: Any, mask: Any) -> Any:
    """The first slot of a message. Sixteen consecutive ids share a line of the processor's cache: tables are in order
    of time, and the ids of a sender grow.
    """
    block = mix(message >> np.int64(4)) << np.uint64(4)
    return np.int64(block & np.uint64(mask)) + (message & np.int64(15))


@compile_kernel
def _insert(messages: Any, slots: Any) -> Any:
    """Fills the slots; returns whether every message occurs once."""
    mask, unique = slots.size - 1, True
    for row in range(messages.size):
        slot = _find_slot(messages[row], mask)
        while slots[slot] >= 0:
            if messages[slots[slot]] == messages[row]:
                unique = False
                break
            slot = (slot + 1) & mask
        if slots[slot] < 0:
            slots[slot] = row
    return unique


@compile_kernel
def _find(messages: Any, slots: Any, wanted: Any, places: Any) -> None:
    mask = slots.size - 1
    for row in range(wanted.size):
        slot = _find_slot(wanted[row], mask)
        places[row] = -1
        while slots[slot] >= 0:
            if messages[slots[slot]] == wanted[row]:
                places[row] = slots[slot]
                break
            slot = (slot + 1) & mask


@compile_kernel
def _sort_by_bucket(messages: Any, ends: Any, order: Any) -> None:
    """Counts the rows of each bucket, then puts every row behind those of the buckets before its own."""
    buckets = np.uint64(ends.size - 1)
    for row in range(messages.size):
        ends[1 + np.int64((mix(messages[row]) >> np.uint64(20)) % buckets)] += 1
    for bucket in range(1, ends.size):
        ends[bucket] += ends[bucket - 1]
    next_place = ends[:-1].copy()
    for row in range(messages.size):
        place = np.int64((mix(messages[row]) >> np.uint64(20)) % buckets)
        order[next_place[place]] = row
        next_place[place] += 1


class MessageIndex:
    """Where each of some messages is. `is_unique` is false if one occurs twice; then its first place counts."""

    def __init__(self, messages: Int64Array) -> None:
        self.messages = messages
        size = LEAST_SLOTS
        while size < 2 * messages.size:
            size *= 2
        self._slots: NDArray[np.int32] = np.full(size, -1, np.int32)
        self.is_unique = bool(_insert(messages, self._slots))

    def find(self, wanted: Int64Array) -> NDArray[np.int32]:
        """The place of each wanted message; -1 if it is unknown."""
        places = np.empty(wanted.size, np.int32)
        _find(self.messages, self._slots, wanted, places)
        return places


def sort_by_bucket(messages: Int64Array, buckets: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows in the order of the buckets of their messages, and where each bucket begins and ends."""
    ends, order = np.zeros(buckets + 1, np.int64), np.empty(messages.size, np.int64)
    _sort_by_bucket(messages, ends, order)
    return order, ends
