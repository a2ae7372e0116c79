"""A link: an ordered, exactly-once channel between two processes, within one incarnation of both ends.

TCP alone loses the bytes that were in flight when a connection breaks. A link therefore numbers its frames, keeps each
one until the peer acknowledges it, and after a reconnect resends from the peer's position. A link outlives its
connections; one connection carries both directions.

Each end names its side of the link with a link incarnation, (incarnation of the process, number of the link in that
incarnation), and remembers the peer's. The two HELLOs of a new connection carry all four, and there are three cases:

- both remember the other's link incarnation, or have never talked: the link continues and nothing is lost;
- the peer shows another link incarnation than the remembered one (it was restarted, its queue overflowed, or it dropped
  the link): frames for the old one are dropped, numbering restarts, and the process gets `LinkReset(peer,
  incarnation)`;
- the peer remembers another incarnation of this end: the peer resets its side; this end has nothing to drop.

An overflow of the bounded queue ends the link incarnation: the link drops everything and takes a new one, which the
peer learns from the next HELLO. Until then frames for the peer are dropped too; the process resynchronises with the
peer when it gets `LinkReset`.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any, Literal, Protocol

from msgspec import MsgspecError

from amcast.kernel.checksum import crc32
from amcast.kernel.effects import About
from amcast.kernel.ids import ProcessId
from amcast.kernel.message import Body
from amcast.live.errors import BadFrameError, RefusedError
from amcast.live.limits import KIB, Limits
from amcast.live.wire import frames
from amcast.live.wire.fragments import Reassembler, fragment
from amcast.live.wire.frames import (
    ACK,
    FRAGMENT,
    Codec,
    Frame,
    Framing,
    Hello,
    LinkIncarnation,
    TopologyVersion,
)

log = logging.getLogger("amcast.live")

ACK_BYTES = 256 * KIB
ACK_FRAMES = 64
"""A link acknowledges at once after this much, large frames or small; otherwise with its next frame or heartbeat. An
acknowledgement only frees the sender's memory."""
TRIM_FRAMES = 32
TRIM_BYTES = 64 * KIB
"""Acknowledged frames are dropped when there are this many, or the queue is this large: not one by one."""


class LinkConnection(Protocol):
    """What a link needs of the connection that carries it (`live/wire/connection.py`)."""

    is_writing_paused: bool
    is_reading_paused: bool
    has_received: bool
    last_received_at: float
    write: Callable[[bytes], object]

    def carry_link(self, link: "Link") -> None:
        """Hands frames to this link from now on."""

    def drop_link(self) -> None:
        """Hands frames to no link any more."""

    def close(self, reason: str) -> None:
        """Closes the connection and logs the reason."""

    def finish(self) -> None:
        """Closes the connection after everything written has been sent."""

    def abort(self) -> None:
        """Closes the connection at once."""


class Link:
    """This process's end of the channel to one peer."""

    # fmt: off
    __slots__ = (
        "_acknowledged_until", "_codec", "_decode", "_frame_target_bytes", "_is_flowing",
        "_last_heartbeat", "_limits", "_next_incarnation", "_on_bodies", "_on_frame", "_on_lost", "_on_reset",
        "_pressure_bytes", "_queue", "_reassembler", "_relief", "_reported", "_sent", "_trim_from",
        "_unreported_bytes", "_write", "_written_before_pause", "abouts", "connection", "disconnected_at",
        "extra_bodies", "framing", "in_fanout", "incarnation", "is_broken", "is_server", "parts", "parts_bytes", "peer",
        "peer_incarnation", "peer_start", "queued_bytes", "received",
    )
    # fmt: on

    def __init__(
        self,
        peer: ProcessId,
        codec: Codec,
        limits: Limits,
        on_bodies: Callable[[ProcessId, list[Body]], None],
        on_frame: Callable[[ProcessId, Frame], None],
        on_reset: Callable[[ProcessId, int], None],
        on_lost: Callable[[ProcessId, list[bytes]], None] | None,
        next_incarnation: Callable[[], LinkIncarnation],
        is_server: bool,
        framing: Framing = frames.CHECKED,
    ) -> None:
        """`on_bodies` gets the bodies of a frame, `on_frame` a frame of a peer that traces its packets; `on_reset` is
        called when the link is reset, `on_lost` with its unacknowledged frames."""
        self.peer = peer
        self.incarnation = next_incarnation()
        self.peer_incarnation: LinkIncarnation | None = None
        """None before the first HELLO of this incarnation; then nothing was received and nothing acknowledged."""
        self.peer_start = 0
        """`Hello.start` of the peer."""
        self.connection: LinkConnection | None = None
        self.disconnected_at = 0.0
        self.queued_bytes = 0
        """Size of all frames that the peer has not acknowledged."""
        self.framing = framing
        """The shape of frames, with the wire version that the last two HELLOs agreed on."""
        self.is_server = is_server
        self.in_fanout = False
        """A fan-out of this tick includes the peer (`live/wire/outbox.py`)."""
        self.is_broken = False
        """The queue overflowed; everything sent is dropped until the next HELLO."""
        self._codec = codec
        self._decode = codec.decode_bodies
        self._limits = limits
        self._on_bodies = on_bodies
        self._on_frame = on_frame
        self._on_reset = on_reset
        self._on_lost = on_lost
        self._reassembler = Reassembler(limits.body_bytes) if is_server else None
        """Joins fragments; None for clients, which may not send any."""
        self._next_incarnation = next_incarnation
        self._sent = 0
        """Number of the last frame made; frames count 1, 2, 3 ..."""
        self._is_flowing = False
        """The link is connected, the connection has had every frame so far, and it takes more."""
        self._write: Callable[[bytes], object] = _discard
        """Writes bytes to the present connection."""
        self._written_before_pause = 0
        """While not flowing: number of the last frame written to the present connection."""
        self._acknowledged_until = 0
        """Number of the last frame that the peer is known to have."""
        self._trim_from = TRIM_FRAMES
        """An acknowledgement of this frame or a later one trims the queue."""
        self._queue: deque[bytes] = deque()
        """The frames after `_acknowledged_until`, oldest first."""
        self._last_heartbeat = (0, 0)
        """Last frame written and last frame received at the previous heartbeat."""
        self.received = 0
        """Number of the last frame received."""
        self.extra_bodies = 0
        """Bodies received besides the first of each frame, over all incarnations."""
        self._reported = 0
        """Number of the last received frame that the peer knows to have arrived."""
        self._unreported_bytes = 0
        self.parts: list[bytes] = []
        """Encoded bodies of this tick, put here by the outbox; `flush` makes frames of them."""
        self.parts_bytes = 0
        self.abouts: list[About] = []
        """The message that each part is about, while packets are traced."""
        self._frame_target_bytes = limits.frame_target_bytes
        self._pressure_bytes = limits.backpressure_bytes
        self._relief: asyncio.Event | None = None

    def become_server(self) -> None:
        """Records that the peer, known as a client so far, is a server: it may send bodies in fragments."""
        self.is_server = True
        self._reassembler = self._reassembler or Reassembler(self._limits.body_bytes)

    # Sending

    def flush(self, sent_ns: int | None) -> bool:
        """Makes frames of the parts of this tick, with trace data if `sent_ns` is given, and writes them.

        Returns True if the peer has more than `limits.backpressure_bytes` to take.
        """
        parts = self.parts
        if not parts:
            return False
        size = self.parts_bytes
        self.parts, self.parts_bytes = [], 0
        if sent_ns is None and size <= self._frame_target_bytes:
            tail = frames.join_parts(parts)
            return self.send_frame(tail, crc32(tail) if self.framing.is_checked else 0)
        abouts, self.abouts = self.abouts, []
        self.pause()
        for first, last in _split_by_size([len(part) for part in parts], self._frame_target_bytes):
            self._enqueue(parts[first:last], abouts[first:last], sent_ns)
        self.write_waiting()
        return self.queued_bytes > self._pressure_bytes

    @property
    def version(self) -> int:
        """The wire version that the last two HELLOs agreed on."""
        return self.framing.version

    def send_frame(self, tail: bytes, tail_crc: int) -> bool:
        """Sends one frame with joined parts (`frames.join_parts`) and their CRC-32, which may be 0 with TLS. Returns
        True under back-pressure."""
        if self.is_broken:
            return False
        number = self._sent = self._sent + 1
        received = self._reported = self.received
        frame = self.framing.make_numbered(number, received, tail, tail_crc)
        self._queue.append(frame)
        queued = self.queued_bytes = self.queued_bytes + len(frame)
        if self._is_flowing:
            self._write(frame)
        return queued > self._pressure_bytes

    def _enqueue(self, parts: list[bytes], abouts: list[About], sent_ns: int | None) -> None:
        if len(parts[0]) > self._codec.whole_bytes:
            for piece in fragment(parts[0], self._codec.fragment_bytes, sent_ns or 0, abouts[0] if abouts else None):
                self._sent += 1
                self._append(self._codec.encode_fragment(self._sent, self.received, piece, self.framing))
            return
        self._sent += 1
        self._reported = self.received
        self._unreported_bytes = 0
        if sent_ns is None:
            frame = self._codec.encode_frame(self._sent, self.received, parts, self.framing)
        else:
            frame = self._codec.encode_traced(self._sent, self.received, parts, sent_ns, abouts, self.framing)
        self._append(frame)

    def _append(self, frame: bytes) -> None:
        self._queue.append(frame)
        self.queued_bytes += len(frame)

    @property
    def _written(self) -> int:
        """Number of the last frame written to the present connection."""
        return self._sent if self._is_flowing else self._written_before_pause

    @property
    def unsent_bytes(self) -> int:
        """Size of the frames that no connection has taken yet. Frames that only lack an acknowledgement, which may come
        much later on an idle link, are not counted."""
        if self.connection is None:
            return self.queued_bytes
        return sum(map(len, islice(self._queue, self._written - self._acknowledged_until, None)))

    def pause(self) -> None:
        """Stops writing: the present connection takes no more for now."""
        self._written_before_pause = self._written
        self._is_flowing = False

    def write_waiting(self) -> None:
        """Writes, at once, all frames that the present connection has not had yet."""
        connection = self.connection
        if self._is_flowing or connection is None or connection.is_writing_paused:
            return
        waiting = self._sent - self._written_before_pause
        self._is_flowing = True
        if waiting:
            # A connection that takes no more now calls `pause` from here, and has had all of it.
            self._write(self._queue[-1] if waiting == 1 else b"".join(list(self._queue)[-waiting:]))

    def is_overfull(self) -> bool:
        """More waits than `limits.queue_bytes`. Fragments count apart: one body may be larger than a whole queue."""
        limits, size = self._limits, self._codec.whole_bytes
        large = sum(len(frame) for frame in self._queue if frame[5] == FRAGMENT)
        large += sum(len(part) for part in self.parts if len(part) > size)
        return large > 2 * limits.body_bytes or self.queued_bytes + self.parts_bytes - large > limits.queue_bytes

    def overflow(self) -> None:
        """Ends this incarnation of the link, because its queue is overfull."""
        log.warning(
            "link with process %d: more than %d bytes (limits.queue_bytes) wait to be sent; the link is reset",
            self.peer,
            self._limits.queue_bytes,
        )
        self.is_broken = True
        self.incarnation = self._next_incarnation()
        self.peer_incarnation = None
        if self.connection is not None:
            self.connection.drop_link()
            self.connection.abort()
            self.connection = None
        self._write = _discard
        self.reset()

    def reset(self) -> None:
        """Drops all frames and restarts the numbering of both directions at 1."""
        if self._queue and self._on_lost is not None:
            self._on_lost(self.peer, list(self._queue))
        if self._reassembler is not None:
            self._reassembler.clear()
        self._sent = self._written_before_pause = self._acknowledged_until = self.received = self._reported = 0
        self._trim_from = TRIM_FRAMES
        self._is_flowing = False
        self._queue.clear()
        self.parts.clear()
        self.abouts.clear()
        self.queued_bytes = self.parts_bytes = self._unreported_bytes = 0
        self._signal_relief()

    # Back-pressure

    @property
    def is_congested(self) -> bool:
        """The peer is connected but slow. A disconnected peer delays no sender: its queue may fill and overflow."""
        return self.connection is not None and self.queued_bytes > self._limits.backpressure_bytes

    async def wait_for_capacity(self) -> None:
        """Waits until the peer has taken enough of what was sent before."""
        while self.is_congested:
            if self._relief is None:
                self._relief = asyncio.Event()
            await self._relief.wait()

    def _signal_relief(self) -> None:
        is_gone = self.connection is None
        if self._relief is not None and (is_gone or self.queued_bytes <= self._limits.backpressure_bytes // 2):
            self._relief.set()
            self._relief = None

    # Receiving

    def handle_frame(self, kind: int, payload: Any) -> None:
        """Handles an ACK, FRAGMENT or TRACED frame, or a BODIES frame that came with others."""
        if kind == ACK:
            self._trim_queue(frames.read_ack(payload))
            return
        if kind == FRAGMENT:
            self._handle_fragment(payload)
        else:
            frame = self._codec.read(kind, payload)
            self._count_frame(frame.number, frame.ack)
            self.extra_bodies += len(frame.bodies) - 1
            self._on_frame(self.peer, frame)
        self.account_received(len(payload))

    def handle_bodies(self, payload: memoryview | bytes) -> None:
        """Handles a BODIES frame: nearly all frames are of this kind."""
        try:
            number, ack, bodies = self._decode(payload)
        except (MsgspecError, ValueError, RecursionError) as error:
            raise BadFrameError(f"a BODIES frame that cannot be read: {error}") from None
        if number != self.received + 1:
            raise BadFrameError(f"frame {number}; expected {self.received + 1}")
        self.received = number
        self.extra_bodies += len(bodies) - 1
        if ack >= self._trim_from or self.queued_bytes > TRIM_BYTES:
            self._trim_queue(ack)
        self._on_bodies(self.peer, bodies)
        if number - self._reported > ACK_FRAMES:
            self.acknowledge()

    def account_received(self, size: int) -> None:
        """Counts the bytes of a large frame, and acknowledges if many are unreported."""
        is_first = self._reported == self.received - 1
        self._unreported_bytes = size if is_first else self._unreported_bytes + size
        if self._unreported_bytes > ACK_BYTES:
            self.acknowledge()

    def _count_frame(self, number: int, ack: int) -> None:
        if number != self.received + 1:
            raise BadFrameError(f"frame {number}; expected {self.received + 1}")
        self.received += 1
        self._trim_queue(ack)

    def _handle_fragment(self, payload: Any) -> None:
        number, ack, piece = self._codec.read_fragment(payload)
        self._count_frame(number, ack)
        if self._reassembler is None:
            raise BadFrameError("a FRAGMENT from a client; only servers may send bodies larger than a frame")
        data = self._reassembler.add(piece)
        if data is None:
            return
        body = self._codec.read_reassembled(data)
        if piece.sent_ns:
            self._on_frame(self.peer, Frame(number, ack, [body], piece.sent_ns, [piece.about], [len(data)]))
        else:
            self._on_bodies(self.peer, [body])

    def _trim_queue(self, ack: int) -> None:
        """Drops the frames that the peer has acknowledged."""
        if ack > self._written:
            raise BadFrameError(f"an acknowledgement of frame {ack}; only {self._written} were sent")
        pop = self._queue.popleft
        size = 0
        for _ in range(ack - self._acknowledged_until):
            size += len(pop())
        self.queued_bytes -= size
        self._acknowledged_until = max(ack, self._acknowledged_until)
        self._trim_from = self._acknowledged_until + TRIM_FRAMES
        if self._relief is not None:
            self._signal_relief()

    def acknowledge(self) -> None:
        """Sends an ACK of all frames received."""
        if self.connection is not None and not self.connection.is_writing_paused:
            self._reported = self.received
            self._unreported_bytes = 0
            self.connection.write(frames.encode_ack(self.received, self.framing))

    def heartbeat(self, now: float) -> None:
        """Shows that this end is alive, acknowledges frames received before the previous heartbeat if no frame has done
        so since, and closes a connection that went silent."""
        connection = self.connection
        if connection is None:
            return
        has_written = self._written != self._last_heartbeat[0]
        has_received = self.received != self._last_heartbeat[1]
        is_unreported = self._reported < self._last_heartbeat[1]
        self._last_heartbeat = (self._written, self.received)
        if has_received or connection.has_received:
            connection.has_received = False
            connection.last_received_at = now
        timeout_s = self._limits.heartbeat_timeout_s
        if now - connection.last_received_at > timeout_s and not connection.is_reading_paused:
            connection.close(f"process {self.peer} sent nothing for {timeout_s} s (limits.heartbeat_timeout_s)")
        elif not has_written or is_unreported:
            self.acknowledge()

    # Connections

    def make_hello(
        self,
        cluster: str,
        protocol: str,
        me: ProcessId,
        version: int,
        oldest: int,
        region: str,
        topology: TopologyVersion,
        start: int = 0,
        order: Literal["", "acyclic", "real-time"] = "",
    ) -> Hello:
        """The HELLO of this end for a new connection."""
        return Hello(
            version, cluster, protocol, me, self.peer, *self.incarnation, self.peer_incarnation, self.received,
            oldest, region, *topology, start, order=order,
        )  # fmt: skip

    def set_framing(self, framing: Framing) -> None:
        """Uses the shape of frames that both ends agreed on, also for queued frames, which were made before."""
        if framing is not self.framing:
            self._queue = deque(frames.reframe(frame, self.framing, framing) for frame in self._queue)
            self.queued_bytes = sum(map(len, self._queue))
            self.framing = framing

    def check_hello(self, hello: Hello) -> None:
        """Refuses a peer with an earlier incarnation, or with the known one and no memory of the link. A peer with a
        data folder may come back so when its last connection is closed: its group decides whether it takes part
        (`parts/node/admission.py`)."""
        if self.peer_incarnation is None:
            return
        if self.connection is None and hello.start != self.peer_start:
            return
        process, link = self.peer_incarnation
        if (hello.incarnation, hello.link) < self.peer_incarnation:
            raise RefusedError(
                f"process {self.peer} has incarnation {hello.incarnation}, link {hello.link}; expected at least"
                f" incarnation {process}, link {link}, which was seen before;"
                f" if it lost its disk, start it with a later incarnation"
            )
        is_same = (hello.incarnation, hello.link) == self.peer_incarnation
        has_forgotten = hello.known is None or hello.known != self.incarnation
        acknowledged = self._acknowledged_until
        if is_same and has_forgotten and (self.received or acknowledged):
            raise RefusedError(
                f"process {self.peer} has incarnation {hello.incarnation} again but has forgotten the link;"
                f" if it was restarted, start it with a later incarnation"
            )
        if is_same and not has_forgotten and not acknowledged <= hello.received <= self._sent:
            raise RefusedError(
                f"process {self.peer} has received {hello.received} frames; expected {acknowledged} to {self._sent}"
            )

    def attach(self, connection: LinkConnection, hello: Hello) -> None:
        """Continues or resets the link on a new connection, after both HELLOs (`check_hello` passed, the HELLO of this
        end is written)."""
        incarnation = (hello.incarnation, hello.link)
        is_reset = self.is_broken or (self.peer_incarnation is None and hello.incarnation > 0)
        is_other = self.peer_incarnation != incarnation or self.peer_start != hello.start
        if self.peer_incarnation is not None and is_other:
            is_reset = True
            self.reset()
        self.is_broken = False
        self.peer_start = hello.start
        self.peer_incarnation = incarnation
        if self.connection is not None and self.connection is not connection:
            self.connection.drop_link()
            self.connection.abort()
        self.connection = connection
        self._write = connection.write
        connection.carry_link(self)
        is_resumed = hello.known == self.incarnation
        self._is_flowing = False
        self._written_before_pause = hello.received if is_resumed else 0
        if is_reset:
            log.info("link with process %d is reset: the peer's incarnation is %d", self.peer, hello.incarnation)
            self._on_reset(self.peer, hello.incarnation)
        self._trim_queue(self._written_before_pause)
        self.write_waiting()

    def detach(self, connection: LinkConnection, now: float) -> None:
        """Keeps the link without a connection, if this one carried it."""
        if self.connection is connection:
            connection.drop_link()
            self.connection = None
            self.disconnected_at = now
            self._write = _discard
            self._is_flowing = False
            self._written_before_pause = self._acknowledged_until
            self._signal_relief()


def fast_send_single_parts(links: list[Link], parts: list[bytes]) -> tuple[list[Link], list[tuple[Link, bytes]]]:
    """Sends each of many clients one frame with one encoded body, without a call per client.

    The fast twin of `Link.send_frame`; tests/live/wire/test_outbox.py holds them equal. Returns the links under
    back-pressure, and the pairs that must take the slow way because more is pending for the same client, its connection
    takes no more, or it is a server.
    """
    congested: list[Link] = []
    left: list[tuple[Link, bytes]] = []
    for link, part in zip(links, parts, strict=True):
        if link.parts or not link._is_flowing or link.is_server:
            left.append((link, part))
            continue
        number = link._sent = link._sent + 1
        received = link._reported = link.received
        frame = link.framing.fast_make_single(number, received, part)
        link._queue.append(frame)
        queued = link.queued_bytes = link.queued_bytes + len(frame)
        link._write(frame)
        if queued > link._pressure_bytes:
            congested.append(link)
    return congested, left


def _split_by_size(sizes: Sequence[int], limit: int) -> list[tuple[int, int]]:
    """Splits a row of sizes into runs of at most `limit` each; a larger size is a run of its own."""
    runs: list[tuple[int, int]] = []
    first = total = 0
    for index, size in enumerate(sizes):
        if index > first and total + size > limit:
            runs.append((first, index))
            first, total = index, 0
        total += size
    runs.append((first, len(sizes)))
    return runs


def _discard(data: bytes) -> None:
    """Stands for the write function while there is no connection."""
