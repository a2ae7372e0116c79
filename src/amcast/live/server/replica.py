"""A replica inside a user's program: the program is part of the cluster, and receives deliveries without a network.

    async with run_replica("cluster.toml", "orders/1", on_delivery, take=shop.dump, install=shop.load) as replica:
        await replica.multicast({"orders", "stock"}, b"...")

`on_delivery` is called with every delivery, in order, each once. An exception that it raises stops the replica: the
block is cancelled and ends with `CannotTellError`, and `failed` is done for programs that use `open` and `close`. With
`take` and `install` the application's state survives whatever happens to its replica (`live/server/application.py`).
Without `on_delivery`, iterate over `replica.deliveries()`.
"""

import asyncio
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Final

from amcast.kernel.errors import CannotTellError, UsageError
from amcast.kernel.message import Message
from amcast.kernel.spec import Spec
from amcast.live.client.client import Client
from amcast.live.client.multicaster import Destinations, Receipt
from amcast.live.client_batch import Delivery, message_deliveries
from amcast.live.config.cluster import Cluster
from amcast.live.errors import DivergedError
from amcast.live.host.host import Host
from amcast.live.host.recent_deliveries import ACYCLIC, MissedDeliveriesError, NotClosedError
from amcast.live.limits import KIB
from amcast.live.membership import data_folder
from amcast.live.membership.topology_follower import load_known_members
from amcast.live.rpc.subscription import check_closing
from amcast.live.server import node
from amcast.live.server.application import Application, Take
from amcast.live.server.journal import Install, Journal
from amcast.live.server.node import drain_and_stop
from amcast.live.server.replica_runtime import ReplicaRuntime
from amcast.live.server.service_host import ServiceHost
from amcast.live.server.state_schedule import StateSchedule

CHUNK_BYTES: Final = 128 * KIB
POLL_S: Final = 0.5
"""How often an idle reader checks that its replica still runs."""


class Replica:
    """A replica; `amcast.run_replica` makes one. It runs inside `async with`, or between `open` and `close`."""

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
        compare_every: int = 0,
        only_closed: bool = False,
        on_closed: Callable[[int], None] | None = None,
        schedule: StateSchedule | None = None,
        make_service: Callable[[], ServiceHost] | None = None,
    ) -> None:
        """`make_service` makes the service of each incarnation, in the place of functions of an application."""
        check_closing(only_closed or on_closed is not None, cluster.order == "real-time")
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
        self._compare_every = compare_every
        self._only_closed = only_closed
        self._on_closed = on_closed
        self._application: Application | None = None
        self._schedule = schedule
        self._make_service = make_service
        self.service: ServiceHost | None = None
        """The service that the replica executes, if it does."""
        self._runtime: ReplicaRuntime | None = None
        self._stack = AsyncExitStack()
        self._client: Client | None = None
        self._connecting = asyncio.Lock()
        self._leaving: asyncio.Task[None] | None = None
        self._body: asyncio.Task[object] | None = None
        """The task inside the `async with` block."""
        self._cancellations = 0
        """How often the task was to be cancelled when it entered the block."""
        self._is_cancelled = False
        """The block was cancelled because the replica failed."""
        self._failed: asyncio.Future[Exception] | None = None

    async def __aenter__(self) -> "Replica":
        await self.open()
        self._body = asyncio.current_task()
        self._cancellations = 0 if self._body is None else self._body.cancelling()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        body, self._body = self._body, None
        if self._runtime is None:
            return  # it was closed inside the block
        host = self._runtime.host
        closing = asyncio.get_running_loop().create_task(self.close())
        try:
            await asyncio.shield(closing)
        except asyncio.CancelledError:
            await closing
            if not self._is_cancelled:
                raise
        if self._is_cancelled and body is not None and body.uncancel() <= self._cancellations:
            error = None if kind is asyncio.CancelledError else error
        if error is None:
            self._raise_failure(host)

    async def open(self) -> None:
        """Starts the replica."""
        if self._runtime is not None:
            raise UsageError(f"replica {self.name} is running; expected to close it before it is opened again")
        cluster = self._cluster
        self._failed = asyncio.get_running_loop().create_future()
        if self._make_service is not None:
            self.service = self._make_service()
        application = self._application = self._make_application()
        self._stack.push_async_callback(application.close)
        try:
            runtime, recorder = node.build_replica(
                cluster,
                self.me,
                self._spec,
                application,
                on_retired=self._retire,
                on_diverged=self._fail_diverged,
                service=self.service,
            )
            if recorder is not None:
                self._stack.callback(recorder.close)
            self._stack.push_async_callback(runtime.stop)
            await runtime.listen(cluster.listen_addresses[self.me])
            runtime.start(cluster.addresses)
            if self.service is not None:
                self.service.start(runtime)
                self._stack.push_async_callback(self.service.close)
        except BaseException:
            await self._stack.aclose()
            raise
        self._runtime = runtime
        runtime.host.ended.add_done_callback(self._on_ended)

    async def close(self) -> None:
        """Stops the replica; one that does not run stays so."""
        self._runtime, self._client = None, None
        if self._leaving is not None:
            await self._leaving
        await self._stack.aclose()

    def _on_ended(self, ended: "asyncio.Future[None]") -> None:
        """Ends the block of a replica that has stopped by itself: its application's state is no longer that of its
        group."""
        error = ended.exception()
        if not isinstance(error, Exception):
            return
        assert self._failed is not None
        if not self._failed.done():
            self._failed.set_result(error)
        if self._body is not None:
            self._is_cancelled = self._body.cancel()

    def _make_application(self) -> Application:
        if self.service is not None:
            return node.make_service_application(self._cluster, self.me, self.service)
        journal = None
        if self._install is not None and self._take is not None:
            journal = Journal(self._cluster.data_folder(self.me) / "application", self._cluster.durability)
        return Application(
            self._on_delivery,
            self._cluster.topology,
            take=self._take,
            install=self._install,
            on_missed=self._on_missed,
            delivered_until=self._delivered_until,
            compare_every=self._compare_every,
            only_closed=self._only_closed,
            on_closed=self._on_closed,
            closing=node.find_closing(self._cluster, self._spec),
            journal=journal,
            schedule=self._schedule,
        )

    def _retire(self) -> None:
        """Stops the replica after its removal from its group; the program continues."""

        async def leave(runtime: ReplicaRuntime) -> None:
            await drain_and_stop(runtime.host)
            await runtime.stop()

        self._leaving = asyncio.get_running_loop().create_task(leave(self.runtime))

    def _fail_diverged(self, divergence: str) -> None:
        """Ends a replica that a majority of its group contradicts: its application's state must not be used."""
        advice = "; ".join(self.runtime.status.advice())
        self.host.fail(DivergedError(f"it has diverged from its group: {divergence}; {advice}"))

    def _raise_failure(self, host: Host) -> None:
        """Raises the failure that stopped the replica, if there was one."""
        if host.ended.done() and (reason := host.ended.exception()) is not None:
            raise CannotTellError(f"replica {self.name} has stopped: {reason}") from reason

    @property
    def runtime(self) -> ReplicaRuntime:
        """The running replica."""
        if self._runtime is None:
            raise UsageError(f"replica {self.name} is not running; expected `async with` or `open` before its use")
        return self._runtime

    @property
    def failed(self) -> "asyncio.Future[Exception]":
        """Done when the replica has stopped by itself since it was opened; the result says why."""
        if self._failed is None:
            raise UsageError(f"replica {self.name} was never opened; expected `async with` or `open` before its use")
        return self._failed

    @property
    def host(self) -> Host:
        """The host of the replica's process."""
        return self.runtime.host

    @property
    def position(self) -> int:
        """The position of the next delivery at this replica."""
        return self.runtime.recent.next

    @property
    def closed_until(self) -> int:
        """Every delivery of the group before this position is closed: nothing that is multicast from now on precedes
        it, in any group. It may be ahead of `position`. Only in a cluster with `order = "real-time"`."""
        closed = self.runtime.recent.closed_until
        if closed is None:
            raise UsageError(f"replica {self.name} does not know what is closed: {ACYCLIC}")
        return closed

    async def wait_closed(self, position: int | None = None, timeout_s: float = 30.0) -> None:
        """Waits until every delivery before a position is closed; by default, everything that the application has
        received, so that a result of its state may be given away. Raises `NotClosedError` if it takes too long."""
        closed, recent, host = self.closed_until, self.runtime.recent, self.host
        if position is None:
            assert self._application is not None, "a running replica has an application"
            position = recent.next if self._on_delivery is None else self._application.position
        if closed >= position:
            return
        watching = recent.watch_closing(position)
        try:
            await asyncio.wait({watching, host.ended}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
            if watching.done():
                return
        finally:
            watching.cancel()
        self._raise_failure(host)
        waits_for = host.process.status().get("closing_waits_for", "this replica, which is behind")
        raise NotClosedError(
            f"replica {self.name}: deliveries before position {position} are not closed after {timeout_s:g} s; closed"
            f" up to {self.closed_until}, waiting for {waits_for}"
        )

    async def caught_up(self) -> None:
        """Waits until this replica, and the application on it, has everything that its group had delivered when it
        started."""
        await self.runtime.caught_up.wait()

    async def multicast(
        self, destinations: Destinations, payload: bytes, timeout_s: float = 30.0, *, positions: bool = False
    ) -> Receipt:
        """Multicasts as a client of the cluster; connects at the first use."""
        async with self._connecting:
            if self._client is None:
                self._client = await self._stack.enter_async_context(self._connect())
        return await self._client.multicast(destinations, payload, timeout_s, positions=positions)

    async def _read_archived(self, position: int, end: int | None) -> list[Message]:
        """Deliveries from the archive, up to `end`."""
        archive = self.runtime.recent.archive
        assert archive is not None
        messages = [message for page in await archive.read_from(position) for message in page.messages]
        return messages if end is None else messages[: max(0, end - position)]

    async def deliveries(self, since: int | None = None, *, only_closed: bool = False) -> AsyncIterator[Delivery]:
        """The deliveries of this replica, from a position that is still held; by default from the current one. With
        `only_closed` each one comes when it is closed.

        Raises `MissedDeliveriesError` when the reader is so slow that the next position is no longer held, or a
        snapshot replaced it; `CannotTellError` when the replica has stopped. Ends when the replica was removed from its
        group.
        """
        recent = self.runtime.recent
        check_closing(only_closed, recent.closed_until is not None)
        position = recent.next if since is None else since
        while True:
            if position < recent.first_held:
                raise MissedDeliveriesError(f"replica {self.name}", position, recent.first_held)
            end = recent.closed_until if only_closed else None
            if position >= recent.first:
                messages = recent.read_from(position, CHUNK_BYTES, end)
            else:
                messages = await self._read_archived(position, end)
            for place, message in enumerate(messages, position):
                for delivery in message_deliveries(message, place, self._cluster.topology):
                    yield delivery
            position += len(messages)
            if not messages and not await recent.wait_for_news(POLL_S):
                self._raise_failure(self.host)
                if self.host.retired_ns is not None:
                    return


async def run_until_stopped(replica: Replica) -> None:
    """Runs a replica as the only task of an operating-system process, until SIGTERM or until it fails. Prints `ready`,
    and `waiting` before if it takes long, as a node does."""
    stop_requested = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop_requested.set)
    async with replica:
        replica.host.ended.add_done_callback(lambda _: stop_requested.set())
        announcing = asyncio.get_running_loop().create_task(node.announce(replica.runtime))
        try:
            await stop_requested.wait()
        finally:
            announcing.cancel()
