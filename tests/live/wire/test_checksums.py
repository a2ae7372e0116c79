"""Checksums of frames: a corrupted frame closes its connection, and the link sends it again; nothing is misread."""

import asyncio
import logging
import random
from contextlib import suppress

import pytest

from amcast.live.errors import BadFrameError, CorruptedFrameError
from amcast.live.limits import Limits
from amcast.live.rpc.client import NoAnswerError, RpcClient
from amcast.live.rpc.messages import GetProgress, Progress, RpcEnvelope, encode_request
from amcast.live.wire import frames as wire
from amcast.live.wire.fragments import fragment
from amcast.live.wire.frames import CHECKED, HEAD_BYTES, WIRE_VERSION, Codec, Hello
from amcast.live.wire.transport import TransportOptions
from amcast.protocols.skeen.messages import Propose
from tests.live.cluster import QUICK, SKEEN, Topology, cluster, run
from tests.live.wire.test_link import LOCAL, End, Proxy, until

pytestmark = pytest.mark.live

CODEC = Codec(SKEEN.wire_bodies())
PARTS = [CODEC.encode(Propose(1, 0, number)) for number in range(3)]
FRAMES = {
    "BODIES": CODEC.encode_frame(7, 6, PARTS),
    "single": CHECKED.fast_make_single(7, 6, PARTS[0]),
    "TRACED": CODEC.encode_traced(7, 6, PARTS, 5, [1, 2, 3]),
    "FRAGMENT": CODEC.encode_fragment(7, 6, next(fragment(b"x" * 100, 30, 0, None))),
    "ACK": wire.encode_ack(70_000),
    "RPC_REQUEST": encode_request(RpcEnvelope(WIRE_VERSION, "amcast", 0, GetProgress())),
}


@pytest.mark.parametrize("kind", FRAMES)
def test_every_flipped_bit_of_a_frame_is_noticed(kind: str) -> None:
    frame = FRAMES[kind]
    CHECKED.open(frame)
    wire.check_guard(frame[: HEAD_BYTES + 2], len(frame) - 4)
    for bit in range(8 * len(frame)):
        changed = bytearray(frame)
        changed[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptedFrameError):
            CHECKED.open(bytes(changed))
        if bit < 32:
            with pytest.raises(CorruptedFrameError):
                wire.check_guard(changed, int.from_bytes(changed[:4], "big"))


def test_single_bodies_have_equal_frames_on_the_fast_and_the_slow_way() -> None:
    for framing in (CHECKED, wire.find_framing(WIRE_VERSION, False), wire.find_framing(WIRE_VERSION + 1, True)):
        for part in (*PARTS, b"", b"x" * 70_000):
            assert framing.fast_make_single(9, 8, part) == CODEC.encode_frame(9, 8, [part], framing)


@pytest.mark.parametrize("frame", [wire.encode_refusal("no"), wire.encode_hello(
    Hello(WIRE_VERSION, "amcast", "skeen", 5, 0, 3, 1, (2, 1), 17, 3, "eu", 4, 99)), wire.encode_hello(
    Hello(WIRE_VERSION, "amcast", "skeen", 5, 0, 3, 1, (2, 1), 17, order="real-time"))])  # fmt: skip
def test_every_flipped_bit_of_hello_and_refuse_is_noticed(frame: bytes) -> None:
    read = wire.read_refusal if frame[5] == wire.REFUSE else wire.read_hello
    payload = frame[HEAD_BYTES:]
    read(payload)
    for bit in range(8 * len(payload)):
        changed = bytearray(payload)
        changed[bit // 8] ^= 1 << bit % 8
        with pytest.raises(BadFrameError):
            read(bytes(changed))


def test_frames_queued_for_an_older_version_keep_their_payload() -> None:
    old = wire.find_framing(WIRE_VERSION - 1, False)
    for frame in FRAMES.values():
        there = wire.reframe(frame, CHECKED, old)
        assert old.payload(there) == CHECKED.payload(frame)
        assert wire.reframe(there, old, CHECKED) == frame


class NoisyProxy(Proxy):
    """Flips one bit in some of the chunks that it forwards."""

    rng = random.Random(0)
    rate = 0.0
    flips = 0

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := bytearray(await reader.read(1024)):
                if self.rng.random() < self.rate:
                    self.flips += 1
                    bit = self.rng.randrange(8 * len(data))
                    data[bit // 8] ^= 1 << bit % 8
                writer.write(data)
                await writer.drain()
        writer.transport.abort()


@pytest.mark.parametrize("seed", [1, 2])
def test_flipped_bits_on_the_way_lose_and_change_nothing(seed: int, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        limits = Limits(heartbeat_s=0.05, heartbeat_timeout_s=1.0, hello_timeout_s=0.2, reconnect_min_s=0.005,
                        reconnect_max_s=0.02)  # fmt: skip
        low, high = End(0, limits=limits), End(1, limits=limits)
        address = await low.network.listen(LOCAL)
        proxy = NoisyProxy(lambda: address)
        proxy.rng = random.Random(seed)
        await proxy.open()
        high.network.start({0: proxy.address})
        low.network.start({})
        try:
            await high.network.wait_connected({0}, 5)
            proxy.rate = 0.05
            for number in range(2000):
                low.send(1, number)
                high.send(0, number)
                if number % 10 == 9:
                    low.flush()
                    high.flush()
                    await asyncio.sleep(0)
            proxy.rate = 0.05
            async with asyncio.timeout(20):
                await until(lambda: len(low.received) + len(high.received) >= 3000 and proxy.flips >= 5)
                proxy.rate = 0.0
                await until(lambda: len(low.received) == len(high.received) == 2000)
            assert low.received == high.received == list(range(2000)), f"seed {seed}"
            assert low.network.pending.corrupted + high.network.pending.corrupted >= 3, (
                f"{proxy.flips} bits were flipped"
            )
            assert low.resets == high.resets == []
        finally:
            await high.network.stop()
            await low.network.stop()
            await proxy.close()

    with caplog.at_level(logging.WARNING, "amcast.live"):
        run(main())
    assert "checksum does not match" in caplog.text


@pytest.mark.parametrize("newest", [WIRE_VERSION, WIRE_VERSION + 1, WIRE_VERSION + 2])
def test_caller_falls_back_to_the_version_of_an_older_replica(newest: int) -> None:
    async def main() -> None:
        async with cluster(Topology.grid(1, 1), QUICK) as made:
            made.hosts[0].network.versions = (WIRE_VERSION, WIRE_VERSION + 1)
            transport = TransportOptions(versions=(WIRE_VERSION, newest))
            client = RpcClient("amcast", made.addresses, QUICK, transport)
            assert isinstance(await client.request(0, GetProgress()), Progress)
            assert isinstance(await client.request(0, GetProgress()), Progress)

    run(main())


def test_caller_of_another_version_is_told_which_ones_are_spoken() -> None:
    async def main() -> None:
        async with cluster(Topology.grid(1, 1), QUICK) as made:
            for version in (WIRE_VERSION - 1, WIRE_VERSION + 1):
                transport = TransportOptions(versions=(version, version))
                with pytest.raises(NoAnswerError, match=f"wire version {version}; expected {WIRE_VERSION}"):
                    await RpcClient("amcast", made.addresses, QUICK, transport).request(0, GetProgress())

    run(main())
