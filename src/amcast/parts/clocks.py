"""Clocks for timestamps: logical, hybrid, and what a quorum has promised.

A logical clock (Lamport 1978) counts; a hybrid one also never stamps below the local time, so that groups that stamp
rarely keep up with groups that stamp often. Local time may be wrong or jump: it makes stamps higher than needed, never
equal or lower. A quorum clock is the highest value below which no future leader of a group can stamp: a majority, the
present leader among it, has seen it (002, section 5). The leader must be among it: two followers may be ahead of a
leader that still stamps below them.
"""

from collections.abc import Sequence


class Logical:
    """Counts up, and follows what it hears."""

    __slots__ = ("value",)

    def __init__(self, value: int = 0) -> None:
        self.value = value
        """What was stamped or heard of last; the next stamp is higher."""

    def stamp(self, now: int) -> int:
        """The next timestamp."""
        self.value += 1
        return self.value

    def hear(self, timestamp: int) -> bool:
        """Somebody else stamped; whether that moved this clock."""
        if timestamp <= self.value:
            return False
        self.value = timestamp
        return True


class Hybrid(Logical):
    """A logical clock that does not fall behind the local time."""

    __slots__ = ()

    def stamp(self, now: int) -> int:
        self.value = max(self.value + 1, now)
        return self.value


class QuorumClock:
    """What the members of a group have promised not to stamp below, by their places in the group."""

    __slots__ = ("_quorum", "_values")

    def __init__(self, members: int) -> None:
        self._values = [0] * members
        self._quorum = members // 2 + 1

    def hear(self, place: int, value: int) -> None:
        """A member's clock; it never goes back."""
        if value > self._values[place]:
            self._values[place] = value

    def reached(self, leader: int) -> int:
        """No stamp that the group gives from now on is at or below: the leader and a majority are there."""
        others = sorted(self._values, reverse=True)
        return min(self._values[leader], others[self._quorum - 1])

    def snapshot(self) -> tuple[int, ...]:
        return tuple(self._values)

    def restore(self, values: Sequence[int]) -> None:
        self._values = list(values)
