"""One TCP connection: splits bytes into frames and enforces that the first frame is a HELLO or an RPC request.

A connection knows nothing of frame numbers or incarnations: they belong to the link (`live/wire/link.py`), which
outlives its connections. Invalid bytes end the connection with one line in the log and have no other effect.

Servers send large frames, which are parsed in place (`Connection.buffer_updated`). Clients send one short frame at a
time, and a gateway reads as many of them as there are messages. Their bytes therefore wait in a `ClientInbox` for the
next tick, which handles all of them in one loop: the fast twin of `Connection.receive_bytes`, `Link.handle_bodies` and
`RequestFilter.check` for a frame with one valid request. Any other frame takes the slow way, which reports what is
wrong with it. tests/live/wire/test_client_inbox.py holds both equal.
"""

import asyncio
import logging
import ssl
from collections.abc import Callable
from typing import Final, Protocol, cast

import msgspec

from amcast.kernel.ids import MESSAGES_PER_SENDER
from amcast.kernel.message import Message, Request
from amcast.kernel.reconfiguration import CHANGE_PREFIX
from amcast.live.audit_log import record_audit
from amcast.live.errors import BadFrameError, CorruptedFrameError, RefusedError
from amcast.live.limits import GREETING_BYTES, KIB, MIB, Limits
from amcast.live.log_output import warn_rate_limited
from amcast.live.security.permissions import Subject
from amcast.live.security.request_filter import RequestFilter
from amcast.live.security.tls import describe_error, parse_subject, seconds_valid
from amcast.live.wire import frames as codec
from amcast.live.wire.emulated_line import DelayedWriter, EmulatedNetwork
from amcast.live.wire.frames import (
    BODIES,
    HEAD,
    HEAD_BYTES,
    SHORT_HEAD,
    Framing,
    Hello,
    LinkIncarnation,
    Refusal,
    bodies_heads,
    check_guard,
    find_framing,
)
from amcast.live.wire.link import TRIM_FRAMES, Link
from amcast.live.wire.listener import PendingConnections, format_address

log = logging.getLogger("amcast.live")

unpack_head = HEAD.unpack_from
unpack_short_head = SHORT_HEAD.unpack_from
NO_HEAD = -1
"""A value that no version and kind of a frame have."""
FIRST_BUFFER = 8 * KIB
"""Buffer of a pending connection: more than a HELLO, and not much more."""
LARGE_BUFFER = 1 * MIB
MAX_TIMER_S: Final = 1e6
"""The longest timer; a connection that is older than this is closed and made anew."""
_read_request: Final = msgspec.msgpack.Decoder(tuple[int, int, tuple[Request]]).decode
"""Decodes a BODIES frame whose only body is a request: number, ack, bodies."""


class ConnectionOwner(Protocol):
    """What a connection needs of the network that owns it (`live/wire/network.py`)."""

    pending: PendingConnections
    versions: tuple[int, int]
    has_checksums: bool
    client_inbox: "ClientInbox | None"

    def add_connection(self, connection: "Connection") -> None:
        """Handles a new connection."""

    def remove_connection(self, connection: "Connection") -> None:
        """Handles a connection that was lost."""

    def handle_hello(self, connection: "Connection", hello: Hello) -> None:
        """Accepts or refuses the peer that a HELLO names."""

    def handle_rpc(self, connection: "Connection", payload: memoryview) -> None:
        """Handles an RPC request in place of a HELLO."""

    def handle_refusal(self, connection: "Connection", refusal: Refusal) -> None:
        """Handles a REFUSE frame."""

    def read_client_inbox(self) -> None:
        """Handles all bytes of clients that wait for the next tick."""


class Connection(asyncio.BufferedProtocol):
    """Parses frames in place, in one buffer that grows only as far as frames and limits require."""

    # fmt: off
    __slots__ = (
        "_buffer",
        "_counted_bodies",
        "_deadline",
        "_end",
        "_limits",
        "_line",
        "_network",
        "_short",
        "_start",
        "_transport",
        "_usual_head",
        "_view",
        "client_name",
        "closed",
        "dialled_link",
        "framing",
        "has_received",
        "is_reading_paused",
        "is_writing_paused",
        "last_received_at",
        "link",
        "on_request",
        "on_writable",
        "peername",
        "refusal",
        "sent_incarnation",
        "usual_heads",
        "write",
    )
    # fmt: on

    def __init__(self, network: ConnectionOwner, limits: Limits, dialled_link: Link | None = None) -> None:
        self._network = network
        self._limits = limits
        self.dialled_link = dialled_link
        """The link that this process dialled for; None if the peer dialled."""
        self.sent_incarnation: LinkIncarnation | None = None
        """The incarnation of the dialled link that this process's HELLO stated."""
        self.link: Link | None = None
        """Set when both HELLOs were exchanged."""
        self.refusal: str | None = None
        """Why the peer refused this connection."""
        self.peername = "?"
        self.client_name = ""
        """The name that quotas count this connection for; empty for servers and before a client is known."""
        self._counted_bodies = 0
        """Bodies of the link that `take_body_count` has reported."""
        self.last_received_at = 0.0
        """When bytes were last received, to within a heartbeat."""
        self.has_received = False
        """A frame other than BODIES was received since the last heartbeat."""
        self.is_writing_paused = False
        """The socket takes no more for now; the link keeps its frames."""
        self.is_reading_paused = False
        """This end reads no bytes for now, so a silent peer may be alive."""
        self.on_writable: Callable[[], object] | None = None
        """Called when the socket takes more again, on a connection without a link."""
        self.on_request: Callable[[memoryview], object] | None = None
        """Called with further RPC requests, on a connection that may carry several."""
        self.closed = asyncio.get_running_loop().create_future()
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray(FIRST_BUFFER)
        self._view = memoryview(self._buffer)
        self._start = 0
        self._end = 0
        self._short = min(limits.frame_bytes, FIRST_BUFFER // 2)
        self._usual_head = NO_HEAD
        """Version and kind of BODIES frames while the connection carries a link; else no frame matches."""
        self.framing: Framing = codec.CHECKED
        """The shape of frames that a link or an RPC request on this connection uses."""
        self.usual_heads: tuple[bytes, ...] = ()
        """Heads of short BODIES frames by length, while the connection carries the link of a client."""
        self._deadline: asyncio.TimerHandle | None = None
        self._line: DelayedWriter | None = None
        self.write: Callable[[bytes], object] = _discard
        """Writes bytes to the socket, if there is one."""

    # Called by asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.write = self._transport.write
        self._transport.set_write_buffer_limits(high=4 * MIB, low=1 * MIB)
        peername, own = transport.get_extra_info("peername"), transport.get_extra_info("sockname")
        self.peername = format_address(peername, own)
        loop = asyncio.get_running_loop()
        self.last_received_at = loop.time()
        self._deadline = loop.call_later(self._limits.hello_timeout_s, self._expire)
        self._network.add_connection(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._view[self._end :] if self._end else self._view

    def buffer_updated(self, count: int) -> None:
        try:
            if self._end == 0 and count <= self._short:
                length, head = unpack_short_head(self._view)
                if head == self._usual_head and length == count - 4:
                    # Nearly always: exactly one BODIES frame of a link.
                    self.link.handle_bodies(self.framing.open(self._view[:count]))  # type: ignore[union-attr]
                    return
            self._end += count
            self.has_received = True
            self._parse_frames()
        except BadFrameError as error:
            self._close_bad(error)
        except RefusedError as refused:
            self.refuse(str(refused))

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self.is_writing_paused = True
        if self.link is not None and self.link.connection is self:
            self.link.pause()

    def resume_writing(self) -> None:
        self.is_writing_paused = False
        if self.link is not None:
            self.link.write_waiting()
        elif self.on_writable is not None:
            self.on_writable()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._transport is None:
            return
        if self._deadline is not None:
            self._deadline.cancel()
        self.write = _discard
        self._network.read_client_inbox()
        self._transport = None
        self.drop_link()
        if self._line is not None:
            self._line.close()
        if isinstance(exc, ssl.SSLError) and self.link is None:
            self.refusal = f"TLS: {describe_error(exc)}"
            self._network.handle_refusal(self, Refusal(0, self.refusal))
        if not self.closed.done():
            self.closed.set_result(None)
        self._network.remove_connection(self)

    # Called by links, networks and the RPC server

    def receive_bytes(self, data: bytes) -> None:
        """Handles received bytes that are not in the buffer: the slow twin of `ClientInbox.fast_receive`."""
        count = len(data)
        if self._end == 0 and HEAD_BYTES <= count <= self._short:
            length, head = unpack_short_head(data)
            if head == self._usual_head and length == count - 4:
                try:
                    self.link.handle_bodies(self.framing.open(data))  # type: ignore[union-attr]
                except BadFrameError as error:
                    self._close_bad(error)
                except RefusedError as refused:
                    self.refuse(str(refused))
                return
        self._fill_buffer(memoryview(data))

    def subject(self) -> Subject:
        """The subject of the peer's certificate."""
        return parse_subject(self._transport.get_extra_info("peercert") if self._transport is not None else None)

    def owner(self) -> str:
        """The name that quotas and the audit log use: that of the certificate; without TLS, the address."""
        return self.peername.rpartition(":")[0] if self._network.has_checksums else str(self.subject())

    def describe_owner(self) -> str:
        """The owner, if it is known already."""
        try:
            return self.owner()
        except RefusedError:
            return ""

    def identify_client(self, name: str) -> None:
        """Records the name of the client that this connection belongs to."""
        self.client_name = name

    def take_body_count(self) -> int:
        """How many bodies the link of this connection has received since the last call."""
        received = 0 if self.link is None else self.link.received + self.link.extra_bodies
        count, self._counted_bodies = received - self._counted_bodies, received
        return max(count, 0)

    def end_with_certificate(self) -> None:
        """Closes the connection when the peer's certificate expires."""
        valid_s = seconds_valid(self._transport.get_extra_info("peercert")) if self._transport is not None else None
        if valid_s is not None:
            loop = asyncio.get_running_loop()
            timer = loop.call_later(min(max(valid_s, 0.0), MAX_TIMER_S), self.refuse, "its certificate has expired")
            self.closed.add_done_callback(lambda _: timer.cancel())

    def dismiss(self, why: str) -> None:
        """Closes a pending connection, because too many are pending."""
        self.close(why)

    def complete_handshake(self, link: Link | None) -> None:
        """Records that the other side has identified itself: a peer with a link, or an RPC client without one."""
        self.link = link
        if self._deadline is not None:
            self._deadline.cancel()

    def carry_link(self, link: Link) -> None:
        """Hands frames to this link from now on; bytes of a client go to the inbox."""
        self.framing = framing = link.framing
        self._usual_head = framing.version << 8 | BODIES
        inbox = self._network.client_inbox
        if not link.is_server and inbox is not None and self._transport is not None:
            self.usual_heads = bodies_heads(framing, min(self._short, self._limits.message_bytes))
            self._transport.set_protocol(ClientProtocol(self, inbox))
            if self._transport.is_reading():
                # Event loops choose how they read when they start to.
                self._transport.pause_reading()
                self._transport.resume_reading()

    def drop_link(self) -> None:
        """Ignores further frames: another connection carries the link now, or none does."""
        self._usual_head = NO_HEAD
        self.usual_heads = ()

    def emulate_line(self, lines: EmulatedNetwork, region: str) -> None:
        """Delays everything written from now on as an emulated line to that region would."""
        assert self._transport is not None
        self._line = lines.make_writer(region, self._transport.write)
        self.write = self._line

    def refuse(self, reason: str) -> None:
        """Sends a REFUSE frame with the reason, then closes the connection."""
        self._network.pending.refused += 1
        warn_rate_limited("refused", "connection with %s refused: %s", self.peername, reason)
        record_audit("refused", self.describe_owner(), self.peername, reason=reason)
        self.write(codec.encode_refusal(reason, self._network.versions[1]))
        self.drop_link()
        if self._transport is not None:
            self._transport.close()

    def close(self, reason: str) -> None:
        """Closes the connection of a peer that misbehaves."""
        self._network.pending.refused += 1
        warn_rate_limited("closed", "connection with %s closed: %s", self.peername, reason)
        record_audit("closed", self.describe_owner(), self.peername, reason=reason)
        self.abort()

    def _close_bad(self, error: BadFrameError) -> None:
        if isinstance(error, CorruptedFrameError):
            self._network.pending.corrupted += 1
        self.close(f"it sent {error}")

    def finish(self) -> None:
        """Closes the connection after everything written has been sent."""
        if self._line is not None:
            self._line.flush()
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Closes the connection at once."""
        self.drop_link()
        if self._transport is not None:
            self._transport.abort()

    def limit_write_buffer(self, size: int) -> None:
        """Sets `is_writing_paused` when more than this many bytes wait in the socket."""
        if self._transport is not None:
            self._transport.set_write_buffer_limits(high=size)

    def pause_reading(self) -> None:
        """Stops reading; the peer's queue fills instead of this process's memory."""
        if self._transport is not None and self._transport.is_reading():
            self._transport.pause_reading()
            self.is_reading_paused = True

    def resume_reading(self) -> None:
        """Reads again."""
        if self._transport is not None and not self._transport.is_reading():
            self._transport.resume_reading()
            self.is_reading_paused = False
            self.last_received_at = asyncio.get_running_loop().time()

    # Frames

    def _fill_buffer(self, data: memoryview) -> None:
        """Puts bytes into the buffer as a socket would."""
        while data and self._transport is not None and not self._transport.is_closing():
            free = self.get_buffer(len(data))
            count = min(len(free), len(data))
            free[:count] = data[:count]
            self.buffer_updated(count)
            data = data[count:]

    def _parse_frames(self) -> None:
        start, end, view, limit = self._start, self._end, self._view, self._limits.frame_bytes
        needed = HEAD_BYTES
        while end - start >= HEAD_BYTES:
            length, version, kind = unpack_head(view, start)
            link = self.link
            if kind == BODIES and link is not None and link.connection is self and version == link.version:
                # Nearly every frame: no further checks are needed.
                if not 2 <= length <= limit:
                    self._check_head(length, version, kind)
                needed = length + 4
                if end - start < needed:
                    if link.framing.is_checked:
                        check_guard(view[start:end], length)
                    break
                link.handle_bodies(link.framing.open(view[start : start + needed]))
                link.account_received(needed)
            else:
                self._check_head(length, version, kind)
                needed = length + 4
                framing = self._find_framing(version, kind)
                if end - start < needed:
                    if framing.is_checked:
                        check_guard(view[start:end], length)
                    break
                payload = framing.open(view[start : start + needed])
                if kind == codec.RPC_REQUEST:
                    self.framing = framing
                self._handle_frame(kind, payload)
                if self._transport is None or self._transport.is_closing():
                    return
            start += needed
            needed = HEAD_BYTES
        if start == end and len(self._buffer) <= LARGE_BUFFER and end < len(self._buffer):
            self._start = self._end = 0
        else:
            self._start, self._end = start, end
            self._make_space(needed)

    def _check_head(self, length: int, version: int, kind: int) -> None:
        limit = self._limits.frame_bytes if self.link is not None else GREETING_BYTES
        if not 2 <= length <= limit:
            raise BadFrameError(f"a frame of {length} bytes; expected 2 to {limit}")
        if kind >= len(codec.KINDS):
            raise BadFrameError(f"a frame of kind {kind}; expected 0 to {len(codec.KINDS) - 1}")
        oldest, newest = self._network.versions
        if self.link is not None:
            oldest = newest = self.link.version
        if not oldest <= version <= newest and kind not in (codec.HELLO, codec.REFUSE):
            wrong = f"wire version {version}; expected {_format_versions(oldest, newest)}"
            # A caller that learns which versions are spoken here can ask again.
            raise RefusedError(wrong) if kind == codec.RPC_REQUEST else BadFrameError(wrong)

    def _find_framing(self, version: int, kind: int) -> Framing:
        """The shape of a frame; HELLO and REFUSE have that of the oldest version."""
        return find_framing(version, kind not in (codec.HELLO, codec.REFUSE) and self._network.has_checksums)

    def _handle_frame(self, kind: int, payload: memoryview) -> None:
        if kind == codec.REFUSE:
            refusal = codec.read_refusal(payload)
            self.refusal = refusal.reason
            self._network.handle_refusal(self, refusal)
        elif self.link is None:
            if kind == codec.RPC_REQUEST:
                if self.on_request is not None:
                    self.on_request(payload)
                else:
                    self._network.handle_rpc(self, payload)
                return
            if kind != codec.HELLO:
                raise BadFrameError(f"{codec.KINDS[kind]} before HELLO")
            self._network.handle_hello(self, codec.read_hello(payload))
        elif kind == codec.HELLO:
            raise BadFrameError("a second HELLO")
        elif self.link.connection is self:
            self.link.handle_frame(kind, payload)

    def _make_space(self, needed: int) -> None:
        """Ensures that the rest of a frame of `needed` bytes fits, and that the next read has space."""
        rest = self._end - self._start
        size = len(self._buffer)
        if needed > size or (rest == 0 and self._end == size and size < LARGE_BUFFER):
            self._move(max(needed, min(2 * size, LARGE_BUFFER)))
        elif rest == 0:
            self._start = self._end = 0
            if size > LARGE_BUFFER:
                self._move(LARGE_BUFFER)
        elif size - self._start < needed or size - self._end < size // 4:
            self._move(size)

    def _move(self, size: int) -> None:
        rest = bytes(self._view[self._start : self._end])
        if size != len(self._buffer):
            self._buffer = bytearray(size)
            self._view = memoryview(self._buffer)
        self._buffer[: len(rest)] = rest
        self._start, self._end = 0, len(rest)

    def _expire(self) -> None:
        self.close(f"it sent no HELLO within {self._limits.hello_timeout_s} s (limits.hello_timeout_s)")


class ClientProtocol(asyncio.Protocol):
    """Reads the connection of a client: puts received bytes into the inbox, where they wait for the next tick.

    Frames of servers are large and go into the connection's buffer without a copy. A client mostly sends one short
    frame at a time; the copy costs less than asking for the buffer, and the buffers of many clients stay out of the
    processor's caches.
    """

    # fmt: off
    __slots__ = (
        "_arrived", "_connection", "_wake", "connection_lost", "eof_received", "pause_writing", "resume_writing",
    )
    # fmt: on

    def __init__(self, connection: Connection, inbox: "ClientInbox") -> None:
        self._connection = connection
        self._arrived = inbox.arrived
        self._wake = inbox.wake
        self.connection_lost = connection.connection_lost  # type: ignore[method-assign]
        self.eof_received = connection.eof_received  # type: ignore[method-assign]
        self.pause_writing = connection.pause_writing  # type: ignore[method-assign]
        self.resume_writing = connection.resume_writing  # type: ignore[method-assign]

    def data_received(self, data: bytes) -> None:
        arrived = self._arrived
        if not arrived:
            self._wake()
        arrived.append((self._connection, data))


class ClientInbox:
    """Bytes that the clients of one server have sent since its last tick."""

    __slots__ = ("_filter", "_on_requests", "arrived", "wake")

    def __init__(
        self, filter: RequestFilter, on_requests: Callable[[list[Message]], None], wake: Callable[[], object]
    ) -> None:
        """`on_requests` gets the messages of valid requests; `wake` is called when the inbox was empty."""
        self.arrived: list[tuple[Connection, bytes]] = []
        """Received bytes with their connections, oldest first."""
        self.wake = wake
        self._filter = filter
        self._on_requests = on_requests

    def fast_receive(self) -> None:
        """Handles all bytes. Every TRIM_FRAMES-th frame of a client takes the slow way, which trims its queue."""
        arrived = self.arrived[:]
        self.arrived.clear()
        checked = self._filter.checked_destinations
        requests: list[Message] = []
        for connection, data in arrived:
            try:
                framing = connection.framing
                number, _, (request,) = _read_request(framing.open(data))
                message, link = request.message, connection.link
                if (
                    data[: framing.head_bytes] == connection.usual_heads[len(data)]
                    and not connection._end
                    and link is not None
                    and number == link.received + 1
                    and number % TRIM_FRAMES
                    and message.sender == link.peer
                    and message.id // MESSAGES_PER_SENDER == link.peer
                    and message.destinations in checked
                    and not message.payload.startswith(CHANGE_PREFIX)
                ):
                    link.received = number
                    requests.append(message)
                    continue
            except Exception:
                pass  # not the usual frame, for whatever reason
            if requests:
                self._on_requests(requests)
                requests = []
            _receive_slowly(connection, data)
        if requests:
            self._on_requests(requests)


def _receive_slowly(connection: Connection, data: bytes) -> None:
    """Handles bytes of one client; no error in them affects other clients."""
    try:
        connection.receive_bytes(data)
    except Exception as error:
        log.error("bytes from %s cannot be handled", connection.peername, exc_info=error)
        connection.close(f"it sent bytes that cannot be handled: {error!r}")


def _format_versions(oldest: int, newest: int) -> str:
    return f"{oldest} to {newest}" if oldest < newest else str(oldest)


def _discard(data: bytes) -> None:
    """Stands for the write function while there is no socket."""
