"""Links under broken connections, restarted peers, full queues, invalid bytes and other wire versions."""

import asyncio
import logging
import random
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

import msgspec
import pytest

from amcast.kernel.errors import CannotTellError
from amcast.kernel.message import Body, Message, Request
from amcast.kernel.topology import Topology
from amcast.live.limits import Limits
from amcast.live.wire import frames as wire
from amcast.live.wire.connection import Connection
from amcast.live.wire.frames import HEAD, OLDEST_VERSION, WIRE_VERSION, Codec, Hello
from amcast.live.wire.network import Address, Network
from amcast.live.wire.transport import TransportOptions
from amcast.protocols.skeen.messages import Propose
from tests.live.cluster import QUICK, SKEEN, cluster, holds, ids, recorded, run

pytestmark = pytest.mark.live

LOCAL = ("127.0.0.1", 0)


class End:
    """The network of one process, and what it received."""

    def __init__(self, me: int, incarnation: int = 0, limits: Limits = QUICK) -> None:
        self.received: list[int] = []
        self.resets: list[tuple[int, int]] = []
        self.down: asyncio.Queue[int] = asyncio.Queue()
        self.codec = Codec(SKEEN.wire_bodies(), limits=limits)
        self.network = Network(
            me, incarnation, "test", "skeen", self.codec, on_bodies=self._receive,
            on_frame=lambda peer, frame: self._receive(peer, frame.bodies),
            on_link_reset=lambda *peer: self.resets.append(peer),
            on_peer_down=self.down.put_nowait, rng=random.Random(1),
        )  # fmt: skip

    def _receive(self, peer: int, bodies: list[Body]) -> None:
        self.received.extend(body.timestamp for body in bodies if isinstance(body, Propose))

    def send(self, target: int, number: int, payload: int = 0) -> None:
        body = Request(Message(1, 1, (0,), b"x" * payload)) if payload else Propose(1, 0, number)
        self.network.outbox.send((target,), self.codec.encode(body), None)

    def flush(self) -> None:
        self.network.outbox.flush(None)


class Proxy:
    """Forwards bytes between a dialler and a listener, and cuts connections."""

    def __init__(self, target: Callable[[], Address]) -> None:
        self._target = target
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.blocked = False
        self.cuts = 0

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._accept, *LOCAL)
        self.address: Address = self._server.sockets[0].getsockname()[:2]

    async def close(self) -> None:
        self._server.close()
        self.cut()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut(self) -> None:
        """Aborts all connections, with the bytes they hold."""
        self.cuts += 1
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._tasks.add(asyncio.current_task())  # type: ignore[arg-type]
        if self.blocked:
            writer.transport.abort()
            return
        with suppress(OSError):
            far_reader, far_writer = await asyncio.open_connection(*self._target())
            self._writers |= {writer, far_writer}
            await asyncio.gather(self._forward(reader, far_writer), self._forward(far_reader, writer))

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(1024):
                writer.write(data)
                await writer.drain()
        writer.transport.abort()


@asynccontextmanager
async def pair(limits: Limits = QUICK) -> AsyncIterator[tuple[End, End, Proxy]]:
    """Process 0 listens, process 1 dials it through a proxy."""
    low, high = End(0, limits=limits), End(1, limits=limits)
    address = await low.network.listen(LOCAL)
    proxy = Proxy(lambda: address)
    await proxy.open()
    high.network.start({0: proxy.address})
    low.network.start({})
    await high.network.wait_connected({0}, 5)
    try:
        yield low, high, proxy
    finally:
        await high.network.stop()
        await low.network.stop()
        await proxy.close()


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.005)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_cut_connections_lose_duplicate_and_reorder_nothing(seed: int) -> None:
    async def main() -> None:
        rng = random.Random(seed)
        async with pair() as (low, high, proxy):
            for number in range(3000):
                low.send(1, number)
                high.send(0, number)
                if rng.random() < 0.1:
                    low.flush()
                    high.flush()
                    await asyncio.sleep(0)
                if rng.random() < 0.01:
                    proxy.cut()
                    await asyncio.sleep(rng.random() * 0.02)
            low.flush()
            high.flush()
            await until(lambda: len(low.received) >= 3000 and len(high.received) >= 3000)
            await asyncio.sleep(0.05)
            assert proxy.cuts > 10
            assert low.received == high.received == list(range(3000)), f"seed {seed}"
            assert low.resets == high.resets == []

    run(main())


def test_acknowledged_frames_are_dropped() -> None:
    async def main() -> None:
        async with pair() as (low, high, _):
            for number in range(100):
                high.send(0, number)
                high.flush()
            await until(lambda: high.network.links[0].queued_bytes == 0)
            assert low.received == list(range(100))

    run(main())


def test_heartbeat_acknowledges_frames_that_no_frame_has() -> None:
    async def main() -> None:
        async with pair(Limits(heartbeat_s=60.0)) as (low, high, _):
            link, waiting = low.network.links[1], high.network.links[0]
            high.send(0, 1)
            high.flush()
            await until(lambda: low.received == [1])
            now = asyncio.get_running_loop().time()
            link._last_heartbeat = (-1, 0)
            link.heartbeat(now)
            await asyncio.sleep(0.1)
            assert waiting.queued_bytes > 0, "it has just arrived, and the next frame will acknowledge it"
            link._last_heartbeat = (-1, link.received)
            link.heartbeat(now)
            await until(lambda: waiting.queued_bytes == 0)

    run(main())


def test_only_frames_that_no_connection_took_are_unsent() -> None:
    async def main() -> None:
        async with pair(Limits(heartbeat_s=60.0)) as (low, high, _):
            link = high.network.links[0]
            high.send(0, 1)
            high.flush()
            await until(lambda: low.received == [1])
            sent = link.queued_bytes
            assert sent > 0
            assert link.unsent_bytes == 0
            link.pause()
            high.send(0, 2)
            high.flush()
            assert link.unsent_bytes == link.queued_bytes - sent > 0

    run(main())


def test_stopping_process_acknowledges_received_frames() -> None:
    async def main() -> None:
        async with pair(Limits(heartbeat_s=60.0)) as (low, high, _):
            high.send(0, 1)
            high.flush()
            await until(lambda: low.received == [1])
            assert high.network.links[0].queued_bytes > 0
            await low.network.stop()
            await until(lambda: high.network.links[0].queued_bytes == 0)

    run(main())


@pytest.mark.parametrize("side", ["dialling", "accepting"])
def test_connection_made_in_the_turn_in_which_it_is_given_up_is_not_used(
    side: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """uvloop closes such a connection without a word, and raises an error at the next write."""
    name = "create_connection" if side == "dialling" else "connect_accepted_socket"

    async def main() -> None:
        loop = asyncio.get_running_loop()
        given_up: list[Connection] = []
        connect = getattr(loop, name)

        async def give_up(*arguments: object, **options: object) -> object:
            transport, connection = await connect(*arguments, **options)
            if isinstance(connection, Connection) and not given_up:
                await until(lambda: connection.link is not None)
                given_up.append(connection)
                transport.set_protocol(asyncio.Protocol())
                transport.abort()
                raise TimeoutError
            return transport, connection

        async with pair() as (low, high, proxy):
            link = high.network.links[0] if side == "dialling" else low.network.links[1]
            monkeypatch.setattr(loop, name, give_up)
            proxy.cut()
            await until(lambda: bool(given_up))
            while link.connection is given_up[0] or link.connection is None:
                assert link.connection is None, "the link still writes to a connection that was given up"
                await asyncio.sleep(0)
            high.send(0, 1)
            high.flush()
            await until(lambda: low.received == [1])

    run(main())


def test_new_incarnation_resets_the_link() -> None:
    async def main() -> None:
        async with pair() as (low, high, proxy):
            low.send(1, 1)
            high.send(0, 1)
            low.flush()
            high.flush()
            await until(lambda: low.received == [1] and high.received == [1])
            await high.network.stop()
            low.send(1, 2)
            low.flush()
            again = End(1, incarnation=1)
            again.send(0, 7)
            again.network.start({0: proxy.address})
            again.send(0, 8)
            again.flush()
            await until(lambda: low.received == [1, 8])
            low.send(1, 3)
            low.flush()
            await until(lambda: again.received == [3])
            assert low.resets == [(1, 1)]
            assert again.resets == []
            await again.network.stop()

    run(main())


def test_restart_with_the_same_incarnation_is_refused() -> None:
    async def main() -> None:
        async with pair() as (low, high, proxy):
            high.send(0, 1)
            high.flush()
            await until(lambda: low.received == [1])
            await high.network.stop()
            again = End(1, incarnation=0)
            again.network.start({0: proxy.address})
            with pytest.raises(
                TimeoutError, match=r"incarnation 0 again but has forgotten.*start it with a later incarnation"
            ):
                await again.network.wait_connected({0}, 0.2)
            await again.network.stop()

    run(main())


def test_overflow_resets_the_link_at_both_ends() -> None:
    async def main() -> None:
        limits = msgspec.structs.replace(QUICK, queue_bytes=100_000, backpressure_bytes=10_000)
        async with pair(limits) as (low, high, proxy):
            proxy.blocked = True
            proxy.cut()
            await until(lambda: not high.network.is_connected(0) and not low.network.is_connected(1))
            low.send(1, 5)
            low.flush()
            for number in range(200):
                high.send(0, number, payload=1000)
                high.flush()
            assert high.network.links[0].queued_bytes == 0
            assert high.resets == []
            proxy.blocked = False
            await until(lambda: high.resets == [(0, 0)] and low.resets == [(1, 0)])
            high.send(0, 1)
            high.flush()
            low.send(1, 2)
            low.flush()
            await until(lambda: low.received == [1] and high.received == [2])

    run(main())


class SilentTransport:
    """A transport that sends nothing."""

    aborted = False

    def write(self, data: bytes) -> None:
        pass

    def abort(self) -> None:
        self.aborted = True

    def set_write_buffer_limits(self, high: int, low: int) -> None:
        pass

    def get_extra_info(self, name: str) -> object:
        return None


def test_link_reset_between_both_hellos_is_dialled_again() -> None:
    async def main() -> None:
        low, high = End(0), End(1)
        link = high.network.peers.link(0)
        transport = SilentTransport()
        connection = Connection(high.network, QUICK, link)
        connection.connection_made(transport)  # type: ignore[arg-type]
        answer = low.network.peers.link(1).make_hello("test", "skeen", 0, WIRE_VERSION, OLDEST_VERSION, "", (-1, 0))
        link.overflow()
        high.network.handle_hello(connection, answer)
        assert transport.aborted, "the peer knows the previous link incarnation"
        assert link.connection is None

    run(main())


def test_senders_wait_for_a_slow_peer() -> None:
    async def main() -> None:
        limits = msgspec.structs.replace(QUICK, backpressure_bytes=100_000, heartbeat_timeout_s=10.0)
        async with pair(limits) as (low, high, _):
            low.network.pause_reading(True)
            for _ in range(50):
                high.send(0, 0, payload=10_000)
                high.flush()
            assert high.network.outbox.is_congested
            waiter = asyncio.create_task(high.network.outbox.wait_for_capacity())
            await asyncio.sleep(0.2)
            assert not waiter.done()
            low.network.pause_reading(False)
            await waiter
            assert not high.network.outbox.is_congested

    run(main())


def hello_bytes(**changes: object) -> bytes:
    """The HELLO frame of client 5 to process 0, with some fields changed."""
    hello = Hello(WIRE_VERSION, "amcast", "skeen", 5, 0, 0, 1, None, 0)
    return wire.encode_hello(msgspec.structs.replace(hello, **changes))


def test_other_wire_version_is_refused_with_both_ranges(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with pair() as (low, _, _):
            hello = Hello(99, "test", "skeen", 5, 0, 0, 1, None, 0)
            _, port = low.network._listener.sockets[0].getsockname()  # type: ignore[union-attr]
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(wire.encode_hello(hello))
            answer = await reader.read()
            length, version, kind = HEAD.unpack_from(answer)
            assert (length, version, kind) == (len(answer) - 4, wire.WIRE_VERSION, wire.REFUSE)
            assert (
                wire.read_refusal(answer[HEAD.size :]).reason == "process 5 speaks wire version 99; process 0 speaks 6"
            )
            writer.close()

    with caplog.at_level(logging.WARNING, "amcast.live"):
        run(main())
    assert "speaks wire version 99" in caplog.text


def test_node_whose_answers_promise_something_else_is_refused() -> None:
    async def main() -> None:
        async with cluster(Topology.grid(2, 1)) as made:
            made.hosts[0].network.wiring = TransportOptions(order="real-time")
            reasons = []
            for order in ("acyclic", "real-time", ""):
                reader, writer = await asyncio.open_connection(*made.addresses[0])
                writer.write(hello_bytes(order=order))
                head = await reader.readexactly(HEAD.size)
                length, _, kind = HEAD.unpack_from(head)
                rest = await reader.readexactly(length + 4 - HEAD.size)
                reasons.append(wire.read_refusal(rest).reason if kind == wire.REFUSE else "")
                writer.close()
            expected = 'process 5 has order = "acyclic", and process 0 order = "real-time"; expected one setting in the'
            assert reasons == [f"{expected} cluster.toml of all nodes", "", ""], "clients state none"

    run(main())


@pytest.mark.parametrize(
    ("bytes_sent", "expected"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "a frame of 1195725856 bytes"),
        (struct.pack("!IBB", 2, WIRE_VERSION, 77), "a frame of kind 77"),
        (struct.pack("!IBB", 5, WIRE_VERSION, 0) + b"\xc1\xc1\xc1", "a HELLO frame that cannot be read"),
        (wire.CHECKED.make(wire.BODIES, b"\x90\x90\x90"), "BODIES before HELLO"),
        (hello_bytes(cluster="other"), "this is cluster 'amcast', not 'other'"),
        (hello_bytes(protocol="ring"), "runs protocol 'skeen', not 'ring'"),
        (hello_bytes(target=9), "this is process 0, not 9"),
        (
            hello_bytes(configuration=0, members_digest=17),
            "process 5 and process 0 have different groups or replicas in configuration 0: is cluster.toml the same",
        ),
    ],
)
def test_invalid_bytes_close_their_connection_only(
    bytes_sent: bytes, expected: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with cluster(Topology.grid(2, 1)) as made, made.client() as client:
            await client.multicast({0, 1}, b"before")
            reader, writer = await asyncio.open_connection(*made.addresses[0])
            writer.write(bytes_sent)
            with suppress(ConnectionError):
                await reader.read()
            writer.close()
            await client.multicast({0, 1}, b"after")
            await made.settled(4)
            assert [message.payload for message in made.delivered[0]] == [b"before", b"after"]

    with caplog.at_level(logging.WARNING, "amcast.live"):
        run(main())
    assert expected in caplog.text


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (Propose(1, 0, 1), "client 5 sends Propose; expected Request"),
        (Request(Message(5_000_000_000, 6, (0,), b"")), "in the name of 6"),
        (Request(Message(6_000_000_000, 5, (0,), b"")), "in the name of 5"),
        (Request(Message(5_000_000_000, 5, (1, 0), b"")), r"destinations (1, 0); expected (0, 1)"),
        (Request(Message(5_000_000_000, 5, (0, 7), b"")), "group 7 does not exist"),
        (Request(Message(5_000_000_000, 5, (), b"")), "expected at least one group"),
        (Request(Message(5_000_000_000, 5, (1,), b"")), "to groups [1] does not concern process 0"),
        (Request(Message(5_000_000_000, 5, (0,), b"x" * 2_000_000)), "has 2000000 bytes; expected at most"),
    ],
)
def test_client_with_a_forbidden_body_is_refused_with_the_reason(
    body: Propose | Request, expected: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with cluster(Topology.grid(2, 1)) as made, made.client() as client:
            reader, writer = await asyncio.open_connection(*made.addresses[0])
            writer.write(hello_bytes())
            coder = Codec(SKEEN.wire_bodies())
            writer.write(coder.encode_frame(1, 0, [coder.encode(body)]))
            answer = await reader.read()
            assert expected.encode() in answer
            writer.close()
            await client.multicast({0, 1}, b"after")
            await made.settled(2)
            assert [message.payload for message in made.delivered[0]] == [b"after"]

    with caplog.at_level(logging.WARNING, "amcast.live"):
        run(main())
    assert expected in caplog.text


def test_payload_without_batch_is_delivered_unchanged_everywhere() -> None:
    async def main() -> None:
        async with cluster(Topology.grid(2, 1)) as made, made.client(batches=False) as client:
            await client.multicast({0, 1}, b"\xc1 not msgpack")
            await made.settled(2)
            assert ids(made.delivered)[0] == ids(made.delivered)[1]
            assert made.delivered[0][0].payload == b"\xc1 not msgpack"

    run(main())


def test_client_of_another_cluster_gets_the_reason() -> None:
    async def main() -> None:
        async with cluster(Topology.grid(1, 1)) as made:
            with pytest.raises(CannotTellError, match="process 0 refused: this is cluster 'amcast', not 'elsewhere'"):
                async with made.client(cluster="elsewhere", connect_s=0.3):
                    pass

    run(main())


def test_skeen_delivers_everything_over_repeatedly_cut_connections() -> None:
    async def main() -> None:
        topology = Topology.grid(3, 1)
        async with cluster(topology) as made, made.client() as client:
            rng = random.Random(4)

            async def cut() -> None:
                while True:
                    await asyncio.sleep(0.01)
                    host = made.hosts[rng.randrange(3)]
                    up = [link.connection for link in host.network.links.values() if link.connection is not None]
                    if up:
                        rng.choice(up).abort()

            cutter = asyncio.create_task(cut())
            jobs = [client.multicast(rng.sample(range(3), 2), b"%d" % n, 20) for n in range(100)]
            for start in range(0, 100, 10):
                await asyncio.gather(*jobs[start : start + 10])
            cutter.cancel()
            await made.settled(200)
            await asyncio.sleep(0.1)
            assert sum(map(len, made.delivered.values())) == 200
        holds(recorded(made.recorder))

    run(main())


def test_refused_address_is_reported_down_also_for_a_peer_that_dials() -> None:
    async def scene() -> None:
        low, high = End(0), End(1)
        addresses = {0: await low.network.listen(LOCAL), 1: await high.network.listen(LOCAL)}
        low.network.start(addresses)
        high.network.start(addresses)
        await high.network.wait_connected({0}, 5)
        await high.network.stop()
        assert await low.down.get() == 1, "process 1 dials; process 0 probes its address"

        again = End(1, incarnation=1)
        await again.network.listen(addresses[1])
        again.network.start(addresses)
        await low.network.wait_connected({1}, 5)
        await low.network.stop()
        assert await again.down.get() == 0
        await again.network.stop()
        assert low.down.empty()
        assert high.down.empty()
        assert again.down.empty(), "once, however often it dials"

    run(scene())


def test_peer_is_down_only_when_its_listening_socket_is_closed() -> None:
    async def scene() -> None:
        low, high = End(0), End(1)
        addresses = {0: await low.network.listen(LOCAL), 1: await high.network.listen(LOCAL)}
        low.network.start(addresses)
        high.network.start(addresses)
        await high.network.wait_connected({0}, 5)
        for task in high.network._dialling.values():
            task.cancel()
        connection = high.network.links[0].connection
        assert connection is not None
        connection.abort()
        await until(lambda: not low.network.is_connected(1))
        await asyncio.sleep(0.1)
        assert low.down.empty(), "its address still accepts"
        await high.network.stop()
        async with asyncio.timeout(5):
            assert await low.down.get() == 1
        await low.network.stop()

    run(scene())


def test_cut_connection_reports_no_peer_down() -> None:
    async def scene() -> None:
        async with pair() as (low, high, proxy):
            proxy.cut()
            high.send(0, 1)
            high.flush()
            while low.received != [1]:
                await asyncio.sleep(0.01)
            assert low.down.empty()
            assert high.down.empty()

    run(scene())
