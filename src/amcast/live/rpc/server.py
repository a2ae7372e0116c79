"""RPC of a replica: what others may request from it besides ordering messages, one request per connection.

`live/rpc/messages.py` lists the requests and their replies.

A subscription has a connection of its own, so that TCP slows down a slow reader without delaying others: the server
writes no more than the socket takes, and all subscribers share the deliveries (`live/host/recent_deliveries.py`).
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, BinaryIO, Final, Protocol

import msgspec

from amcast.kernel.errors import CannotTellError, UsageError
from amcast.kernel.ids import MAX_SENDER, GroupId, MessageId, ProcessId, sender_of
from amcast.kernel.process import Process
from amcast.kernel.reconfiguration import encode_topology
from amcast.kernel.topology import Topology
from amcast.live.audit_log import record_audit
from amcast.live.errors import RefusedError
from amcast.live.host.recent_deliveries import ACYCLIC, RecentDeliveries
from amcast.live.limits import KIB, MIB, Limits
from amcast.live.rpc.messages import (
    AllocateClientId,
    AnyReply,
    ClientId,
    CurrentTopology,
    Deliveries,
    FetchState,
    FindCursor,
    FindPosition,
    FollowResults,
    FoundCursor,
    FoundPosition,
    GetNodeStatus,
    GetProgress,
    GetTopology,
    KeepAlive,
    KeyedResult,
    NodeStatus,
    PositionExpired,
    Progress,
    ReadService,
    ReleaseClientId,
    RpcRequest,
    SaveCursor,
    ServiceAnswer,
    ServiceLeader,
    ServiceResults,
    StateChunk,
    StateHeader,
    StatePending,
    Subscribe,
    WatchCall,
    decode_request,
    encode_reply,
)
from amcast.live.security.permissions import FIRST_CLIENT_ID, Permissions
from amcast.live.storage.cursors import Cursors
from amcast.live.storage.state_files import StateFile
from amcast.live.wire.connection import Connection
from amcast.live.wire.quotas import ClientQuotas
from amcast.services.calls import SAME_CLASS, WINDOW
from amcast.services.messages import Query, ReadAnswer, Result, digest_call
from amcast.storage.client_ids import ClientIdAllocator

log = logging.getLogger("amcast.live")

CHUNK_BYTES: Final = 128 * KIB
"""Size of one reply, unless it holds a single larger message."""

READ_BYTES: Final = 1 * MIB
"""Bytes of a state that are read from the disk at once."""

MAX_READS: Final = 4 * WINDOW
"""Reads of one session that a replica works on: the session has WINDOW, and those that it has given up end soon."""

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


class StateSource(Protocol):
    """An application that exports its state (`live/server/application.py`)."""

    async def wait_for_position(self, position: int) -> None:
        """Waits until the application has everything before a position."""

    async def provide_state(self, position: int) -> StateFile:
        """A file with the state after at least a number of deliveries."""


class ResultSource(Protocol):
    """The service of a replica, for callers that wait for results (`live/server/service_host.py`)."""

    digest: str

    def follow(self, session: int) -> "ResultFollower":
        """Begins to follow the results of a session."""

    def read(self, query: Query, answer: Callable[[ReadAnswer], None]) -> Callable[[], None]:
        """Begins a read; `answer` is called later. Returns what ends it, if nobody waits any more."""

    def watch(self, session: int, give: Callable[[Result], None]) -> Callable[[], None]:
        """Calls `give` with the result of a call with a key, when there is one. Returns what ends watching."""

    def leader(self) -> ProcessId:
        """The leader of the replica's group, as far as it knows."""

    def describe_waiting(self) -> str:
        """What a command has waited for, for a while; "" if none does."""

    def explain(self, position: int) -> str:
        """Why the delivery at a position is not executed; "" if it is."""


class ResultFollower(Protocol):
    """Reads the results of one session."""

    async def read(self, timeout_s: float) -> list[Result]:
        """The results that were not read before; waits for the next one, or for so long."""

    def close(self) -> None:
        """Ends following."""


class ServiceRequests:
    """The reads and the calls with a key of one connection, which began with FollowResults."""

    def __init__(
        self,
        service: ResultSource,
        connection: Connection,
        refusal: Callable[[], str],
        permissions: Permissions | None,
    ) -> None:
        self._service = service
        self._permissions = permissions
        self._connection = connection
        self._refusal = refusal
        self._open: dict[int, Callable[[], None]] = {}
        """By number: what ends the read."""
        self._watched: dict[tuple[int, bytes], Callable[[], None]] = {}
        """By session of a key and digest of the call: what ends watching it."""
        connection.on_request = self._begin

    def _begin(self, payload: Any) -> None:
        request = decode_request(payload).request
        if isinstance(request, WatchCall):
            self._watch(request)
            return
        if not isinstance(request, ReadService):
            raise RefusedError(f"a {type(request).__name__} behind a FollowResults; expected ReadService or WatchCall")
        if len(self._open) >= MAX_READS or request.query.number in self._open:
            raise RefusedError(f"{len(self._open)} reads of one session are open; expected {MAX_READS} at most")
        number = request.query.number
        if self._permissions is not None:
            self._permissions.check_query(self._connection.subject(), request.query.name)
        if reason := self._refusal():
            self._answer(ReadAnswer(number, None, reason))
        else:
            self._open[number] = lambda: None
            end = self._service.read(request.query, self._answer)
            if number in self._open:  # it was not answered at once
                self._open[number] = end

    def _watch(self, request: WatchCall) -> None:
        """Gives the result of a call with a key to whoever may make this call, and knows what was called: a key may be
        easy to guess."""
        if len(self._watched) >= MAX_READS:
            raise RefusedError(f"{MAX_READS} calls with a key are watched by one session; expected no more")
        if self._permissions is not None:
            self._permissions.check_query(self._connection.subject(), request.name)
        session, about = request.session, digest_call(request.name, request.arguments)
        watched = session, about

        def give(result: Result) -> None:
            self._watched.pop(watched, None)
            given = result if result.about == about else None
            self._connection.write(encode_reply(KeyedResult(session, about, given), self._connection.framing))

        if watched not in self._watched:
            self._watched[watched] = lambda: None
            end = self._service.watch(session, give)
            if watched in self._watched:  # there is no result yet
                self._watched[watched] = end

    def _answer(self, answer: ReadAnswer) -> None:
        self._open.pop(answer.number, None)
        self._connection.write(encode_reply(ServiceAnswer(answer), self._connection.framing))

    def close(self) -> None:
        """Ends all reads."""
        self._connection.on_request = None
        for end in (*self._open.values(), *self._watched.values()):
            end()


class RpcServer:
    """Answers RPC requests at one replica."""

    def __init__(
        self,
        process: Process,
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
        state_source: StateSource | None = None,
        topology: Callable[[], Topology | None] = lambda: None,
        holds_state: Callable[[], bool] = lambda: True,
        status: StatusSource | None = None,
        refusal: Callable[[], str] = lambda: "",
        service: ResultSource | None = None,
        cursors: Cursors | None = None,
    ) -> None:
        """`admit_client` counts a connection of a client, or refuses it; it is told whether the request is short."""
        self._quotas = quotas
        self._admit_client = admit_client
        self._recent = recent
        self._caught_up = caught_up
        self._client_ids = client_ids
        self._state_source = state_source
        """None without an application that exports its state."""
        self._topology = topology
        """Returns the current topology, or None while the process does not know it."""
        self._holds_state = holds_state
        """Whether this replica has its group's state."""
        self._status = status
        self._refusal = refusal
        """Why this replica answers no request, as the end of a sentence; "" if it does."""
        self._service = service
        self._cursors = cursors
        self._process = process
        """Knows whether others may rely on its deliveries (`is_serving`), and what it has delivered."""
        self._group = group
        self._me = process.me
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
            FindPosition: self._handle_find_position,
            FetchState: self._handle_fetch_state,
            GetNodeStatus: self._handle_get_node_status,
            GetTopology: self._handle_get_topology,
            FindCursor: self._handle_cursor,
            SaveCursor: self._handle_cursor,
            FollowResults: self._handle_follow_results,
            ReadService: self._refuse_first,
            WatchCall: self._refuse_first,
        }

    async def _refuse_first(self, peer: RpcConnection, request: RpcRequest) -> None:
        kind = type(request).__name__
        raise RefusedError(f"a {kind} as the first request of a connection; expected FollowResults before it")

    def accept(self, connection: Connection, payload: Any) -> None:
        """Checks the request that a connection began with, and answers it in a task of its own."""
        envelope = decode_request(payload)
        if envelope.version != connection.framing.version:
            raise RefusedError(
                f"the request states wire version {envelope.version} in a frame of version {connection.framing.version}"
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
            self._admit_client(connection, not isinstance(request, Subscribe | FollowResults))
        record_audit("requested", connection.describe_owner(), connection.peername, request=type(request).__name__)

    async def close(self) -> None:
        """Cancels the requests in progress."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve(self, connection: Connection, request: RpcRequest) -> None:
        try:
            if type(request) not in ANSWERED_ALWAYS:
                self._check_serving()
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

    def _check_serving(self) -> None:
        if reason := self._refusal():
            raise RefusedError(f"process {self._me} {reason}")

    # Handlers

    async def _handle_get_progress(self, peer: RpcConnection, request: GetProgress) -> None:
        recent, caught_up = self._recent, self._caught_up.is_set()
        progress = Progress(
            recent.first_held, recent.next, caught_up, self._incarnation, self._holds_state(), recent.closed_until
        )
        await peer.send(progress)

    async def _handle_subscribe(self, peer: RpcConnection, request: Subscribe) -> None:
        if request.group != self._group:
            raise RefusedError(f"process {self._me} is in group {self._group}, not {request.group}")
        if self._permissions is not None:
            self._permissions.check_subscriber(peer.connection.subject(), request.group)
        if request.position < 0:
            raise RefusedError(f"position {request.position}; expected 0 or more")
        if request.only_closed and self._recent.closed_until is None:
            raise RefusedError(f"process {self._me} does not know what is closed: {ACYCLIC}")
        end = self._quotas.open_subscription(peer.connection.owner())
        self._recent.subscribers += 1
        try:
            await self._send_deliveries(peer, request.position, request.only_closed)
        finally:
            self._recent.subscribers -= 1
            end()

    async def _handle_cursor(self, peer: RpcConnection, request: FindCursor | SaveCursor) -> None:
        if request.group != self._group or self._cursors is None:
            raise RefusedError(f"process {self._me} keeps no cursors of group {request.group}")
        if self._permissions is not None:
            self._permissions.check_subscriber(peer.connection.subject(), request.group)
        if isinstance(request, FindCursor):
            await peer.send(FoundCursor(self._cursors.find(request.name)))
        elif request.cursor is None:
            await self._cursors.remove(request.name)
            await peer.send(FoundCursor(None))
        else:
            await peer.send(FoundCursor(await self._cursors.save(request.name, request.cursor)))

    async def _send_deliveries(self, peer: RpcConnection, position: int, only_closed: bool) -> None:
        recent, sent_closed = self._recent, 0
        while position >= recent.first_held:
            if not self._process.is_serving:
                self._check_serving()
            closed = recent.closed_until
            if position < recent.first:
                position = await self._send_archived(peer, position, closed if only_closed else None)
                continue
            messages = recent.read_from(position, CHUNK_BYTES, closed if only_closed else None)
            if messages:
                await peer.send(Deliveries(position, messages, closed))
                position += len(messages)
            elif closed is not None and sent_closed < closed and sent_closed < position:
                await peer.send(KeepAlive(recent.next, closed))  # deliveries that the peer has are closed now
            elif not await recent.wait_for_news(self._limits.heartbeat_s):
                await peer.send(KeepAlive(recent.next, recent.closed_until))
            else:
                continue
            sent_closed = closed or 0
        await peer.send(PositionExpired(recent.first_held, recent.next))

    async def _send_archived(self, peer: RpcConnection, position: int, closed: int | None) -> int:
        """Sends deliveries from the archive, up to `closed` if that is given; returns the position behind them."""
        archive = self._recent.archive
        assert archive is not None
        if closed is not None and position >= closed:
            await self._recent.wait_for_news(self._limits.heartbeat_s)
            await peer.send(KeepAlive(self._recent.next, self._recent.closed_until))
            return position
        for page in await archive.read_from(position):
            messages = page.messages if closed is None else page.messages[: max(0, closed - position)]
            if messages:
                await peer.send(Deliveries(position, messages, self._recent.closed_until))
                position += len(messages)
        return position

    async def _handle_follow_results(self, peer: RpcConnection, request: FollowResults) -> None:
        service = self._service
        if service is None:
            raise RefusedError(
                f"process {self._me} runs no service; expected nodes that were started with --service: {SAME_CLASS}"
            )
        if self._permissions is not None:
            self._permissions.check_caller(peer.connection.subject(), self._group)
        if request.digest != service.digest:
            raise RefusedError(
                f"the caller's service has digest {request.digest}, that of process {self._me} {service.digest};"
                f" {SAME_CLASS}"
            )
        follower = service.follow(request.session)
        requests = ServiceRequests(service, peer.connection, self._refusal, self._permissions)
        try:
            leader = -1
            while True:
                if leader != (leader := service.leader()):
                    await peer.send(ServiceLeader(leader))
                results = await follower.read(self._limits.heartbeat_s)
                if not self._process.is_serving:
                    self._check_serving()
                await peer.send(ServiceResults(results) if results else KeepAlive(self._recent.next))
        finally:
            requests.close()
            follower.close()

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

    async def _handle_find_position(self, peer: RpcConnection, request: FindPosition) -> None:
        sender = sender_of(request.message)
        if self._permissions is not None:
            first, last = self._permissions.client_id_range(peer.connection.subject())
            if not first <= sender <= last:
                raise RefusedError(f"message {request.message} is not of {peer.connection.subject()}")
        await peer.send(FoundPosition(await self._find_position(request.message)))

    async def _find_position(self, message: MessageId) -> int | None:
        """The position of a message. One that is not delivered yet is waited for; one that is delivered may be held
        back by the disk for a moment."""
        recent, loop = self._recent, asyncio.get_running_loop()
        position = recent.find(message) if self._process.has_delivered(message) else None
        begin = loop.time()
        while position is None:
            is_delivered = self._process.has_delivered(message)
            patience_s = self._limits.heartbeat_s if is_delivered else self._limits.heartbeat_timeout_s / 2
            left_s = begin + patience_s - loop.time()
            if left_s <= 0 and is_delivered:
                return None
            if left_s <= 0:
                raise RefusedError(f"process {self._me} has not delivered message {message}")
            searched = recent.next
            if await recent.wait_for_news(left_s):
                position = recent.find(message, searched)
        self._check_serving()
        return position

    async def _handle_fetch_state(self, peer: RpcConnection, request: FetchState) -> None:
        source = self._state_source
        if source is None:
            raise RefusedError(f"process {self._me} hosts no application that can export its state")
        if self._permissions is not None:
            self._permissions.check_node(peer.connection.subject())
        try:
            async with asyncio.timeout(self._limits.heartbeat_timeout_s / 2):
                await source.wait_for_position(request.position)
        except TimeoutError:
            raise RefusedError(
                f"the application of process {self._me} has not reached position {request.position}"
            ) from None
        state = await self._await_state(peer, source, request)
        with state.path.open("rb") as file:
            await peer.send(StateHeader(state.position, state.size))
            await self._send_file(peer, file)

    async def _await_state(self, peer: RpcConnection, source: StateSource, request: FetchState) -> StateFile:
        """Waits until the state is on disk, and says so to the peer from time to time."""
        providing = asyncio.ensure_future(source.provide_state(request.position))
        try:
            while not (await asyncio.wait([providing], timeout=self._limits.heartbeat_s))[0]:
                await peer.send(StatePending())
            return await providing
        except CannotTellError as error:
            raise RefusedError(f"process {self._me}: {error}") from None
        finally:
            providing.cancel()

    async def _send_file(self, peer: RpcConnection, file: BinaryIO) -> None:
        """Sends a file in chunks; it is read in a thread, because the disk may be slow."""
        while data := await asyncio.to_thread(file.read, READ_BYTES):
            for start in range(0, len(data), CHUNK_BYTES):
                await peer.send(StateChunk(data[start : start + CHUNK_BYTES]))
