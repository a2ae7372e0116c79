"""Subscribers that never read cost bounded memory, and do not delay others."""

import asyncio
import socket
import tracemalloc

import pytest

from amcast.kernel.topology import Topology
from amcast.live.limits import KIB, MIB, Limits
from amcast.live.rpc.messages import RpcEnvelope, Subscribe, encode_request
from amcast.live.rpc.server import CHUNK_BYTES
from amcast.live.wire.frames import WIRE_VERSION
from tests.live.cluster import cluster, run

pytestmark = pytest.mark.live

STALLED = 20
RECENT = 2 * MIB
TOTAL = 40 * MIB


def test_stalled_subscribers_cost_bounded_memory_and_are_closed() -> None:
    """Twenty subscribers read nothing while forty MiB are delivered: Python's memory for them stays below three chunks
    each, and after `limits.client_link_ttl_s` they are closed."""

    async def main() -> None:
        limits = Limits(recent_bytes=RECENT, client_link_ttl_s=2.0, heartbeat_s=0.05)
        async with cluster(Topology.grid(1, 1), limits) as made, made.client() as client:
            made.recorder.record_delivery = lambda *_: None  # type: ignore[method-assign]
            made.replicas[0].host.sink._on_deliver = None
            payload = bytes(256 * KIB)
            for _ in range(RECENT // len(payload) + 1):
                await client.multicast({0}, payload)
            stalled = []
            for _ in range(STALLED):
                one = socket.socket()
                one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 * KIB)
                one.connect(made.addresses[0])
                one.sendall(
                    encode_request(RpcEnvelope(WIRE_VERSION, "amcast", 0, Subscribe(0, made.replicas[0].recent.next)))
                )
                stalled.append(one)
            async with asyncio.timeout(10):
                while made.replicas[0].recent.subscribers < STALLED:
                    await asyncio.sleep(0.01)
            made.delivered[0].clear()
            tracemalloc.start()
            sent = 0
            while sent < TOTAL:
                await asyncio.gather(*(client.multicast({0}, payload) for _ in range(4)))
                sent += 4 * len(payload)
                made.delivered[0].clear()
            grown, _ = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            # A reply holds at least one message, so a chunk may be as large as the largest one.
            each = 3 * (max(CHUNK_BYTES, len(payload)) + CHUNK_BYTES)
            assert grown < RECENT + STALLED * each + 12 * MIB, f"{grown} bytes for {STALLED} stalled subscribers"
            assert grown < TOTAL
            async with asyncio.timeout(20):
                while made.replicas[0].recent.subscribers:
                    await asyncio.sleep(0.05)
            for one in stalled:
                one.close()

    run(main(), timeout_s=60)
