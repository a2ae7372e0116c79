"""HTTP server of a node, for probes and scrapers: small, read-only, and not on the path of messages.

    GET /health      200 while the process runs, 503 when its replica has failed
    GET /ready       200 when it serves; 503 and the reasons while it catches up, lacks its state or a quorum, or leaves
    GET /metrics     for Prometheus
    GET /status      JSON: the status that `amcast status` shows

Plain HTTP, on loopback unless `security.http_beyond_loopback` allows more. A request is at most REQUEST_BYTES, and
request and response must be over within REQUEST_S. At most MAX_CONNECTIONS wait for their request at a time: one more
closes the oldest one of the address with the most. A probe that asks at once is therefore answered whatever others do:
silent and slow connections are what is closed. Metrics and status are computed at most once in CACHE_S, so that many
requests do not keep the node from its messages.
"""

import asyncio
import json
import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from amcast.kernel.errors import UsageError
from amcast.live.limits import KIB
from amcast.live.log_output import warn_rate_limited
from amcast.live.server import metrics
from amcast.live.server.status import StatusReporter
from amcast.live.wire.listener import BACKLOG, PendingConnections, format_address

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

log = logging.getLogger("amcast.live")

REQUEST_BYTES: Final = 8 * KIB
REQUEST_S: Final = 5.0
MAX_CONNECTIONS: Final = 64
CACHE_S: Final = 0.1
TEXT: Final = "text/plain; charset=utf-8"
JSON: Final = "application/json"
_REASONS: Final = {
    200: "OK", 400: "Bad Request", 404: "Not Found", 405: "Method Not Allowed", 501: "Not Implemented",
    503: "Service Unavailable",
}  # fmt: skip

Response = tuple[int, str, bytes]
"""Status code, content type, content."""


class HttpConnection:
    """One connection, from its arrival to the end of its response."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self.writer = writer
        self.peername = format_address(writer.get_extra_info("peername"))
        self.task: asyncio.Task[None] | None = None

    def dismiss(self, why: str) -> None:
        """Closes the connection."""
        warn_rate_limited("http", "an HTTP connection with %s was closed: %s", self.peername, why)
        if self.task is not None:
            self.task.cancel()


class HttpServer:
    """Serves the status of one node."""

    def __init__(self, reporter: StatusReporter) -> None:
        self._reporter = reporter
        self._server: asyncio.Server | None = None
        self._connections = PendingConnections(MAX_CONNECTIONS, f"more than {MAX_CONNECTIONS} HTTP requests are open")
        self._open: set[HttpConnection] = set()
        self._is_closed = False
        self._rendered: dict[str, tuple[float, bytes]] = {}
        """Path -> when its content was computed, and the content."""
        self._registry: CollectorRegistry | None = None
        """Made by the first request for metrics: a node that nobody scrapes starts without its library."""

    async def listen(self, host: str, port: int) -> None:
        """Starts to accept connections."""
        try:
            self._server = await asyncio.start_server(self._accept, host, port, limit=REQUEST_BYTES, backlog=BACKLOG)
        except OSError as error:
            raise UsageError(f"node {self._reporter.name} cannot listen for HTTP on {host}:{port}: {error}") from None

    async def close(self) -> None:
        """Stops accepting connections, and closes those that are open."""
        self._is_closed = True
        if self._server is not None:
            self._server.close()
        tasks = [connection.task for connection in self._open if connection.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._is_closed:  # the system had accepted it before the stop
            writer.transport.abort()
            return
        # No coroutine: one that is cancelled before its first step would never close its connection.
        connection = HttpConnection(writer)
        self._open.add(connection)
        connection.task = asyncio.get_running_loop().create_task(self._handle(connection, reader))
        connection.task.add_done_callback(lambda task: self._release(connection, task))

    async def _handle(self, connection: HttpConnection, reader: asyncio.StreamReader) -> None:
        async with asyncio.timeout(REQUEST_S):
            self._connections.add(connection)
            try:
                await self._serve(reader, connection.writer)
            finally:
                self._connections.remove(connection)
            connection.writer.close()
            await connection.writer.wait_closed()

    def _release(self, connection: HttpConnection, task: "asyncio.Task[None]") -> None:
        """Ends a connection. One whose response is not out, because it is slow, was evicted or its node stops, gets
        no more of it."""
        self._open.discard(connection)
        failure = None if task.cancelled() else task.exception()
        if task.cancelled() or failure is not None:
            connection.writer.transport.abort()
        if failure is not None and not isinstance(failure, OSError | TimeoutError):
            log.error("an HTTP request failed", exc_info=failure)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line = b""
        try:
            line = (await reader.readuntil(b"\r\n\r\n")).split(b"\r\n", 1)[0]
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            status, kind, content = 400, TEXT, b"expected an HTTP request\n"
        else:
            status, kind, content = self.respond(line)
        writer.write(
            f"HTTP/1.1 {status} {_REASONS[status]}\r\nContent-Type: {kind}\r\nContent-Length: {len(content)}\r\n"
            "Cache-Control: no-store\r\nConnection: close\r\n\r\n".encode()
            + (b"" if line.startswith(b"HEAD ") else content)
        )
        await writer.drain()

    def respond(self, line: bytes) -> Response:
        """The response to the first line of a request."""
        words = line.split()
        if len(words) != 3 or not words[2].startswith(b"HTTP/1."):
            return 400, TEXT, b"expected an HTTP request\n"
        if words[0] not in (b"GET", b"HEAD"):
            return 405, TEXT, b"expected GET\n"
        match words[1].split(b"?", 1)[0]:
            case b"/health":
                failed = self._reporter.host.ended.done()
                return (503, TEXT, b"the replica has stopped\n") if failed else (200, TEXT, b"ok\n")
            case b"/ready":
                reasons = self._reporter.reasons_not_ready()
                text = "\n".join((*reasons, *self._reporter.advice()))
                return (503, TEXT, f"{text}\n".encode()) if reasons else (200, TEXT, b"ready\n")
            case b"/status":
                render = lambda: json.dumps(self._reporter.status(), indent=2).encode()  # noqa: E731
                return 200, JSON, self._render("/status", render)
            case b"/metrics":
                return self._respond_metrics()
        return 404, TEXT, b"expected /health, /ready, /metrics or /status\n"

    def _respond_metrics(self) -> Response:
        try:
            registry = self._registry = self._registry or metrics.make_registry(self._reporter)
        except UsageError as error:
            return 501, TEXT, f"{error}\n".encode()
        content = self._render("/metrics", lambda: metrics.format_metrics(registry))
        return 200, "text/plain; version=0.0.4; charset=utf-8", content

    def _render(self, path: str, render: Callable[[], bytes]) -> bytes:
        """The content of a path, computed now or a moment ago."""
        at, content = self._rendered.get(path, (0.0, b""))
        now = time.monotonic()
        if not content or now - at >= CACHE_S:
            content = render()
            self._rendered[path] = (now, content)
        return content
