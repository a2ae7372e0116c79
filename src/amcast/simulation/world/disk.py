"""A process' disk in a world: what it made durable, and what waits for that."""

from collections import deque

from amcast.kernel.effects import Deliver, Effect, Persist
from amcast.kernel.message import Record


class Disk:
    """What a process made durable, and what waits for it."""

    __slots__ = ("busy", "records", "waiting")

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.waiting: deque[Effect] = deque()
        """Begins with a Persist that is not durable yet, then everything after it, in order."""
        self.busy = False

    def store(self, effect: Persist) -> None:
        """A record is durable."""
        if effect.replaces:
            self.records.clear()
        self.records.append(effect.record)

    def lose_pending(self, kept: int) -> None:
        """The process crashes: of the records that wait the first `kept` made it, unacknowledged. One that ends
        something is not written before what was delivered until then is handed over."""
        handed = True
        for effect in self.waiting:
            if type(effect) is Deliver:
                handed = False
            elif type(effect) is Persist:
                if kept == 0 or (effect.after_deliveries and not handed):
                    break
                self.store(effect)
                kept -= 1
        self.waiting.clear()
        self.busy = False
