"""The destination sets of the TreeCast thesis: seven groups as a binary tree, a message addresses a random set.

Source: paper 004, sections 5.2 and 5.3. The tree (Fig. 3.3) has g1 over g2 and g3, g2 over g4 and g5, g3 over g6 and
g7. A set's height is the number of levels of the smallest subtree that spans it.

    D1   single groups                        D3   every set
    D2   sets of height at most 2             D3'  pairs of height 3: the worst ones for the tree
    M1 .. M7   sets of 1 to 7 groups near region R2, where g2, g4, g5 and the clients are

"Random destinations of n groups", the other scenario of the thesis, is workload micro with destinations = n. The
payload is not published; here it is 64 bytes.
"""

from itertools import combinations
from random import Random
from typing import Final, Literal

from amcast.kernel.ids import GroupId, ProcessId
from amcast.kernel.topology import Topology
from amcast.workloads.base import PayloadConfig, Workload, draw_below

Numbers = tuple[int, ...]
"""Groups by the thesis' numbers, 1 to 7."""

_ALL: Final[tuple[Numbers, ...]] = tuple(d for n in range(1, 8) for d in combinations(range(1, 8), n))


def height(destinations: Numbers) -> int:
    """Levels from the lowest common ancestor down to the deepest destination, both included."""
    # Group n has the parent n // 2, so its level is its number's bit length.
    ancestors = set(destinations)
    while len(ancestors) > 1:
        deepest = max(ancestors)
        ancestors.discard(deepest)
        ancestors.add(deepest // 2)
    return max(destinations).bit_length() - min(ancestors).bit_length() + 1


SETS: Final[dict[str, tuple[Numbers, ...]]] = {
    "D1": tuple(d for d in _ALL if height(d) == 1),
    "D2": tuple(d for d in _ALL if height(d) <= 2),
    "D3": _ALL,
    "D3'": tuple(d for d in _ALL if height(d) == 3 and len(d) == 2),
    "M1": ((2,), (4,), (5,)),
    "M2": ((2, 4), (2, 5), (4, 5)),
    "M3": ((2, 4, 5),),
    "M4": ((1, 2, 4, 5),),
    **{f"M{n}": tuple(d for d in _ALL if len(d) == n and 1 in d) for n in (5, 6, 7)},
}


class ThesisConfig(PayloadConfig, frozen=True):
    sets: Literal["D1", "D2", "D3", "D3'", "M1", "M2", "M3", "M4", "M5", "M6", "M7"] = "D2"
    """The sets from which a message takes its destinations, each with equal probability."""


class Thesis(Workload):
    name = "thesis"

    def __init__(self, topology: Topology, seed: int, config: ThesisConfig) -> None:
        super().__init__(topology, seed, config)
        self._size = config.payload
        self._sets = [tuple(topology.groups[n - 1] for n in numbers) for numbers in SETS[config.sets]]

    def draw_message(self, client: ProcessId, random: Random) -> tuple[tuple[GroupId, ...], int]:
        return self._sets[draw_below(random, len(self._sets))], self._size
