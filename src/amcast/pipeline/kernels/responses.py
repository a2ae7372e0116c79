"""Responses: when each destination group of a message first delivered it, in what order, and when all had.

The destinations of all messages are one list of places; message m has the places offsets[m] .. offsets[m + 1] - 1.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from amcast.pipeline.kernels.fingerprints import Int32Array, Int64Array, compile_kernel


@compile_kernel
def _respond(
    owners: Any, groups: Any, at: Any, offsets: Any, values: Any, first: Any, answered: Any, valid: Any
) -> None:
    for row in range(owners.size):
        owner = owners[row]
        if owner < 0:
            continue
        for place in range(offsets[owner], offsets[owner + 1]):
            if values[place] == groups[row]:
                if not answered[place] or at[row] < first[place]:
                    first[place] = at[row]
                    answered[place] = True
                valid[row] = True
                break


@compile_kernel
def _rank(offsets: Any, values: Any, keys: Any, first: Any, answered: Any, rank: Any, turn: Any, done: Any) -> None:
    for message in range(offsets.size - 1):
        low, high, count = offsets[message], offsets[message + 1], 0
        for place in range(low, high):
            rank[place] = 1
            turn[place] = 1
            count += answered[place]
            for other in range(low, high):
                if keys[other] < keys[place]:
                    rank[place] += 1
                earlier = first[other] < first[place] or (
                    first[other] == first[place] and values[other] < values[place]
                )
                if answered[other] and earlier:
                    turn[place] += 1
        done[message] = count > 0 and count == high - low


@dataclass(frozen=True)
class Responses:
    """The first delivery at every place, and what follows from it."""

    first: Int64Array
    """Only where `answered`."""
    answered: NDArray[np.bool_]
    is_valid: NDArray[np.bool_]
    """Of each delivery: whether its message is known and addressed to its group."""
    rank: Int32Array
    """The place of the group among the message's destinations, from 1."""
    turn: Int32Array
    """How many destinations answered by then; only where `answered`."""
    done: NDArray[np.bool_]
    """Of each message: whether every destination answered."""


def find_responses(
    owners: Int32Array, groups: Int32Array, at: Int64Array, offsets: Int32Array, values: Int32Array, keys: Int64Array
) -> Responses:
    """`owners`: the message of each delivery, or -1; `keys`: what ranks the destinations."""
    first, answered = np.zeros(values.size, np.int64), np.zeros(values.size, np.bool_)
    valid, done = np.zeros(owners.size, np.bool_), np.zeros(offsets.size - 1, np.bool_)
    rank, turn = np.zeros(values.size, np.int32), np.zeros(values.size, np.int32)
    _respond(owners, groups, at, offsets, values, first, answered, valid)
    _rank(offsets, values, keys, first, answered, rank, turn, done)
    return Responses(first, answered, valid, rank, turn, done)
