"""Do two chains agree on what is addressed to both? For all pairs at once, in one pass over each chain.

A chain keeps, for every other chain, how many of its entries are addressed to that one too, and a fingerprint of these
in their order (two words of 64 bits). Two chains that agree have equal counts and fingerprints, or one of them
continues where the other has ended; then the fingerprints up to the shorter one are compared.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from amcast.pipeline.kernels.fingerprints import Ints, Words, compiled, mix
from amcast.pipeline.kernels.merge import NEVER, Rows


@dataclass(frozen=True)
class Common:
    """What one chain has in common with others: (their numbers, how many entries, fingerprints)."""

    others: Ints
    counts: Ints
    words: Words


class Commons:
    """One chain, walked in order."""

    def __init__(self, chain: int, chains: int, limits: dict[int, int] | None = None) -> None:
        self._chain = chain
        self._counts: Ints = np.zeros(chains, np.int64)
        self._words: Words = np.zeros((2, chains), np.uint64)
        self._limits: Ints = np.full(chains, NEVER, np.int64)
        """How many of the entries in common with each other chain count."""
        for other, limit in (limits or {}).items():
            self._limits[other] = limit

    def absorb(self, rows: Rows) -> None:
        """The next entries."""
        _absorb(*rows, self._chain, self._limits, self._counts, self._words)

    def found(self) -> Common:
        there = np.nonzero(self._counts)[0]
        return Common(there, self._counts[there], self._words[:, there])


@compiled
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


def unlike(found: dict[int, Common]) -> tuple[set[tuple[int, int]], dict[int, dict[int, int]]]:
    """(pairs that surely differ in order, chains to walk again with limits: {chain: {other: limit}})."""
    table = {
        (chain, other): (count, words)
        for chain, common in found.items()
        for other, count, *words in zip(
            common.others.tolist(), common.counts.tolist(), *(row.tolist() for row in common.words), strict=True
        )
    }
    differ: set[tuple[int, int]] = set()
    again: dict[int, dict[int, int]] = {}
    for (chain, other), (count, words) in table.items():
        if chain > other or (other, chain) not in table:
            continue
        count_there, words_there = table[other, chain]
        if count == count_there:
            if words != words_there:
                differ.add((chain, other))
        else:
            longer, shorter = (chain, other) if count > count_there else (other, chain)
            again.setdefault(longer, {})[shorter] = min(count, count_there)
    return differ, again


def words_of(common: Common, other: int) -> list[int]:
    """The fingerprint of what is in common with another chain."""
    words: list[int] = common.words[:, int(np.searchsorted(common.others, other))].tolist()
    return words
