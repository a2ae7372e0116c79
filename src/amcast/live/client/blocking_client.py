"""The blocking client: a `Client` on an event loop in a thread of its own.

    with BlockingClient(lambda: connect("cluster.toml")) as client:
        receipt = client.multicast({"orders", "stock"}, b"...")

Any number of threads may multicast at the same time; their messages of one tick share batches.
"""

import asyncio
import threading
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType

from amcast.kernel.errors import UsageError
from amcast.kernel.ids import GroupId
from amcast.live.client.client import Client
from amcast.live.client.multicaster import Receipt
from amcast.live.client_batch import Delivery
from amcast.live.rpc.subscription import Subscription


class BlockingClient:
    """A client for programs without an event loop: connects on entry, disconnects on exit."""

    def __init__(self, connect: Callable[[], Client]) -> None:
        self._connect = connect
        self._loop: asyncio.AbstractEventLoop | None = None
        self._client: Client | None = None
        self._thread: threading.Thread | None = None

    def __enter__(self) -> "BlockingClient":
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="amcast client", daemon=True)
        self._thread.start()
        try:
            self._client = asyncio.run_coroutine_threadsafe(self._enter(), self._loop).result()
        except BaseException:
            self._stop_loop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._client is not None
        assert self._loop is not None
        asyncio.run_coroutine_threadsafe(self._client.__aexit__(None, None, None), self._loop).result()
        self._client = None
        self._stop_loop()

    def multicast(self, destinations: Iterable[GroupId | str], payload: bytes, timeout_s: float = 30.0) -> Receipt:
        """Orders one message; returns when it has its place in the order of every destination group."""
        client, loop = self._connected()
        request = client.multicast(frozenset(destinations), payload, timeout_s)
        return asyncio.run_coroutine_threadsafe(request, loop).result()

    def deliveries(
        self, group: GroupId | str, *, since: int | None = None, after: Delivery | None = None
    ) -> Iterator[Delivery]:
        """The deliveries of a group, as `Client.deliveries`; this call fixes the start, not the first `next`."""
        client, loop = self._connected()
        subscription = client.deliveries(group, since=since, after=after)
        asyncio.run_coroutine_threadsafe(subscription.__aenter__(), loop).result()
        return self._iterate(subscription)

    def _iterate(self, subscription: Subscription) -> Iterator[Delivery]:
        _, loop = self._connected()
        try:
            while True:
                yield asyncio.run_coroutine_threadsafe(subscription.__anext__(), loop).result()
        finally:
            if not loop.is_closed():
                loop.call_soon_threadsafe(subscription.close)

    def _connected(self) -> tuple[Client, asyncio.AbstractEventLoop]:
        if self._client is None or self._loop is None:
            raise UsageError("not connected; expected `with` around the use of a client")
        return self._client, self._loop

    async def _enter(self) -> Client:
        return await self._connect().__aenter__()

    def _stop_loop(self) -> None:
        assert self._loop is not None
        assert self._thread is not None
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
