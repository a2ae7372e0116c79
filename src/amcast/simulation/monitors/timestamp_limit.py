"""Below which timestamp a group gives no more timestamps, as its members have acknowledged.

A process delivers a message when nothing can come before it. It knows that from a ballot that a majority takes part in:
its leader has acknowledged a clock, and gives no timestamp at or below it; a majority has acknowledged clocks in this
ballot or earlier ones, and every later leader hears one of them. A clock that a member acknowledged before it lost its
memory does not count beside that of a member which knows of the loss. A monitor does not know what a process has
heard, so the question is whether there is such a ballot and such a majority.
"""

from amcast.simulation.monitors.promise_reports import have_majority


class TimestampLimit:
    """What the members of one domain acknowledged."""

    def __init__(self, members: int, quorum: int) -> None:
        self._quorum = quorum
        self._clocks: list[dict[tuple[int, ...], dict[int, int]]] = [{} for _ in range(members)]
        """By place, then by the losses of memory that the member knew, then by ballot: its highest clock."""
        self._leader_clocks: dict[int, int] = {}
        """By ballot: the highest clock of its leader."""
        self._participants: dict[int, int] = {}
        """By ballot: the members that took part in it, as bits by place."""
        self._limit = -1
        """A timestamp at or below which nobody gives any, as was asked before."""

    def add(self, place: int, ballot: int, clock: int, memory_losses: tuple[int, ...], leads: bool) -> None:
        clocks = self._clocks[place].setdefault(memory_losses, {})
        if clock > clocks.get(ballot, -1):
            clocks[ballot] = clock
            if leads and clock > self._leader_clocks.get(ballot, -1):
                self._leader_clocks[ballot] = clock
            self._participants[ballot] = self._participants.get(ballot, 0) | 1 << place

    def has_acknowledged(self, place: int, clock: int, loss: int) -> bool:
        """Whether a member acknowledged a clock, or a higher one, since a loss of its memory."""
        return any(
            losses[place] >= loss and max(clocks.values()) >= clock for losses, clocks in self._clocks[place].items()
        )

    def passes(self, timestamp: int) -> bool:
        """Whether no timestamp at or below this one can be given any more."""
        if timestamp > self._limit and any(
            self._is_limit(ballot, timestamp) for ballot, clock in self._leader_clocks.items() if clock >= timestamp
        ):
            self._limit = timestamp
        return timestamp <= self._limit

    def _is_limit(self, ballot: int, timestamp: int) -> bool:
        if self._participants[ballot].bit_count() < self._quorum:
            return False
        passed = {
            place: [
                losses
                for losses, clocks in known.items()
                if any(clock >= timestamp and at <= ballot for at, clock in clocks.items())
            ]
            for place, known in enumerate(self._clocks)
        }
        return have_majority(self._quorum, passed)
