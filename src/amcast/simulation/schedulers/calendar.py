"""When things happen: what is due at each time, in the order in which it was added.

Times repeat: with constant delays whole rounds of packets are due at once. So the heap holds each time once, as a bare
integer, and a list per time holds what is due; comparing integers is the cheapest order there is.
"""

from collections.abc import Iterator
from heapq import heappop, heappush
from typing import Any

Entry = tuple[Any, ...]


class Calendar:
    """A priority queue of (time, entry), first come first served among equals."""

    __slots__ = ("_times", "entries")

    def __init__(self) -> None:
        self._times: list[int] = []
        self.entries: dict[int, list[Entry]] = {}
        """By time. Who adds often to a time that is there already may append directly."""

    def add(self, at: int, entry: Entry) -> None:
        if at in self.entries:
            self.entries[at].append(entry)
        else:
            self.entries[at] = [entry]
            heappush(self._times, at)

    def peek(self) -> int | None:
        """The earliest time at which something is due."""
        return self._times[0] if self._times else None

    def pop_due(self) -> Iterator[Entry]:
        """Everything due at the earliest time, what is added meanwhile included. Who stops early leaves the rest."""
        at = self._times[0]
        entries = self.entries[at]
        rest = iter(entries)
        try:
            yield from rest
        finally:
            entries[:] = rest
            if not entries:
                heappop(self._times)
                del self.entries[at]
