"""Clocks for timestamps: logical, hybrid, and quorum clocks.

A clock is an integer, the highest timestamp assigned or received; a function computes the next one from it. A logical
clock (Lamport 1978) counts. A hybrid clock also never assigns a timestamp below the local time, so that groups with few
messages keep up with groups with many. Local time may be wrong or jump: it makes timestamps higher than needed, never
equal or lower.

A quorum clock is the highest value at or below which no future leader of a group can assign a timestamp: a majority
that contains the present leader has reached it (002, section 5). The leader's own clock is needed: two followers may be
ahead of a leader that still assigns timestamps below them.
"""

from collections.abc import Callable, Sequence

from amcast.parts.consensus.quorum import majority

NextTimestamp = Callable[[int, int], int]
"""Computes the next timestamp from the clock and the local time."""


def next_logical(clock: int, now: int) -> int:
    """The next timestamp of a logical clock."""
    return clock + 1


def next_hybrid(clock: int, now: int) -> int:
    """The next timestamp of a hybrid clock: the local time, or one more where that would not be higher."""
    return now if now > clock else clock + 1


class QuorumClock:
    """The clocks of a group's members, at or below which each has promised to assign no timestamp."""

    __slots__ = ("_rank", "values")

    def __init__(self, members: int) -> None:
        self.values = [0] * members
        """Clocks by place. They never decrease, except by `forget`; code that writes here directly ensures that."""
        self._rank = members - majority(members)

    def update(self, place: int, value: int) -> None:
        """Raises a member's clock; a lower value is ignored."""
        if value > self.values[place]:
            self.values[place] = value

    def forget(self, place: int) -> None:
        """Resets the clock of a member that lost its state: its promise no longer counts."""
        self.values[place] = 0

    def majority_value(self) -> int:
        """The highest value that a majority has reached. No later leader assigns a timestamp at or below it, because
        its majority contains one of those members."""
        return sorted(self.values)[self._rank]

    def delivery_limit(self, leader_clock: int) -> int:
        """The highest value at or below which neither the present leader nor a later one assigns a timestamp."""
        reached = sorted(self.values)[self._rank]
        return leader_clock if leader_clock < reached else reached

    def snapshot(self) -> tuple[int, ...]:
        return tuple(self.values)

    def restore(self, values: Sequence[int]) -> None:
        self.values = list(values)
