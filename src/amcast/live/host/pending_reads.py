"""Reads of one process that wait for a majority of its group (`parts/node/read_index.py`)."""

import asyncio
from collections.abc import Callable

from amcast.kernel.events import Event, Read


class PendingReads:
    """Futures of positions. Reads that begin in one iteration of the event loop are one `Read` of the process."""

    def __init__(self, enqueue: Callable[[Event], None]) -> None:
        self._enqueue = enqueue
        self._number = 0
        self._next: list[asyncio.Future[int]] = []
        """Those that begin in this iteration."""
        self._begun: dict[int, list[asyncio.Future[int]]] = {}

    def begin(self) -> "asyncio.Future[int]":
        """A future of a position, before which is everything of the group that anybody was answered for before this
        call. It stays open while no majority answers; who gives up cancels it."""
        loop = asyncio.get_running_loop()
        if not self._next:
            loop.call_soon(self._begin_all)
        future: asyncio.Future[int] = loop.create_future()
        self._next.append(future)
        return future

    def _begin_all(self) -> None:
        self._number += 1
        self._begun[self._number], self._next = self._next, []
        self._enqueue(Read(self._number))

    def finish(self, number: int, position: int) -> None:
        """The reads of this number may be answered once everything before a position is executed."""
        for future in self._begun.pop(number, ()):
            if not future.done():
                future.set_result(position)
