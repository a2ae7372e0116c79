"""HTTP server of a node, for probes and scrapers: small, read-only, and not on the path of messages.

    GET /health      200 while the process runs, 503 when its replica has failed
    GET /ready       200 when it serves; 503 and the reasons while it catches up, lacks its state or a quorum, or leaves
    GET /metrics     for Prometheus
    GET /status      JSON: the status that `amcast status` shows

Plain HTTP, on loopback unless `security.http_beyond_loopback` allows more. A request is at most REQUEST_BYTES, and
request and response must be over within REQUEST_S. There are at most MAX_CONNECTIONS at a time: one more closes the
oldest one of the address with the most. A probe that asks at once is therefore answered whatever others do: silent and
slow connections are what is closed.
"""

import asyncio
import json
import logging
from contextlib import suppress
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

    def __init__(self, peername: str) -> None:
        self.peername = peername
        self._task = asyncio.current_task()

    def dismiss(self, why: str) -> None:
        """Closes the connection."""
        warn_rate_limited("http", "an HTTP connection with %s was closed: %s", self.peername, why)
        if self._task is not None:
            self._task.cancel()


class HttpServer:
    """Serves the status of one node."""

    def __init__(self, reporter: StatusReporter) -> None:
        self._reporter = reporter
        self._server: asyncio.Server | None = None
        self._connections = PendingConnections(MAX_CONNECTIONS, f"more than {MAX_CONNECTIONS} HTTP requests are open")
        self._registry: CollectorRegistry | None = None
        self._no_metrics_reason = ""
        try:
            self._registry = metrics.make_registry(reporter)
        except UsageError as error:
            self._no_metrics_reason = str(error)

    async def listen(self, host: str, port: int) -> None:
        """Starts to accept connections."""
        try:
            self._server = await asyncio.start_server(self._accept, host, port, limit=REQUEST_BYTES, backlog=BACKLOG)
        except OSError as error:
            raise UsageError(f"node {self._reporter.name} cannot listen for HTTP on {host}:{port}: {error}") from None

    async def close(self) -> None:
        """Stops accepting connections."""
        if self._server is not None:
            self._server.close()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = HttpConnection(format_address(writer.get_extra_info("peername")))
        self._connections.add(connection)
        try:
            with suppress(OSError, TimeoutError):
                async with asyncio.timeout(REQUEST_S):
                    await self._serve(reader, writer)
            writer.close()
        except asyncio.CancelledError:
            # Evicted, or the node stops: nothing more is owed to a client that has not asked in time.
            writer.transport.abort()
        finally:
            self._connections.remove(connection)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            status, kind, content = 400, TEXT, b"expected an HTTP request\n"
        else:
            status, kind, content = self.respond(head.split(b"\r\n", 1)[0])
        writer.write(
            f"HTTP/1.1 {status} {_REASONS[status]}\r\nContent-Type: {kind}\r\nContent-Length: {len(content)}\r\n"
            "Cache-Control: no-store\r\nConnection: close\r\n\r\n".encode()
            + content
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
                return 200, JSON, json.dumps(self._reporter.status(), indent=2).encode()
            case b"/metrics":
                if self._registry is None:
                    return 501, TEXT, f"{self._no_metrics_reason}\n".encode()
                return 200, "text/plain; version=0.0.4; charset=utf-8", metrics.format_metrics(self._registry)
        return 404, TEXT, b"expected /health, /ready, /metrics or /status\n"
