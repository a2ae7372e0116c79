"""A calendar queue: entries that are due at each time, in the order in which they were added.

Times repeat: with constant delays whole rounds of packets are due at once. So the heap holds each time once, as a bare
integer, and a list per time holds the entries; comparing integers is the cheapest order.
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
        """By time. A caller that often adds to a time that exists may append directly."""

    def add(self, at: int, entry: Entry) -> None:
        if at in self.entries:
            self.entries[at].append(entry)
        else:
            self.entries[at] = [entry]
            heappush(self._times, at)

    def peek(self) -> int | None:
        """The earliest time with an entry; None if there is none."""
        return self._times[0] if self._times else None

    def pop_single(self) -> Entry | None:
        """Pops the entry of the earliest time if it is the only one; otherwise None, and nothing changes."""
        at = self._times[0]
        entries = self.entries[at]
        if len(entries) > 1:
            return None
        heappop(self._times)
        del self.entries[at]
        return entries[0]

    def pop_due(self) -> Iterator[Entry]:
        """Pops the entries of the earliest time, those added meanwhile included. If the caller stops early, the rest
        stays."""
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
