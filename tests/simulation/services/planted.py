"""Services with the mistakes that users make, hidden from the search of their source; and mutants of the executor."""

import json
import time
from collections.abc import Generator, Iterator, Mapping
from pathlib import Path
from random import random
from typing import Any

import msgspec

from amcast.services.declaration import Applied, At, DiskService, Key, Service, command, query
from amcast.services.executor import Executor
from amcast.services.messages import STATE_MARK, ExecutorState


def first_of(items: Any) -> Any:
    return next(iter(items))


read_clock: Any = getattr(time, "time")  # noqa: B009, hidden from the search of the source


class Tags(Service):
    """Reads the order of a set."""

    def __init__(self, group: str) -> None:
        self.tags: set[str] = set()
        self.first: str = ""

    @command
    def add(self, at: At, key: Key, tag: int) -> str:
        self.tags.add(f"{key}-{tag}")
        self.first = first_of(self.tags)
        return self.first


class Clock(Service):
    """Reads a clock."""

    def __init__(self, group: str) -> None:
        self.last: float = 0.0

    @command
    def touch(self, at: At, key: Key) -> None:
        self.last = read_clock()


class Dice(Service):
    """Returns random numbers, and keeps no state."""

    @command
    def roll(self, at: At, key: Key) -> float:
        return self._roll()

    def _roll(self) -> float:
        return random()


class Forgetful(Service):
    """Has a snapshot without one of its fields."""

    def __init__(self, group: str) -> None:
        self.counts: dict[str, int] = {}
        self.total = 0

    @command
    def add(self, at: At, key: Key, amount: int) -> int:
        self.counts[key] = self.counts.get(key, 0) + amount
        self.total += amount
        return self.total

    def snapshot(self) -> bytes:
        return json.dumps(self.counts).encode()

    def restore(self, state: bytes) -> None:
        self.counts = json.loads(state)


class Hasty(Service):
    """Pays before the others have voted."""

    def __init__(self, group: str) -> None:
        self.money: dict[str, int] = {}

    @command
    def pay(self, at: At, source: Key, target: Key, amount: int) -> Generator[bool, dict[str, bool], bool]:
        if at.owns(source):
            self.money[source] = self.money.get(source, 0) - amount
        votes = yield True
        if at.owns(target):
            self.money[target] = self.money.get(target, 0) + amount
        return all(votes.values())


class Unkeyed(Service):
    """Does not annotate a key."""

    def __init__(self, group: str) -> None:
        self.money: dict[str, int] = {}

    @command
    def pay(self, at: At, source: Key, target: str, amount: int) -> bool:
        for name, sign in ((source, -1), (target, 1)):
            if at.owns(name):
                self.money[name] = self.money.get(name, 0) + sign * amount
        return True


class Trusting(Service):
    """Decides by what its own group sees."""

    def __init__(self, group: str) -> None:
        self.money: dict[str, int] = {}

    @command
    def pay(self, at: At, source: Key, target: Key, amount: int) -> bool:
        if at.owns(source) and self.money.get(source, 5) < amount:
            return False
        for name, sign in ((source, -1), (target, 1)):
            if at.owns(name):
                self.money[name] = self.money.get(name, 5) + sign * amount
        return True

    @query
    def read(self, key: Key) -> int:
        return self.money.get(key, 5)


def money_is_conserved(services: Mapping[str, Any]) -> str | None:
    difference = sum(amount - 5 for service in services.values() for amount in service.money.values())
    return None if difference == 0 else f"{difference} was made"


class Drawer(DiskService):
    """Correct: keeps counts and what it is given in one file, which it replaces."""

    def __init__(self, group: str) -> None:
        self.counts: dict[str, int] = {}

    @command
    def add(self, at: At, one: Key, other: Key, amount: int) -> Generator[int, dict[str, int], int]:
        seen = yield sum(self.counts.values())
        for key in sorted({one, other}):
            if at.owns(key):
                self.counts[key] = self.counts.get(key, 0) + amount + max(seen.values())
        return sum(self.counts.values())

    def open(self, folder: Path) -> Applied | None:
        self.folder = folder
        if not (folder / "state").exists():
            return None
        self.counts, position, record = json.loads((folder / "state").read_text())
        return Applied(position, bytes.fromhex(record))

    def save(self, applied: Applied) -> None:
        (self.folder / "new").write_text(json.dumps([self.counts, applied.position, applied.record.hex()]))
        (self.folder / "new").replace(self.folder / "state")

    def snapshot(self) -> Iterator[bytes]:
        for key, count in list(self.counts.items()):
            yield json.dumps([key, count]).encode()

    def restore(self, pieces: Iterator[bytes]) -> None:
        self.counts = dict(json.loads(piece) for piece in pieces)


class Eager(Drawer):
    """Writes what a command changes at once, and the position later."""

    def open(self, folder: Path) -> Applied | None:
        applied = super().open(folder)
        if (folder / "counts").exists():
            self.counts = json.loads((folder / "counts").read_text())
        return applied

    @command
    def add(self, at: At, one: Key, other: Key, amount: int) -> int:
        self.counts[one] = self.counts.get(one, 0) + amount
        (self.folder / "counts").write_text(json.dumps(self.counts))
        return self.counts[one]


class Amnesiac(Drawer):
    """Finds its state, and says that there is none."""

    def open(self, folder: Path) -> Applied | None:
        super().open(folder)
        return None


class Careless(Drawer):
    """Keeps the position, and not what belongs to it."""

    def open(self, folder: Path) -> Applied | None:
        applied = super().open(folder)
        file = folder / "record"
        if applied is None:
            return None
        return Applied(applied.position, bytes.fromhex(file.read_text()) if file.exists() else applied.record)

    def save(self, applied: Applied) -> None:
        super().save(applied)
        if not (self.folder / "record").exists():
            (self.folder / "record").write_text(applied.record.hex())


class Hashed(Service):
    """Takes any element of a set that is no state, where the source does not show it."""

    def __init__(self, group: str) -> None:
        self.first: str = ""

    @command
    def add(self, at: At, key: Key, word: str) -> str:
        self.first = first_of({key, word, self.first})
        return self.first


class Browsing(Service):
    """Writes in a query."""

    def __init__(self, group: str) -> None:
        self.reads: dict[str, int] = {}

    @command
    def add(self, at: At, key: Key, amount: int) -> None:
        self.reads[key] = amount

    @query
    def look(self, key: Key) -> int:
        self.reads[key] = self.reads.get(key, 0) + 1
        return self.reads[key]


class Uneven(Service):
    """Yields as often as the state of its group says."""

    def __init__(self, group: str) -> None:
        self.count: int = 0

    @command
    def move(self, at: At, one: Key, other: Key) -> Generator[int, dict[str, int], int]:
        total = 0
        for _ in range(self.count % 3):
            votes = yield 1
            total += sum(votes.values())
        self.count += 1
        return total


class Cached(Service):
    """Answers from a global, which no snapshot has."""

    def __init__(self, group: str) -> None:
        self.counts: dict[str, int] = {}

    @command
    def add(self, at: At, key: Key, amount: int) -> int:
        self.counts[key] = self.counts.get(key, 0) + amount
        CACHE[at.group] = CACHE.get(at.group, 0) + amount
        return CACHE[at.group]


CACHE: dict[str, int] = {}


class Shared(Service):
    """Reaches one list by two attributes, which a snapshot parts."""

    def __init__(self, group: str) -> None:
        self.all: list[list[int]] = [[]]
        self.current: list[int] = self.all[0]

    @command
    def add(self, at: At, key: Key, amount: int) -> int:
        self.current.append(amount)
        return len(self.all[0])


class Partial(Service):
    """Restores without an index that belongs to its state."""

    def __init__(self, group: str) -> None:
        self.counts: dict[str, int] = {}
        self.largest: str = ""

    @command
    def add(self, at: At, key: Key, amount: int) -> None:
        self.counts[key] = amount
        self.largest = max(sorted(self.counts), key=lambda one: self.counts[one])

    @query
    def find(self, key: Key) -> str:
        return self.largest

    def snapshot(self) -> bytes:
        return json.dumps(self.counts).encode()

    def restore(self, state: bytes) -> None:
        self.counts = json.loads(state)


class Weighted(Service):
    """Adds up floats in the order of a set."""

    def __init__(self, group: str) -> None:
        self.weights: set[float] = set()
        self.total: float = 0.0

    @command
    def add(self, at: At, key: Key, amount: int) -> None:
        self.weights.add(amount / 7)
        self.total = sum(self.weights)


class Aliasing(Drawer):
    """Gives pieces of the state as it is when they are drawn."""

    def snapshot(self) -> Iterator[bytes]:
        yield b"[]"
        for key in sorted(self.counts):
            yield json.dumps([key, self.counts[key]]).encode()

    def restore(self, pieces: Iterator[bytes]) -> None:
        self.counts = dict(json.loads(piece) for piece in pieces if piece != b"[]")


class Votes(Service):
    """Correct: counts votes of several groups. Mutants of the executor are searched with it."""

    def __init__(self, group: str) -> None:
        self.count: int = 0

    @command
    def vote(self, at: At, one: Key, other: Key) -> Generator[int, dict[str, int], int]:
        seen = yield self.count
        self.count = max(seen.values()) + 1
        return self.count


class LossySnapshot(Executor):
    """A mutant: its snapshot lacks a part."""

    part = ""

    def snapshot(self) -> tuple[bytes, ...]:
        record, *pieces = super().snapshot()
        state = msgspec.msgpack.decode(record.removeprefix(STATE_MARK), type=ExecutorState)
        return STATE_MARK + msgspec.msgpack.encode(msgspec.structs.replace(state, **{self.part: []})), *pieces


class WithoutSessions(LossySnapshot):
    part = "sessions"


class WithoutQueue(LossySnapshot):
    part = "queue"


class WithoutReceived(LossySnapshot):
    part = "received"


class WithoutOwed(LossySnapshot):
    part = "owed"


class Silent(Executor):
    """A mutant: it tells nobody that it ended a command, or takes it for a repeated one."""

    def _owe_end(self, queued: Any, step: int, sentence: str) -> None:
        pass


class Impatient(Executor):
    """A mutant: values are used, and never given to others."""

    def _give(self, execution: Any, data: bytes) -> None:
        super()._give(execution, data)
        self.owed.clear()
