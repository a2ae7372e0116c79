"""The smallest service: named counters. Run it with `amcast up --service counter:Counter`."""

import amcast


class Counter(amcast.Service):
    """Counters by name, spread over the groups of the cluster."""

    def __init__(self, group: str) -> None:
        self.counts: dict[str, int] = {}

    @amcast.command
    def add(self, at: amcast.At, name: amcast.Key, amount: int = 1) -> int:
        """Adds to a counter; returns its new value."""
        self.counts[name] = self.counts.get(name, 0) + amount
        return self.counts[name]

    @amcast.query
    def read(self, name: amcast.Key) -> int:
        """The value of a counter."""
        return self.counts.get(name, 0)
