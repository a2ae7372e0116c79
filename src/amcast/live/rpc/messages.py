"""Requests and replies of the RPC of a replica (`live/rpc/server.py`), and their encoding.

    RPC_REQUEST  [version, cluster, process, request]    the first frame of a connection, in the place of HELLO
    RPC_REPLY    one reply, or a sequence of them        a refusal is a REFUSE frame, as on every connection

| request | replies |
|---|---|
| GetProgress | Progress: the positions it still holds, whether it has caught up, and whether it has its group's state |
| Subscribe | Deliveries, Deliveries, ... from a position on, KeepAlive when idle, or when deliveries that were sent are
closed; PositionExpired when the position is too old |
| AllocateClientId | ClientId: an unused process id for a new client (`storage/client_ids.py`) |
| ReleaseClientId | none: a client stops and returns its id |
| FindPosition | FoundPosition: the position of a message, when it is delivered |
| GetTopology | CurrentTopology: the newest topology that this replica knows (`live/membership/topology_follower.py`) |
| GetNodeStatus | NodeStatus: the status of this replica, or what one message waits for; for operators |
| FetchState | StatePending while it is written, StateHeader, then StateChunks: the state of the application |
| FollowResults | ServiceLeader, ServiceResults, ... of a session (`live/server/service_host.py`), KeepAlive when idle |
| ReadService | ServiceAnswer; further requests of a connection that began with FollowResults |
| FindCursor, SaveCursor | FoundCursor: where a named subscriber is (`live/storage/cursors.py`) |
| WatchCall | KeyedResult, when the call is executed; likewise |
"""

from typing import Any, Final, cast

import msgspec

from amcast.kernel.ids import GroupId, MessageId, ProcessId
from amcast.kernel.message import Message
from amcast.live.errors import BadFrameError
from amcast.live.storage.cursors import Cursor
from amcast.live.wire import frames
from amcast.services.messages import Query, ReadAnswer, Result


class RpcRequest(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Base of the requests."""


class GetProgress(RpcRequest, frozen=True):
    """Asks how far a replica has delivered."""


class Subscribe(RpcRequest, frozen=True):
    """Asks for the deliveries of a group, from a position on."""

    group: GroupId
    position: int
    only_closed: bool = False
    """Only deliveries that are closed; refused in the acyclic setting."""


class AllocateClientId(RpcRequest, frozen=True):
    """Asks for a process id that no other client uses."""


class ReleaseClientId(RpcRequest, frozen=True):
    """Returns a client's id; its next owner begins with this incarnation and this sequence number."""

    process: ProcessId
    secret: bytes
    incarnation: int
    sequence: int


class FindPosition(RpcRequest, frozen=True):
    """Asks for the position of a message of the caller in the order of a replica's group."""

    message: MessageId


class FetchState(RpcRequest, frozen=True):
    """Asks for the application's state after at least `position` deliveries."""

    position: int


class GetNodeStatus(RpcRequest, frozen=True):
    """Asks for a node's status; with a message, for what that message waits for at this node."""

    message: int | None = None


class GetTopology(RpcRequest, frozen=True):
    """Asks for the newest topology that a replica knows."""


class FollowResults(RpcRequest, frozen=True):
    """Asks for the results of a session's commands, those that are kept and those that follow."""

    session: int
    digest: str
    """Of the service as the caller knows it."""


class ReadService(RpcRequest, frozen=True):
    """A query of the service, on the connection of a FollowResults; ServiceAnswers answer it."""

    query: Query


class WatchCall(RpcRequest, frozen=True):
    """Asks for the result of a call with a key, on the connection of a FollowResults; KeyedResult answers it. Whoever
    knows a key and not its call learns only that there was another one."""

    session: int
    """That of the key."""
    name: str
    arguments: bytes


class FindCursor(RpcRequest, frozen=True):
    """Asks for the cursor of a named subscriber; FoundCursor answers."""

    group: GroupId
    name: str


class SaveCursor(RpcRequest, frozen=True):
    """Asks to keep the cursor of a named subscriber; FoundCursor answers when it is durable. None: forget it."""

    group: GroupId
    name: str
    cursor: Cursor | None


AnyRequest = (
    GetProgress
    | Subscribe
    | AllocateClientId
    | ReleaseClientId
    | FindPosition
    | FetchState
    | GetNodeStatus
    | GetTopology
    | FollowResults
    | ReadService
    | WatchCall
    | FindCursor
    | SaveCursor
)


class RpcEnvelope(msgspec.Struct, frozen=True, array_like=True):
    """The first frame of an RPC connection. New fields may only be added at the end."""

    version: int
    cluster: str
    process: ProcessId
    """The process that the caller believes it has reached."""
    request: AnyRequest


class RpcReply(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Base of the replies."""


class Progress(RpcReply, frozen=True):
    """The replica holds the deliveries [first, next) and can send them to subscribers."""

    first: int
    next: int
    caught_up: bool
    incarnation: int
    has_state: bool = True
    """The replica has its group's state and does not wait to receive it (`live/membership/state_survey.py`)."""
    closed: int | None = None
    """Every delivery of the group before this position is closed; None if that is not known in this setting."""


class Deliveries(RpcReply, frozen=True):
    """Consecutive deliveries; the first one is at `position`."""

    position: int
    messages: list[Message]
    closed: int | None = None
    """As in `Progress`."""


class KeepAlive(RpcReply, frozen=True):
    """There is no new delivery, and perhaps more is closed; the next delivery will be at position `next`."""

    next: int
    closed: int | None = None
    """As in `Progress`."""


class PositionExpired(RpcReply, frozen=True):
    """The requested position is no longer held; [first, next) is."""

    first: int
    next: int


class ClientId(RpcReply, frozen=True):
    """A client's process id, its incarnation and first sequence number, and a secret that proves ownership later."""

    process: ProcessId
    incarnation: int
    sequence: int
    secret: bytes
    topology: bytes = b""
    """The current topology if the members have changed: the client's cluster.toml may be older."""


class FoundPosition(RpcReply, frozen=True):
    """The position of a message; None if the replica has delivered it and does not know where any more."""

    position: int | None


class StateHeader(RpcReply, frozen=True):
    """The position and the size of an application's state, which follows in chunks."""

    position: int
    bytes: int


class StatePending(RpcReply, frozen=True):
    """The state is being written to disk; the header will follow."""


class StateChunk(RpcReply, frozen=True):
    """The next bytes of the state."""

    data: bytes


class NodeStatus(RpcReply, frozen=True):
    """A status as JSON (`live/server/status.py`)."""

    json: bytes


class CurrentTopology(RpcReply, frozen=True):
    """A topology as `kernel/reconfiguration.py` encodes it."""

    topology: bytes


class ServiceLeader(RpcReply, frozen=True):
    """The leader of the replica's group, as far as it knows: that one has results first."""

    leader: ProcessId


class ServiceResults(RpcReply, frozen=True):
    """Results of a session's commands in this group."""

    results: list[Result]


class ServiceAnswer(RpcReply, frozen=True):
    """The answer to one ReadService."""

    answer: ReadAnswer


class KeyedResult(RpcReply, frozen=True):
    """The result of a call with a key."""

    session: int
    about: bytes
    """The digest of the call that was asked for."""
    result: Result | None
    """None: the key is that of another call."""


class FoundCursor(RpcReply, frozen=True):
    """The cursor that a replica keeps of a subscriber."""

    cursor: Cursor | None


AnyReply = (
    CurrentTopology
    | NodeStatus
    | Progress
    | Deliveries
    | KeepAlive
    | PositionExpired
    | ClientId
    | FoundPosition
    | StateHeader
    | StatePending
    | StateChunk
    | ServiceLeader
    | ServiceResults
    | ServiceAnswer
    | KeyedResult
    | FoundCursor
)

_encoder: Final = msgspec.msgpack.Encoder()
_envelope_decoder: Final = msgspec.msgpack.Decoder(RpcEnvelope)
_reply_decoder: Final = msgspec.msgpack.Decoder(AnyReply)


def encode_request(envelope: RpcEnvelope, framing: frames.Framing = frames.CHECKED) -> bytes:
    """Encodes the first frame of an RPC connection."""
    return framing.make(frames.RPC_REQUEST, _encoder.encode(envelope))


def decode_request(payload: Any) -> RpcEnvelope:
    """Decodes the content of an RPC_REQUEST frame."""
    try:
        return _envelope_decoder.decode(payload)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise BadFrameError(f"an RPC request that cannot be decoded: {error}") from None


def encode_reply(reply: AnyReply, framing: frames.Framing) -> bytes:
    """Encodes one reply as a frame of the shape that the request had."""
    return framing.make(frames.RPC_REPLY, _encoder.encode(reply))


def decode_reply(payload: Any) -> AnyReply:
    """Decodes the content of an RPC_REPLY frame."""
    try:
        return cast(AnyReply, _reply_decoder.decode(payload))
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise BadFrameError(f"an RPC reply that cannot be decoded: {error}") from None
