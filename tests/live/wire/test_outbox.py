"""The outbox: whatever sets of targets one tick has, each peer gets all its bodies, in order, in one frame."""

import random
from itertools import chain

import pytest

from amcast.kernel.effects import SendEach
from amcast.kernel.message import Body
from amcast.live.limits import Limits
from amcast.live.wire import outbox
from amcast.live.wire.frames import CHECKED, Codec
from amcast.live.wire.link import Link
from amcast.live.wire.network import Network
from amcast.live.wire.outbox import DEFERRED_BODIES
from amcast.protocols.skeen.messages import Propose
from tests.live.cluster import SKEEN, run

pytestmark = pytest.mark.live

SERVERS = tuple(range(6))
CLIENTS = (100, 101, 102)
UNKNOWN = 999


class Socket:
    """A connection that decodes everything written to it."""

    is_writing_paused = is_reading_paused = False

    def __init__(self, codec: Codec) -> None:
        self.codec = codec
        self.frames: list[list[int]] = []

    def write(self, data: bytes) -> None:
        self.frames += [[body.timestamp for body in bodies] for bodies in self._bodies(data)]

    def _bodies(self, data: bytes) -> list[list[Body]]:
        found = []
        while data:
            length = int.from_bytes(data[:4], "big") + 4
            found.append(self.codec.read(data[5], CHECKED.payload(data[:length])).bodies)
            data = data[length:]
        return found


def make_network(limits: Limits) -> tuple[Network, dict[int, Socket]]:
    """Process 0 of six servers, connected to the others and to three clients."""
    codec = Codec(SKEEN.wire_bodies(), limits=limits)
    network = Network(
        0, 0, "test", "skeen", codec, on_bodies=lambda peer, bodies: None, on_frame=lambda peer, frame: None,
        on_link_reset=lambda peer, incarnation: None, rng=random.Random(0),
    )  # fmt: skip
    network.peers.addresses = dict.fromkeys(SERVERS, ("nowhere", 0))
    sockets = {}
    for peer in (*SERVERS[1:], *CLIENTS):
        sockets[peer] = Socket(codec)
        connect(network.peers.link(peer), sockets[peer])
    return network, sockets


def connect(link: Link, socket: Socket) -> None:
    link.connection = socket  # type: ignore[assignment]
    link._write, link._is_flowing = socket.write, True


def choose_targets(rng: random.Random) -> tuple[int, ...]:
    """Targets as protocols choose them: all, a group, one, clients, or any set."""
    return rng.choice(
        [
            SERVERS,
            SERVERS[:3],
            SERVERS[3:],
            (rng.choice(SERVERS[1:]),),
            (rng.choice(CLIENTS),),
            CLIENTS,
            tuple(rng.sample((*SERVERS, *CLIENTS), rng.randint(1, 5))),
        ]
    )


def send_each(network: Network, peers: tuple[int, ...], number: int) -> None:
    """Sends one body to each peer, as a host does."""
    bodies = tuple(Propose(1, 0, number) for _ in peers)
    for send in network.outbox.fast_send_each(SendEach(peers, bodies, (1,) * len(peers))):
        unknown = network.outbox.send(send.targets, network.peers._codec.encode(send.body), send.about)
        assert unknown == (send.targets if send.targets == (UNKNOWN,) else ())


def test_single_replies_take_the_fast_way_unless_more_is_pending() -> None:
    async def main() -> None:
        network, sockets = make_network(Limits())
        network.outbox.send((CLIENTS[0],), network.peers._codec.encode(Propose(1, 0, 1)), None)
        network.links[CLIENTS[2]].pause()
        network.links[CLIENTS[2]].is_broken = True
        bodies = (Propose(1, 0, 2), Propose(1, 0, 3), Propose(1, 0, 4))
        assert network.outbox.fast_send_each(SendEach(CLIENTS, bodies, (7, 8, 9))) == []
        assert sockets[CLIENTS[1]].frames == [], "not before the tick ends"
        network.outbox.flush(None)
        assert sockets[CLIENTS[0]].frames == [[1, 2]], "one frame for all bodies of a tick"
        assert sockets[CLIENTS[1]].frames == [[3]]
        assert sockets[CLIENTS[2]].frames == [], "a broken link gets no frame"
        for others in ((CLIENTS[0], 1), (CLIENTS[0], UNKNOWN)):
            each = SendEach(others, bodies[:2], (7, 8))
            assert network.outbox.fast_send_each(each) == each.expand(), (
                "a server or an unknown target takes the slow way"
            )
        network.outbox.is_traced = True
        assert len(network.outbox.fast_send_each(SendEach(CLIENTS, bodies, (7, 8, 9)))) == 3, (
            "traced packets take the slow way"
        )

    run(main())


def test_clients_with_several_bodies_in_one_tick_get_one_frame_each() -> None:
    async def main() -> None:
        network, sockets = make_network(Limits())
        send_each(network, CLIENTS[:2], 1)
        send_each(network, CLIENTS[2:], 2)
        assert [len(links) for links, _ in network.outbox._single_replies] == [2, 1], (
            "several runs of replies in one tick"
        )
        network.outbox.flush(None)
        assert [sockets[client].frames for client in CLIENTS] == [[[1]], [[1]], [[2]]]
        send_each(network, CLIENTS[:2], 3)
        send_each(network, CLIENTS[1:], 4)
        network.outbox.send((CLIENTS[0],), network.peers._codec.encode(Propose(1, 0, 5)), None)
        network.outbox.flush(None)
        assert [sockets[client].frames[-1] for client in CLIENTS] == [[3, 5], [3, 4], [4]]
        assert [len(sockets[client].frames) for client in CLIENTS] == [2, 2, 2]
        network.links[CLIENTS[0]].pause()
        send_each(network, CLIENTS, 6)
        network.outbox.flush(None)
        assert len(sockets[CLIENTS[0]].frames) == 2, "its socket takes no more"
        network.links[CLIENTS[0]].write_waiting()
        assert sockets[CLIENTS[0]].frames[-1] == [6]

    run(main())


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("frame_target_bytes", [64, 1 << 18])
def test_every_peer_gets_all_bodies_in_order_for_any_targets(seed: int, frame_target_bytes: int) -> None:
    async def main() -> None:
        rng = random.Random(seed)
        network, sockets = make_network(Limits(frame_target_bytes=frame_target_bytes))
        expected: dict[int, list[list[int]]] = {peer: [] for peer in sockets}
        number = 0
        for _ in range(300):
            tick: dict[int, list[int]] = {}
            for _ in range(rng.randint(0, 6)):
                number += 1
                chosen = choose_targets(rng)
                if rng.random() < 0.3:
                    send_each(network, (*chosen, UNKNOWN), number)
                else:
                    assert network.outbox.send(chosen, network.peers._codec.encode(Propose(1, 0, number)), None) == ()
                for peer in chosen:
                    if peer:
                        tick.setdefault(peer, []).append(number)
            if rng.random() < 0.05:
                network.outbox.invalidate_fanouts()
            network.outbox.flush(None)
            for peer, numbers in tick.items():
                expected[peer].append(numbers)
        for peer, socket in sockets.items():
            assert list(chain(*socket.frames)) == list(chain(*expected[peer])), f"seed {seed}, process {peer}"
            if frame_target_bytes > 1000:
                assert socket.frames == expected[peer], f"one frame per tick; seed {seed}, process {peer}"

    run(main())


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("traces", [False, True])
def test_deferrable_bodies_arrive_in_order_and_urgent_ones_at_once(seed: int, traces: bool) -> None:
    async def main() -> None:
        rng = random.Random(seed)
        network, sockets = make_network(Limits())
        network.outbox.is_traced = traces
        expected: dict[int, list[int]] = {peer: [] for peer in sockets}
        for number in range(1, 600):
            chosen = choose_targets(rng)
            servers = [peer for peer in chosen if 0 < peer < CLIENTS[0]]
            later = tuple(rng.sample(servers, rng.randint(0, len(servers))))
            part = network.peers._codec.encode(Propose(1, 0, number))
            if later:
                assert network.outbox.send_deferrable(chosen, later, part, None) == ()
            else:
                assert network.outbox.send(chosen, part, None) == ()
            for peer in chosen:
                if peer:
                    expected[peer].append(number)
            if rng.random() < 0.3:
                network.outbox.flush(number if traces else None)
                for peer in set(chosen) - {0, *later}:
                    assert list(chain(*sockets[peer].frames)) == expected[peer], (
                        f"seed {seed}: at once, and all before it"
                    )
                assert all(len(link.parts) < DEFERRED_BODIES for link in network.links.values())
            if rng.random() < 0.03:
                network.outbox.flush(number if traces else None)
                network.outbox.flush_deferred(number if traces else None)
                assert not any(link.parts for link in network.links.values())
                assert not network.outbox.deferred
        network.outbox.flush(600 if traces else None)
        network.outbox.flush_deferred(600 if traces else None)
        for peer, socket in sockets.items():
            assert list(chain(*socket.frames)) == expected[peer], f"seed {seed}, process {peer}"

    run(main())


def test_deferred_bodies_share_a_frame() -> None:
    async def main() -> None:
        network, sockets = make_network(Limits())
        for number in range(1, 2 * DEFERRED_BODIES + 1):
            network.outbox.send_deferrable(SERVERS, (4, 5), network.peers._codec.encode(Propose(1, 0, number)), None)
            network.outbox.flush(None)
        assert len(sockets[1].frames) == 2 * DEFERRED_BODIES
        assert [len(frame) for frame in sockets[4].frames] == [DEFERRED_BODIES, DEFERRED_BODIES]
        network.outbox.send_deferrable(SERVERS, (4, 5), network.peers._codec.encode(Propose(1, 0, 99)), None)
        network.outbox.flush(None)
        network.links[4].connection = None
        network.remove_server(4)
        network.outbox.send((5,), network.peers._codec.encode(Propose(1, 0, 100)), None)
        network.outbox.flush(None)
        assert sockets[5].frames[-1] == [99, 100], "it shares the next frame"
        assert sockets[4].frames[-1][-1] == 2 * DEFERRED_BODIES, "a removed server gets nothing more"

    run(main())


def test_cached_targets_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "CACHED_TARGETS", 3)
    test_every_peer_gets_all_bodies_in_order_for_any_targets(3, 1 << 18)
    test_deferrable_bodies_arrive_in_order_and_urgent_ones_at_once(3, False)

    async def main() -> None:
        network, _ = make_network(Limits())
        part = network.peers._codec.encode(Propose(1, 0, 7))
        for peer in SERVERS[1:]:
            for other in SERVERS[1:]:
                if other != peer:
                    network.outbox.send((peer, other), part, None)
                    network.outbox.send_deferrable((peer, other), (other,), part, None)
                    network.outbox.flush(None)
        assert (
            max(
                len(network.outbox._fanouts), len(network.outbox._urgent_targets), len(network.outbox._deferrable_links)
            )
            <= 3
        )

    run(main())


def test_unknown_targets_are_returned_and_others_get_the_body() -> None:
    async def main() -> None:
        network, sockets = make_network(Limits())
        part = network.peers._codec.encode(Propose(1, 0, 7))
        assert network.outbox.send((1, 2, 999), part, None) == (999,)
        assert network.outbox.send((999,), part, None) == (999,)
        assert network.outbox.send((0,), part, None) == ()
        network.outbox.flush(None)
        assert sockets[1].frames == sockets[2].frames == [[7]]
        assert sockets[3].frames == []

    run(main())


def test_removed_server_gets_nothing_more() -> None:
    async def main() -> None:
        network, sockets = make_network(Limits())
        part = network.peers._codec.encode(Propose(1, 0, 7))
        network.outbox.send(SERVERS, part, None)
        network.links[3].connection = None
        network.remove_server(3)
        network.outbox.flush(None)
        assert network.outbox.send(SERVERS, part, None) == (3,)
        network.outbox.flush(None)
        assert sockets[1].frames == [[7], [7]]
        assert sockets[3].frames == []

    run(main())
