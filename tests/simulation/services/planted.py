"""Services with the mistakes that users make, hidden from the search of their source; and mutants of the executor."""

import json
import time
from collections.abc import Generator, Mapping
from random import random
from typing import Any

import msgspec

from amcast.services.declaration import At, Key, Service, command, query
from amcast.services.executor import Executor
from amcast.services.messages import ExecutorState


def first_of(items: Any) -> Any:
    return next(iter(items))


def read_clock() -> float:
    return time.time()


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

    def snapshot(self) -> bytes:
        state = msgspec.msgpack.decode(super().snapshot(), type=ExecutorState)
        return msgspec.msgpack.encode(msgspec.structs.replace(state, **{self.part: []}))


class WithoutSessions(LossySnapshot):
    part = "sessions"


class WithoutQueue(LossySnapshot):
    part = "queue"


class WithoutReceived(LossySnapshot):
    part = "received"


class WithoutOwed(LossySnapshot):
    part = "owed"


class Impatient(Executor):
    """A mutant: values are used, and never given to others."""

    def _give(self, execution: Any, data: bytes) -> None:
        super()._give(execution, data)
        self.owed.clear()
