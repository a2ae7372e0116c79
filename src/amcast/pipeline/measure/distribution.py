"""Distributions of latencies: samples that add up, and percentiles with confidence intervals from them.

Exact: every value that occurred is kept. Sketch: values share a bucket of half a percent relative error (logarithmic
buckets), so that a distribution has a few thousand numbers however long the trace. Both merge, and everything below is
the same for both.

Confidence intervals of 95 %: of percentiles by the binomial ranks around them, which assumes independent values; of
means by the means of batches, which does not.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import ceil, floor, log, sqrt
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from amcast.pipeline.kernels.fingerprints import Int64Array
from amcast.pipeline.measure.student_t import T95

PERCENTILES: Final = (50, 90, 95, 99)
ERROR: Final = 0.005
"""The relative error of a sketched value."""
STEP: Final = log((1 + ERROR) / (1 - ERROR))
SLOTS: Final = 1 << 13
"""More than the buckets of 64-bit values."""
BATCHES: Final = 20
"""The steady part is cut into this many batches: their means are nearly independent, single latencies are not."""
Z95: Final = 1.96
STEPS: Final = 200
TAIL: Final = (0.999, 0.9999)
"""A CDF has a point at every step from 0 to 1, and at these."""
DENSE: Final = 1 << 22

FloatArray = NDArray[np.float64]
Row = dict[str, Any]


def encode(values: NDArray[Any]) -> tuple[Int64Array, NDArray[np.intp]]:
    """Distinct values in order, and the place of each value among them."""
    if not values.size:
        return np.zeros(0, np.int64), np.zeros(0, np.intp)
    low, high = int(values.min()), int(values.max())
    if high - low >= DENSE:
        distinct, places = np.unique(values, return_inverse=True)
        return distinct.astype(np.int64), places
    shifted = values.astype(np.int64) - low
    there = np.bincount(shifted, minlength=high - low + 1) > 0
    return np.nonzero(there)[0].astype(np.int64) + low, (np.cumsum(there) - 1)[shifted]


@dataclass(frozen=True)
class Distribution:
    """Sorted values, how many values are at most each of them, and counts and sums by batch."""

    values: FloatArray
    upto: Int64Array
    counts: Int64Array
    totals: FloatArray

    @property
    def count(self) -> int:
        return int(self.upto[-1])

    def find_value(self, rank: int) -> float:
        """The value of a rank, from 1."""
        return float(self.values[np.searchsorted(self.upto, rank)])

    def summarize(self, unit: str) -> Row:
        """Count, mean, percentiles and extremes, with intervals; columns `unit`_p99 and so on."""
        n = self.count
        row: Row = {"count": n, **self._summarize_mean(unit), f"{unit}_min": float(self.values[0])}
        for share in PERCENTILES:
            p = share / 100
            spread = Z95 * sqrt(n * p * (1 - p))
            ranks = (ceil(n * p), floor(n * p - spread), min(ceil(n * p + spread) + 1, n))
            for name, rank in zip(("", "_low", "_high"), ranks, strict=True):
                row[f"{unit}_p{share}{name}"] = self.find_value(max(rank, 1))
        row[f"{unit}_max"] = float(self.values[-1])
        return row

    def _summarize_mean(self, unit: str) -> Row:
        """The mean, and an interval from the means of batches; no interval from fewer than two batches."""
        there = self.counts > 0
        mean, batches = float(self.totals.sum()) / self.count, int(there.sum())
        low = high = None
        if batches >= 2:
            means = self.totals[there] / self.counts[there]
            half = T95[min(batches - 1, len(T95)) - 1] * float(means.std(ddof=1)) / sqrt(batches)
            low, high = mean - half, mean + half
        return {f"{unit}_mean": mean, f"{unit}_mean_low": low, f"{unit}_mean_high": high}

    def draw_curve(self) -> Iterator[tuple[float, float]]:
        """(share, the smallest value that at least this share of all values does not exceed)."""
        n = self.count
        # In whole numbers, because 0.07 * 100 is more than 7.
        ranks = [(step / STEPS, max(1, -(-step * n // STEPS))) for step in range(STEPS + 1)]
        for share, rank in sorted([*ranks, *((share, ceil(n * share)) for share in TAIL)]):
            yield share, self.find_value(rank)


@dataclass
class _Histogram:
    """Sketched values by key: counts of (key, bucket), and counts and sums of (key, batch)."""

    places: Int64Array = field(default_factory=lambda: np.zeros(0, np.int64))
    """key * SLOTS + bucket, ascending."""
    counts: Int64Array = field(default_factory=lambda: np.zeros(0, np.int64))
    keys: Int64Array = field(default_factory=lambda: np.zeros(0, np.int64))
    batches: FloatArray = field(default_factory=lambda: np.zeros((2, 0, BATCHES)))

    def add(self, places: Int64Array, counts: Int64Array, keys: Int64Array, batches: FloatArray) -> None:
        merged, at = encode(np.concatenate([self.places, places]))
        joined = np.concatenate([self.counts, counts])
        self.counts = np.bincount(at, joined, merged.size).astype(np.int64)
        self.places = merged
        known, at = np.unique(np.concatenate([self.keys, keys]), return_inverse=True)
        total = np.zeros((2, known.size, BATCHES))
        for row, numbers in enumerate(np.concatenate([self.batches, batches], axis=1)):
            np.add.at(total[row], at, numbers)
        self.keys, self.batches = known, total


class Samples:
    """Values with a batch each and some keys, one for each view of them."""

    def __init__(self, is_exact: bool, views: tuple[str, ...]) -> None:
        self.is_exact = is_exact
        self.views = views
        self._parts: list[tuple[Int64Array, NDArray[np.int8], dict[str, Int64Array]]] = []
        self._histograms: dict[str, _Histogram] = {} if is_exact else {view: _Histogram() for view in views}

    def add(self, values: Int64Array, batches: NDArray[np.int64], keys: Mapping[str, NDArray[Any]]) -> None:
        """Adds values, with the key of each in every view."""
        if not values.size:
            return
        if self.is_exact:
            self._parts.append((values, batches.astype(np.int8), {view: keys[view].astype(np.int64) for view in keys}))
            return
        buckets = _find_buckets(values)
        for view in self.views:
            distinct, codes = encode(keys[view])
            both = codes * BATCHES + batches
            size = distinct.size * BATCHES
            sums: FloatArray = np.stack([np.bincount(both, minlength=size), np.bincount(both, values, size)])
            dense, at = encode(codes * SLOTS + buckets)
            counts = np.bincount(at, minlength=dense.size)
            places = distinct[dense // SLOTS] * SLOTS + dense % SLOTS
            self._histograms[view].add(places, counts, distinct, sums.reshape(2, distinct.size, BATCHES))

    def __iadd__(self, other: "Samples") -> "Samples":
        self._parts += other._parts
        for view, histogram in other._histograms.items():
            self._histograms[view].add(histogram.places, histogram.counts, histogram.keys, histogram.batches)
        return self

    def find_distributions(self) -> dict[str, dict[int, Distribution]]:
        """view -> key -> distribution."""
        if not self.is_exact:
            return {view: dict(_split_histogram(histogram)) for view, histogram in self._histograms.items()}
        if not self._parts:
            return {view: {} for view in self.views}
        values = np.concatenate([part[0] for part in self._parts])
        order = np.argsort(values, kind="stable")
        values = values[order]
        batches = np.concatenate([part[1] for part in self._parts])[order]
        found = {}
        for view in self.views:
            distinct, codes = encode(np.concatenate([part[2][view] for part in self._parts])[order])
            found[view] = dict(_split_values(values, batches, distinct, codes))
        return found


def _split_values(
    values: Int64Array, batches: NDArray[np.int8], keys: Int64Array, codes: NDArray[np.intp]
) -> Iterator[tuple[int, Distribution]]:
    """The distribution of each key, from sorted values."""
    small = np.int16 if keys.size < 1 << 15 else np.int64  # sixteen bits are sorted by counting
    order = np.argsort(codes.astype(small), kind="stable")
    ends = np.cumsum(np.bincount(codes, minlength=keys.size))
    low = 0
    for key, high in zip(keys.tolist(), ends.tolist(), strict=True):
        own = order[low:high]
        sorted_values = values[own].astype(np.float64)
        counts = np.bincount(batches[own], minlength=BATCHES)
        totals = np.bincount(batches[own], sorted_values, BATCHES).astype(np.float64)
        yield key, Distribution(sorted_values, np.arange(1, high - low + 1), counts, totals)
        low = high


def _split_histogram(histogram: _Histogram) -> Iterator[tuple[int, Distribution]]:
    owners = histogram.places // SLOTS
    for number, key in enumerate(histogram.keys.tolist()):
        own = owners == key
        buckets = histogram.places[own] - key * SLOTS
        counts, totals = histogram.batches[:, number]
        yield (
            key,
            Distribution(_show_buckets(buckets), np.cumsum(histogram.counts[own]), counts.astype(np.int64), totals),
        )


def _find_buckets(values: Int64Array) -> Int64Array:
    """The bucket of each value; 0 for values below 1."""
    found = np.ceil(np.log(np.maximum(values, 1).astype(np.float64)) / STEP).astype(np.int64) + 1
    return np.where(values < 1, 0, found)


def _show_buckets(buckets: Int64Array) -> FloatArray:
    """The middle of each bucket: within ERROR of its values."""
    return np.where(buckets == 0, 0.0, np.exp((buckets - 1.5) * STEP))
