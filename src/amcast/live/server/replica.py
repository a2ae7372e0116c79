"""A replica inside a program of one's own: the program is part of the cluster, and reads deliveries without a network.

    async with Replica("cluster.toml", "orders/1", on_delivery, take=shop.to_bytes, install=shop.from_bytes) as replica:
        await replica.multicast({"orders", "stock"}, b"...")

`on_delivery` is called with every delivery, in order, each once. With `take` and `install` the program misses no state,
whatever its replica went through (`live/server/application.py`). Without `on_delivery`, iterate over
`replica.deliveries()`.
"""

import asyncio
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
from amcast.live.membership import data_folder as owning
from amcast.live.membership.topology_follower import load_known_members
from amcast.live.server import node
from amcast.live.server.application import Application, Install, Journal, Take
from amcast.live.server.leaving import drain_and_stop
from amcast.live.server.replica_runtime import ReplicaRuntime

CHUNK_BYTES: Final = 128 * KIB
LOOK_S: Final = 0.5
"""How often a reader to whom nothing comes looks whether its replica still runs."""


class ReplicaBase:
    """Runs while entered; `amcast.Replica` knows the cluster's protocol."""

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
        handed: int = 0,
    ) -> None:
        owning.verify_owner(cluster, cluster.process_of(name))
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
        self._handed = handed
        self._runtime: ReplicaRuntime | None = None
        self._stack = AsyncExitStack()
        self._client: Client | None = None
        self._connecting = asyncio.Lock()
        self._going: asyncio.Task[None] | None = None

    async def __aenter__(self) -> "ReplicaBase":
        cluster = self._cluster
        application = self._application()
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
        if self._going is not None:
            await self._going
        await self._stack.aclose()
        if error is None and runtime is not None:
            self._complain(runtime.host)

    def _application(self) -> Application:
        journal = None
        if self._install is not None and self._cluster.durability != "memory":
            journal = Journal(self._cluster.data_folder(self.me) / "application", self._cluster.durability)
        return Application(
            self._on_delivery,
            take=self._take,
            install=self._install,
            on_missed=self._on_missed,
            handed=self._handed,
            journal=journal,
        )

    def _retire(self) -> None:
        """The node was removed from its group: it goes, the program stays."""

        async def go(runtime: ReplicaRuntime) -> None:
            await drain_and_stop(runtime.host)
            await runtime.stop()

        self._going = asyncio.get_running_loop().create_task(go(self.runtime))

    def _complain(self, host: Host) -> None:
        """A replica that stopped by itself is no secret."""
        if host.ended.done() and (reason := host.ended.exception()) is not None:
            raise CannotTellError(f"replica {self.name} has stopped: {reason}") from reason

    @property
    def runtime(self) -> ReplicaRuntime:
        """The running replica."""
        if self._runtime is None:
            raise UsageError(f"replica {self.name} does not run; expected `async with` around its use")
        return self._runtime

    @property
    def host(self) -> Host:
        """The host of the replica's process."""
        return self.runtime.host

    @property
    def position(self) -> int:
        """Of the next delivery here."""
        return self.runtime.recent.next

    async def caught_up(self) -> None:
        """Wait until this replica has delivered what its group had delivered when it started."""
        await self.runtime.caught_up.wait()

    async def multicast(
        self, destinations: Iterable[GroupId | str], payload: bytes, timeout_s: float = 30.0
    ) -> Receipt:
        """As a client of the cluster that this replica is part of; it connects at the first use."""
        async with self._connecting:
            if self._client is None:
                self._client = await self._stack.enter_async_context(self._connect())
        return await self._client.multicast(destinations, payload, timeout_s)

    async def deliveries(self, since: int | None = None) -> AsyncIterator[Delivery]:
        """What is delivered here, from a position on that is still kept; from now on if none is given.

        Raises `Missed` when the reader is so slow that what comes next is gone, or a snapshot took its place; `Unknown`
        when the replica has stopped. Ends when the replica was removed from its group.
        """
        kept = self.runtime.recent
        position = kept.next if since is None else since
        while True:
            if position < kept.first:
                raise MissedDeliveriesError(f"replica {self.name}", position, kept.first)
            messages = kept.read_from(position, CHUNK_BYTES)
            for place, message in enumerate(messages, position):
                for delivery in message_deliveries(message, place):
                    yield delivery
            position += len(messages)
            if not messages and not await kept.wait_for_delivery(LOOK_S):
                self._complain(self.host)
                if self.host.retired_ns is not None:
                    return
