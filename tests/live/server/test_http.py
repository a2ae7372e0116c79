"""The HTTP server of a node: /health is answered whatever other clients do."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager, suppress

import pytest

from amcast.kernel.topology import Topology
from amcast.live.operations.local_cluster import find_free_ports
from amcast.live.server import metrics
from amcast.live.server.http import MAX_CONNECTIONS, TEXT, HttpServer
from tests.live.cluster import cluster, run
from tests.live.secure_cluster import until

pytestmark = pytest.mark.live


async def get(port: int, path: str) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {path} HTTP/1.1\r\n\r\n".encode())
    try:
        async with asyncio.timeout(20):
            return await reader.read()
    finally:
        writer.close()


@asynccontextmanager
async def served() -> AsyncIterator[tuple[HttpServer, int]]:
    """The HTTP server of a lone node, and its port."""
    async with cluster(Topology.grid(1, 1)) as made:
        http = HttpServer(made.replicas[0].status)
        port = find_free_ports(1)[0]
        await http.listen("127.0.0.1", port)
        try:
            yield http, port
        finally:
            await http.close()


def test_health_is_answered_beside_silent_and_slow_clients() -> None:
    """Silent connections, half requests and readers that never read, several times as many as there are places."""

    async def main() -> None:
        async with served() as (http, port):
            with ExitStack() as stack:
                for number in range(5 * MAX_CONNECTIONS):
                    one = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
                    if number % 3 == 1:
                        one.send(b"GET /health HTTP/1.1\r\nX: ")
                    elif number % 3 == 2:
                        one.send(b"GET /metrics HTTP/1.1\r\n\r\n")
                    if number % 16 == 0:
                        await asyncio.sleep(0)
                for _ in range(10):
                    assert (await get(port, "/health")).endswith(b"ok\n")
                assert (await get(port, "/ready")).endswith(b"ready\n")
                assert len(http._connections) <= MAX_CONNECTIONS
                assert http._connections.dismissed > MAX_CONNECTIONS

    run(main())


def test_slow_request_is_closed_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("amcast.live.server.http.REQUEST_S", 0.2)

    async def main() -> None:
        async with served() as (http, port):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET")
            assert await asyncio.wait_for(reader.read(), 5) == b""
            assert len(http._connections) == 0
            writer.close()

    run(main())


def test_probe_is_answered_when_a_flood_arrives_with_it() -> None:
    """The probe is the oldest of all connections that the server accepts in one turn."""

    async def main() -> None:
        async with served() as (http, port):
            with ExitStack() as stack:
                probe = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
                probe.send(b"GET /health HTTP/1.1\r\n\r\n")
                for _ in range(3 * MAX_CONNECTIONS):
                    stack.enter_context(socket.create_connection(("127.0.0.1", port)))
                probe.settimeout(20)
                assert (await asyncio.to_thread(probe.recv, 4096)).endswith(b"ok\n")
                await until(lambda: http._connections.dismissed >= 2 * MAX_CONNECTIONS)

    run(main())


def test_client_that_does_not_read_its_response_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("amcast.live.server.http.REQUEST_S", 0.3)
    content = bytes(32 << 20)
    monkeypatch.setattr(HttpServer, "respond", lambda self, line: (200, TEXT, content))

    def read_all(client: socket.socket) -> int:
        count = 0
        try:
            while part := client.recv(1 << 20):
                count += len(part)
        except ConnectionResetError:
            pass
        return count

    async def main() -> None:
        async with served() as (http, port):
            with socket.create_connection(("127.0.0.1", port)) as client:
                client.send(b"GET /metrics HTTP/1.1\r\n\r\n")
                await until(lambda: len(http._connections) == 1)
                await until(lambda: len(http._connections) == 0)
                await asyncio.sleep(0.1)
                client.settimeout(20)
                assert await asyncio.to_thread(read_all, client) < len(content)

    run(main())


@pytest.mark.parametrize("turns", range(5))
def test_stop_closes_open_connections(turns: int) -> None:
    """One that waits for its request; and one that is accepted so many turns of the event loop before the stop, in one
    of which the task that serves it has not begun."""

    async def main() -> None:
        async with served() as (http, port):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            await until(lambda: len(http._connections) == 1)
            with socket.create_connection(("127.0.0.1", port)) as late:
                for _ in range(turns):
                    await asyncio.sleep(0)
                await http.close()
                late.settimeout(2)
                with suppress(ConnectionResetError):
                    assert await asyncio.to_thread(late.recv, 1) == b""
            with suppress(ConnectionResetError):
                assert await asyncio.wait_for(reader.read(), 2) == b""
            writer.close()

    run(main())


def test_many_scrapers_cost_one_computation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("amcast.live.server.http.CACHE_S", 60.0)
    counted: list[object] = []
    compute = metrics.format_metrics
    monkeypatch.setattr(metrics, "format_metrics", lambda registry: counted.append(registry) or compute(registry))

    async def main() -> None:
        async with served() as (_, port):
            pages = await asyncio.gather(*(get(port, "/metrics") for _ in range(20)))
            assert len(set(pages)) == 1
            assert b"amcast_" in pages[0]
            assert len(counted) == 1

    run(main())


def test_head_has_no_content() -> None:
    async def main() -> None:
        async with served() as (_, port):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"HEAD /health HTTP/1.1\r\n\r\n")
            answer = await asyncio.wait_for(reader.read(), 20)
            assert answer.startswith(b"HTTP/1.1 200 OK")
            assert b"Content-Length: 3\r\n" in answer
            assert answer.endswith(b"\r\n\r\n")
            writer.close()

    run(main())
