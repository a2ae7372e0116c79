"""Futures fail at their deadlines, and only those that are not done."""

import asyncio

import pytest

from amcast.live.client.deadlines import MAX_QUEUES, Deadlines
from tests.live.cluster import run


def test_only_futures_that_are_not_done_fail_each_after_its_own_time() -> None:
    async def main() -> None:
        loop, deadlines = asyncio.get_running_loop(), Deadlines()
        begin = loop.time()
        # More lengths of time than queues: the last ones have timers of their own.
        late: list[asyncio.Future[int]] = []
        for number in range(2 * MAX_QUEUES):
            for _ in range(2):
                late.append(loop.create_future())
                deadlines.add(late[-1], 0.01 + number / 1000)
        good: asyncio.Future[int] = loop.create_future()
        deadlines.add(good, 0.01)
        good.set_result(1)
        for number, future in enumerate(late):
            with pytest.raises(TimeoutError):
                await future
            # Clocks of event loops count milliseconds.
            assert loop.time() - begin >= 0.008 + number // 2 / 1000
        assert await good == 1
        assert not deadlines._queues

    run(main())


def test_done_futures_are_not_kept() -> None:
    async def main() -> None:
        loop, deadlines = asyncio.get_running_loop(), Deadlines()
        for _ in range(1000):
            future: asyncio.Future[int] = loop.create_future()
            deadlines.add(future, 30.0)
            future.set_result(1)
        assert len(deadlines._queues[30.0]) == 1
        deadlines.close()
        assert not deadlines._queues

    run(main())


def test_cancelled_and_forgotten_futures_do_not_fail() -> None:
    async def main() -> None:
        loop, deadlines = asyncio.get_running_loop(), Deadlines()
        cancelled: asyncio.Future[int] = loop.create_future()
        forgotten: asyncio.Future[int] = loop.create_future()
        deadlines.add(cancelled, 0.01)
        cancelled.cancel()
        await asyncio.sleep(0.03)
        assert cancelled.cancelled()
        deadlines.add(forgotten, 0.01)
        deadlines.close()
        await asyncio.sleep(0.03)
        assert not forgotten.done()

    run(main())
