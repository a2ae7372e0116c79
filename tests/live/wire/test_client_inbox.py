"""The client inbox: the fast loop over bytes of many clients equals handling each frame when it arrives."""

import random
from collections.abc import Iterator

import pytest

from amcast.kernel.events import Requests
from amcast.kernel.ids import message_id
from amcast.kernel.message import Body, Message, Reply, Request
from amcast.kernel.reconfiguration import CHANGE_PREFIX
from amcast.live.host.host import Host
from amcast.live.limits import KIB, Limits
from amcast.live.wire import frames as wire
from amcast.live.wire.connection import Connection
from amcast.live.wire.frames import WIRE_VERSION, Hello
from tests.live.cluster import run
from tests.live.wire.wire_fuzz import CLIENT, SPEC, TOPOLOGY, Sink

LIMITS = Limits(message_bytes=16 * KIB)
CLIENTS = 5


class Gateway:
    """A server that does not tick by itself, and its clients; their bytes are handled at once, or by the inbox."""

    def __init__(self, at_once: bool, kind: type[Connection] = Connection) -> None:
        self.host = Host(SPEC.process(0, TOPOLOGY, SPEC.configure()), SPEC, limits=LIMITS, rng=random.Random(1))
        self.at_once = at_once
        self.kind = kind
        self.clients: dict[int, tuple[Connection, Sink]] = {}

    def connect(self, client: int, link: int = 1, known: tuple[int, int] | None = None, received: int = 0) -> None:
        sink = Sink()
        connection = self.kind(self.host.network, LIMITS)
        connection.connection_made(sink)
        hello = wire.encode_hello(Hello(WIRE_VERSION, "amcast", SPEC.name, client, 0, 0, link, known, received, 1))
        connection.get_buffer(-1)[: len(hello)] = hello
        connection.buffer_updated(len(hello))
        self.clients[client] = (connection, sink)

    def receive(self, client: int, data: bytes) -> None:
        connection, sink = self.clients[client]
        if sink.closing:
            return
        if self.at_once:
            connection.receive_bytes(data)
        else:
            sink.protocol.data_received(data)

    def requested(self) -> list[int]:
        """The messages that clients have requested so far, in order."""
        self.host.network.read_client_inbox()
        events = [event for event in self.host._inbox if isinstance(event, Requests)]
        return [message.id for event in events for message in event.messages]

    def state(self, client: int) -> tuple[int, bool, bytes]:
        """How many frames of a client were received, whether it was disconnected, and the rest of a frame."""
        connection, sink = self.clients[client]
        link = self.host.network.links[client]
        return link.received, sink.closing, bytes(connection._view[connection._start : connection._end])


def make_frame(number: int, *bodies: Body, version: int = WIRE_VERSION) -> bytes:
    return CODER.encode_frame(number, 0, [CODER.encode(body) for body in bodies], wire.find_framing(version, True))


def request(client: int, sequence: int, groups: tuple[int, ...] = (0, 1), payload: bytes = b"beer") -> Request:
    return Request(Message(message_id(client, sequence), client, groups, payload))


def make_input(rng: random.Random, client: int) -> Iterator[bytes]:
    """The bytes of a client, read by read: valid at first, then perhaps not."""
    number = 0
    for _ in range(rng.randint(0, 120)):
        number += 1
        frame = make_frame(number, request(client, number, rng.choice(((0, 1), (0,)))))
        match rng.randrange(12):
            case 0:
                cut = rng.randrange(1, len(frame))
                yield frame[:cut]
                yield frame[cut:]
            case 1:
                number += 1
                yield frame + make_frame(number, request(client, number))
            case 2:
                yield make_frame(number, request(client, number), request(client, number + 500))
            case 3:
                yield make_frame(number, request(client, number, payload=bytes(rng.choice((0, 100, 5000, 10_000)))))
            case 4:
                yield wire.encode_ack(0)
                yield frame
            case 5:
                # The rest of a frame looks like a frame.
                inner = make_frame(number, request(client, number + 700))
                yield make_frame(number, request(client, number, payload=inner))[: -len(inner)]
                yield inner
            case _:
                yield frame
    number += 1
    frame = make_frame(number, request(client, number))
    length = len(frame) - 4
    wrong = [
        make_frame(number + 1, request(client, number)),
        make_frame(max(number - 1, 0), request(client, number)),
        make_frame(number, request(client + 1, number)),
        make_frame(number, Request(Message(message_id(client + 1, 1), client, (0,), b""))),
        make_frame(number, Request(Message(message_id(client, 1), client + 1, (0,), b""))),
        make_frame(number, request(client, number, (1, 0))),
        make_frame(number, request(client, number, (7,))),
        make_frame(number, request(client, number, ())),
        make_frame(number, request(client, number, payload=CHANGE_PREFIX + b"no topology")),
        make_frame(number, request(client, number, payload=bytes(LIMITS.message_bytes + 100 * KIB))),
        make_frame(number, Reply(1, 0)),
        make_frame(number, request(client, number), version=1),
        make_frame(number, request(client, number), version=9),
        (length + 1).to_bytes(4, "big") + frame[4:],
        (length - 1).to_bytes(4, "big") + frame[4:],
        frame[:5] + b"\x07" + frame[6:],
        frame[:30] + bytes([frame[30] ^ 0x55]) + frame[31:],
        rng.randbytes(rng.randint(1, 60)),
        b"",
    ]
    yield rng.choice(wrong)
    yield make_frame(number + 1, request(client, number + 1))


CODER = wire.Codec(SPEC.wire_bodies(), limits=Limits(message_bytes=1024 * KIB))


@pytest.mark.parametrize("seed", range(40))
def test_fast_receive_equals_receiving_each_frame_at_once(seed: int) -> None:
    async def main() -> None:
        rng = random.Random(seed)
        gateways = [Gateway(at_once=True), Gateway(at_once=False)]
        clients = [CLIENT + 10 * number for number in range(CLIENTS)]
        rows = [(client, list(make_input(rng, client))) for client in clients]
        for gateway in gateways:
            for client in clients:
                gateway.connect(client)
        while rows:
            place = rng.randrange(len(rows))
            client, left = rows[place]
            if not left:
                del rows[place]
                continue
            data = left.pop(0)
            for gateway in gateways:
                gateway.receive(client, data)
            if rng.random() < 0.1:
                gateways[1].host.network.read_client_inbox()
        one, other = [[id for id in gateway.requested() if id] for gateway in gateways]
        for client in clients:
            assert gateways[0].state(client) == gateways[1].state(client), f"seed {seed}, client {client}"
            own = [[id for id in ids if id // 10**9 == client] for ids in (one, other)]
            assert own[0] == own[1], f"seed {seed}: in the same order; client {client}"
        assert sorted(one) == sorted(other)

    run(main())


def test_most_frames_take_the_fast_way() -> None:
    """A fast way that most frames missed would be useless."""

    class Counting(Connection):
        slow_frames = 0

        def receive_bytes(self, data: bytes) -> None:
            Counting.slow_frames += 1
            super().receive_bytes(data)

    async def main() -> None:
        gateway = Gateway(False, Counting)
        gateway.connect(CLIENT)
        for number in range(1, 201):
            gateway.receive(CLIENT, make_frame(number, request(CLIENT, number)))
            gateway.host.network.read_client_inbox()
        assert len(gateway.requested()) == 200
        assert Counting.slow_frames == 1 + 200 // 32, "the first (new destinations), and every 32nd"

    run(main())


def test_buffered_frames_are_handled_before_the_ack_position_is_sent() -> None:
    async def main() -> None:
        gateway = Gateway(at_once=False)
        gateway.connect(CLIENT)
        link = gateway.host.network.links[CLIENT]
        gateway.receive(CLIENT, make_frame(1, request(CLIENT, 1)))
        gateway.receive(CLIENT, make_frame(2, request(CLIENT, 2)))
        assert link.received == 0
        gateway.connect(CLIENT, known=link.incarnation)
        assert link.received == 2, "or the client would resend both"
        gateway.receive(CLIENT, make_frame(3, request(CLIENT, 3)))
        connection, _ = gateway.clients[CLIENT]
        connection.connection_lost(None)
        assert link.received == 3, "or the frame would be lost with the connection"
        assert len(gateway.requested()) == 3

    run(main())


def test_error_in_one_clients_bytes_affects_no_other_client() -> None:
    class Broken(Connection):
        def receive_bytes(self, data: bytes) -> None:
            raise ZeroDivisionError("a bug")

    async def main() -> None:
        gateway = Gateway(False, Broken)
        gateway.connect(CLIENT)
        gateway.kind = Connection
        gateway.connect(CLIENT + 1)
        gateway.receive(CLIENT, make_frame(1, request(CLIENT, 1)))
        gateway.receive(CLIENT + 1, make_frame(1, request(CLIENT + 1, 1)))
        assert gateway.requested() == [message_id(CLIENT + 1, 1)]
        assert gateway.clients[CLIENT][1].closing
        assert not gateway.clients[CLIENT + 1][1].closing
        assert not gateway.host.ended.done()

    run(main())
