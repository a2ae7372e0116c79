"""The log of a group's timestamps, as one member holds it (T in the paper).

    0          base            decided           length
    |----------|---------------|-----------------|
     trimmed    decided         acknowledged here
                durable_length is anywhere up to length

The primary's log defines the order of indexes; timestamps rise with the index. A member acknowledges a prefix, so
(epoch, length) identifies what it holds.
"""

from amcast.parts.groups.leader_group_messages import Entry
from amcast.protocols.primcast.progress import PendingMulticast


class GroupLog:
    """Entries `base` to `length` - 1 of the log."""

    __slots__ = ("base", "decided", "durable_length", "entries", "floor", "length")

    def __init__(self) -> None:
        self.entries: dict[int, PendingMulticast] = {}
        """By index."""
        self.base = 0
        """Index of the first entry that is retained."""
        self.floor = 0
        """Every entry below `base` is among the group's first `floor` deliveries."""
        self.length = 0
        """Index of the next entry."""
        self.decided = 0
        """Entries below this index are known to be acknowledged by a majority of the group."""
        self.durable_length = 0
        """Entries below this index are in a record."""

    def __len__(self) -> int:
        return self.length - self.base

    def append(self, pending: PendingMulticast, timestamp: int) -> int:
        """Adds an entry and returns its index."""
        pending.index = index = self.length
        pending.timestamp = timestamp
        self.entries[index] = pending
        self.length = index + 1
        return index

    def clear(self, base: int, floor: int) -> None:
        """Drops every entry; the next one has index `base`."""
        self.entries = {}
        self.base = self.length = self.decided = base
        self.floor = max(self.floor, floor)

    def skip_to(self, index: int) -> None:
        """Drops the entries below an index beyond the log's end, all of which are delivered."""
        for dropped in range(self.base, self.length):
            del self.entries[dropped]
        self.base = self.length = self.decided = index

    def trim(self, delivered: int) -> None:
        """Drops the decided entries at the log's start that are among the first `delivered` deliveries."""
        entries, base, decided = self.entries, self.base, self.decided
        while base < decided and 0 <= (at := entries[base].delivered_at) < delivered:
            if at >= self.floor:
                self.floor = at + 1
            del entries[base]
            base += 1
        self.base = base

    def list_entries(self, first: int) -> tuple[Entry, ...]:
        """The entries from an index on, as bodies and records carry them."""
        listed = []
        for index in range(first, self.length):
            pending = self.entries[index]
            assert pending.message is not None
            listed.append(Entry(pending.message, pending.timestamp))
        return tuple(listed)

    def list_undelivered(self) -> list[PendingMulticast]:
        """The entries that are not delivered, in order."""
        entries = self.entries
        return [one for index in range(self.base, self.length) if (one := entries[index]).delivered_at < 0]

    def list_delivered_positions(self) -> tuple[int, ...]:
        """For each entry the position of its delivery, -1 if it is not delivered."""
        return tuple([self.entries[index].delivered_at for index in range(self.base, self.length)])

    def restore_delivered_positions(self, positions: tuple[int, ...]) -> None:
        for index, delivered_at in enumerate(positions, self.base):
            self.entries[index].delivered_at = delivered_at
