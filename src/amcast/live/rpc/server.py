"""RPC of a replica: what others may request from it besides ordering messages, one request per connection.

`live/rpc/messages.py` lists the requests and their replies.

A subscription has a connection of its own, so that TCP slows down a slow reader without delaying others: the server
writes no more than the socket takes, and all subscribers share the deliveries (`live/host/recent_deliveries.py`).
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, Protocol

import msgspec

from amcast.kernel.errors import UsageError
from amcast.kernel.ids import MAX_SENDER, GroupId, ProcessId
from amcast.kernel.reconfiguration import encode_topology
from amcast.kernel.topology import Topology
from amcast.live.audit_log import record_audit
from amcast.live.errors import RefusedError
from amcast.live.host.recent_deliveries import RecentDeliveries
from amcast.live.limits import KIB, Limits
from amcast.live.rpc.messages import (
    AllocateClientId,
    AnyReply,
    ClientId,
    CurrentTopology,
    Deliveries,
    FetchState,
    GetNodeStatus,
    GetProgress,
    GetTopology,
    KeepAlive,
    NodeStatus,
    PositionExpired,
    Progress,
    ReleaseClientId,
    RpcRequest,
    StateChunk,
    StateHeader,
    Subscribe,
    decode_request,
    encode_reply,
)
from amcast.live.security.permissions import FIRST_CLIENT_ID, Permissions
from amcast.live.wire.connection import Connection
from amcast.live.wire.frames import RANGE_VERSION, WIRE_VERSION
from amcast.live.wire.quotas import ClientQuotas
from amcast.storage.client_ids import ClientIdAllocator

log = logging.getLogger("amcast.live")

CHUNK_BYTES: Final = 128 * KIB
"""Size of one reply, unless it holds a single larger message."""

ANSWERED_ALWAYS: Final = frozenset({GetNodeStatus, GetProgress})
"""Requests that a replica answers although its group has not admitted it: they ask for its condition."""


class RpcConnection:
    """The server's end of one RPC connection."""

    def __init__(self, connection: Connection, limits: Limits) -> None:
        self.connection = connection
        self._limits = limits
        self._writable = asyncio.Event()
        connection.on_writable = self._writable.set
        connection.limit_write_buffer(2 * CHUNK_BYTES)

    async def send(self, reply: AnyReply) -> None:
        """Sends one reply. Returns when the socket takes more; refuses a peer that reads nothing for too long."""
        self.connection.write(encode_reply(reply, self.connection.framing))
        while self.connection.is_writing_paused:
            self._writable.clear()
            try:
                async with asyncio.timeout(self._limits.client_link_ttl_s):
                    await self._writable.wait()
            except TimeoutError:
                raise RefusedError(
                    f"the peer read nothing for {self._limits.client_link_ttl_s} s (limits.client_link_ttl_s)"
                ) from None


class StatusSource(Protocol):
    """Describes a replica for operators (`live/server/status.py`)."""

    def status(self) -> dict[str, Any]:
        """The whole status, as plain data."""

    def explain(self, message: int) -> dict[str, Any]:
        """What one message waits for."""


class RpcServer:
    """Answers RPC requests at one replica."""

    def __init__(
        self,
        me: ProcessId,
        group: GroupId,
        cluster: str,
        incarnation: int,
        limits: Limits,
        recent: RecentDeliveries,
        caught_up: asyncio.Event,
        quotas: ClientQuotas,
        admit_client: Callable[[Connection, bool], None],
        *,
        permissions: Permissions | None = None,
        client_ids: ClientIdAllocator | None = None,
        take_state: Callable[[int], Awaitable[tuple[int, bytes]]] | None = None,
        topology: Callable[[], Topology | None] = lambda: None,
        holds_state: Callable[[], bool] = lambda: True,
        status: StatusSource | None = None,
        refusal: Callable[[], str] = lambda: "",
    ) -> None:
        """`admit_client` counts a connection of a client, or refuses it; it is told whether the request is short."""
        self._quotas = quotas
        self._admit_client = admit_client
        self._recent = recent
        self._caught_up = caught_up
        self._client_ids = client_ids
        self._take_state = take_state
        """Returns the application's state after at least a number of deliveries; None without such an application."""
        self._topology = topology
        """Returns the current topology, or None while the process does not know it."""
        self._holds_state = holds_state
        """Whether this replica has its group's state."""
        self._status = status
        self._refusal = refusal
        """Why this replica does not take part in its group; "" if it does."""
        self._group = group
        self._me = me
        self._cluster = cluster
        self._incarnation = incarnation
        self._limits = limits
        self._permissions = permissions
        """None: every caller may request everything."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._handlers: Mapping[type, Callable[[RpcConnection, Any], Awaitable[None]]] = {
            GetProgress: self._handle_get_progress,
            Subscribe: self._handle_subscribe,
            AllocateClientId: self._handle_allocate_client_id,
            ReleaseClientId: self._handle_release_client_id,
            FetchState: self._handle_fetch_state,
            GetNodeStatus: self._handle_get_node_status,
            GetTopology: self._handle_get_topology,
        }

    def accept(self, connection: Connection, payload: Any) -> None:
        """Checks the request that a connection began with, and answers it in a task of its own."""
        envelope = decode_request(payload)
        if not RANGE_VERSION <= envelope.version <= WIRE_VERSION:
            raise RefusedError(
                f"the request has wire version {envelope.version};"
                f" process {self._me} expects {RANGE_VERSION} to {WIRE_VERSION}"
            )
        if envelope.cluster != self._cluster:
            raise RefusedError(f"this is cluster {self._cluster!r}, not {envelope.cluster!r}")
        if envelope.process != self._me:
            raise RefusedError(f"this is process {self._me}, not {envelope.process}")
        if len(self._tasks) >= self._limits.peers:
            raise RefusedError(f"{self._limits.peers} RPC connections are open; limits.peers allows no more")
        self._admit(connection, envelope.request)
        task = asyncio.get_running_loop().create_task(self._serve(connection, envelope.request))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        connection.closed.add_done_callback(lambda _: task.cancel())

    def _admit(self, connection: Connection, request: RpcRequest) -> None:
        """Counts the request of a client, or refuses it because of a quota; nodes have none."""
        if self._permissions is None or connection.subject().kind != "node":
            self._admit_client(connection, not isinstance(request, Subscribe))
        record_audit("requested", connection.describe_owner(), connection.peername, request=type(request).__name__)

    async def close(self) -> None:
        """Cancels the requests in progress."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve(self, connection: Connection, request: RpcRequest) -> None:
        try:
            if type(request) not in ANSWERED_ALWAYS and (reason := self._refusal()):
                raise RefusedError(f"process {self._me} does not take part in its group: {reason}")
            await self._handlers[type(request)](RpcConnection(connection, self._limits), request)
            connection.finish()
        except (RefusedError, UsageError, OSError) as error:
            connection.refuse(str(error))
        except asyncio.CancelledError:
            connection.finish()
        except Exception as error:
            # A defect in one handler must neither stay unnoticed nor keep its connection open.
            log.error("%s cannot be answered", type(request).__name__, exc_info=error)
            connection.refuse(f"the request failed at process {self._me}: {error!r}")

    # Handlers

    async def _handle_get_progress(self, peer: RpcConnection, request: GetProgress) -> None:
        recent, caught_up = self._recent, self._caught_up.is_set()
        await peer.send(Progress(recent.first, recent.next, caught_up, self._incarnation, self._holds_state()))

    async def _handle_subscribe(self, peer: RpcConnection, request: Subscribe) -> None:
        if request.group != self._group:
            raise RefusedError(f"process {self._me} is in group {self._group}, not {request.group}")
        if self._permissions is not None:
            self._permissions.check_subscriber(peer.connection.subject(), request.group)
        if request.position < 0:
            raise RefusedError(f"position {request.position}; expected 0 or more")
        end = self._quotas.open_subscription(peer.connection.owner())
        self._recent.subscribers += 1
        try:
            await self._send_deliveries(peer, request.position)
        finally:
            self._recent.subscribers -= 1
            end()

    async def _send_deliveries(self, peer: RpcConnection, position: int) -> None:
        recent = self._recent
        while position >= recent.first:
            messages = recent.read_from(position, CHUNK_BYTES)
            if messages:
                await peer.send(Deliveries(position, messages))
                position += len(messages)
            elif not await recent.wait_for_delivery(self._limits.heartbeat_s):
                await peer.send(KeepAlive(recent.next))
        await peer.send(PositionExpired(recent.first, recent.next))

    async def _handle_get_node_status(self, peer: RpcConnection, request: GetNodeStatus) -> None:
        if self._permissions is not None:
            self._permissions.check_operator(peer.connection.subject())
        if self._status is None:
            raise RefusedError(f"process {self._me} reports no status")
        status = self._status.status() if request.message is None else self._status.explain(request.message)
        await peer.send(NodeStatus(msgspec.json.encode(status)))

    async def _handle_allocate_client_id(self, peer: RpcConnection, request: AllocateClientId) -> None:
        if self._client_ids is None:
            raise RefusedError(f"process {self._me} allocates no client ids")
        id_range = (FIRST_CLIENT_ID, MAX_SENDER)
        if self._permissions is not None:
            id_range = self._permissions.client_id_range(peer.connection.subject())
        issued = self._client_ids.allocate(*id_range)
        topology = self._topology()
        encoded = b"" if topology is None or topology.configuration == 0 else encode_topology(topology)
        await peer.send(ClientId(issued.process, issued.incarnation, issued.sequence, issued.secret, encoded))

    async def _handle_get_topology(self, peer: RpcConnection, request: GetTopology) -> None:
        topology = self._topology()
        if topology is None:
            raise RefusedError(f"process {self._me} does not know the current topology yet")
        await peer.send(CurrentTopology(encode_topology(topology)))

    async def _handle_release_client_id(self, peer: RpcConnection, request: ReleaseClientId) -> None:
        if self._client_ids is not None:
            self._client_ids.release(request.process, request.secret, request.incarnation, request.sequence)

    async def _handle_fetch_state(self, peer: RpcConnection, request: FetchState) -> None:
        if self._take_state is None:
            raise RefusedError(f"process {self._me} hosts no application that can export its state")
        if self._permissions is not None:
            self._permissions.check_node(peer.connection.subject())
        try:
            async with asyncio.timeout(self._limits.heartbeat_timeout_s / 2):
                position, state = await self._take_state(request.position)
        except TimeoutError:
            raise RefusedError(
                f"the application of process {self._me} has not reached position {request.position}"
            ) from None
        await peer.send(StateHeader(position, len(state)))
        for start in range(0, len(state), CHUNK_BYTES):
            await peer.send(StateChunk(state[start : start + CHUNK_BYTES]))
