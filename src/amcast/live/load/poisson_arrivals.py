"""Moments of an open loop: messages arrive as a Poisson process, whatever was answered.

Timers of event loops are exact to a millisecond, which is longer than many answers take. A thread therefore sleeps
until the next arrival, and hands all arrivals that are due to the event loop at once.
"""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable
from random import Random
from typing import Final

MIN_SLEEP_NS: Final = 50_000
"""A shorter sleep is not worth its system call: the arrival is late by so much at most, and counts from its moment."""


class PoissonArrivals:
    """Calls a function in its creator's event loop for each arrival, with the moment when it was due and a place."""

    def __init__(self, rate: float, places: int, rng: Random, arrive: Callable[[int, int], None]) -> None:
        """`rate` is that of all places together, per second; each arrival draws its place."""
        self._rate = rate
        self._places = places
        self._rng = rng
        self._arrive = arrive
        self._loop = asyncio.get_running_loop()
        self._due: deque[tuple[int, int]] = deque()
        self._is_stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="arrivals", daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread, and calls the function for arrivals that it has not been called for."""
        self._is_stopped.set()
        self._thread.join()
        self._take()

    def _run(self) -> None:
        clock, draw, pick = time.perf_counter_ns, self._rng.expovariate, self._rng.randrange
        due = float(clock())
        while not self._is_stopped.is_set():
            due += 1e9 * draw(self._rate)
            left_ns = int(due) - clock()
            if left_ns > MIN_SLEEP_NS:
                self._hand_over()
                self._is_stopped.wait(left_ns / 1e9)
            self._due.append((int(due), pick(self._places)))

    def _hand_over(self) -> None:
        if self._due and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._take)

    def _take(self) -> None:
        while self._due:
            self._arrive(*self._due.popleft())
