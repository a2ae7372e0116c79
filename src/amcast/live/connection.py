"""One TCP connection: bytes in, whole frames out, and the rule that nobody is listened to before saying hello.

A connection knows nothing of sequence numbers or lives: that is the link's business (`live/link.py`), which outlives
its connections. Whatever is wrong with the bytes ends this connection with one line in the log, and nothing else.
"""

import asyncio
import logging
from typing import TYPE_CHECKING, Any, cast

from amcast.live import codec
from amcast.live.codec import HEAD, HEAD_BYTES, WIRE_VERSION, BadFrame, Refused
from amcast.live.limits import GREETING_BYTES, KIB, MIB, Limits

if TYPE_CHECKING:
    from amcast.live.link import Link
    from amcast.live.network import Network

log = logging.getLogger("amcast.live")

FIRST_BUFFER = 64 * KIB
LARGE_BUFFER = 1 * MIB


class Connection(asyncio.BufferedProtocol):
    """Parses frames in place, in one buffer that grows only as far as frames and the limits ask."""

    def __init__(self, network: "Network", limits: Limits, dials: "Link | None" = None) -> None:
        self._network = network
        self._limits = limits
        self.dials = dials
        """The link that dialled; None when the other side did."""
        self.link: Link | None = None
        """Set once both have said hello."""
        self.refused: str | None = None
        self.peername = "?"
        self.heard_at = 0.0
        self.paused = False
        """The socket takes no more for now; the link keeps what it has."""
        self.deaf = False
        """We take no bytes for now; silence then says nothing about the peer."""
        self.closed = asyncio.get_running_loop().create_future()
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray(FIRST_BUFFER)
        self._view = memoryview(self._buffer)
        self._start = 0
        self._end = 0
        self._deadline: asyncio.TimerHandle | None = None

    # What asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=4 * MIB, low=1 * MIB)
        self.peername = _name(transport.get_extra_info("peername"))
        loop = asyncio.get_running_loop()
        self.heard_at = loop.time()
        self._deadline = loop.call_later(self._limits.greet_s, self._too_late)
        self._network.opened(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._view[self._end :]

    def buffer_updated(self, count: int) -> None:
        self._end += count
        self.heard_at = asyncio.get_running_loop().time()
        try:
            self._take_frames()
        except BadFrame as error:
            self.close(f"it sent {error}")
        except Refused as refused:
            self.refuse(str(refused))

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self.paused = True

    def resume_writing(self) -> None:
        self.paused = False
        if self.link is not None:
            self.link.write_waiting()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._transport = None
        if not self.closed.done():
            self.closed.set_result(None)
        self._network.lost(self)

    # What links and networks call

    def write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    def greeted(self, link: "Link") -> None:
        self.link = link
        if self._deadline is not None:
            self._deadline.cancel()

    def refuse(self, reason: str) -> None:
        """Tell the other side why, then hang up."""
        log.warning("connection with %s refused: %s", self.peername, reason)
        self.write(codec.refusal_frame(reason))
        if self._transport is not None:
            self._transport.close()

    def close(self, reason: str) -> None:
        """Hang up on a peer that misbehaves."""
        log.warning("connection with %s closed: %s", self.peername, reason)
        self.abort()

    def finish(self) -> None:
        """Hang up after everything that was written has gone out."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

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

    def _take_frames(self) -> None:
        start, end, view = self._start, self._end, self._view
        needed = HEAD_BYTES
        while end - start >= HEAD_BYTES:
            length, version, kind = HEAD.unpack_from(view, start)
            self._check_head(length, version, kind)
            needed = length + 4
            if end - start < needed:
                break
            self._take(kind, view[start + HEAD_BYTES : start + needed])
            start += needed
            needed = HEAD_BYTES
            if self._transport is None or self._transport.is_closing():
                return
        self._start, self._end = start, end
        self._make_room(needed)

    def _check_head(self, length: int, version: int, kind: int) -> None:
        limit = self._limits.frame_bytes if self.link is not None else GREETING_BYTES
        if not 2 <= length <= limit:
            raise BadFrame(f"a frame of {length} bytes; expected 2 to {limit}")
        if kind >= len(codec.KINDS):
            raise BadFrame(f"a frame of kind {kind}; expected 0 to {len(codec.KINDS) - 1}")
        if version != WIRE_VERSION and kind not in (codec.HELLO, codec.REFUSE):
            raise BadFrame(f"wire version {version}; expected {WIRE_VERSION}")

    def _take(self, kind: int, payload: memoryview) -> None:
        if kind == codec.REFUSE:
            self.refused = codec.read_refusal(payload)
            self._network.was_refused(self, self.refused)
        elif self.link is None:
            if kind != codec.HELLO:
                raise BadFrame(f"{codec.KINDS[kind]} before HELLO")
            self._network.greet(self, codec.read_hello(payload))
        elif kind == codec.HELLO:
            raise BadFrame("a second HELLO")
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
        self.close(f"it did not say hello within {self._limits.greet_s} s")


def _name(address: Any) -> str:
    return f"{address[0]}:{address[1]}" if isinstance(address, tuple) else str(address or "?")
