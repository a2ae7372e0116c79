"""The disk of a simulated process: durable records, and effects that wait for records to become durable."""

from collections import deque

from amcast.kernel.effects import Deliver, Effect, Persist
from amcast.kernel.message import Record


class Disk:
    """Records of one process, and the effects behind records that are not durable yet."""

    __slots__ = ("busy", "records", "waiting")

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.waiting: deque[Effect] = deque()
        """Empty, or a Persist that is not durable yet and all effects after it, in order."""
        self.busy = False

    def store(self, effect: Persist) -> None:
        """Adds a durable record."""
        if effect.replaces:
            self.records.clear()
        self.records.append(effect.record)

    def lose_pending(self, kept: int) -> None:
        """Crashes the disk: the first `kept` waiting records are durable, though the process never learns it. A record
        with `after_deliveries` is written only if no delivery waits before it."""
        delivered = True
        for effect in self.waiting:
            if type(effect) is Deliver:
                delivered = False
            elif type(effect) is Persist:
                if kept == 0 or (effect.after_deliveries and not delivered):
                    break
                self.store(effect)
                kept -= 1
        self.waiting.clear()
        self.busy = False
