"""Bodies larger than a frame arrive whole or not at all, over broken connections, and from servers only."""

import asyncio
import random
from pathlib import Path

import pytest

from amcast.cluster import connect, run_replica
from amcast.kernel.errors import UsageError
from amcast.kernel.message import Body, Message, Request
from amcast.live.config.cluster import read_cluster
from amcast.live.errors import BadFrameError
from amcast.live.limits import Limits
from amcast.live.operations.local_cluster import find_free_ports, format_local_config
from amcast.live.torture.proxies import Proxies, between
from amcast.live.wire.fragments import Reassembler
from amcast.live.wire.frames import Codec, Fragment, Frame
from amcast.live.wire.network import Network
from tests.live.cluster import SKEEN, run

SMALL = Limits(
    heartbeat_s=0.05, reconnect_min_s=0.005, reconnect_max_s=0.05, message_bytes=1000, frame_bytes=4000,
    frame_target_bytes=2000, queue_bytes=20_000, backpressure_bytes=10_000, body_bytes=2_000_000,
)  # fmt: skip


class End:
    """The network of one process, and the sizes of the payloads that it received."""

    def __init__(self, me: int) -> None:
        self.me = me
        self.received: list[int] = []
        self.resets: list[tuple[int, int]] = []
        self.codec = Codec(SKEEN.wire_bodies(), limits=SMALL)
        self.network = Network(
            me, 0, "test", "skeen", self.codec, on_bodies=self._receive, on_frame=self._receive_frame,
            on_link_reset=lambda *peer: self.resets.append(peer), rng=random.Random(1),
        )  # fmt: skip

    def _receive(self, peer: int, bodies: list[Body]) -> None:
        self.received.extend(len(body.message.payload) for body in bodies if isinstance(body, Request))

    def _receive_frame(self, peer: int, frame: Frame) -> None:
        self._receive(peer, frame.bodies)

    def send(self, payload: int, sent_ns: int | None = None) -> None:
        body = Request(Message(1, 1, (0,), bytes(payload)))
        self.network.outbox.is_traced = sent_ns is not None
        self.network.outbox.send((1 - self.me,), self.codec.encode(body), 1)
        self.network.outbox.flush(sent_ns)


@pytest.mark.live
@pytest.mark.parametrize("sent_ns", [None, 17])
def test_body_larger_than_a_frame_survives_broken_connections(sent_ns: int | None) -> None:
    async def main() -> None:
        listening, proxied = (("127.0.0.1", port) for port in find_free_ports(2))
        low, high = End(0), End(1)
        async with Proxies({0: proxied}, {0: listening}) as wires:
            await low.network.listen(listening)
            for end in (low, high):
                end.network.start({0: proxied, 1: ("127.0.0.1", 1)})
            await high.network.wait_connected({0}, 5)
            for size in (1, 900_000, 2, 1_500_000):
                high.send(size, sent_ns)
            while wires.cuts < 5:
                await asyncio.sleep(0.002)
                wires.cut(between([0], [1]))
                wires.heal()
            high.send(3, sent_ns)
            while len(low.received) < 5:
                await asyncio.sleep(0.002)
            assert low.received == [1, 900_000, 2, 1_500_000, 3]
            assert low.resets == high.resets == [], "the link was never reset"
            with pytest.raises(UsageError, match=r"body Request has \d+ bytes; expected at most 2000000"):
                high.send(2_000_001)
            await high.network.stop()
            await low.network.stop()

    run(main())


def test_invalid_fragments_are_refused() -> None:
    reassembler = Reassembler(10)
    assert reassembler.add(Fragment(0, 2, b"12345", 0, None)) is None
    with pytest.raises(BadFrameError, match="fragment 0 of 2; expected fragment 1"):
        reassembler.add(Fragment(0, 2, b"12345", 0, None))
    with pytest.raises(BadFrameError, match="more than 10 bytes"):
        reassembler.add(Fragment(1, 2, b"123456", 0, None))
    reassembler.clear()
    assert reassembler.add(Fragment(0, 1, b"123", 0, None)) == b"123"


@pytest.mark.live
def test_state_larger_than_a_frame_is_transferred(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pieces: list[Fragment] = []
    encode = Codec.encode_fragment

    def record(self: Codec, number: int, ack: int, piece: Fragment, version: int) -> bytes:
        pieces.append(piece)
        return encode(self, number, ack, piece, version)

    monkeypatch.setattr(Codec, "encode_fragment", record)
    limits = {"message_bytes": 4000, "frame_bytes": 10_000, "frame_target_bytes": 8000, "heartbeat_s": 0.05}
    file = tmp_path / "cluster.toml"
    file.write_text(format_local_config({"orders": 3}, protocol="primcast", durability="os", limits=limits))
    cluster = read_cluster(file)

    async def main() -> None:
        replicas = {name: run_replica(cluster, name) for name in cluster.nodes()}
        for one in replicas.values():
            await one.__aenter__()
        async with connect(cluster) as client:
            await replicas["orders/3"].__aexit__(None, None, None)
            for _ in range(100):
                await client.multicast({"orders"}, bytes(3900))
            replicas["orders/3"] = run_replica(cluster, "orders/3")
            await replicas["orders/3"].__aenter__()
            await replicas["orders/3"].caught_up()
            await client.multicast({"orders"}, b"y")
            while replicas["orders/3"].position < 101:
                await asyncio.sleep(0.01)
        for one in replicas.values():
            await one.__aexit__(None, None, None)

    run(main())
    assert max(piece.count for piece in pieces) > 10
