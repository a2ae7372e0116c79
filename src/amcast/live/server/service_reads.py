"""Reads of a service at one replica: the queue of reads (`services/reads.py`) with a clock and an event loop.

A read that needs a majority waits until the host has one, and until the application has what the majority knows of.
Every delivery, confirmation and closing lets reads go on.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Final

from amcast.live.server.replica_runtime import ReplicaRuntime
from amcast.services.executor import Executor
from amcast.services.messages import Query, ReadAnswer
from amcast.services.reads import UNREADABLE, PendingRead, ReadQueue

POLL_S: Final = 0.25
"""How often reads that wait are looked at, to refuse them in time."""


class ReplicaReads:
    """The reads of one replica."""

    def __init__(self, executor: Executor) -> None:
        self._queue = ReadQueue(executor)
        self._runtime: ReplicaRuntime | None = None
        self._reached = 0
        """The application has everything before this position."""
        self._answers: dict[PendingRead, Callable[[ReadAnswer], None]] = {}
        self._confirming: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._is_beginning = False
        self._closing: asyncio.Future[None] | None = None

    def start(self, runtime: ReplicaRuntime) -> None:
        """Begins to serve reads."""
        self._runtime = runtime

    def begin(self, query: Query, answer: Callable[[ReadAnswer], None]) -> Callable[[], None]:
        """Begins a read; `answer` is called when it is answered or refused. Returns what ends it before."""
        runtime = self._runtime
        if runtime is None or (query.consistency != "group" and not runtime.host.process.is_readable):
            answer(ReadAnswer(query.number, None, UNREADABLE))
            return lambda: None
        read = self._queue.add(query, time.monotonic_ns())
        self._answers[read] = answer
        if not self._is_beginning:
            self._is_beginning = True
            asyncio.get_running_loop().call_soon(self._begin_all)

        def end() -> None:
            self._answers.pop(read, None)
            self._queue.discard(read)

        return end

    def _begin_all(self) -> None:
        """Begins what came in one iteration of the event loop: one majority is asked for all of it."""
        self._is_beginning = False
        self.advance()
        unconfirmed = self._queue.take_unconfirmed()
        if unconfirmed and self._runtime is not None:
            task = asyncio.get_running_loop().create_task(self._confirm(self._runtime, unconfirmed))
            self._confirming.add(task)
            task.add_done_callback(self._confirming.discard)

    async def _confirm(self, runtime: ReplicaRuntime, reads: list[PendingRead]) -> None:
        begun_ns = time.monotonic_ns()
        position = await runtime.host.reads.begin()
        if runtime.wait_for_application is not None:
            await runtime.wait_for_application(position)
        self._reached = max(self._reached, position)
        self._queue.confirm(reads, begun_ns, position)
        self.advance()

    def reach(self, position: int) -> None:
        """The application has everything before a position."""
        self._reached = max(self._reached, position)
        if self._answers:
            self.advance()

    def advance(self) -> None:
        """Answers what can be answered."""
        runtime = self._runtime
        if runtime is None or not self._answers:
            return
        recent = runtime.recent
        for read in self._queue.advance(self._reached, recent.closed_until, time.monotonic_ns()):
            assert read.answer is not None
            self._answers.pop(read)(read.answer)
        open = [read.closing for read in self._answers if read.answer is not None]
        if open and self._closing is None:
            self._closing = recent.watch_closing(min(open))
            self._closing.add_done_callback(self._on_closed)
        if self._answers and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(POLL_S, self._on_timer)

    def _on_closed(self, future: "asyncio.Future[None]") -> None:
        self._closing = None
        if not future.cancelled():
            self.advance()

    def _on_timer(self) -> None:
        self._timer = None
        self.advance()

    async def close(self) -> None:
        """Ends all reads without an answer."""
        self._runtime = None
        self._answers.clear()
        for one in (self._timer, self._closing, *self._confirming):
            if one is not None:
                one.cancel()
        await asyncio.gather(*self._confirming, return_exceptions=True)
