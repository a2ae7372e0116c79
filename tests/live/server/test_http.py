"""The HTTP server of a node: /health is answered whatever other clients do."""

import asyncio
import socket
from contextlib import ExitStack

import pytest

from amcast.kernel.topology import Topology
from amcast.live.operations.local_cluster import find_free_ports
from amcast.live.server.http import MAX_CONNECTIONS, HttpServer
from tests.live.cluster import cluster, run

pytestmark = pytest.mark.live


async def get(port: int, path: str) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {path} HTTP/1.1\r\n\r\n".encode())
    try:
        async with asyncio.timeout(3):
            return await reader.read()
    finally:
        writer.close()


def test_health_is_answered_beside_silent_and_slow_clients() -> None:
    """Silent connections, half requests and readers that never read, several times as many as there are places."""

    async def main() -> None:
        async with cluster(Topology.grid(1, 1)) as made:
            http = HttpServer(made.replicas[0].status)
            port = find_free_ports(1)[0]
            await http.listen("127.0.0.1", port)
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
            await http.close()

    run(main())


def test_slow_request_is_closed_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("amcast.live.server.http.REQUEST_S", 0.2)

    async def main() -> None:
        async with cluster(Topology.grid(1, 1)) as made:
            http = HttpServer(made.replicas[0].status)
            port = find_free_ports(1)[0]
            await http.listen("127.0.0.1", port)
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET")
            assert await asyncio.wait_for(reader.read(), 5) == b""
            assert len(http._connections) == 0
            writer.close()
            await http.close()

    run(main())
