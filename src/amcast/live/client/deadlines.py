"""Deadlines of many futures with few timers.

A timer of the event loop for every multicast costs as much as the rest of the call. Nearly all calls of a program wait
equally long, though, so their deadlines pass in the order of the calls: one queue and one timer serve all of them.
"""

import asyncio
from collections import deque
from typing import Any, Final

MAX_QUEUES: Final = 16
"""Programs that wait differently long each time get a timer for each call."""

_Queue = deque[tuple[float, "asyncio.Future[Any]"]]


class Deadlines:
    """Fails futures with TimeoutError that are not done in time."""

    def __init__(self) -> None:
        self._queues: dict[float, _Queue] = {}
        """By timeout: deadlines in their order, and the futures, of which the first is not done."""
        self._timers: dict[float, asyncio.TimerHandle] = {}

    def add(self, future: "asyncio.Future[Any]", timeout_s: float) -> None:
        """Gives a future a deadline."""
        loop = future.get_loop()
        queue = self._queues.get(timeout_s)
        if queue is None:
            if len(self._queues) >= MAX_QUEUES:
                timer = loop.call_later(timeout_s, _fail, future)
                future.add_done_callback(lambda _: timer.cancel())
                return
            queue = self._queues[timeout_s] = deque()
            self._timers[timeout_s] = loop.call_later(timeout_s, self._expire, loop, timeout_s)
        while queue and queue[0][1].done():
            queue.popleft()
        queue.append((loop.time() + timeout_s, future))

    def close(self) -> None:
        """Forgets all deadlines."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        self._queues.clear()

    def _expire(self, loop: asyncio.AbstractEventLoop, timeout_s: float) -> None:
        queue, now = self._queues[timeout_s], loop.time()
        while queue and (queue[0][0] <= now or queue[0][1].done()):
            _fail(queue.popleft()[1])
        if queue:
            self._timers[timeout_s] = loop.call_at(queue[0][0], self._expire, loop, timeout_s)
        else:
            del self._queues[timeout_s], self._timers[timeout_s]


def _fail(future: "asyncio.Future[Any]") -> None:
    if not future.done():
        future.set_exception(TimeoutError())
