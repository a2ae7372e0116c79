"""The last deliveries of a replica, by position, for whoever reads them later: subscribers and slow applications.

All members of a group deliver the same messages at the same positions, so a reader that knows its position can go on
at any of them. What is kept is bounded in bytes and shared by all readers: a slow reader costs nothing and holds nobody
up; it finds, when it comes back too late, that its position is gone, and is told so.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from amcast.kernel.errors import CannotTellError
from amcast.kernel.message import Message

OVERHEAD_BYTES: Final = 200
"""What a kept message, or bundle, costs besides its payload."""
LARGE_SHARE: Final = 16
"""A bundle larger than this share of all that is kept goes message by message."""


class MissedDeliveriesError(CannotTellError):
    """Deliveries that are kept nowhere any more: a reader came too late, or a replica took over a snapshot."""

    def __init__(self, what: str, position: int, first: int) -> None:
        super().__init__(
            f"{what}: deliveries {position} to {first - 1} are no longer kept; the oldest that is has position {first}"
        )
        self.position = position
        """What was asked for."""
        self.first = first
        """From where one can go on, with a gap."""


class RecentDeliveries:
    """A run of positions without a gap, [first, next)."""

    __slots__ = ("_bytes", "_most_bytes", "_opens", "_runs", "_waiting", "first", "next", "subscribers")

    def __init__(self, most_bytes: int, opens: Callable[[Message], Sequence[Message]] | None = None) -> None:
        """`opens` tells what a bundle holds; without it, everything is kept message by message."""
        self.first = 0
        self.next = 0
        """The position of the next delivery."""
        self.subscribers = 0
        """Subscriptions that are served from here now."""
        self._most_bytes = most_bytes
        self._opens = opens
        self._runs: deque[tuple[Message | None, Sequence[Message], int, int]] = deque()
        """What was delivered at once: the bundle that holds it, or else the messages; how many; and what it costs. A
        bundle is a single piece of memory, opened anew by who reads it."""
        self._bytes = 0
        self._waiting: list[asyncio.Future[None]] = []

    def add(self, position: int, message: Message) -> None:
        """One more delivery; a restarted process tells some again, which changes nothing."""
        if position != self.next:
            if position < self.next and self._runs:
                return
            self.jump(position)
        self._append(None, (message,), 1, len(message.payload) + OVERHEAD_BYTES)

    def hold(self, position: int, bundle: Message, count: int) -> bool:
        """All that a bundle holds, at once. False if it must be told message by message."""
        size = len(bundle.payload) + OVERHEAD_BYTES
        if self._opens is None or not count or position != self.next or size > self._most_bytes // LARGE_SHARE:
            return False
        self._append(bundle, (), count, size)
        return True

    def extend(self, position: int, messages: Sequence[Message]) -> None:
        """Several, one after the other."""
        for place, message in enumerate(messages, position):
            self.add(place, message)

    def _append(self, bundle: Message | None, messages: Sequence[Message], count: int, size: int) -> None:
        self._runs.append((bundle, messages, count, size))
        self.next += count
        self._bytes += size
        while self._bytes > self._most_bytes:
            _, _, count, size = self._runs.popleft()
            self._bytes -= size
            self.first += count
        if self._waiting:
            self._wake()

    def jump(self, position: int) -> None:
        """A snapshot took the place of what was delivered before this position."""
        if self.first <= position <= self.next:
            return
        self._runs.clear()
        self._bytes = 0
        self.first = self.next = position
        self._wake()

    def since(self, position: int, most_bytes: int) -> list[Message]:
        """What follows from a position on: at least one if there is any, and no more than so many bytes otherwise."""
        assert position >= self.first, f"position {position} is gone; the first kept is {self.first}"
        found: list[Message] = []
        size = 0
        for bundle, messages, begin, end in self._runs_from(position):
            run = messages if bundle is None or self._opens is None else self._opens(bundle)
            assert len(run) == end - begin, f"bundle at {begin}: {len(run)} messages, and {end - begin} were delivered"
            for message in run[max(0, position - begin) :]:
                size += len(message.payload) + OVERHEAD_BYTES
                if found and size > most_bytes:
                    return found
                found.append(message)
        return found

    def _runs_from(self, position: int) -> Iterator[tuple[Message | None, Sequence[Message], int, int]]:
        """The runs at and after a position, each with where it begins and ends; found from the nearer end."""
        if position - self.first <= self.next - position:
            end = self.first
            for bundle, messages, count, _ in self._runs:
                begin, end = end, end + count
                if end > position:
                    yield bundle, messages, begin, end
            return
        last: list[tuple[Message | None, Sequence[Message], int, int]] = []
        begin = self.next
        for bundle, messages, count, _ in reversed(self._runs):
            if begin <= position:
                break
            end, begin = begin, begin - count
            last.append((bundle, messages, begin, end))
        yield from reversed(last)

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
