"""Crowds: what many clients send is read in one loop, as if each frame had been read by itself when it came."""

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
FRIENDS = 5


class Door:
    """A server that does not tick by itself, and clients that come in; what they say is read at once, or at the end."""

    def __init__(self, at_once: bool, kind: type[Connection] = Connection) -> None:
        self.host = Host(SPEC.process(0, TOPOLOGY, SPEC.configure()), SPEC, limits=LIMITS, rng=random.Random(1))
        self.at_once = at_once
        self.kind = kind
        self.clients: dict[int, tuple[Connection, Sink]] = {}

    def enter(self, client: int, link: int = 1, known: tuple[int, int] | None = None, received: int = 0) -> None:
        sink = Sink()
        connection = self.kind(self.host.network, LIMITS)
        connection.connection_made(sink)
        hello = wire.encode_hello(Hello(WIRE_VERSION, "amcast", SPEC.name, client, 0, 0, link, known, received, 1))
        connection.get_buffer(-1)[: len(hello)] = hello
        connection.buffer_updated(len(hello))
        self.clients[client] = (connection, sink)

    def say(self, client: int, data: bytes) -> None:
        connection, sink = self.clients[client]
        if sink.closing:
            return
        if self.at_once:
            connection.receive_bytes(data)
        else:
            sink.protocol.data_received(data)

    def asked(self) -> list[int]:
        """What clients have asked for so far, in order."""
        self.host.network.read_client_inbox()
        events = [event for event in self.host._inbox if isinstance(event, Requests)]
        return [message.id for event in events for message in event.messages]

    def state(self, client: int) -> tuple[int, bool, bytes]:
        """How many of its frames were read, whether it was sent away, and what is left of a frame."""
        connection, sink = self.clients[client]
        link = self.host.network.links[client]
        return link.received, sink.closing, bytes(connection._view[connection._start : connection._end])


def framed(number: int, *bodies: Body, version: int = WIRE_VERSION) -> bytes:
    return CODER.encode_frame(number, 0, [CODER.encode(body) for body in bodies], version)


def request(client: int, sequence: int, groups: tuple[int, ...] = (0, 1), payload: bytes = b"beer") -> Request:
    return Request(Message(message_id(client, sequence), client, groups, payload))


def sayings(chance: random.Random, client: int) -> Iterator[bytes]:
    """What a client might send, read by read: sound at first, and then perhaps not."""
    number = 0
    for _ in range(chance.randint(0, 120)):
        number += 1
        frame = framed(number, request(client, number, chance.choice(((0, 1), (0,)))))
        match chance.randrange(12):
            case 0:
                cut = chance.randrange(1, len(frame))
                yield frame[:cut]
                yield frame[cut:]
            case 1:
                number += 1
                yield frame + framed(number, request(client, number))
            case 2:
                yield framed(number, request(client, number), request(client, number + 500))
            case 3:
                yield framed(number, request(client, number, payload=bytes(chance.choice((0, 100, 5000, 10_000)))))
            case 4:
                yield wire.encode_ack(0)
                yield frame
            case 5:
                # The rest of a frame looks like a frame.
                inner = framed(number, request(client, number + 700))
                yield framed(number, request(client, number, payload=inner))[: -len(inner)]
                yield inner
            case _:
                yield frame
    number += 1
    frame = framed(number, request(client, number))
    length = len(frame) - 4
    wrong = [
        framed(number + 1, request(client, number)),
        framed(max(number - 1, 0), request(client, number)),
        framed(number, request(client + 1, number)),
        framed(number, Request(Message(message_id(client + 1, 1), client, (0,), b""))),
        framed(number, Request(Message(message_id(client, 1), client + 1, (0,), b""))),
        framed(number, request(client, number, (1, 0))),
        framed(number, request(client, number, (7,))),
        framed(number, request(client, number, ())),
        framed(number, request(client, number, payload=CHANGE_PREFIX + b"no topology")),
        framed(number, request(client, number, payload=bytes(LIMITS.message_bytes + 100 * KIB))),
        framed(number, Reply(1, 0)),
        framed(number, request(client, number), version=1),
        framed(number, request(client, number), version=9),
        (length + 1).to_bytes(4, "big") + frame[4:],
        (length - 1).to_bytes(4, "big") + frame[4:],
        frame[:5] + b"\x07" + frame[6:],
        frame[:30] + bytes([frame[30] ^ 0x55]) + frame[31:],
        chance.randbytes(chance.randint(1, 60)),
        b"",
    ]
    yield chance.choice(wrong)
    yield framed(number + 1, request(client, number + 1))


CODER = wire.Codec(SPEC.wire_bodies(), limits=Limits(message_bytes=1024 * KIB))


@pytest.mark.parametrize("seed", range(40))
def test_a_crowd_is_read_as_each_client_would_be(seed: int) -> None:
    async def main() -> None:
        chance = random.Random(seed)
        doors = [Door(at_once=True), Door(at_once=False)]
        clients = [CLIENT + 10 * number for number in range(FRIENDS)]
        rows = [(client, list(sayings(chance, client))) for client in clients]
        for door in doors:
            for client in clients:
                door.enter(client)
        while rows:
            place = chance.randrange(len(rows))
            client, left = rows[place]
            if not left:
                del rows[place]
                continue
            data = left.pop(0)
            for door in doors:
                door.say(client, data)
            if chance.random() < 0.1:
                doors[1].host.network.read_client_inbox()
        one, other = [[id for id in door.asked() if id] for door in doors]
        for client in clients:
            assert doors[0].state(client) == doors[1].state(client), f"seed {seed}, client {client}"
            mine = [[id for id in ids if id // 10**9 == client] for ids in (one, other)]
            assert mine[0] == mine[1], f"seed {seed}: in the same order; client {client}"
        assert sorted(one) == sorted(other)

    run(main())


def test_most_frames_are_read_without_a_call() -> None:
    """Else this would only be another way to do the same."""

    class Counting(Connection):
        long_ways = 0

        def receive_bytes(self, data: bytes) -> None:
            Counting.long_ways += 1
            super().receive_bytes(data)

    async def main() -> None:
        door = Door(False, Counting)
        door.enter(CLIENT)
        for number in range(1, 201):
            door.say(CLIENT, framed(number, request(CLIENT, number)))
            door.host.network.read_client_inbox()
        assert len(door.asked()) == 200
        assert Counting.long_ways == 1 + 200 // 32, "the first (new destinations), and accounts"

    run(main())


def test_what_came_the_old_way_is_read_before_anybody_says_how_far_it_went() -> None:
    async def main() -> None:
        door = Door(at_once=False)
        door.enter(CLIENT)
        link = door.host.network.links[CLIENT]
        door.say(CLIENT, framed(1, request(CLIENT, 1)))
        door.say(CLIENT, framed(2, request(CLIENT, 2)))
        assert link.received == 0
        door.enter(CLIENT, known=link.incarnation)
        assert link.received == 2, "or the client would send both again"
        door.say(CLIENT, framed(3, request(CLIENT, 3)))
        connection, _ = door.clients[CLIENT]
        connection.connection_lost(None)
        assert link.received == 3, "or what came would be lost with the connection"
        assert len(door.asked()) == 3

    run(main())


def test_a_client_that_cannot_be_handled_harms_nobody_else() -> None:
    class Broken(Connection):
        def receive_bytes(self, data: bytes) -> None:
            raise ZeroDivisionError("a mistake of ours")

    async def main() -> None:
        door = Door(False, Broken)
        door.enter(CLIENT)
        door.kind = Connection
        door.enter(CLIENT + 1)
        door.say(CLIENT, framed(1, request(CLIENT, 1)))
        door.say(CLIENT + 1, framed(1, request(CLIENT + 1, 1)))
        assert door.asked() == [message_id(CLIENT + 1, 1)]
        assert door.clients[CLIENT][1].closing
        assert not door.clients[CLIENT + 1][1].closing
        assert not door.host.ended.done()

    run(main())
