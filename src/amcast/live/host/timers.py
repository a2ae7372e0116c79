"""The timers of a host: those that run, and those that ran out and that the process has not heard of."""

import asyncio
import random
from collections import deque
from collections.abc import Callable

from amcast.kernel.effects import SetTimer


class Timers:
    """By name; setting a name again replaces it."""

    __slots__ = ("_chance", "_running", "_wake", "due")

    def __init__(self, chance: random.Random, wake: Callable[[], None]) -> None:
        self._chance = chance
        self._wake = wake
        self._running: dict[str, asyncio.TimerHandle] = {}
        self.due: deque[str] = deque()
        """They ran out; the process is told one at a time."""

    def set(self, effect: SetTimer) -> None:
        self.cancel(effect.name)
        delay_ns = self._chance.randint(effect.low_ns, effect.high_ns)
        loop = asyncio.get_running_loop()
        self._running[effect.name] = loop.call_later(delay_ns / 1e9, self._ran_out, effect.name)

    def cancel(self, name: str) -> None:
        """Forget a timer, also one that ran out and was not told."""
        timer = self._running.pop(name, None)
        if timer is not None:
            timer.cancel()
        elif name in self.due:
            self.due.remove(name)

    def stop(self) -> None:
        for timer in self._running.values():
            timer.cancel()

    def _ran_out(self, name: str) -> None:
        del self._running[name]
        self.due.append(name)
        self._wake()
