"""One TCP connection: bytes in, whole frames out, and the rule that nobody is listened to before saying hello.

A connection knows nothing of sequence numbers or incarnations: that is the link's business (`live/wire/link.py`), which
outlives its connections. Whatever is wrong with the bytes ends this connection with one line in the log, and nothing
else.
"""

import asyncio
import ssl
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from amcast.live.errors import BadFrameError, RefusedError
from amcast.live.limits import GREETING_BYTES, KIB, MIB, Limits
from amcast.live.log_output import warn_rate_limited
from amcast.live.security.permissions import Subject
from amcast.live.security.tls import describe_error as told
from amcast.live.security.tls import parse_subject
from amcast.live.wire import frames as codec
from amcast.live.wire.frames import BODIES, HEAD, HEAD_BYTES, SHORT_HEAD, LinkIncarnation, heads
from amcast.live.wire.listener import format_address

if TYPE_CHECKING:
    from amcast.live.wire.client_inbox import ClientInbox
    from amcast.live.wire.emulated_line import DelayedWriter, EmulatedNetwork
    from amcast.live.wire.link import Link
    from amcast.live.wire.network import Network

unpack_head = HEAD.unpack_from
unpack_short_head = SHORT_HEAD.unpack_from
NOTHING = -1
"""No version and kind of a frame."""
FIRST_BUFFER = 8 * KIB
"""For strangers; more than a greeting, and not much more."""
LARGE_BUFFER = 1 * MIB


class Connection(asyncio.BufferedProtocol):
    """Parses frames in place, in one buffer that grows only as far as frames and the limits ask."""

    # fmt: off
    __slots__ = (
        "_buffer", "_deadline", "_end", "_limits", "_line", "_network", "_short", "_start", "_transport", "_usual",
        "_view", "closed", "deaf", "dials", "heads", "heard", "heard_at", "link", "on_room", "paused", "peername",
        "refused", "said", "write",
    )
    # fmt: on

    def __init__(self, network: "Network", limits: Limits, dials: "Link | None" = None) -> None:
        self._network = network
        self._limits = limits
        self.dials = dials
        """The link that dialled; None when the other side did."""
        self.said: LinkIncarnation | None = None
        """How the link that it dials was marked when we said hello."""
        self.link: Link | None = None
        """Set once both have said hello."""
        self.refused: str | None = None
        self.peername = "?"
        self.heard_at = 0.0
        """When something last came, to within a beat."""
        self.heard = False
        """Something other than a frame of bodies came since the last beat."""
        self.paused = False
        """The socket takes no more for now; the link keeps what it has."""
        self.deaf = False
        """We take no bytes for now; silence then says nothing about the peer."""
        self.on_room: Callable[[], object] | None = None
        """Called when the socket takes more again, for who has no link."""
        self.closed = asyncio.get_running_loop().create_future()
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray(FIRST_BUFFER)
        self._view = memoryview(self._buffer)
        self._start = 0
        self._end = 0
        self._short = min(limits.frame_bytes, FIRST_BUFFER // 2)
        self._usual = NOTHING
        """Version and kind of nearly all frames, once they go to a link; until then no frame has it."""
        self.heads: tuple[bytes, ...] = ()
        """How such a frame begins, by its length, if it is short; none until then (`live/wire/client_inbox.py`)."""
        self._deadline: asyncio.TimerHandle | None = None
        self._line: DelayedWriter | None = None
        self.write: Callable[[bytes], object] = _into_the_void
        """Give bytes to the socket, if there is one."""

    # What asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.write = self._transport.write
        self._transport.set_write_buffer_limits(high=4 * MIB, low=1 * MIB)
        self.peername = format_address(transport.get_extra_info("peername"))
        loop = asyncio.get_running_loop()
        self.heard_at = loop.time()
        self._deadline = loop.call_later(self._limits.hello_timeout_s, self._too_late)
        self._network.opened(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._view[self._end :] if self._end else self._view

    def buffer_updated(self, count: int) -> None:
        try:
            if self._end == 0 and count <= self._short:
                length, usual = unpack_short_head(self._view)
                if usual == self._usual and length == count - 4:
                    # Nearly always: one whole frame of a link, and nothing else.
                    self.link.take_bodies(self._view[HEAD_BYTES:count])  # type: ignore[union-attr]
                    return
            self._end += count
            self.heard = True
            self._take_frames()
        except BadFrameError as error:
            self.close(f"it sent {error}")
        except RefusedError as refused:
            self.refuse(str(refused))

    def take_bytes(self, data: bytes) -> None:
        """The same where bytes come as an object (`live/wire/client_inbox.py`), not in the buffer."""
        count = len(data)
        if self._end == 0 and HEAD_BYTES <= count <= self._short:
            length, usual = unpack_short_head(data)
            if usual == self._usual and length == count - 4:
                try:
                    self.link.take_bodies(data[HEAD_BYTES:])  # type: ignore[union-attr]
                except BadFrameError as error:
                    self.close(f"it sent {error}")
                except RefusedError as refused:
                    self.refuse(str(refused))
                return
        self._read_bytes(memoryview(data))

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self.paused = True
        if self.link is not None and self.link.connection is self:
            self.link.hold()

    def resume_writing(self) -> None:
        self.paused = False
        if self.link is not None:
            self.link.write_waiting()
        elif self.on_room is not None:
            self.on_room()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self.write = _into_the_void
        self._network.read_crowd()
        self._transport = None
        self.leave()
        if self._line is not None:
            self._line.close()
        if isinstance(exc, ssl.SSLError) and self.link is None:
            self.refused = f"TLS: {told(exc)}"
            self._network.was_refused(self, codec.Refusal(0, self.refused))
        if not self.closed.done():
            self.closed.set_result(None)
        self._network.lost(self)

    # What links and networks call

    def subject(self) -> Subject:
        """Whom the certificate of the other side names."""
        return parse_subject(self._transport.get_extra_info("peercert") if self._transport is not None else None)

    def dismiss(self, why: str) -> None:
        """Too many strangers are at the door."""
        self.close(why)

    def greeted(self, link: "Link | None") -> None:
        """It said who it is: a peer, or a visitor without a link."""
        self.link = link
        if self._deadline is not None:
            self._deadline.cancel()

    def enter(self, link: "Link") -> None:
        """From now on it carries this link."""
        self._usual = link.version << 8 | BODIES
        crowd = self._network.crowd
        if not link.serves and crowd is not None and self._transport is not None:
            self.heads = heads(link.version, min(self._short, self._limits.message_bytes))
            self._transport.set_protocol(ClientProtocol(self, crowd))
            if self._transport.is_reading():
                # Event loops choose how they read when they begin to.
                self._transport.pause_reading()
                self._transport.resume_reading()

    def leave(self) -> None:
        """Another connection carries the link now, or none does: what it still brings is not listened to."""
        self._usual = NOTHING
        self.heads = ()

    def imitate(self, lines: "EmulatedNetwork", region: str) -> None:
        """From now on what is written comes as late as it would over a line to that region."""
        assert self._transport is not None
        self._line = lines.delayed(region, self._transport.write)
        self.write = self._line

    def refuse(self, reason: str) -> None:
        """Tell the other side why, then hang up."""
        self._network.strangers.refused += 1
        warn_rate_limited("refused", "connection with %s refused: %s", self.peername, reason)
        self.write(codec.refusal_frame(reason))
        self.leave()
        if self._transport is not None:
            self._transport.close()

    def close(self, reason: str) -> None:
        """Hang up on a peer that misbehaves."""
        self._network.strangers.refused += 1
        warn_rate_limited("closed", "connection with %s closed: %s", self.peername, reason)
        self.abort()

    def finish(self) -> None:
        """Hang up after everything that was written has gone out."""
        if self._line is not None:
            self._line.finish()
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        self.leave()
        if self._transport is not None:
            self._transport.abort()

    def narrow(self, bytes: int) -> None:
        """Let no more than so much wait in the socket before `paused`."""
        if self._transport is not None:
            self._transport.set_write_buffer_limits(high=bytes)

    def pause_reading(self) -> None:
        if self._transport is not None and self._transport.is_reading():
            self._transport.pause_reading()
            self.deaf = True

    def resume_reading(self) -> None:
        if self._transport is not None and not self._transport.is_reading():
            self._transport.resume_reading()
            self.deaf = False
            self.heard_at = asyncio.get_running_loop().time()

    # Frames

    def _read_bytes(self, data: memoryview) -> None:
        """Put bytes into the buffer as a socket would have."""
        while data and self._transport is not None and not self._transport.is_closing():
            room = self.get_buffer(len(data))
            count = min(len(room), len(data))
            room[:count] = data[:count]
            self.buffer_updated(count)
            data = data[count:]

    def _take_frames(self) -> None:
        start, end, view, limit = self._start, self._end, self._view, self._limits.frame_bytes
        needed = HEAD_BYTES
        while end - start >= HEAD_BYTES:
            length, version, kind = unpack_head(view, start)
            link = self.link
            if kind == BODIES and link is not None and link.connection is self and version == link.version:
                # Nearly every frame: the short way.
                if not 2 <= length <= limit:
                    self._check_head(length, version, kind)
                needed = length + 4
                if end - start < needed:
                    break
                link.take_bodies(view[start + HEAD_BYTES : start + needed])
                link.weigh(needed)
            else:
                self._check_head(length, version, kind)
                needed = length + 4
                if end - start < needed:
                    break
                self._take(kind, view[start + HEAD_BYTES : start + needed])
                if self._transport is None or self._transport.is_closing():
                    return
            start += needed
            needed = HEAD_BYTES
        if start == end and len(self._buffer) <= LARGE_BUFFER and end < len(self._buffer):
            self._start = self._end = 0
        else:
            self._start, self._end = start, end
            self._make_room(needed)

    def _check_head(self, length: int, version: int, kind: int) -> None:
        limit = self._limits.frame_bytes if self.link is not None else GREETING_BYTES
        if not 2 <= length <= limit:
            raise BadFrameError(f"a frame of {length} bytes; expected 2 to {limit}")
        if kind >= len(codec.KINDS):
            raise BadFrameError(f"a frame of kind {kind}; expected 0 to {len(codec.KINDS) - 1}")
        oldest, newest = self._network.versions
        if not oldest <= version <= newest and kind not in (codec.HELLO, codec.REFUSE):
            raise BadFrameError(f"wire version {version}; expected {oldest} to {newest}")

    def _take(self, kind: int, payload: memoryview) -> None:
        if kind == codec.REFUSE:
            refusal = codec.read_refusal(payload)
            self.refused = refusal.reason
            self._network.was_refused(self, refusal)
        elif self.link is None:
            if kind == codec.RPC_REQUEST:
                self._network.visited(self, payload)
                return
            if kind != codec.HELLO:
                raise BadFrameError(f"{codec.KINDS[kind]} before HELLO")
            self._network.greet(self, codec.read_hello(payload))
        elif kind == codec.HELLO:
            raise BadFrameError("a second HELLO")
        elif self.link.connection is self:
            self.link.take(kind, payload)

    def _make_room(self, needed: int) -> None:
        """After this, the rest of a frame of `needed` bytes fits, and the next read has room."""
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

    def _too_late(self) -> None:
        self.close(f"it did not say hello within {self._limits.hello_timeout_s} s")


class ClientProtocol(asyncio.Protocol):
    """How a client's connection is read: a client says little at a time, mostly one short frame. Between servers frames
    are large and go without a copy into the connection's buffer; here the copy costs less than asking for the buffer,
    and the many buffers of many clients stay out of the processor's caches. What came waits for the next tick."""

    # fmt: off
    __slots__ = (
        "_arrived", "_connection", "_wake", "connection_lost", "eof_received", "pause_writing", "resume_writing",
    )
    # fmt: on

    def __init__(self, connection: Connection, crowd: "ClientInbox") -> None:
        self._connection = connection
        self._arrived = crowd.arrived
        self._wake = crowd.wake
        self.connection_lost = connection.connection_lost  # type: ignore[method-assign]
        self.eof_received = connection.eof_received  # type: ignore[method-assign]
        self.pause_writing = connection.pause_writing  # type: ignore[method-assign]
        self.resume_writing = connection.resume_writing  # type: ignore[method-assign]

    def data_received(self, data: bytes) -> None:
        arrived = self._arrived
        if not arrived:
            self._wake()
        arrived.append((self._connection, data))


def _into_the_void(data: bytes) -> None:
    """Before there is a socket, and when it is closed."""
