"""Clocks for timestamps: logical, hybrid, and what a quorum has promised.

A clock is an integer, the highest timestamp given or heard of; how the next one follows from it is a function. A
logical clock (Lamport 1978) counts; a hybrid one also never stamps below the local time, so that groups that stamp
rarely keep up with groups that stamp often. Local time may be wrong or jump: it makes stamps higher than needed, never
equal or lower.

A quorum clock is the highest value at or below which no future leader of a group can stamp: a majority, the present
leader among it, has seen it (002, section 5). The leader's own word is needed: two followers may be ahead of a leader
that still stamps below them.
"""

from collections.abc import Callable, Sequence

from amcast.parts.consensus.quorum import majority

NextTimestamp = Callable[[int, int], int]
"""From the clock and the local time, the next timestamp."""


def next_logical(clock: int, now: int) -> int:
    """The next timestamp counts."""
    return clock + 1


def next_hybrid(clock: int, now: int) -> int:
    """The next timestamp is the local time, or counts where that would not rise."""
    return now if now > clock else clock + 1


class QuorumClock:
    """What the members of a group have promised not to stamp below, by their places in the group."""

    __slots__ = ("_rank", "values")

    def __init__(self, members: int) -> None:
        self.values = [0] * members
        """By place. They never go back, but for `forget`: whoever writes here sees to it."""
        self._rank = members - majority(members)

    def update(self, place: int, value: int) -> None:
        """A member's clock; it never goes back."""
        if value > self.values[place]:
            self.values[place] = value

    def forget(self, place: int) -> None:
        """What this member promised no longer counts: it has lost its memory."""
        self.values[place] = 0

    def majority_value(self) -> int:
        """A majority is there: no later leader, who must hear one of any majority, stamps at or below."""
        return sorted(self.values)[self._rank]

    def delivery_limit(self, word: int) -> int:
        """Nor does the present leader, who gave its word: no stamp to come is at or below."""
        passed = sorted(self.values)[self._rank]
        return word if word < passed else passed

    def snapshot(self) -> tuple[int, ...]:
        return tuple(self.values)

    def restore(self, values: Sequence[int]) -> None:
        self.values = list(values)
