"""The door: where connections come in, and what happens to one before it has said who it is.

Strangers are few at a time. When one too many comes, the one that has stood longest goes, among those from the address
that sent the most: who floods the door pushes out its own, and a peer that greets at once gets in whatever else comes.
With TLS, a stranger does not get past the door before it has shown a certificate of our authority.
"""

import asyncio
import errno
import socket
import ssl
from collections.abc import Callable
from typing import Final, Protocol

from amcast.live.log_output import warn_rate_limited
from amcast.live.security.tls import describe_error

BACKLOG: Final = 1024
AT_ONCE: Final = 64
"""Connections that are taken in one turn of the event loop; others want a turn too."""
REST_S: Final = 1.0
"""After the system had no room for another connection."""
NO_ROOM: Final = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}


class PendingConnection(Protocol):
    """Somebody at the door."""

    peername: str

    def dismiss(self, why: str) -> None:
        """Hang up."""


class PendingConnections:
    """Those who stand at the door, oldest first."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._by_host: dict[str, dict[PendingConnection, None]] = {}
        self._count = 0
        self.dismissed = 0
        self.refused = 0
        """Connections that ended because of what they said, strangers' or not."""

    def __len__(self) -> int:
        return self._count

    def add(self, stranger: PendingConnection) -> None:
        """One more; if that is too many, the oldest of the most crowded address goes."""
        self._by_host.setdefault(_host(stranger), {})[stranger] = None
        self._count += 1
        if self._count > self._most:
            crowd = max(self._by_host.values(), key=len)
            oldest = next(iter(crowd))
            self.remove(oldest)
            self.dismissed += 1
            oldest.dismiss(f"more than {self._most} connections have not said hello (limits.strangers)")

    def remove(self, stranger: PendingConnection) -> None:
        """It said who it is, or it left."""
        crowd = self._by_host.get(_host(stranger))
        if crowd is not None and stranger in crowd:
            del crowd[stranger]
            self._count -= 1
            if not crowd:
                del self._by_host[_host(stranger)]


def _host(stranger: PendingConnection) -> str:
    return stranger.peername.rpartition(":")[0]


class TlsHandshake:
    """An accepted connection until its TLS handshake is over."""

    def __init__(self, peername: str) -> None:
        self.peername = peername
        self.task: asyncio.Task[None] | None = None
        self.why = ""

    def dismiss(self, why: str) -> None:
        """Break the handshake off."""
        self.why = why
        if self.task is not None:
            self.task.cancel()


class Listener:
    """Listens, and lets connections through to a protocol of their own."""

    def __init__(
        self,
        protocol: Callable[[], asyncio.BaseProtocol],
        strangers: PendingConnections,
        context: ssl.SSLContext | None,
        patience_s: float,
    ) -> None:
        self.sockets: list[socket.socket] = []
        self._protocol = protocol
        self._strangers = strangers
        self._context = context
        self._patience_s = patience_s
        self._guests: set[TlsHandshake] = set()

    async def open(self, host: str, port: int) -> None:
        """Listen on every address that the host's name stands for."""
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, address in dict.fromkeys((info[0], info[4]) for info in found):
            listener = socket.socket(family, socket.SOCK_STREAM)
            self.sockets.append(listener)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            listener.setblocking(False)
            listener.bind(address)
            listener.listen(BACKLOG)
            loop.add_reader(listener, self._accept, listener)

    def close(self) -> None:
        """Listen no more, and break off what has not come through."""
        loop = asyncio.get_running_loop()
        for listener in self.sockets:
            loop.remove_reader(listener)
            listener.close()
        self.sockets.clear()
        for guest in list(self._guests):
            guest.dismiss("this process stops")

    async def wait_closed(self) -> None:
        """Until nobody stands in the door any more."""
        await asyncio.gather(*(guest.task for guest in self._guests if guest.task is not None), return_exceptions=True)

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(AT_ONCE):
            try:
                accepted, address = listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno in NO_ROOM:
                    self._rest(listener, error)
                return
            accepted.setblocking(False)
            guest = TlsHandshake(format_address(address))
            self._guests.add(guest)
            guest.task = asyncio.get_running_loop().create_task(self._let_in(guest, accepted))

    def _rest(self, listener: socket.socket, error: OSError) -> None:
        warn_rate_limited("no room", "no more connections can be accepted for %g s: %s", REST_S, error.strerror)
        loop = asyncio.get_running_loop()
        loop.remove_reader(listener)

        def go_on() -> None:
            if listener in self.sockets:
                loop.add_reader(listener, self._accept, listener)

        loop.call_later(REST_S, go_on)

    async def _let_in(self, guest: TlsHandshake, accepted: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        secure = self._context is not None
        if secure:
            self._strangers.add(guest)
        try:
            await loop.connect_accepted_socket(
                self._protocol,
                accepted,
                ssl=self._context,
                ssl_handshake_timeout=self._patience_s if secure else None,
            )
        except asyncio.CancelledError:
            warn_rate_limited(
                "handshake", "connection with %s refused: %s", guest.peername, guest.why or "this process stops"
            )
        except OSError as error:
            self._strangers.refused += 1
            warn_rate_limited("handshake", "connection with %s refused: TLS: %s", guest.peername, describe_error(error))
        finally:
            self._strangers.remove(guest)
            self._guests.discard(guest)


def format_address(address: object) -> str:
    """An address as logs show it."""
    return f"{address[0]}:{address[1]}" if isinstance(address, tuple) else str(address or "?")
