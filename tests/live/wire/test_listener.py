"""The listener lets go of what it accepted."""

import asyncio
import socket

import pytest
import uvloop

from amcast.live.wire.listener import Listener, PendingConnections


@pytest.mark.live
@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_connection_accepted_in_the_turn_of_the_stop_is_closed(run) -> None:
    """The task of the handshake is cancelled before it ran, so nothing else closes the socket."""

    async def main() -> None:
        listener = Listener(asyncio.Protocol, PendingConnections(8), lambda: None, 1.0)
        await listener.open("127.0.0.1", 0)
        listening = listener.sockets[0]
        with socket.create_connection(listening.getsockname()) as client:
            client.settimeout(5)
            listener._accept(listening)
            listener.close()
            await listener.wait_closed()
            assert await asyncio.to_thread(client.recv, 1) == b""
        assert not listener._handshakes

    run(main())
