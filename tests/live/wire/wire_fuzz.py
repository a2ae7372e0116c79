"""A fuzzer for connections: no input of a pending connection, a client or a false server crashes or hangs a node, or
grows its memory. `Target.take` takes one input; `make campaign` feeds a million, with atheris if it is installed (it
measures which lines an input reaches) and else with mutations of its own.

    python tests/live/wire/wire_fuzz.py --inputs 1000000 --seed 0
"""

import argparse
import asyncio
import logging
import random
import resource
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import msgspec

from amcast.assembly import build_node_spec
from amcast.kernel.message import Message, Request
from amcast.kernel.topology import Topology
from amcast.live.errors import BadFrameError
from amcast.live.limits import KIB, Limits
from amcast.live.rpc.messages import (
    AllocateClientId,
    FetchState,
    GetNodeStatus,
    GetProgress,
    GetTopology,
    ReleaseClientId,
    RpcEnvelope,
    Subscribe,
    encode_request,
)
from amcast.live.server.replica_runtime import ReplicaRuntime
from amcast.live.wire import connection as connections
from amcast.live.wire import frames as wire
from amcast.live.wire.connection import Connection
from amcast.live.wire.frames import WIRE_VERSION, Codec, Hello
from amcast.parts.node.messages import GatewayConfig, NodeConfig
from amcast.protocols.catalogue import get_protocol

SPEC = build_node_spec(get_protocol("primcast"), NodeConfig(omega=None, gateway=GatewayConfig()))
TOPOLOGY = Topology.grid(2, 1)
LIMITS = Limits(
    message_bytes=4 * KIB, frame_bytes=16 * KIB, queue_bytes=64 * KIB, backpressure_bytes=16 * KIB, frame_target_bytes=4
    * KIB, recent_bytes=64 * KIB, peers=50, pending_connections=20, client_link_ttl_s=0.01, heartbeat_s=0.01,
    heartbeat_timeout_s=0.5,
)  # fmt: skip
CLIENT = 1 << 20
MODES = 8
UNCHECKED = (1, 6)
"""Modes in which checksums are not compared: mutated frames are read, and not refused for their checksum."""
FRESH = 20_000
"""Inputs per node."""


class Sink(asyncio.Transport):
    """A transport that discards everything written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = 0
        self.closing = False
        self.protocol: Any = None
        """The protocol that reads, if not the connection itself."""

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 9) if name == "peername" else default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def write(self, data: Any) -> None:
        self.written += len(data)

    def close(self) -> None:
        self.closing = True

    def abort(self) -> None:
        self.closing = True

    def is_closing(self) -> bool:
        return self.closing

    def is_reading(self) -> bool:
        return not self.closing

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def set_protocol(self, protocol: Any) -> None:
        self.protocol = protocol


class Target:
    """A running node without sockets, and its peers."""

    def __init__(self) -> None:
        process = SPEC.process(0, TOPOLOGY, SPEC.configure())
        self.replica = ReplicaRuntime(process, SPEC, limits=LIMITS, rng=random.Random(1))
        self.host = self.replica.host
        self.replica.start({0: ("127.0.0.1", 1)})
        self.network = self.host.network
        taken = self.network.peers._on_bodies
        # Servers are trusted; certificates keep false ones out. This tests how their frames are read, not the protocol.
        self.network.peers._on_bodies = lambda peer, bodies: taken(peer, bodies) if peer >= CLIENT else None
        self.coder = Codec(SPEC.wire_bodies(), limits=LIMITS)
        self._links = 0
        self.frames = 0
        """Inputs that reached a link."""

    def hello(self, process: int = CLIENT) -> bytes:
        self._links += 1
        return wire.encode_hello(Hello(WIRE_VERSION, "amcast", SPEC.name, process, 0, 0, self._links, None, 0, 1))

    def take(self, data: bytes) -> None:
        """Feeds one input: its first bytes choose the peer and the sizes of reads, the rest is received."""
        if len(data) < 3:
            return
        mode, cut, rest = data[0] % MODES, data[1] * 257 + data[2], data[3:]
        if mode == 5:
            self._read(rest)
        elif mode in UNCHECKED:
            unguarded = patch.object(connections, "check_guard", lambda *_: None)
            with unguarded, patch.object(wire.Framing, "open", wire.Framing.payload):
                self._receive(mode, cut, rest)
        else:
            self._receive(mode, cut, rest)

    def _receive(self, mode: int, cut: int, rest: bytes) -> None:
        dials = None
        if mode == 6:
            dials = self.network.peers.link(1)
        connection = Connection(self.network, LIMITS, dials)
        sink = Sink()
        connection.connection_made(sink)
        received = self._make_bytes(mode, rest)
        for piece in _split(received, cut):
            if sink.protocol is not None and not sink.closing:
                sink.protocol.data_received(piece)
                continue
            room = connection.get_buffer(len(piece))
            while piece and not sink.closing:
                count = min(len(room), len(piece))
                assert count > 0, f"mode {mode}: no space for the next read"
                room[:count] = piece[:count]
                piece = piece[count:]
                connection.buffer_updated(count)
                room = connection.get_buffer(len(piece))
        self.frames += connection.link is not None
        assert len(connection._buffer) <= LIMITS.frame_bytes + 8 * KIB
        connection.connection_lost(None)
        self.host.tick()
        assert not self.host.ended.done(), "the host failed"

    def _make_bytes(self, mode: int, rest: bytes) -> bytes:
        match mode:
            case 0:
                return rest
            case 2:
                kind = rest[0] % 8 if rest else 0
                return self.hello() + wire.CHECKED.make(kind, rest[1:][: LIMITS.frame_bytes])
            case 3:
                sequence = int.from_bytes(rest[:2], "big")
                message = Message(CLIENT * 10**9 + sequence, CLIENT, (0,), rest[2:][:8192])
                return self.hello() + self.coder.encode_frame(1, 0, [self.coder.encode(Request(message))]) + rest
            case 4:
                return wire.CHECKED.make(wire.RPC_REQUEST, rest[:4000])
            case 6:
                return self.hello(process=1) + rest
            case _:
                return self.hello() + rest

    def _read(self, rest: bytes) -> None:
        """Decodes an input as a frame of a server: the codec alone."""
        for kind in (wire.BODIES, wire.TRACED):
            try:
                self.coder.read(kind, rest)
            except BadFrameError:
                continue


def _split(data: bytes, cut: int) -> Iterator[bytes]:
    """Splits bytes into reads of a size that `cut` chooses."""
    size = len(data) // (cut % 4 + 1) + cut % 3 + 1
    for start in range(0, len(data), size):
        yield data[start : start + size]


def seeds() -> list[bytes]:
    """Valid inputs, from which mutations start."""
    target = Codec(SPEC.wire_bodies(), limits=LIMITS)
    message = Message(CLIENT * 10**9, CLIENT, (0, 1), b"payload")
    frame = target.encode_frame(1, 0, [target.encode(Request(message))])
    hello = wire.encode_hello(Hello(WIRE_VERSION, "amcast", SPEC.name, CLIENT + 1, 0, 0, 1, None, 0, 1))
    visits = [
        encode_request(RpcEnvelope(WIRE_VERSION, "amcast", 0, question))
        for question in (
            GetProgress(),
            Subscribe(0, 0),
            Subscribe(0, 2**63),
            Subscribe(2**62, -(2**62)),
            AllocateClientId(),
            ReleaseClientId(1, b"x" * 16, 1, 1),
            ReleaseClientId(2**63, b"", -1, 2**63),
            FetchState(2**63),
            GetNodeStatus(),
            GetNodeStatus(-(2**62)),
            GetNodeStatus(2**63),
            GetTopology(),
        )
    ]
    states = [msgspec.msgpack.encode(kind) for kind in ([1, 0, []], [1, 0, [["Request", [1, 1, [0], b""]]]])]
    return [
        b"\x00\x00\x00" + hello + frame,
        b"\x01\x00\x00" + frame + wire.encode_ack(0) + frame,
        b"\x07\x00\x00" + frame + wire.encode_ack(0) + frame,
        b"\x02\x00\x00\x03" + wire.CHECKED.payload(frame),
        b"\x03\x00\x00\x00\x01hello",
        *(b"\x04\x00\x00" + wire.CHECKED.payload(visit) for visit in visits),
        *(b"\x05\x00\x00" + state for state in states),
        b"\x06\x00\x00" + frame,
        b"\x00\x00\x00" + wire.encode_refusal("no"),
    ]


def mutate(rng: random.Random, corpus: list[bytes]) -> bytes:
    """A seed with some bytes changed, duplicated or dropped, or followed by another seed."""
    data = bytearray(rng.choice(corpus))
    for _ in range(rng.randint(1, 6)):
        where = rng.randrange(len(data)) if data else 0
        match rng.randrange(7):
            case 0 if data:
                data[where] = rng.randrange(256)
            case 1 if data:
                data[where] ^= 1 << rng.randrange(8)
            case 2:
                data[where:where] = rng.randbytes(rng.randint(1, 8))
            case 3:
                del data[where : where + rng.randint(1, 8)]
            case 4:
                data[where:where] = rng.choice((b"\xff\xff\xff\xff", b"\xdd\xff\xff\xff\xff", b"\x00", b"\x91" * 40))
            case 5:
                data += rng.choice(corpus)[3:]
            case _ if data:
                data[0] = rng.randrange(MODES)
    return bytes(data)


async def campaign(inputs: int, seed: int) -> None:
    """Feeds inputs; memory is measured after a tenth of them, and must not have grown at the end."""
    target = Target()
    rng = random.Random(seed)
    corpus = seeds()
    begin = time.monotonic()
    early = reached = 0
    for number in range(inputs):
        data = mutate(rng, corpus)
        try:
            target.take(data)
        except BaseException:
            print(f"input {number} of seed {seed}: {data.hex()}", file=sys.stderr)
            raise
        if number % 64 == 0:
            await asyncio.sleep(0)
        if number % FRESH == FRESH - 1:
            # Valid requests to the missing group wait for ever and slow every step down: use a fresh node.
            await target.replica.stop()
            reached += target.frames
            target = Target()
        if number == inputs // 10:
            early = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    late = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(
        f"{inputs} inputs of seed {seed} in {time.monotonic() - begin:.0f} s,"
        f" {reached + target.frames} of them reached a link;"
        f" memory {early // KIB} MiB after a tenth, {late // KIB} MiB at the end"
    )
    assert late < early * 1.2 + 20 * KIB, "memory grows with the inputs"
    await target.replica.stop()


def with_atheris(inputs: int, seed: int) -> None:
    """Fuzzes with atheris, guided by the branches that an input reaches."""
    import atheris

    loop = asyncio.new_event_loop()

    async def make_target() -> Target:
        return Target()

    target = loop.run_until_complete(make_target())

    async def one(data: bytes) -> None:
        target.take(data)

    def take(data: bytes) -> None:
        loop.run_until_complete(one(data))

    folder = Path("runs/fuzz-corpus")
    folder.mkdir(parents=True, exist_ok=True)
    for number, data in enumerate(seeds()):
        (folder / f"seed-{number:02d}").write_bytes(data)
    for module in (wire, sys.modules["amcast.live.wire.connection"], sys.modules["amcast.live.wire.link"]):
        for name in dir(module):
            thing = getattr(module, name)
            if callable(thing) and getattr(thing, "__module__", "") == module.__name__ and not isinstance(thing, type):
                setattr(module, name, atheris.instrument_func(thing))
    for kind in (Connection, sys.modules["amcast.live.wire.link"].Link, Codec):
        for name, thing in vars(kind).items():
            if callable(thing) and not name.startswith("__"):
                setattr(kind, name, atheris.instrument_func(thing))
    options = [f"-runs={inputs}", f"-seed={seed or 1}", "-max_len=4096", "-rss_limit_mb=1000", "-timeout=10"]
    atheris.Setup([sys.argv[0], str(folder), *options], take)
    atheris.Fuzz()


def main() -> None:
    """The campaign's command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--engine", choices=("own", "atheris", "both"), default="both")
    given = parser.parse_args()
    logging.disable(logging.CRITICAL)
    if given.engine in ("own", "both"):
        asyncio.run(campaign(given.inputs, given.seed))
    if given.engine == "own":
        return
    try:
        import atheris  # noqa: F401
    except ImportError:
        print("atheris is not installed (extra `fuzz`); the mutations above are all there is")
        return
    with_atheris(given.inputs, given.seed)


if __name__ == "__main__":
    main()
