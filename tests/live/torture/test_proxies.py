"""Proxies let go of the connections that they accepted."""

import asyncio
import socket
from contextlib import suppress

import pytest

from amcast.live.operations.local_cluster import find_free_ports
from amcast.live.torture.proxies import Proxies
from tests.live.cluster import run

pytestmark = pytest.mark.live


@pytest.mark.parametrize("turns", range(5))
def test_connection_accepted_shortly_before_the_end_is_closed(turns: int) -> None:
    """In one of these turns of the event loop it is accepted, and the task that serves it has not begun."""

    async def main() -> None:
        proxy, node = (("127.0.0.1", port) for port in find_free_ports(2))
        async with Proxies({0: proxy}, {0: node}):
            client = socket.create_connection(proxy)
            for _ in range(turns):
                await asyncio.sleep(0)
        with client:
            client.settimeout(5)
            with suppress(ConnectionResetError):
                assert await asyncio.to_thread(client.recv, 1) == b""

    run(main())
