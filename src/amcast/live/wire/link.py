"""A link: what two processes say to each other, in order, exactly once, within one incarnation of both ends.

TCP alone loses what was in flight when a connection breaks. So a link numbers its frames, keeps each one until the
other end says that it has it, and after a reconnect sends again from where the other end stands. A link outlives its
connections; one connection carries both directions.

Each end names its side with a mark, (incarnation of the process, number of the link in that incarnation), and remembers
the mark of the other. The two hellos of a new connection show all four, and there are three cases:

- both remember right, or do not know each other yet: the link goes on, nothing is lost;
- the peer shows another mark than I remember (it was restarted, or its queue overflowed, or it forgot me): what I had
  for the old one is dropped, numbering begins anew, and my process is told `Peer(peer, incarnation)`;
- the peer remembers another mark of mine: it does the same on its side; I have nothing to drop.

An overflow of the bounded queue ends the link's incarnation: I drop everything and take a new mark, so the peer is told
at the next hello. Until then what my process sends to it is dropped too: it is told to resynchronise when it can.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from msgspec import MsgspecError

from amcast.kernel.effects import About
from amcast.kernel.ids import ProcessId
from amcast.kernel.message import Body
from amcast.live.errors import BadFrameError, RefusedError
from amcast.live.limits import KIB, Limits
from amcast.live.wire import frames as codec
from amcast.live.wire.connection import Connection
from amcast.live.wire.fragments import Reassembler, fragment
from amcast.live.wire.frames import (
    ACK,
    AFTER_LENGTH,
    FRAGMENT,
    U64,
    Codec,
    Frame,
    Hello,
    LinkIncarnation,
    TopologyVersion,
    pack_front,
)

log = logging.getLogger("amcast.live")

ACK_BYTES = 256 * KIB
ACK_FRAMES = 64
"""Acknowledge at once after so much, large frames or small; otherwise with the next frame or beat. It only frees the
sender's memory."""


SETTLE_FRAMES = 32
SETTLE_BYTES = 64 * KIB
"""Frames that the peer has are forgotten when there are so many, or so much is kept: not one by one."""


class Link:
    """My end of the conversation with one peer."""

    # fmt: off
    __slots__ = (
        "_acknowledged", "_beaten", "_coder", "_decode", "_flows", "_held", "_join_bytes", "_joining", "_lead",
        "_limits", "_many", "_next_mark", "_on_bodies", "_on_frame", "_on_lost", "_on_reset", "_pressure_bytes", "_put",
        "_queue", "_received", "_relief", "_sent", "_settled", "_unacknowledged_bytes", "abouts", "away_since",
        "broken", "claimed", "connection", "known", "mark", "parts", "parts_bytes", "peer", "queued_bytes",
        "serves", "version",
    )
    # fmt: on

    def __init__(
        self,
        peer: ProcessId,
        mark: LinkIncarnation,
        coder: Codec,
        limits: Limits,
        on_bodies: Callable[[ProcessId, list[Body]], None],
        on_frame: Callable[[ProcessId, Frame], None],
        on_reset: Callable[[ProcessId, int], None],
        on_lost: Callable[[ProcessId, list[bytes]], None] | None,
        next_mark: Callable[[], LinkIncarnation],
        serves: bool,
    ) -> None:
        self.peer = peer
        self.mark = mark
        self.known: LinkIncarnation | None = None
        """The peer's mark; None before the first hello, and then nothing was received and nothing acknowledged."""
        self.connection: Connection | None = None
        self.away_since = 0.0
        self.queued_bytes = 0
        self.version = codec.WIRE_VERSION
        """What both ends speak, as the last hellos agreed."""
        self.serves = serves
        """The peer is a server."""
        self.claimed = False
        """In this tick it is told what a fan is told (`live/wire/outbox.py`)."""
        self.broken = False
        """My queue overflowed; until the next hello, what I am given is dropped."""
        self._coder = coder
        self._decode = coder.decode_bodies
        self._limits = limits
        self._on_bodies = on_bodies
        self._on_frame = on_frame
        self._on_reset = on_reset
        self._joining = Reassembler(limits.body_bytes) if serves else None
        """Where pieces become bodies; None for who may send no pieces."""
        self._on_lost = on_lost
        """Told which frames were not acknowledged when the link began anew."""
        self._next_mark = next_mark
        self._sent = 0
        """Number of the last frame made; frames count 1, 2, 3 ..."""
        self._flows = False
        """There is a connection, it has had every frame so far, and it takes more."""
        self._put: Callable[[bytes], object] = _nowhere
        """Give bytes to the present connection."""
        self._held = 0
        """While nothing flows: number of the last frame given to the present connection."""
        self._settled = 0
        """Number of the last frame that the peer is known to have."""
        self._many = SETTLE_FRAMES
        """If the peer has this one, there are many to forget."""
        self._queue: deque[bytes] = deque()
        """The frames after that, oldest first."""
        self._beaten = (0, 0)
        """What was written and received at the last beat."""
        self._lead = codec.lead(self.version, codec.BODIES)
        self._received = 0
        self._acknowledged = 0
        """How much the peer knows that I received."""
        self._unacknowledged_bytes = 0
        self.parts: list[bytes] = []
        """Encoded bodies of this tick: `Network` puts them in, `flush` makes frames of them."""
        self.parts_bytes = 0
        self.abouts: list[About] = []
        """What each is about, while packets are traced."""
        self._join_bytes = limits.frame_target_bytes
        self._pressure_bytes = limits.backpressure_bytes
        self._relief: asyncio.Event | None = None

    def become_server(self) -> None:
        """The peer, which was taken for a client, is a server: it may send bodies in pieces."""
        self.serves = True
        self._joining = self._joining or Reassembler(self._limits.body_bytes)

    # Sending

    def flush(self, sent_ns: int | None) -> bool:
        """End of the tick: make frames of what was given, with facts for the trace if `sent_ns` is given, and write.

        True if much waits for the peer.
        """
        parts = self.parts
        if not parts:
            return False
        size = self.parts_bytes
        self.parts, self.parts_bytes = [], 0
        if sent_ns is None and size <= self._join_bytes:
            tail = codec.tail(parts)
            return self.post(tail, len(tail) + AFTER_LENGTH)
        abouts, self.abouts = self.abouts, []
        self.hold()
        for first, last in _shares([len(part) for part in parts], self._join_bytes):
            self._enqueue(parts[first:last], abouts[first:last], sent_ns)
        self.write_waiting()
        return self.queued_bytes > self._pressure_bytes

    def post(self, tail: bytes, length: int) -> bool:
        """One frame with the encoded bodies of this tick (`codec.tail`), written at once. True if much waits."""
        if self.broken:
            return False
        number = self._sent = self._sent + 1
        received = self._acknowledged = self._received
        frame = pack_front(length, self._lead, number, U64, received) + tail
        self._queue.append(frame)
        queued = self.queued_bytes = self.queued_bytes + len(frame)
        if self._flows:
            self._put(frame)
        return queued > self._pressure_bytes

    def _enqueue(self, parts: list[bytes], abouts: list[About], sent_ns: int | None) -> None:
        if len(parts[0]) > self._coder.whole_bytes:
            for piece in fragment(parts[0], self._coder.piece_bytes, sent_ns or 0, abouts[0] if abouts else None):
                self._sent += 1
                self._keep(self._coder.piece(self._sent, self._received, piece, self.version))
            return
        self._sent += 1
        self._acknowledged = self._received
        self._unacknowledged_bytes = 0
        if sent_ns is None:
            frame = self._coder.frame(self._sent, self._received, parts, self.version)
        else:
            frame = self._coder.traced(self._sent, self._received, parts, sent_ns, abouts, self.version)
        self._keep(frame)

    def _keep(self, frame: bytes) -> None:
        self._queue.append(frame)
        self.queued_bytes += len(frame)

    @property
    def _written(self) -> int:
        """Number of the last frame given to the present connection."""
        return self._sent if self._flows else self._held

    def hold(self) -> None:
        """The present connection takes no more for now."""
        self._held = self._written
        self._flows = False

    def write_waiting(self) -> None:
        """Write, at once, all frames that the present connection has not had yet."""
        connection = self.connection
        if self._flows or connection is None or connection.paused:
            return
        waiting = self._sent - self._held
        self._flows = True
        if waiting:
            # Whoever takes no more now says so here (`hold`), and has had all of it.
            self._put(self._queue[-1] if waiting == 1 else b"".join(list(self._queue)[-waiting:]))

    def overfull(self) -> bool:
        """More waits than may. Bodies in pieces count apart: one of them may be larger than a whole queue."""
        most, size = self._limits, self._coder.whole_bytes
        large = sum(len(frame) for frame in self._queue if frame[5] == FRAGMENT)
        large += sum(len(part) for part in self.parts if len(part) > size)
        return large > 2 * most.body_bytes or self.queued_bytes + self.parts_bytes - large > most.queue_bytes

    def overflow(self) -> None:
        """More waits for this peer than may: the link ends here."""
        log.warning(
            "link with process %d: more than %d bytes are waiting for it; the link ends here and begins anew",
            self.peer,
            self._limits.queue_bytes,
        )
        self.broken = True
        self.mark = self._next_mark()
        self.known = None
        if self.connection is not None:
            self.connection.leave()
            self.connection.abort()
            self.connection = None
        self._put = _nowhere
        self.forget()

    def forget(self) -> None:
        """Nothing sent, nothing received: the first frame either way is number 1 again."""
        if self._queue and self._on_lost is not None:
            self._on_lost(self.peer, list(self._queue))
        if self._joining is not None:
            self._joining.clear()
        self._sent = self._held = self._settled = self._received = self._acknowledged = 0
        self._many = SETTLE_FRAMES
        self._flows = False
        self._queue.clear()
        self.parts.clear()
        self.abouts.clear()
        self.queued_bytes = self.parts_bytes = self._unacknowledged_bytes = 0
        self._relieve()

    # Back-pressure

    @property
    def pressed(self) -> bool:
        """The peer is there but slow. One that is away holds nobody up: its queue may fill and overflow."""
        return self.connection is not None and self.queued_bytes > self._limits.backpressure_bytes

    async def room(self) -> None:
        """Wait until the peer has taken enough of what was sent before."""
        while self.pressed:
            if self._relief is None:
                self._relief = asyncio.Event()
            await self._relief.wait()

    def _relieve(self) -> None:
        gone = self.connection is None
        if self._relief is not None and (gone or self.queued_bytes <= self._limits.backpressure_bytes // 2):
            self._relief.set()
            self._relief = None

    # Receiving

    def take(self, kind: int, payload: Any) -> None:
        if kind == ACK:
            self._settle(codec.read_ack(payload))
            return
        if kind == FRAGMENT:
            self._take_piece(payload)
        else:
            frame = self._coder.read(kind, payload)
            self._count(frame.number, frame.ack)
            self._on_frame(self.peer, frame)
        self.weigh(len(payload))

    def weigh(self, size: int) -> None:
        """A large frame came."""
        known = self._acknowledged == self._received - 1
        self._unacknowledged_bytes = size if known else self._unacknowledged_bytes + size
        if self._unacknowledged_bytes > ACK_BYTES:
            self.acknowledge()

    def _count(self, number: int, ack: int) -> None:
        if number != self._received + 1:
            raise BadFrameError(f"frame {number}; expected {self._received + 1}")
        self._received += 1
        self._settle(ack)

    def _take_piece(self, payload: Any) -> None:
        number, ack, piece = self._coder.read_piece(payload)
        self._count(number, ack)
        if self._joining is None:
            raise BadFrameError("a piece of a body; only servers may send bodies that are so large")
        data = self._joining.add(piece)
        if data is None:
            return
        body = self._coder.read_whole(data)
        if piece.sent_ns:
            self._on_frame(self.peer, Frame(number, ack, [body], piece.sent_ns, [piece.about], [len(data)]))
        else:
            self._on_bodies(self.peer, [body])

    def take_bodies(self, payload: memoryview | bytes) -> None:
        """A BODIES frame: what nearly all frames are."""
        try:
            number, ack, bodies = self._decode(payload)
        except (MsgspecError, ValueError, RecursionError) as error:
            raise BadFrameError(f"a BODIES frame that cannot be read: {error}") from None
        if number != self._received + 1:
            raise BadFrameError(f"frame {number}; expected {self._received + 1}")
        self._received = number
        if ack >= self._many or self.queued_bytes > SETTLE_BYTES:
            self._settle(ack)
        self._on_bodies(self.peer, bodies)
        if number - self._acknowledged > ACK_FRAMES:
            self.acknowledge()

    def _settle(self, ack: int) -> None:
        """The peer has everything up to here."""
        if ack > self._written:
            raise BadFrameError(f"an acknowledgement of frame {ack}; only {self._written} were sent")
        taken = self._queue.popleft
        size = 0
        for _ in range(ack - self._settled):
            size += len(taken())
        self.queued_bytes -= size
        self._settled = max(ack, self._settled)
        self._many = self._settled + SETTLE_FRAMES
        if self._relief is not None:
            self._relieve()

    def acknowledge(self) -> None:
        """Say what was received."""
        if self.connection is not None and not self.connection.paused:
            self._acknowledged = self._received
            self._unacknowledged_bytes = 0
            self.connection.write(codec.ack_frame(self._received, self.version))

    def beat(self, now: float) -> None:
        """From time to time: show that I live, acknowledge what was received before the last time, if no frame has done
        so since, and give up a connection that went silent."""
        connection = self.connection
        if connection is None:
            return
        wrote, heard = self._written != self._beaten[0], self._received != self._beaten[1]
        forgotten = self._acknowledged < self._beaten[1]
        self._beaten = (self._written, self._received)
        if heard or connection.heard:
            connection.heard = False
            connection.heard_at = now
        if now - connection.heard_at > self._limits.heartbeat_timeout_s and not connection.deaf:
            connection.close(f"process {self.peer} said nothing for {self._limits.heartbeat_timeout_s} s")
        elif not wrote or forgotten:
            self.acknowledge()

    # Connections come and go

    def greeting(
        self,
        cluster: str,
        protocol: str,
        me: ProcessId,
        version: int,
        oldest: int,
        region: str,
        standing: TopologyVersion,
    ) -> Hello:
        return Hello(
            version, cluster, protocol, me, self.peer, *self.mark, self.known, self._received, oldest, region, *standing
        )

    def speak(self, version: int) -> None:
        """Both ends agreed on a version; what waits was made before that was known."""
        if version != self.version:
            self.version = version
            self._lead = codec.lead(version, codec.BODIES)
            self._queue = deque(codec.stamped(frame, version) for frame in self._queue)

    def check(self, hello: Hello) -> None:
        """Refuse what cannot be: an end that went back in time, or one that lost its memory and does not say so."""
        if self.known is None:
            return
        if (hello.incarnation, hello.link) < self.known:
            raise RefusedError(
                f"process {self.peer} says incarnation {hello.incarnation}, link {hello.link}, but"
                f" incarnation {self.known[0]}, link {self.known[1]} was seen before;"
                f" if it lost its disk, start it with a later incarnation"
            )
        same = (hello.incarnation, hello.link) == self.known
        fresh = hello.known is None or hello.known != self.mark
        settled = self._settled
        if same and fresh and (self._received or settled):
            raise RefusedError(
                f"process {self.peer} says incarnation {hello.incarnation} again but has forgotten our link;"
                f" if it was restarted, start it with a later incarnation"
            )
        if same and not fresh and not settled <= hello.received <= self._sent:
            raise RefusedError(
                f"process {self.peer} says it received {hello.received} frames; expected {settled} to {self._sent}"
            )

    def attach(self, connection: Connection, hello: Hello) -> None:
        """Both hellos were said (`check` passed, my greeting is on its way): go on, or begin anew."""
        mark = (hello.incarnation, hello.link)
        anew = self.broken or (self.known is None and hello.incarnation > 0)
        if self.known is not None and self.known != mark:
            anew = True
            self.forget()
        self.broken = False
        self.known = mark
        if self.connection is not None and self.connection is not connection:
            self.connection.leave()
            self.connection.abort()
        self.connection = connection
        self._put = connection.write
        connection.enter(self)
        resumed = hello.known == self.mark
        self._flows = False
        self._held = hello.received if resumed else 0
        if anew:
            log.info("link with process %d begins anew: its incarnation is %d", self.peer, hello.incarnation)
            self._on_reset(self.peer, hello.incarnation)
        self._settle(self._held)
        self.write_waiting()

    def detach(self, connection: Connection, now: float) -> None:
        if self.connection is connection:
            connection.leave()
            self.connection = None
            self.away_since = now
            self._put = _nowhere
            self._flows = False
            self._held = self._settled
            self._relieve()


def _shares(sizes: Sequence[int], limit: int) -> list[tuple[int, int]]:
    """Cut a row of sizes into runs of at most `limit` each (a larger one alone)."""
    shares: list[tuple[int, int]] = []
    first = total = 0
    for index, size in enumerate(sizes):
        if index > first and total + size > limit:
            shares.append((first, index))
            first, total = index, 0
        total += size
    shares.append((first, len(sizes)))
    return shares


def _nowhere(data: bytes) -> None:
    """There is no connection."""
