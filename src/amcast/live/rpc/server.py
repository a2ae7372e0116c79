"""The desk of a replica: what others may ask it besides multicasting, one request per connection.

    VISIT  [version, cluster, process, request]       the first frame, in the place of HELLO
    TELL   one answer, or a row of them                a refusal is a REFUSE frame, as everywhere

| request | answers |
|---|---|
| Stand | Stands: which positions it keeps, whether it has caught up, and whether it holds its group's state |
| Subscribe | Told, Told, ... from a position on, Beat when nothing happens; Gone when the position is no longer kept |
| Enrol | Issued: a number for a new client (`live/storage/client_ids.py`) |
| Return | nothing: a client ends and gives its number back |
| Members | Membership: who is in which group now, as this replica knows it (`live/membership/topology_follower.py`) |
| Inspect | Inspected: how this replica is, or what blocks a message; for operators |
| Copy | Taken and then Pieces: the state of the application there (`live/server/application.py`) |

A subscription has a connection of its own, so that whoever reads slowly is slowed down by TCP and holds up nothing
else: the desk writes no more than the socket takes, and the deliveries are shared (`live/host/recent_deliveries.py`).
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, Protocol, cast

import msgspec

from amcast.kernel.errors import UsageError
from amcast.kernel.ids import MAX_SENDER, GroupId, ProcessId
from amcast.kernel.message import Message
from amcast.kernel.reconfiguration import encode_topology
from amcast.kernel.topology import Topology
from amcast.live.errors import BadFrameError, RefusedError
from amcast.live.host.recent_deliveries import RecentDeliveries
from amcast.live.limits import KIB, Limits
from amcast.live.security.permissions import FIRST_CLIENT_ID, Permissions
from amcast.live.storage.client_ids import ClientIdAllocator
from amcast.live.wire import frames as codec
from amcast.live.wire.connection import Connection
from amcast.live.wire.frames import WIRE_VERSION

log = logging.getLogger("amcast.live")

CHUNK_BYTES: Final = 128 * KIB
"""One answer holds so much, or one message."""


class RpcRequest(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Base of what may be asked."""


class GetProgress(RpcRequest, frozen=True):
    """Where are you?"""


class Subscribe(RpcRequest, frozen=True):
    """Tell me what your group delivers."""

    group: GroupId
    position: int


class AllocateClientId(RpcRequest, frozen=True):
    """Give me a number."""


class ReleaseClientId(RpcRequest, frozen=True):
    """I end; whoever gets my number next shall begin with this incarnation and this sequence number."""

    process: ProcessId
    secret: bytes
    incarnation: int
    sequence: int


class FetchState(RpcRequest, frozen=True):
    """What is the state of the application at your place, after at least so many deliveries?"""

    position: int


class GetNodeStatus(RpcRequest, frozen=True):
    """How are you? Or, with a message: what does it wait for at your place?"""

    message: int | None = None


class GetTopology(RpcRequest, frozen=True):
    """Who is there?"""


AnyRequest = GetProgress | Subscribe | AllocateClientId | ReleaseClientId | FetchState | GetNodeStatus | GetTopology


class RpcEnvelope(msgspec.Struct, frozen=True, array_like=True):
    """The first frame of a connection that only asks. New fields may only be added at the end."""

    version: int
    cluster: str
    process: ProcessId
    """Whom the sender believes it is asking."""
    request: AnyRequest


class RpcReply(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Base of answers."""


class Progress(RpcReply, frozen=True):
    """Deliveries [first, next) are kept."""

    first: int
    next: int
    caught_up: bool
    incarnation: int
    has_state: bool = True
    """It has its group's state, and does not wait to be given it (`live/membership/state_survey.py`)."""


class Deliveries(RpcReply, frozen=True):
    """Deliveries, the first of them at this position."""

    position: int
    messages: list[Message]


class KeepAlive(RpcReply, frozen=True):
    """Nothing new."""

    next: int


class PositionExpired(RpcReply, frozen=True):
    """The position is no longer kept here; [first, next) is."""

    first: int
    next: int


class ClientId(RpcReply, frozen=True):
    """A number, the incarnation to begin with, the first sequence number, and what proves later that it was issued."""

    process: ProcessId
    incarnation: int
    sequence: int
    secret: bytes
    topology: bytes = b""
    """The current one, if members have changed: what the client was configured with may be older."""


class StateHeader(RpcReply, frozen=True):
    """The application's state after so many deliveries; so many bytes follow."""

    position: int
    bytes: int


class StateChunk(RpcReply, frozen=True):
    """Some of the bytes, in order."""

    data: bytes


class NodeStatus(RpcReply, frozen=True):
    """JSON, as `live/server/status.py` makes it."""

    json: bytes


class CurrentTopology(RpcReply, frozen=True):
    """The topology, as `kernel/reconfiguration.py` encodes it."""

    topology: bytes


AnyReply = (
    CurrentTopology
    | NodeStatus
    | Progress
    | Deliveries
    | KeepAlive
    | PositionExpired
    | ClientId
    | StateHeader
    | StateChunk
)

_encoder: Final = msgspec.msgpack.Encoder()
_visit: Final = msgspec.msgpack.Decoder(RpcEnvelope)
_answer: Final = msgspec.msgpack.Decoder(AnyReply)


def encode_request(visit: RpcEnvelope) -> bytes:
    return codec.make_frame(codec.RPC_REQUEST, _encoder.encode(visit))


def decode_reply(payload: Any) -> AnyReply:
    """One TELL frame's content."""
    try:
        return cast(AnyReply, _answer.decode(payload))
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise BadFrameError(f"an answer that cannot be read: {error}") from None


class RpcConnection:
    """The answering end of one connection."""

    def __init__(self, connection: Connection, limits: Limits) -> None:
        self.connection = connection
        self._limits = limits
        self._room = asyncio.Event()
        connection.on_writable = self._room.set
        connection.limit_write_buffer(2 * CHUNK_BYTES)

    async def send(self, answer: AnyReply) -> None:
        """One answer; returns when the socket takes more, and hangs up on who takes nothing for too long."""
        self.connection.write(codec.make_frame(codec.RPC_REPLY, _encoder.encode(answer)))
        while self.connection.is_writing_paused:
            self._room.clear()
            try:
                async with asyncio.timeout(self._limits.client_link_ttl_s):
                    await self._room.wait()
            except TimeoutError:
                raise RefusedError(
                    f"nothing was taken for {self._limits.client_link_ttl_s} s (limits.client_link_ttl_s)"
                ) from None


class StatusSource(Protocol):
    """Describes a replica for operators (`live/server/status.py`)."""

    def status(self) -> dict[str, Any]:
        """The whole status, as plain data."""

    def explain(self, message: int) -> dict[str, Any]:
        """What one message waits for."""


class RpcServer:
    """Answers questions about one replica."""

    def __init__(
        self,
        me: ProcessId,
        group: GroupId,
        cluster: str,
        incarnation: int,
        limits: Limits,
        recent: RecentDeliveries,
        caught_up: asyncio.Event,
        *,
        permissions: Permissions | None = None,
        client_ids: ClientIdAllocator | None = None,
        take_state: Callable[[int], Awaitable[tuple[int, bytes]]] | None = None,
        topology: Callable[[], Topology | None] = lambda: None,
        holds_state: Callable[[], bool] = lambda: True,
        status: StatusSource | None = None,
    ) -> None:
        self._recent = recent
        self._caught_up = caught_up
        self._client_ids = client_ids
        self._take_state = take_state
        """State of the application after at least so many deliveries, if there is one that can tell."""
        self._topology = topology
        """Who is there, if the process knows it."""
        self._holds_state = holds_state
        """Whether this replica has its group's state."""
        self._status = status
        self._group = group
        self._me = me
        self._cluster = cluster
        self._incarnation = incarnation
        self._limits = limits
        self._permissions = permissions
        """None: everybody may ask everything."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._handlers: Mapping[type, Callable[[RpcConnection, Any], Awaitable[None]]] = {
            GetProgress: self._stand,
            Subscribe: self._subscribe,
            AllocateClientId: self._enrol,
            ReleaseClientId: self._return,
            FetchState: self._copy,
            GetNodeStatus: self._inspect,
            GetTopology: self._members,
        }

    def accept(self, connection: Connection, payload: Any) -> None:
        """A connection began with a request."""
        try:
            visit = _visit.decode(payload)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise BadFrameError(f"a request that cannot be read: {error}") from None
        if visit.version != WIRE_VERSION:
            raise RefusedError(
                f"the request is of wire version {visit.version}; process {self._me} speaks {WIRE_VERSION}"
            )
        if visit.cluster != self._cluster:
            raise RefusedError(f"this is cluster {self._cluster!r}, not {visit.cluster!r}")
        if visit.process != self._me:
            raise RefusedError(f"this is process {self._me}, not {visit.process}")
        if len(self._tasks) >= self._limits.peers:
            raise RefusedError(f"{self._limits.peers} visitors are here; limits.peers allows no more")
        task = asyncio.get_running_loop().create_task(self._answer(connection, visit.request))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        connection.closed.add_done_callback(lambda _: task.cancel())

    async def close(self) -> None:
        """Stop answering."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _answer(self, connection: Connection, request: RpcRequest) -> None:
        try:
            await self._handlers[type(request)](RpcConnection(connection, self._limits), request)
            connection.finish()
        except (RefusedError, UsageError, OSError) as error:
            connection.refuse(str(error))
        except asyncio.CancelledError:
            connection.finish()

    # The answers

    async def _stand(self, talk: RpcConnection, request: GetProgress) -> None:
        kept, caught_up = self._recent, self._caught_up.is_set()
        await talk.send(Progress(kept.first, kept.next, caught_up, self._incarnation, self._holds_state()))

    async def _subscribe(self, talk: RpcConnection, request: Subscribe) -> None:
        if request.group != self._group:
            raise RefusedError(f"process {self._me} is in group {self._group}, not {request.group}")
        if self._permissions is not None:
            self._permissions.check_subscriber(talk.connection.subject(), request.group)
        if request.position < 0:
            raise RefusedError(f"position {request.position}; expected 0 or more")
        self._recent.subscribers += 1
        try:
            await self._tell_deliveries(talk, request.position)
        finally:
            self._recent.subscribers -= 1

    async def _tell_deliveries(self, talk: RpcConnection, position: int) -> None:
        kept = self._recent
        while position >= kept.first:
            messages = kept.read_from(position, CHUNK_BYTES)
            if messages:
                await talk.send(Deliveries(position, messages))
                position += len(messages)
            elif not await kept.wait_for_delivery(self._limits.heartbeat_s):
                await talk.send(KeepAlive(kept.next))
        await talk.send(PositionExpired(kept.first, kept.next))

    async def _inspect(self, talk: RpcConnection, request: GetNodeStatus) -> None:
        if self._permissions is not None:
            self._permissions.check_operator(talk.connection.subject())
        if self._status is None:
            raise RefusedError(f"process {self._me} tells operators nothing")
        told = self._status.status() if request.message is None else self._status.explain(request.message)
        await talk.send(NodeStatus(msgspec.json.encode(told)))

    async def _enrol(self, talk: RpcConnection, request: AllocateClientId) -> None:
        if self._client_ids is None:
            raise RefusedError(f"process {self._me} issues no numbers")
        block = (FIRST_CLIENT_ID, MAX_SENDER)
        if self._permissions is not None:
            block = self._permissions.client_id_range(talk.connection.subject())
        issued = self._client_ids.allocate(*block)
        topology = self._topology()
        now = b"" if topology is None or topology.configuration == 0 else encode_topology(topology)
        await talk.send(ClientId(issued.process, issued.incarnation, issued.sequence, issued.secret, now))

    async def _members(self, talk: RpcConnection, request: GetTopology) -> None:
        topology = self._topology()
        if topology is None:
            raise RefusedError(f"process {self._me} was not told yet who is there")
        await talk.send(CurrentTopology(encode_topology(topology)))

    async def _return(self, talk: RpcConnection, request: ReleaseClientId) -> None:
        if self._client_ids is not None:
            self._client_ids.release(request.process, request.secret, request.incarnation, request.sequence)

    async def _copy(self, talk: RpcConnection, request: FetchState) -> None:
        if self._take_state is None:
            raise RefusedError(f"process {self._me} hosts no application that can tell its state")
        if self._permissions is not None:
            self._permissions.check_node(talk.connection.subject())
        try:
            async with asyncio.timeout(self._limits.heartbeat_timeout_s / 2):
                position, state = await self._take_state(request.position)
        except TimeoutError:
            raise RefusedError(f"the application of process {self._me} is behind position {request.position}") from None
        await talk.send(StateHeader(position, len(state)))
        for start in range(0, len(state), CHUNK_BYTES):
            await talk.send(StateChunk(state[start : start + CHUNK_BYTES]))
