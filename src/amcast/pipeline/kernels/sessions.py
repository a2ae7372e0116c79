"""P7 and P8 along one sequence: every session must go through its numbers without skipping or repeating one.

The numbers of a session that are addressed to a group are ranked 0, 1, 2 ...; a delivery may have a rank that occurred
before (a retry) or the next one. Two different messages with one number are a repetition.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from amcast.pipeline.kernels.fingerprints import Int32Array, Int64Array, compile_kernel
from amcast.pipeline.kernels.message_index import MessageIndex


class SessionIndex:
    """The messages of some sessions. A key stands for (session, number); keys of one session are neighbours."""

    def __init__(self, messages: Int64Array, sessions: Int64Array, sequences: Int64Array) -> None:
        order = np.lexsort((sequences, sessions))
        session, sequence = sessions[order], sequences[order]
        fresh = np.ones(order.size, np.bool_)
        fresh[1:] = session[1:] != session[:-1]
        distinct = fresh.copy()
        distinct[1:] |= sequence[1:] != sequence[:-1]
        key, owners = np.cumsum(distinct) - 1, np.cumsum(fresh) - 1
        self.key: Int64Array = key.astype(np.int64)
        """The key of each message, by its place."""
        self.owner_of_key: Int64Array = owners[distinct].astype(np.int64)
        self.names: Int64Array = session[fresh]
        """The sessions themselves, by owner number."""
        self._index = MessageIndex(messages[order])
        self.place_of: NDArray[np.intp] = np.empty(order.size, np.intp)
        """The places of the given messages."""
        self.place_of[order] = np.arange(order.size)

    def find_places(self, messages: Int64Array) -> Int32Array:
        """The places of some messages; -1 for those that belong to no session."""
        return self._index.find(messages)

    def rank_keys(self, expected: NDArray[np.bool_]) -> Int64Array:
        """By key: its rank among its session's keys that are addressed to a group; -1 for one that is not."""
        ranks = np.full(expected.size, -1, np.int64)
        keys = np.nonzero(expected)[0]
        owner = self.owner_of_key[keys]
        first = np.ones(keys.size, np.bool_)
        first[1:] = owner[1:] != owner[:-1]
        starts = np.nonzero(first)[0]
        ranks[keys] = np.arange(keys.size) - starts[np.cumsum(first) - 1] if keys.size else 0
        return ranks


class SessionWalk:
    """The deliveries of one process, in order."""

    def __init__(self, numbered: SessionIndex, ranks: Int64Array) -> None:
        self._numbered = numbered
        self._ranks = ranks
        self._due: Int64Array = np.zeros(numbered.names.size, np.int64)
        self._first: Int64Array = np.full(ranks.size, -1, np.int64)
        self.is_wrong: NDArray[np.bool_] = np.zeros(numbered.names.size, np.bool_)
        """Sessions in which a number came before a lower one, or as two messages."""
        self.judged = 0
        """Deliveries of expected numbers."""

    def absorb(self, messages: Int64Array) -> None:
        """Adds the next messages of the sequence."""
        places = self._numbered.find_places(messages)
        self.judged += _walk(
            places,
            self._numbered.key,
            self._numbered.owner_of_key,
            self._ranks,
            self._due,
            self._first,
            self.is_wrong,
        )


@compile_kernel
def _walk(places: Any, keys: Any, owner_of_key: Any, ranks: Any, due: Any, first: Any, is_wrong: Any) -> Any:
    judged = 0
    for row in range(places.size):
        place = places[row]
        if place < 0:
            continue
        key = keys[place]
        session = owner_of_key[key]
        rank = ranks[key]
        if rank >= 0:
            judged += 1
            if rank > due[session]:
                is_wrong[session] = True
            due[session] = max(due[session], rank + 1)
        if first[key] < 0:
            first[key] = place
        elif first[key] != place:
            is_wrong[session] = True
    return judged
