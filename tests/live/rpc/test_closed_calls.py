"""Calls on connections that the replica has closed meanwhile."""

import asyncio

import pytest
import uvloop

from amcast.live.rpc.client import NoAnswerError, RpcClient
from amcast.live.rpc.messages import GetProgress
from tests.live.cluster import QUICK


@pytest.mark.live
@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_request_on_a_closed_connection_gets_no_answer(run) -> None:
    """uvloop raises an error of its own at such a write, which nobody expects."""

    async def main() -> None:
        server = await asyncio.start_server(lambda reader, writer: writer.transport.abort(), "127.0.0.1", 0)
        try:
            rpc = RpcClient("test", {0: server.sockets[0].getsockname()}, QUICK)
            call = await rpc.call(0, GetProgress())
            for _ in range(3):
                with pytest.raises(NoAnswerError):
                    await call.reply()
                call.send(GetProgress())
                await asyncio.sleep(0.05)
        finally:
            server.close()

    run(main())
