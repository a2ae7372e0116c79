"""Compares all pairs of chains at once, in one pass over each chain: do both agree on the messages addressed to both?

A chain keeps, for every other chain, how many of its entries are addressed to that one too, and a fingerprint of these
entries in their order (two words of 64 bits). Two chains that agree have equal counts and fingerprints, or one of them
continues where the other has ended; then the fingerprints up to the end of the shorter one are compared.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from amcast.pipeline.kernels.fingerprints import Int64Array, Uint64Array, compile_kernel, mix
from amcast.pipeline.kernels.merge import NO_GAP, ChainRows


@dataclass(frozen=True)
class SharedEntries:
    """The entries that one chain shares with others: (numbers of the others, counts, fingerprints)."""

    others: Int64Array
    counts: Int64Array
    words: Uint64Array


class SharedEntriesCounter:
    """Counts and fingerprints the shared entries of one chain, in order."""

    def __init__(self, chain: int, chains: int, limits: dict[int, int] | None = None) -> None:
        self._chain = chain
        self._counts: Int64Array = np.zeros(chains, np.int64)
        self._words: Uint64Array = np.zeros((2, chains), np.uint64)
        self._limits: Int64Array = np.full(chains, NO_GAP, np.int64)
        """How many of the entries shared with each other chain count."""
        for other, limit in (limits or {}).items():
            self._limits[other] = limit

    def absorb(self, rows: ChainRows) -> None:
        """Adds the next entries."""
        _absorb(*rows[:3], self._chain, self._limits, self._counts, self._words)

    def result(self) -> SharedEntries:
        shared = np.nonzero(self._counts)[0]
        return SharedEntries(shared, self._counts[shared], self._words[:, shared])


@compile_kernel
def _absorb(messages: Any, offsets: Any, values: Any, chain: Any, limits: Any, counts: Any, words: Any) -> None:
    for row in range(messages.size):
        word = mix(messages[row])
        for place in range(offsets[row], offsets[row + 1]):
            other = values[place]
            if other < 0 or other == chain or counts[other] >= limits[other]:
                continue
            counts[other] += 1
            words[0, other] = mix(words[0, other] + word)
            words[1, other] = mix(words[1, other] ^ mix(word))


def compare_pairs(found: dict[int, SharedEntries]) -> tuple[set[tuple[int, int]], dict[int, dict[int, int]]]:
    """(pairs that surely differ in order, chains to read again with limits: {chain: {other: limit}})."""
    table = {
        (chain, other): (count, words)
        for chain, common in found.items()
        for other, count, *words in zip(
            common.others.tolist(), common.counts.tolist(), *(row.tolist() for row in common.words), strict=True
        )
    }
    differ: set[tuple[int, int]] = set()
    unequal: dict[int, dict[int, int]] = {}
    for (chain, other), (count, words) in table.items():
        if chain > other or (other, chain) not in table:
            continue
        count_there, words_there = table[other, chain]
        if count == count_there:
            if words != words_there:
                differ.add((chain, other))
        else:
            longer, shorter = (chain, other) if count > count_there else (other, chain)
            unequal.setdefault(longer, {})[shorter] = min(count, count_there)
    return differ, unequal


def pair_fingerprint(common: SharedEntries, other: int) -> list[int]:
    """The fingerprint of the entries shared with another chain."""
    words: list[int] = common.words[:, int(np.searchsorted(common.others, other))].tolist()
    return words
