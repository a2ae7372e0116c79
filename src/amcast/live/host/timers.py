"""The timers of a host: those that run, and those that expired and that the process has not handled yet."""

import asyncio
import random
from collections import deque
from collections.abc import Callable

from amcast.kernel.effects import CancelTimer, SetTimer


class Timers:
    """Timers by name; setting a name again replaces it."""

    __slots__ = ("_rng", "_running", "_wake", "expired")

    def __init__(self, rng: random.Random, wake: Callable[[], None]) -> None:
        self._rng = rng
        self._wake = wake
        self._running: dict[str, asyncio.TimerHandle] = {}
        self.expired: deque[str] = deque()
        """Expired timers; each step of the process handles one."""

    def set(self, effect: SetTimer) -> None:
        """Starts a timer with a random delay from its interval."""
        self._cancel(effect.name)
        delay_ns = self._rng.randint(effect.low_ns, effect.high_ns)
        loop = asyncio.get_running_loop()
        self._running[effect.name] = loop.call_later(delay_ns / 1e9, self._expire, effect.name)

    def cancel(self, effect: CancelTimer) -> None:
        """Cancels a timer, also an expired one that was not handled."""
        self._cancel(effect.name)

    def hasten(self, name: str) -> None:
        """Lets a running timer expire now."""
        timer = self._running.get(name)
        if timer is not None:
            timer.cancel()
            self._expire(name)

    def stop(self) -> None:
        """Cancels all running timers."""
        for timer in self._running.values():
            timer.cancel()

    def _cancel(self, name: str) -> None:
        timer = self._running.pop(name, None)
        if timer is not None:
            timer.cancel()
        elif name in self.expired:
            self.expired.remove(name)

    def _expire(self, name: str) -> None:
        del self._running[name]
        self.expired.append(name)
        self._wake()
