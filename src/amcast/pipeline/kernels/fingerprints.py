"""64-bit mixing, and fingerprints of multisets of facts.

A fingerprint has, per bucket, the number of facts, the sum of one hash and the exclusive-or of a second one. It does
not depend on the order of the facts, fingerprints of parts add up, and two multisets with equal fingerprints are equal
except with a probability below 2^-64 per bucket on data that was not made to collide. A bucket is 16 bits of the
message's own hash: where two fingerprints differ, the few messages of the differing buckets include every wrong one.
"""

from collections.abc import Callable, Iterable
from typing import Any, Final, TypeVar, cast

import numpy as np
from numba import njit
from numpy.typing import NDArray

BUCKETS: Final = 1 << 16

Int64Array = NDArray[np.int64]
Int32Array = NDArray[np.int32]
Uint64Array = NDArray[np.uint64]

_F = TypeVar("_F", bound=Callable[..., Any])


def compile_kernel(function: _F) -> _F:
    """Compiles with numba. The machine code is cached beside the module, or in NUMBA_CACHE_DIR."""
    compiled: Any
    try:
        compiled = njit(cache=True, nogil=True)(function)
    except RuntimeError:
        # Inside an archive shipped to a cluster there is no place for a cache: each worker compiles once.
        compiled = njit(nogil=True)(function)
    return cast(_F, compiled)


@compile_kernel
def mix(value: Any) -> Any:
    """A bijection of 64 bits in which every input bit affects every output bit (splitmix64's finaliser)."""
    word = np.uint64(value) + np.uint64(0x9E3779B97F4A7C15)
    word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return word ^ (word >> np.uint64(31))


@compile_kernel
def hash_set(values: Any, low: Any, high: Any) -> Any:
    """One word for a set of small integers, whatever their order in the list."""
    total = np.uint64(0)
    for index in range(low, high):
        total += mix(values[index])
    return total


@compile_kernel
def _hash_distinct(values: Any, low: Any, high: Any) -> Any:
    """`hash_set` of a list in which values may be repeated."""
    total = np.uint64(0)
    for index in range(low, high):
        is_new = True
        for earlier in range(low, index):
            if values[earlier] == values[index]:
                is_new = False
        if is_new:
            total += mix(values[index])
    return total


@compile_kernel
def _hash_lists(offsets: Any, values: Any, out: Any) -> None:
    for row in range(out.size):
        out[row] = _hash_distinct(values, offsets[row], offsets[row + 1])


@compile_kernel
def _add_fact(prints: Any, message: Any, stated: Any, group: Any) -> None:
    word = mix(mix(message) ^ mix(stated + mix(group)))
    bucket = np.int64(mix(message) >> np.uint64(48)) & (prints.shape[1] - 1)
    prints[0, bucket] += np.uint64(1)
    prints[1, bucket] += word
    prints[2, bucket] ^= mix(word)


@compile_kernel
def _add_delivered(prints: Any, messages: Any, offsets: Any, values: Any, sent: Any, group: Any) -> None:
    for row in range(messages.size):
        stated = hash_set(values, offsets[row], offsets[row + 1]) ^ mix(sent[row])
        _add_fact(prints, messages[row], stated, group)


@compile_kernel
def _add_addressed(prints: Any, messages: Any, offsets: Any, values: Any, sent: Any) -> None:
    for row in range(messages.size):
        low, high = offsets[row], offsets[row + 1]
        stated = hash_set(values, low, high) ^ mix(sent[row])
        for index in range(low, high):
            _add_fact(prints, messages[row], stated, values[index])


@compile_kernel
def _mark_buckets(messages: Any, chosen: Any, out: Any) -> None:
    for row in range(messages.size):
        out[row] = chosen[np.int64(mix(messages[row]) >> np.uint64(48)) & (chosen.size - 1)]


def hash_lists(offsets: Int32Array, values: Int32Array) -> Int64Array:
    """One word for each list, read as a set: equal sets have equal words, and different ones different words, except
    with a probability of 2^-64."""
    words: Int64Array = np.empty(offsets.size - 1, np.int64)
    _hash_lists(offsets, values, words.view(np.uint64))
    return words


class Fingerprint:
    """The multiset of facts (message, its destinations, when it was multicast, a group that it reached)."""

    def __init__(self, buckets: int = BUCKETS) -> None:
        assert 0 < buckets <= BUCKETS, f"{buckets} buckets; expected 1 to {BUCKETS}"
        assert buckets & (buckets - 1) == 0, f"{buckets} buckets; expected a power of two"
        self.words: Uint64Array = np.zeros((3, buckets), np.uint64)

    def add_delivered(
        self, messages: Int64Array, offsets: Int32Array, values: Int32Array, sent: Int64Array, group: int
    ) -> None:
        """Adds messages that a group delivered; the rows state their destinations and times of multicast."""
        _add_delivered(self.words, messages, offsets, values, sent, group)

    def add_addressed(self, messages: Int64Array, offsets: Int32Array, values: Int32Array, sent: Int64Array) -> None:
        """Adds messages that were multicast: one fact per destination."""
        _add_addressed(self.words, messages, offsets, values, sent)

    def __iadd__(self, other: "Fingerprint") -> "Fingerprint":
        self.words[:2] += other.words[:2]
        self.words[2] ^= other.words[2]
        return self

    def find_differences(self, other: "Fingerprint") -> NDArray[np.bool_]:
        """The buckets with different facts."""
        differ: NDArray[np.bool_] = (self.words != other.words).any(axis=0)
        return differ


def choose_bucket_count(rows: int) -> int:
    """Enough buckets that one holds few messages; few enough that they are small compared with the rows."""
    return min(BUCKETS, max(16, 1 << (max(1, rows // 64) - 1).bit_length()))


def select_in_buckets(messages: Int64Array, chosen: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Which of the messages fall into the chosen buckets."""
    out = np.empty(messages.size, np.bool_)
    _mark_buckets(messages, chosen, out)
    return out


def find_buckets(messages: Iterable[int], buckets: int) -> NDArray[np.bool_]:
    """The buckets that some messages fall into."""
    ids = np.array(sorted(messages), np.int64)
    marks = Fingerprint(buckets)
    marks.add_delivered(ids, np.zeros(ids.size + 1, np.int32), np.zeros(0, np.int32), ids, 0)
    found: NDArray[np.bool_] = marks.words[0] > 0
    return found
