"""Load generator: it does not exceed its rate, and counts late messages from their due time."""

import asyncio
import time
from collections.abc import Sequence
from itertools import pairwise
from random import Random
from typing import Any

from amcast.live.load.load_generator import LoadGenerator

BOTH = (0, 1)


class Cluster:
    """A client whose messages are answered after a fixed time."""

    def __init__(self, after_s: float = 0.0) -> None:
        self.posted: list[int] = []
        self._after_s = after_s

    async def __aenter__(self) -> "Cluster":
        return self

    async def __aexit__(self, *error: object) -> None:
        pass

    async def post(self, groups: tuple[int, ...], payload: bytes) -> "asyncio.Future[None]":
        assert groups == BOTH
        self.posted.append(time.perf_counter_ns())
        receipt: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_later(self._after_s, receipt.set_result, None)
        return receipt


def loaded(load: LoadGenerator, clients: list[Any], seconds: float) -> float:
    """The duration in seconds."""
    begin = time.perf_counter()
    asyncio.run(load.run(clients, [BOTH] * len(clients), 0.0, seconds, lambda: (0.0, 0.0)))
    return time.perf_counter() - begin


def test_paced_load_keeps_its_rate_and_sends_together() -> None:
    clients = [Cluster(), Cluster()]
    load = LoadGenerator(b"", 10, rate=1000)
    before = time.perf_counter_ns()
    took_s = loaded(load, clients, 0.2)
    assert load.done == sum(len(client.posted) for client in clients)
    for client in clients:
        assert len(client.posted) % 10 == 0
        assert 10 <= len(client.posted) <= 1000 * took_s + 10, "ten at once, a hundred times a second"
    assert clients[1].posted[0] - before >= 4_000_000, "connections take turns"


def test_paced_latency_counts_from_the_due_time() -> None:
    """An answer takes four intervals, so the n-th message is late by three times n intervals."""
    load = LoadGenerator(b"", 1, rate=100)
    loaded(load, [Cluster(after_s=0.04)], 0.5)
    assert len(load.latencies_ns) >= 3
    for number, latency_ns in enumerate(load.latencies_ns):
        assert latency_ns >= (39 + 29 * number) * 1_000_000, load.latencies_ns


def test_open_loop_does_not_wait_for_answers() -> None:
    clients = [Cluster(after_s=0.2), Cluster(after_s=0.2)]
    load = LoadGenerator(b"", 1, rate=500, arrivals="poisson", rng=Random(7))
    loaded(load, clients, 0.4)
    posted = [len(client.posted) for client in clients]
    assert load.done == sum(posted), "all are answered in the end"
    assert all(count > 20 for count in posted), "a closed loop would have sent three each"
    gaps = sorted(b - a for client in clients for a, b in pairwise(client.posted))
    assert gaps[-1] > 3 * gaps[len(gaps) // 2], "moments are random"


class Hasty(LoadGenerator):
    """Simulates an event loop whose timers end early."""

    async def _wait_or_fail(self, seconds: float, tasks: Sequence["asyncio.Task[None]"]) -> None:
        await super()._wait_or_fail(max(0.0, seconds - 0.002), tasks)


def test_short_remainder_is_not_a_window() -> None:
    """A very short window would distort CPU per message."""
    load = Hasty(b"", 1)
    loaded(load, [Cluster()], 1.2)
    assert sum(window.seconds for window in load.windows) >= 1.1
    assert all(window.seconds >= 0.2 for window in load.windows)
    short = Hasty(b"", 1)
    loaded(short, [Cluster()], 0.05)
    assert len(short.windows) == 1, "however short, something is counted"


def test_closed_loop_sends_when_answered() -> None:
    client = Cluster()
    load = LoadGenerator(b"", 3)
    loaded(load, [client], 0.05)
    assert load.done == len(client.posted) > 3
    assert sum(window.multicasts for window in load.windows) <= load.done
