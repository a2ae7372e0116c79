"""The last deliveries of a replica, by position, for whoever reads them later: subscribers and slow applications.

All members of a group deliver the same messages at the same positions, so a reader that knows its position can go on
at any of them. What is kept is bounded in bytes and shared by all readers: a slow reader costs nothing and holds nobody
up; it finds, when it comes back too late, that its position is gone, and is told so.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from itertools import islice
from typing import Final

from amcast.kernel.errors import Unknown
from amcast.kernel.message import Message

OVERHEAD_BYTES: Final = 200
"""What a kept message costs besides its payload."""


class Missed(Unknown):
    """Deliveries that are kept nowhere any more: a reader came too late, or a replica took over a snapshot."""

    def __init__(self, what: str, position: int, first: int) -> None:
        super().__init__(
            f"{what}: deliveries {position} to {first - 1} are no longer kept; the oldest that is has position {first}"
        )
        self.position = position
        """What was asked for."""
        self.first = first
        """From where one can go on, with a gap."""


class Kept:
    """A run of positions without a gap, [first, next)."""

    __slots__ = ("_bytes", "_messages", "_most_bytes", "_waiting", "first", "next")

    def __init__(self, most_bytes: int) -> None:
        self.first = 0
        self.next = 0
        """The position of the next delivery."""
        self._most_bytes = most_bytes
        self._messages: deque[Message] = deque()
        self._bytes = 0
        self._waiting: list[asyncio.Future[None]] = []

    def add(self, position: int, message: Message) -> None:
        """One more delivery; a restarted process tells some again, which changes nothing."""
        if position != self.next:
            if position < self.next and self._messages:
                return
            self.jump(position)
        self._messages.append(message)
        self.next = position + 1
        self._bytes += len(message.payload) + OVERHEAD_BYTES
        while self._bytes > self._most_bytes:
            self._bytes -= len(self._messages.popleft().payload) + OVERHEAD_BYTES
            self.first += 1
        if self._waiting:
            self._wake()

    def extend(self, position: int, messages: Sequence[Message]) -> None:
        """Several at once."""
        if position != self.next or not messages:
            for place, message in enumerate(messages, position):
                self.add(place, message)
            return
        self._messages.extend(messages)
        self.next = position + len(messages)
        self._bytes += sum([len(message.payload) for message in messages]) + OVERHEAD_BYTES * len(messages)
        while self._bytes > self._most_bytes:
            self._bytes -= len(self._messages.popleft().payload) + OVERHEAD_BYTES
            self.first += 1
        if self._waiting:
            self._wake()

    def jump(self, position: int) -> None:
        """A snapshot took the place of what was delivered before this position."""
        if self.first <= position <= self.next:
            return
        self._messages.clear()
        self._bytes = 0
        self.first = self.next = position
        self._wake()

    def since(self, position: int, most_bytes: int) -> list[Message]:
        """What follows from a position on: at least one if there is any, and no more than so many bytes otherwise."""
        assert position >= self.first, f"position {position} is gone; the first kept is {self.first}"
        found: list[Message] = []
        size = 0
        for message in islice(self._messages, position - self.first, None):
            size += len(message.payload) + OVERHEAD_BYTES
            if found and size > most_bytes:
                break
            found.append(message)
        return found

    async def changed(self, timeout_s: float | None = None) -> bool:
        """Wait for something new; False if nothing came in time."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        try:
            async with asyncio.timeout(timeout_s):
                await future
        except TimeoutError:
            return False
        finally:
            if future in self._waiting:
                self._waiting.remove(future)
        return True

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)
