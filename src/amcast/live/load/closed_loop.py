"""Closed-loop traffic of several clients, with actions at given times: for benchmarks, demos and tests."""

import asyncio
import time
from collections.abc import Callable, Sequence

from amcast.kernel.errors import CannotTellError
from amcast.kernel.ids import GroupId
from amcast.live.client.client import Client

Choose = Callable[[int], Sequence[GroupId]]
"""The destinations of the n-th message."""
Action = Callable[[], None]

ANSWER_S = 60.0


class Traffic:
    """Keeps a number of messages of each client unanswered until it is stopped, and records their latencies."""

    def __init__(self, choose: Choose, payload: int, outstanding: int, think_s: float = 0.0) -> None:
        self.done = 0
        self.begun = 0
        self.unanswered = 0
        self.latencies_ns: list[int] = []
        self.longest_gap_ns = 0
        """The longest time without any receipt."""
        self.stopping = False
        self._choose = choose
        self._payload = bytes(payload)
        self._outstanding = outstanding
        self._think_s = think_s
        """How long a slot waits between a receipt and its next message."""
        self._last_ns = 0

    async def run(self, clients: Sequence[Client]) -> None:
        """Runs all clients until `stopping` is set."""
        self._last_ns = time.perf_counter_ns()
        slots = [self._slot(client) for client in clients for _ in range(self._outstanding)]
        await asyncio.gather(*slots)

    async def _slot(self, client: Client) -> None:
        while not self.stopping:
            number = self.begun
            self.begun += 1
            begin = time.perf_counter_ns()
            try:
                async with asyncio.timeout(ANSWER_S):
                    await (await client.post(self._choose(number), self._payload))
            except (TimeoutError, CannotTellError):
                self.unanswered += 1
                continue
            self._receipt(begin)
            if self._think_s:
                await asyncio.sleep(self._think_s)

    def _receipt(self, begin: int) -> None:
        now = time.perf_counter_ns()
        self.latencies_ns.append(now - begin)
        self.done += 1
        self.longest_gap_ns = max(self.longest_gap_ns, now - self._last_ns)
        self._last_ns = now


async def run_stages(
    clients: Sequence[Client], traffic: Traffic, stages: Sequence[tuple[float, Action]], settle: Action | None = None
) -> None:
    """Connects, runs traffic, and performs each stage's action after its seconds while it continues; then waits for it.

    `settle` returns when the cluster has processed everything that the traffic left.
    """
    for client in clients:
        await client.__aenter__()
    flowing = asyncio.create_task(traffic.run(clients))
    try:
        for seconds, act in stages:
            await asyncio.sleep(seconds)
            await asyncio.to_thread(act)
    finally:
        traffic.stopping = True
        await flowing
        if settle is not None:
            await asyncio.to_thread(settle)
        for client in clients:
            await client.__aexit__(None, None, None)
