"""Closed-loop traffic of several clients, and a play in stages while it flows: for benchmarks, demos, tests."""

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
    """Keeps so many messages of each client on their way until told to stop, and remembers how long each took."""

    def __init__(self, choose: Choose, payload: int, outstanding: int) -> None:
        self.done = 0
        self.begun = 0
        self.unanswered = 0
        self.latencies_ns: list[int] = []
        self.longest_gap_ns = 0
        """The longest time in which no receipt came at all."""
        self.stopping = False
        self._choose = choose
        self._payload = bytes(payload)
        self._outstanding = outstanding
        self._last_ns = 0

    async def run(self, clients: Sequence[Client]) -> None:
        """All clients, until `stopping`."""
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

    def _receipt(self, begin: int) -> None:
        now = time.perf_counter_ns()
        self.latencies_ns.append(now - begin)
        self.done += 1
        self.longest_gap_ns = max(self.longest_gap_ns, now - self._last_ns)
        self._last_ns = now


async def run_stages(
    clients: Sequence[Client], traffic: Traffic, stages: Sequence[tuple[float, Action]], settle: Action | None = None
) -> None:
    """Connect, let traffic flow, and do each stage's act after its seconds while it flows on; then let it run dry.

    `settle` returns when what the traffic left behind has been worked off.
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
