"""The listener: accepts connections, and bounds those that have not identified themselves.

At most `limits.pending_connections` are pending. One more closes the oldest one of the address with the most pending
connections: a flood evicts its own connections, and a peer that sends its HELLO at once gets through. With TLS, a
connection does not reach the protocol before it has shown a certificate of the cluster's authority.
"""

import asyncio
import errno
import socket
import ssl
from collections.abc import Callable
from functools import partial
from typing import Final, Protocol

from amcast.live.audit_log import record_audit
from amcast.live.log_output import warn_rate_limited
from amcast.live.security.tls import describe_error
from amcast.live.wire.local_sockets import format_local_name, listen_locally

BACKLOG: Final = 1024
ACCEPTS_PER_TURN: Final = 64
"""Connections accepted in one turn of the event loop, so that other tasks get their turn."""
PAUSE_S: Final = 1.0
"""How long the listener pauses when the system is out of resources for connections."""
OUT_OF_RESOURCES: Final = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}


class PendingConnection(Protocol):
    """A connection that has not identified itself."""

    peername: str

    def dismiss(self, why: str) -> None:
        """Closes the connection."""


class PendingConnections:
    """All pending connections, oldest first."""

    def __init__(self, limit: int, why: str = "") -> None:
        """`why` is what a connection is told that is closed because there are too many."""
        self._limit = limit
        self._why = why or f"more than {limit} connections have sent no HELLO (limits.pending_connections)"
        self._by_host: dict[str, dict[PendingConnection, None]] = {}
        self._count = 0
        self.dismissed = 0
        """Connections closed because too many were pending."""
        self.refused = 0
        """Connections closed because of their content, pending or not."""
        self.corrupted = 0
        """Connections closed because the checksum of a frame did not match."""

    def __len__(self) -> int:
        return self._count

    def lower_limit(self, limit: int) -> None:
        """Lowers the limit to what the process has descriptors for."""
        if limit < self._limit:
            self._limit = limit
            self._why = f"more than {limit} connections have sent no HELLO (the limit of open files allows no more)"

    def add(self, connection: PendingConnection) -> None:
        """Adds a connection; if that is too many, dismisses the oldest one of the address with the most."""
        self._by_host.setdefault(_host_of(connection), {})[connection] = None
        self._count += 1
        if self._count > self._limit:
            largest = max(self._by_host.values(), key=len)
            oldest = next(iter(largest))
            self.remove(oldest)
            self.dismissed += 1
            oldest.dismiss(self._why)

    def remove(self, connection: PendingConnection) -> None:
        """Removes a connection that has identified itself, or was closed."""
        pending = self._by_host.get(_host_of(connection))
        if pending is not None and connection in pending:
            del pending[connection]
            self._count -= 1
            if not pending:
                del self._by_host[_host_of(connection)]


def _host_of(connection: PendingConnection) -> str:
    return connection.peername.rpartition(":")[0]


class Handshake:
    """An accepted connection until it has a protocol: with TLS, until its TLS handshake is over."""

    def __init__(self, accepted: socket.socket, peername: str) -> None:
        self.accepted = accepted
        self.peername = peername
        self.task: asyncio.Task[None] | None = None
        self.has_begun = False
        """The event loop owns the socket, and closes it if the handshake fails."""
        self.why = ""
        """Why the handshake was cancelled."""

    def dismiss(self, why: str) -> None:
        """Cancels the handshake."""
        self.why = why
        if self.task is not None:
            self.task.cancel()


class Listener:
    """Accepts connections and gives each a protocol."""

    def __init__(
        self,
        make_protocol: Callable[[], asyncio.BaseProtocol],
        pending: PendingConnections,
        find_context: Callable[[], ssl.SSLContext | None],
        handshake_timeout_s: float,
    ) -> None:
        self.sockets: list[socket.socket] = []
        self._make_protocol = make_protocol
        self._pending = pending
        self._find_context = find_context
        """Returns the TLS context for the next connection, because reloaded certificates replace it; None: plain."""
        self._handshake_timeout_s = handshake_timeout_s
        self._handshakes: set[Handshake] = set()

    async def open(self, host: str, port: int) -> None:
        """Listens on every address of the host name."""
        loop = asyncio.get_running_loop()
        infos = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, address in dict.fromkeys((info[0], info[4]) for info in infos):
            listener = socket.socket(family, socket.SOCK_STREAM)
            self.sockets.append(listener)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            listener.setblocking(False)
            listener.bind(address)
            listener.listen(BACKLOG)
            loop.add_reader(listener, self._accept, listener)
            local = listen_locally(*listener.getsockname()[:2])
            if local is not None:
                self.sockets.append(local)
                loop.add_reader(local, self._accept, local)

    def close(self) -> None:
        """Stops listening and cancels unfinished handshakes."""
        loop = asyncio.get_running_loop()
        for listener in self.sockets:
            loop.remove_reader(listener)
            listener.close()
        self.sockets.clear()
        for handshake in list(self._handshakes):
            handshake.dismiss("this process stops")

    async def wait_closed(self) -> None:
        """Waits until no handshake is left."""
        tasks = [handshake.task for handshake in self._handshakes if handshake.task is not None]
        await asyncio.gather(*tasks, return_exceptions=True)

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(ACCEPTS_PER_TURN):
            try:
                accepted, address = listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno in OUT_OF_RESOURCES:
                    self._pause(listener, error)
                return
            accepted.setblocking(False)
            handshake = Handshake(accepted, format_address(address, listener.getsockname()))
            self._handshakes.add(handshake)
            handshake.task = asyncio.get_running_loop().create_task(self._connect(handshake))
            handshake.task.add_done_callback(partial(self._release, handshake))

    def _pause(self, listener: socket.socket, error: OSError) -> None:
        warn_rate_limited("resources", "no connections are accepted for %g s: %s", PAUSE_S, error.strerror)
        loop = asyncio.get_running_loop()
        loop.remove_reader(listener)

        def resume() -> None:
            if listener in self.sockets:
                loop.add_reader(listener, self._accept, listener)

        loop.call_later(PAUSE_S, resume)

    async def _connect(self, handshake: Handshake) -> None:
        handshake.has_begun = True
        loop = asyncio.get_running_loop()
        context = self._find_context()
        is_secure = context is not None
        if is_secure:
            self._pending.add(handshake)
        protocol = self._make_protocol()
        is_given_up = True
        try:
            await loop.connect_accepted_socket(
                lambda: protocol,
                handshake.accepted,
                ssl=context,
                ssl_handshake_timeout=self._handshake_timeout_s if is_secure else None,
            )
            is_given_up = False
        except asyncio.CancelledError:
            why = handshake.why or "this process stops"
            # A kind of its own: failed handshakes must not suppress the line that says which limit was reached.
            warn_rate_limited("dismissed", "connection with %s refused: %s", handshake.peername, why)
        except OSError as error:
            self._pending.refused += 1
            reason = f"TLS: {describe_error(error)}"
            warn_rate_limited("handshake", "connection with %s refused: %s", handshake.peername, reason)
            record_audit("refused", address=handshake.peername, reason=reason)
        finally:
            if is_given_up:
                # It may have been made in the same turn. Then uvloop closes it, and does not tell.
                protocol.connection_lost(None)
            self._pending.remove(handshake)
            self._handshakes.discard(handshake)

    def _release(self, handshake: Handshake, task: asyncio.Task[None]) -> None:
        """Closes the socket of a handshake that was cancelled before its task ran: nothing else knows it."""
        if not handshake.has_begun:
            self._handshakes.discard(handshake)
            handshake.accepted.close()


def format_address(address: object, own: object = None) -> str:
    """Formats the address of a peer for the log. Of two ends of a Unix socket (`live/wire/local_sockets.py`) only the
    listener has one: `own` is the address of this end."""
    if isinstance(address, tuple):
        return f"{address[0]}:{address[1]}"
    if isinstance(address, bytes) and address:
        return format_local_name(address)
    if isinstance(own, bytes) and own:
        return f"{format_local_name(own).rpartition(':')[0]}:local"
    return str(address or "?")
