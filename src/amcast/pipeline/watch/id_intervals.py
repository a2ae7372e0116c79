"""A set of ids as intervals: small as long as ids are consecutive, as those of one sender are."""

from collections.abc import Sequence

import numpy as np

from amcast.pipeline.kernels.fingerprints import Int64Array


class IdIntervals:
    """The ids low .. high of some intervals that neither overlap nor touch, in order."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._low: Int64Array = np.zeros(0, np.int64)
        self._high: Int64Array = np.zeros(0, np.int64)

    def __len__(self) -> int:
        return int(self._low.size)

    def add(self, ids: Sequence[int]) -> bool:
        """Adds ids. False if they would take more intervals than the limit: then they are not kept."""
        if not ids:
            return True
        fresh = np.unique(np.array(ids, np.int64))
        low, high = np.concatenate([self._low, fresh]), np.concatenate([self._high, fresh])
        order = np.argsort(low, kind="stable")
        low, high = low[order], np.maximum.accumulate(high[order])
        # An interval begins where the id before it is in none. (Ids at the end of the range must not overflow.)
        begins = np.ones(low.size, np.bool_)
        begins[1:] = (low[1:] > high[:-1]) & (low[1:] - 1 > high[:-1])
        places = np.nonzero(begins)[0]
        if places.size > self._limit:
            return False
        self._low, self._high = low[places], high[np.concatenate([places[1:] - 1, [low.size - 1]])]
        return True

    def contains(self, id: int) -> bool:
        place = int(np.searchsorted(self._low, id, side="right")) - 1
        return place >= 0 and id <= int(self._high[place])
