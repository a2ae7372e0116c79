"""The disk of a simulated process: durable records, and effects that wait for records to become durable."""

from collections import deque

from amcast.kernel.effects import Deliver, Effect, Persist
from amcast.kernel.events import Started
from amcast.kernel.message import Record


class Disk:
    """Records of one process, and the effects behind records that are not durable yet."""

    __slots__ = ("busy", "count", "doubt", "records", "waiting")

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.count = 0
        """How many records were ever made durable; it does not fall when checkpoints replace records."""
        self.waiting: deque[Effect] = deque()
        """Empty, or a Persist that is not durable yet and all effects after it, in order."""
        self.busy = False
        self.doubt = ""
        """Why the last start found that records may be missing, as a sentence."""

    def store(self, effect: Persist, limit: int = 1) -> None:
        """Adds a durable record. Up to `limit` records that wait now become durable at this moment."""
        if effect.replaces:
            self.records.clear()
        self.records.append(effect.record)
        self.count += 1

    def roll_back(self, lost: int) -> None:
        """Puts an older copy of the records in place: the last `lost` are missing."""
        kept = max(0, len(self.records) - lost)
        self.count -= len(self.records) - kept
        del self.records[kept:]

    def crash(self, kept: int, torn: int = 0) -> None:
        """Ends the incarnation: the first `kept` waiting records are durable, though the process never learns it. A
        record with `after_deliveries` is written only if no delivery waits before it."""
        for effect in self.list_writable(kept):
            self.store(effect)
        self.waiting.clear()
        self.busy = False

    def list_writable(self, limit: int) -> list[Persist]:
        """The first waiting records that can be written together."""
        writable: list[Persist] = []
        is_delivered = True
        for effect in self.waiting:
            if type(effect) is Deliver:
                is_delivered = False
            elif type(effect) is Persist:
                if len(writable) == limit or (effect.after_deliveries and not is_delivered):
                    break
                writable.append(effect)
        return writable

    @property
    def can_start(self) -> bool:
        """Whether a process could start on this disk."""
        return True

    @property
    def is_failing(self) -> bool:
        """Whether the disk refuses writes, or will."""
        return False

    def damage(self, kind: str, draw: int) -> bool:
        """Performs a fault of the disk; False if it does not apply: a list of records has none."""
        return False

    def erase(self) -> None:
        """Loses all records."""
        self.records.clear()
        self.count = 0

    def start(self, incarnation: int) -> tuple[Started, str | None]:
        """The first event of an incarnation; and what the disk got wrong, as the end of a sentence about its
        process."""
        return Started(tuple(self.records), incarnation), None
