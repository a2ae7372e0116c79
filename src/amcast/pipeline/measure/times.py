"""Times of many events: their number, extremes and quantiles, from parts that merge."""

from dataclasses import dataclass
from math import ceil

import numpy as np

from amcast.pipeline.kernels.fingerprints import Int64Array

KEPT_TIMES = 1 << 18
"""Times that one part keeps: all of them, or every so many."""


@dataclass(frozen=True)
class Times:
    """Sorted times and how many events each stands for: itself and those since the one before."""

    values: Int64Array
    weights: Int64Array

    @staticmethod
    def summarize(times: Int64Array, kept: int = KEPT_TIMES) -> "Times":
        """Keeps at most about `kept` of these times."""
        ordered, every = np.sort(times), max(1, ceil(times.size / kept))
        places = np.arange(every - 1, times.size, every)
        if times.size and (not places.size or places[-1] != times.size - 1):
            places = np.append(places, times.size - 1)
        return Times(ordered[places], np.diff(places, prepend=-1))

    @staticmethod
    def join(parts: "list[Times]") -> "Times":
        """The times of all parts."""
        if not parts:
            return Times(np.zeros(0, np.int64), np.zeros(0, np.int64))
        values = np.concatenate([part.values for part in parts])
        order = np.argsort(values, kind="stable")
        return Times(values[order], np.concatenate([part.weights for part in parts])[order])

    @property
    def count(self) -> int:
        return int(self.weights.sum())

    def find_quantile(self, share: float) -> int:
        """The time that this share of all events does not exceed."""
        if share in (0.0, 1.0):
            return int(self.values[-1 if share else 0])
        rank = max(1, ceil(share * self.count))
        return int(self.values[np.searchsorted(np.cumsum(self.weights), rank)])

    def count_until(self, time: int) -> int:
        """The number of events at or before a time."""
        return int(self.weights[: np.searchsorted(self.values, time, side="right")].sum())
