"""A replica inside a user's program: the program is part of the cluster, and receives deliveries without a network.

    async with run_replica("cluster.toml", "orders/1", on_delivery, take=shop.dump, install=shop.load) as replica:
        await replica.multicast({"orders", "stock"}, b"...")

`on_delivery` is called with every delivery, in order, each once. With `take` and `install` the application's state
survives whatever happens to its replica (`live/server/application.py`). Without `on_delivery`, iterate over
`replica.deliveries()`.
"""

import asyncio
import signal
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Final

from amcast.kernel.errors import CannotTellError, UsageError
from amcast.kernel.ids import GroupId
from amcast.kernel.spec import Spec
from amcast.live.client.client import Client
from amcast.live.client.multicaster import Receipt
from amcast.live.client_batch import Delivery, message_deliveries
from amcast.live.config.cluster import Cluster
from amcast.live.host.host import Host
from amcast.live.host.recent_deliveries import MissedDeliveriesError
from amcast.live.limits import KIB
from amcast.live.membership import data_folder
from amcast.live.membership.topology_follower import load_known_members
from amcast.live.server import node
from amcast.live.server.application import Application, Install, Journal, Take
from amcast.live.server.node import drain_and_stop
from amcast.live.server.replica_runtime import ReplicaRuntime

CHUNK_BYTES: Final = 128 * KIB
POLL_S: Final = 0.5
"""How often an idle reader checks that its replica still runs."""


class Replica:
    """A running replica; `amcast.run_replica` makes one. It runs while the `async with` block does."""

    def __init__(
        self,
        cluster: Cluster,
        name: str,
        spec: Spec,
        connect: Callable[[], Client],
        on_delivery: Callable[[Delivery], None] | None = None,
        *,
        take: Take | None = None,
        install: Install | None = None,
        on_missed: Callable[[int, int], None] | None = None,
        delivered_until: int = 0,
    ) -> None:
        data_folder.verify_owner(cluster, cluster.process_of(name))
        cluster = load_known_members(cluster, name)
        self.me = cluster.process_of(name)
        self.name = name
        self._cluster = cluster
        self._spec = spec
        self._connect = connect
        self._on_delivery = on_delivery
        self._take = take
        self._install = install
        self._on_missed = on_missed
        self._delivered_until = delivered_until
        self._runtime: ReplicaRuntime | None = None
        self._stack = AsyncExitStack()
        self._client: Client | None = None
        self._connecting = asyncio.Lock()
        self._leaving: asyncio.Task[None] | None = None

    async def __aenter__(self) -> "Replica":
        cluster = self._cluster
        application = self._make_application()
        self._stack.push_async_callback(application.close)
        try:
            runtime, recorder = node.build_replica(cluster, self.me, self._spec, application, on_retired=self._retire)
            if recorder is not None:
                self._stack.callback(recorder.close)
            self._stack.push_async_callback(runtime.stop)
            await runtime.listen(cluster.listen_addresses[self.me])
            runtime.start(cluster.addresses)
        except BaseException:
            await self._stack.aclose()
            raise
        self._runtime = runtime
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        runtime, self._runtime, self._client = self._runtime, None, None
        if self._leaving is not None:
            await self._leaving
        await self._stack.aclose()
        if error is None and runtime is not None:
            self._raise_failure(runtime.host)

    def _make_application(self) -> Application:
        journal = None
        if self._install is not None and self._cluster.durability != "memory":
            journal = Journal(self._cluster.data_folder(self.me) / "application", self._cluster.durability)
        return Application(
            self._on_delivery,
            take=self._take,
            install=self._install,
            on_missed=self._on_missed,
            delivered_until=self._delivered_until,
            journal=journal,
        )

    def _retire(self) -> None:
        """Stops the replica after its removal from its group; the program continues."""

        async def leave(runtime: ReplicaRuntime) -> None:
            await drain_and_stop(runtime.host)
            await runtime.stop()

        self._leaving = asyncio.get_running_loop().create_task(leave(self.runtime))

    def _raise_failure(self, host: Host) -> None:
        """Raises the failure that stopped the replica, if there was one."""
        if host.ended.done() and (reason := host.ended.exception()) is not None:
            raise CannotTellError(f"replica {self.name} has stopped: {reason}") from reason

    @property
    def runtime(self) -> ReplicaRuntime:
        """The running replica."""
        if self._runtime is None:
            raise UsageError(f"replica {self.name} is not running; expected `async with` around its use")
        return self._runtime

    @property
    def host(self) -> Host:
        """The host of the replica's process."""
        return self.runtime.host

    @property
    def position(self) -> int:
        """The position of the next delivery at this replica."""
        return self.runtime.recent.next

    async def caught_up(self) -> None:
        """Waits until this replica has delivered everything that its group had delivered when it started."""
        await self.runtime.caught_up.wait()

    async def multicast(
        self, destinations: Iterable[GroupId | str], payload: bytes, timeout_s: float = 30.0
    ) -> Receipt:
        """Multicasts as a client of the cluster; connects at the first use."""
        async with self._connecting:
            if self._client is None:
                self._client = await self._stack.enter_async_context(self._connect())
        return await self._client.multicast(destinations, payload, timeout_s)

    async def deliveries(self, since: int | None = None) -> AsyncIterator[Delivery]:
        """The deliveries of this replica, from a position that is still held; by default from the current one.

        Raises `MissedDeliveriesError` when the reader is so slow that the next position is no longer held, or a
        snapshot replaced it; `CannotTellError` when the replica has stopped. Ends when the replica was removed from its
        group.
        """
        recent = self.runtime.recent
        position = recent.next if since is None else since
        while True:
            if position < recent.first:
                raise MissedDeliveriesError(f"replica {self.name}", position, recent.first)
            messages = recent.read_from(position, CHUNK_BYTES)
            for place, message in enumerate(messages, position):
                for delivery in message_deliveries(message, place):
                    yield delivery
            position += len(messages)
            if not messages and not await recent.wait_for_delivery(POLL_S):
                self._raise_failure(self.host)
                if self.host.retired_ns is not None:
                    return


async def run_until_stopped(replica: Replica) -> None:
    """Runs a replica as the only task of an operating-system process, until SIGTERM or until it fails. Prints `ready`
    as a node does."""
    stop_requested = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop_requested.set)
    async with replica:
        replica.host.ended.add_done_callback(lambda _: stop_requested.set())
        print(node.READY, flush=True)
        await stop_requested.wait()
