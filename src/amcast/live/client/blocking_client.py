"""The blocking client: a `Client` on an event loop in a thread of its own.

    with BlockingClient(lambda: connect("cluster.toml")) as client:
        receipt = client.multicast({"orders", "stock"}, b"...")

Any number of threads may multicast at the same time; their messages of one tick share batches.
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterable
from types import TracebackType
from typing import Any, TypeVar

from amcast.kernel.errors import UsageError
from amcast.kernel.ids import GroupId
from amcast.live.client.client import Client
from amcast.live.client.multicaster import BatchReceipt, Destinations, Receipt, collect_destinations
from amcast.live.client_batch import Delivery
from amcast.live.rpc.subscription import Subscription

T = TypeVar("T")


class BlockingClient:
    """A client for programs without an event loop: inside `with`, or between `open` and `close`."""

    def __init__(self, connect: Callable[[], Client]) -> None:
        self._connect = connect
        self._loop: asyncio.AbstractEventLoop | None = None
        self._client: Client | None = None
        self._thread: threading.Thread | None = None

    def __enter__(self) -> "BlockingClient":
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def open(self) -> None:
        """Connects to the cluster."""
        if self._loop is not None:
            raise UsageError("the client is open; expected to close it before it is opened again")
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="amcast client", daemon=True)
        self._thread.start()
        try:
            self._client = asyncio.run_coroutine_threadsafe(self._open_client(), self._loop).result()
        except BaseException:
            self._stop_loop()
            raise

    def close(self) -> None:
        """Disconnects. Messages without a receipt fail as unknown; a client that is not open stays so."""
        if self._client is None or self._loop is None:
            return
        client, self._client = self._client, None
        asyncio.run_coroutine_threadsafe(client.close(), self._loop).result()
        self._stop_loop()

    def multicast(
        self,
        destinations: Destinations,
        payload: bytes,
        timeout_s: float = 30.0,
        *,
        positions: bool = False,
        key: str | None = None,
    ) -> Receipt:
        """Orders one message at one group or several, as `Client.multicast`."""
        client, loop = self._connected()
        request = client.multicast(collect_destinations(destinations), payload, timeout_s, positions=positions, key=key)
        return asyncio.run_coroutine_threadsafe(request, loop).result()

    def multicast_many(
        self, destinations: Destinations, payloads: Iterable[bytes], timeout_s: float = 30.0
    ) -> BatchReceipt:
        """Orders a list of payloads with one receipt, as `Client.multicast_many`."""
        client, loop = self._connected()
        request = client.multicast_many(collect_destinations(destinations), payloads, timeout_s)
        return asyncio.run_coroutine_threadsafe(request, loop).result()

    def deliveries(
        self,
        group: GroupId | str,
        *,
        since: int | None = None,
        after: Delivery | None = None,
        only_closed: bool = False,
        name: str | None = None,
    ) -> "BlockingSubscription":
        """The deliveries of a group, as `Client.deliveries`; this call fixes the start, not the first `next`."""
        client, loop = self._connected()
        subscription = client.deliveries(group, since=since, after=after, only_closed=only_closed, name=name)
        asyncio.run_coroutine_threadsafe(subscription.open(), loop).result()
        return BlockingSubscription(subscription, loop)

    def _connected(self) -> tuple[Client, asyncio.AbstractEventLoop]:
        if self._client is None or self._loop is None:
            raise UsageError("not connected; expected `with` or `open` before the use of a client")
        return self._client, self._loop

    async def _open_client(self) -> Client:
        client = self._connect()
        await client.open()
        return client

    def _stop_loop(self) -> None:
        loop, self._loop = self._loop, None
        assert loop is not None
        assert self._thread is not None
        loop.call_soon_threadsafe(loop.stop)
        self._thread.join()
        loop.close()


class BlockingSubscription:
    """An iterator over one group's deliveries, for programs without an event loop."""

    def __init__(self, subscription: Subscription, loop: asyncio.AbstractEventLoop) -> None:
        self._subscription = subscription
        self._loop = loop

    @property
    def closed_until(self) -> int | None:
        """Every delivery of the group before this position is closed, as `Subscription.closed_until`."""
        return self._subscription.closed_until

    def __iter__(self) -> "BlockingSubscription":
        return self

    def __next__(self) -> Delivery:
        return self._run(self._subscription.__anext__())

    def read(self, timeout_s: float | None = None) -> Delivery | None:
        """Reads the next delivery; None if none came in time."""
        return self._run(self._subscription.read(timeout_s))

    def acknowledge(self, delivery: Delivery) -> None:
        """Records that a delivery was handled, as `Subscription.acknowledge`."""
        self._run(self._subscription.acknowledge(delivery))

    def __enter__(self) -> "BlockingSubscription":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connection; iterating again continues where it stopped."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._subscription.close)

    def _run(self, reading: Coroutine[Any, Any, T]) -> T:
        if self._loop.is_closed():
            reading.close()
            raise UsageError("the client of this subscription is closed; expected an open one")
        return asyncio.run_coroutine_threadsafe(reading, self._loop).result()
