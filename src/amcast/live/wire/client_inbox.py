"""Many clients at once: one short frame from each, and one short frame to each.

A gateway reads and writes as often as there are messages; little else in a cluster is done so often. So what clients
send is not looked at when it arrives: it waits for the tick, which takes all of it in one loop. Answers leave in one
loop, too. Both do what connections, links and the check at the door do (`live/wire/connection.py`, `live/wire/link.py`,
`live/security/request_filter.py`), for the one case that nearly all frames are, and without a call for each of them.
Whatever is not that case, or not sound, goes the long way, which says what is wrong with it.
"""

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import msgspec

from amcast.kernel.ids import MESSAGES_PER_SENDER
from amcast.kernel.message import Message, Request
from amcast.kernel.reconfiguration import CHANGE_PREFIX
from amcast.live.security.request_filter import RequestFilter
from amcast.live.wire.frames import ALONE, BEFORE_ALONE, HEAD_BYTES, U64, pack_front_alone
from amcast.live.wire.link import SETTLE_FRAMES, Link

if TYPE_CHECKING:
    from amcast.live.wire.connection import Connection

log = logging.getLogger("amcast.live")

_read: Final = msgspec.msgpack.Decoder(tuple[int, int, tuple[Request]]).decode
"""A BODIES frame with one body, which is a request: number, ack, bodies."""


class ClientInbox:
    """What the clients of one server have sent since its last tick."""

    __slots__ = ("_admission", "_on_asked", "arrived", "wake")

    def __init__(
        self, admission: RequestFilter, on_asked: Callable[[list[Message]], None], wake: Callable[[], object]
    ) -> None:
        self.arrived: list[tuple[Connection, bytes]] = []
        """Each with the connection that brought it, oldest first."""
        self.wake = wake
        """Called with the first of it."""
        self._admission = admission
        self._on_asked = on_asked

    def take(self) -> None:
        """Read all of it. Every so often a frame goes the long way in any case: links have accounts to settle."""
        arrived = self.arrived[:]
        self.arrived.clear()
        sound = self._admission.checked_destinations
        asked: list[Message] = []
        for connection, data in arrived:
            try:
                number, _, (request,) = _read(data[HEAD_BYTES:])
                message, link = request.message, connection.link
                if (
                    data[:HEAD_BYTES] == connection.heads[len(data)]
                    and not connection._end
                    and link is not None
                    and number == link._received + 1
                    and number % SETTLE_FRAMES
                    and message.sender == link.peer
                    and message.id // MESSAGES_PER_SENDER == link.peer
                    and message.destinations in sound
                    and not message.payload.startswith(CHANGE_PREFIX)
                ):
                    link._received = number
                    asked.append(message)
                    continue
            except Exception:
                pass  # not the usual case, whatever it is
            if asked:
                self._on_asked(asked)
                asked = []
            _take_the_long_way(connection, data)
        if asked:
            self._on_asked(asked)


def _take_the_long_way(connection: "Connection", data: bytes) -> None:
    """Whatever a client sends, it harms nobody else."""
    try:
        connection.take_bytes(data)
    except Exception as error:
        log.error("what %s sent cannot be handled", connection.peername, exc_info=error)
        connection.close(f"it sent what cannot be handled: {error!r}")


def send_single_replies(links: list[Link], parts: list[bytes]) -> tuple[list[Link], list[tuple[Link, bytes]]]:
    """One frame with one encoded body to each of these clients: the same as `Link.post`. Those for whom much waits come
    back, and what must go the long way: something waits for the same client, or the other way round."""
    pressed: list[Link] = []
    left: list[tuple[Link, bytes]] = []
    for link, part in zip(links, parts, strict=True):
        if link.parts or not link._flows or link.serves:
            left.append((link, part))
            continue
        number = link._sent = link._sent + 1
        received = link._acknowledged = link._received
        frame = pack_front_alone(len(part) + BEFORE_ALONE, link._lead, number, U64, received, ALONE) + part
        link._queue.append(frame)
        queued = link.queued_bytes = link.queued_bytes + len(frame)
        link._put(frame)
        if queued > link._pressure_bytes:
            pressed.append(link)
    return pressed, left
