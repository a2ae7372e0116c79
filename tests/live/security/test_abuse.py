"""Abuse of a real node with certificates: each is refused with a log line, and other clients are served.

What clients with rights of their own may not do is in test_secure_tls.py; here are those who want to be a nuisance.
"""

import asyncio
import socket
import statistics
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from amcast.cluster import cluster_spec, connect, local_cluster
from amcast.kernel.message import Message, Request
from amcast.live.client.client import Client
from amcast.live.config.cluster import Cluster
from amcast.live.operations.local_cluster import LocalCluster
from amcast.live.security.permissions import FIRST_CLIENT_ID, IDS_PER_CLIENT
from amcast.live.wire import frames as wire
from amcast.live.wire.frames import HEAD, WIRE_VERSION, Codec, Hello
from tests.live.cluster import run
from tests.live.secure_cluster import say, secured

pytestmark = [pytest.mark.live, pytest.mark.slow]

Running = tuple[Cluster, LocalCluster]
MAX_PENDING = 50
UNCHECKED = wire.find_framing(WIRE_VERSION, False)
REPLAYER = FIRST_CLIENT_ID + IDS_PER_CLIENT - 1


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    cluster = secured(
        tmp_path_factory.mktemp("abuse"),
        {"orders": 1, "stock": 1},
        limits={"pending_connections": MAX_PENDING, "hello_timeout_s": 2.0},
    )
    with local_cluster(cluster) as nodes:
        yield cluster, nodes


def resident_mib(nodes: LocalCluster, node: str = "orders/1") -> float:
    return int(Path(f"/proc/{nodes.pid(node)}/statm").read_text().split()[1]) * 4 / 1024


def log_of(nodes: LocalCluster, node: str = "orders/1") -> str:
    return (nodes.logs / f"{node.replace('/', '-')}.log").read_text()


async def latency_ms(client: Client, count: int = 20) -> float:
    """The median latency of several multicasts in sequence."""
    taken = []
    for _ in range(count):
        begin = time.perf_counter()
        await client.multicast({"orders", "stock"}, b"x")
        taken.append((time.perf_counter() - begin) * 1000)
    return statistics.median(taken)


def unharmed(before_ms: float, during_ms: float) -> None:
    """Checks that multicasts are only slower, because the abuser uses the same two cores."""
    assert during_ms < 50 * before_ms + 250, f"{during_ms:.1f} ms under abuse, {before_ms:.1f} ms before"


def knock(address: tuple[str, int], count: int) -> None:
    for _ in range(count):
        socket.create_connection(address).close()


def test_garbage_from_unauthenticated_peers_is_refused(running: Running) -> None:
    cluster, nodes = running

    async def main() -> None:
        async with connect(cluster, client="till") as client:
            before = await latency_ms(client)
            payloads = [
                b"GET / HTTP/1.1\r\n\r\n",
                b"\x00" * 5000,
                b"\x16\x03\x01\xff\xff" + b"\xee" * 70_000,
                b"SSH-2.0-x\r\n",
            ]
            await asyncio.gather(*(say(cluster.addresses[0], words) for words in payloads for _ in range(3)))
            context = cluster.client_transport("guest").secured
            insiders = [
                b"\xff" * 6000,
                wire.make_frame(77, b""),
                wire.make_frame(wire.HELLO, b"\xc1"),
                wire.make_frame(3, b"\x90"),
            ]
            await asyncio.gather(*(say(cluster.addresses[0], words, context) for words in insiders))
            unharmed(before, await latency_ms(client))

    run(main(), timeout_s=60)
    log = log_of(nodes)
    for words in (
        "refused: TLS: http request",
        "a frame of kind 77",
        "a HELLO frame that cannot be read",
        "BODIES before HELLO",
    ):
        assert words in log, words


def test_ten_thousand_connections_opened_and_dropped(running: Running) -> None:
    cluster, nodes = running

    async def main() -> None:
        async with connect(cluster, client="till") as client:
            before = await latency_ms(client)
            memory = resident_mib(nodes)
            knocking = asyncio.get_running_loop().run_in_executor(None, knock, cluster.addresses[0], 10_000)
            during = await latency_ms(client)
            await knocking
            unharmed(before, during)
            await latency_ms(client, 3)
            assert resident_mib(nodes) < memory + 40

    run(main(), timeout_s=180)
    log = log_of(nodes)
    assert "refused: TLS" in log or "connections have sent no HELLO" in log
    assert log.count("\n") < 1000, "a flood must not fill the log"


def test_slow_pending_connections_do_not_block_others(running: Running) -> None:
    """Opens several times as many connections as may be pending, each sending a byte now and then; other clients still
    connect."""
    cluster, nodes = running

    async def main() -> None:
        async with connect(cluster, client="till") as client:
            before = await latency_ms(client)
            with ExitStack() as stack:
                slow = [
                    stack.enter_context(socket.create_connection(cluster.addresses[0])) for _ in range(4 * MAX_PENDING)
                ]
                for sock in slow:
                    sock.setblocking(False)
                    with ExitStack() as broken:
                        broken.push(lambda *_: True)
                        sock.send(b"\x16")
                unharmed(before, await latency_ms(client))
                async with connect(cluster, client="guest") as newcomer:
                    await newcomer.multicast({"stock"}, b"x")
                await asyncio.sleep(2.5)
                gone = 0
                for sock in slow:
                    try:
                        gone += sock.recv(1) == b""
                    except BlockingIOError:
                        pass
                    except OSError:
                        gone += 1
                assert gone == len(slow), f"{len(slow) - gone} slow connections are still connected"

    run(main(), timeout_s=60)
    assert f"more than {MAX_PENDING} connections have sent no HELLO (limits.pending_connections)" in log_of(nodes)


def test_replayed_frames_are_not_delivered_twice(running: Running) -> None:
    """A client with a certificate repeats its frames: in one connection, in the next, and from an older incarnation."""
    cluster, nodes = running
    context = cluster.client_transport("till").secured
    coder = Codec(cluster_spec(cluster).wire_bodies())

    def hello(link: int, incarnation: int = 1) -> bytes:
        hello = Hello(WIRE_VERSION, cluster.name, cluster.protocol, REPLAYER, 0, incarnation, link, None, 0, 1)
        return wire.encode_hello(hello)

    frame = coder.encode_frame(
        1, 0, [coder.encode(Request(Message(REPLAYER * 10**9, REPLAYER, (0,), b"once")))], UNCHECKED
    )

    async def main() -> None:
        async with connect(cluster, client="till") as client:
            deliveries = client.deliveries("orders")
            got: list[bytes] = []

            async def read() -> None:
                async for delivery in deliveries:
                    got.append(delivery.payload)

            reading = asyncio.create_task(read())
            await client.multicast({"orders"}, b"first")
            first = await say(cluster.addresses[0], hello(1) + frame + frame, context)
            assert HEAD.unpack_from(first)[2] == wire.HELLO
            again = await say(cluster.addresses[0], hello(1) + frame, context)
            assert b"has forgotten the link" in again
            older = await say(cluster.addresses[0], hello(9, incarnation=0) + frame, context)
            assert b"expected at least incarnation 1, link 1, which was seen before" in older
            await say(cluster.addresses[0], hello(2) + frame + wire.encode_ack(0, UNCHECKED) * 1000 + frame, context)
            await client.multicast({"orders"}, b"last")
            async with asyncio.timeout(10):
                while b"last" not in got:
                    await asyncio.sleep(0.01)
            reading.cancel()
            assert got.count(b"once") == 1

    run(main(), timeout_s=60)
    log = log_of(nodes)
    assert "it sent frame 1; expected 2" in log
    assert "has forgotten the link" in log
