"""What the code of a cluster costs without the kernel: all replicas in this process, joined by memory, no sockets.

    python benchmarks/hosts.py                   the three loads of docs/live.md
    python benchmarks/hosts.py 6 170             so many clients, so many messages in each one's batch
    python benchmarks/hosts.py --order real-time --local     the other order; messages to one group

Hosts, links, connections, codec, nodes and protocol are the real ones; only the transports are lists. Replicas take
turns, so bundles and bursts are as large as they can be. CPU microseconds per multicast, all replicas together, best of
many rounds: a number that a busy machine disturbs little, and a lower bound for `amcast bench`.
"""

import argparse
import asyncio
import gc
import time

from amcast.assembly import build_node_spec
from amcast.kernel.ids import message_id
from amcast.kernel.message import Message, Request
from amcast.kernel.topology import Topology
from amcast.live.client_batch import encode_batch
from amcast.live.host.host import Host
from amcast.live.host.recent_deliveries import RecentDeliveries
from amcast.live.limits import Limits
from amcast.live.wire.connection import Connection
from amcast.parts.node.messages import GatewayConfig, NodeConfig, RealTimeConfig
from amcast.protocols.catalogue import get_protocol

GROUPS, REPLICAS = 2, 3
LOADS = ((1, 1), (6, 170), (258, 1))
FIRST_CLIENT = 1000


class Wire:
    """A transport that keeps what is written to it."""

    def __init__(self) -> None:
        self.written: list[bytes] = []

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def is_closing(self) -> bool:
        return False

    def is_reading(self) -> bool:
        return False

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.protocol = protocol


class Bench:
    """The replicas, and clients that each have one message on its way."""

    def __init__(self, clients: int, batch: int, payload: int, order: str = "acyclic", is_local: bool = False) -> None:
        topology = Topology.grid(GROUPS, REPLICAS)
        bare = get_protocol("primcast")
        # Nothing here waits for a timer, so gateways do not rest either.
        real_time = RealTimeConfig() if order == "real-time" else None
        gateway = GatewayConfig(is_paced=False)
        spec = build_node_spec(bare, NodeConfig(omega=None, gateway=gateway, real_time=real_time))
        config = spec.configure({"records": False})
        recent_bytes = Limits().recent_bytes
        self.hosts = [
            Host(spec.process(me, topology, config), spec, recent=RecentDeliveries(recent_bytes, spec.open_bundle))
            for me in topology.servers
        ]
        self.ends: dict[tuple[int, int], Connection] = {}
        for host in self.hosts:
            for other in topology.servers:
                if other != host.me:
                    self._join(host, other)
            host.start({})
            host.network.peers.addresses = dict.fromkeys(topology.servers, ("nowhere", 0))
            for link in host.network.links.values():
                link.is_server = True
        self._others = {me: [other for other in topology.servers if other != me] for me in topology.servers}
        self.gateway = self.hosts[REPLICAS]
        self.destinations = (1,) if is_local else tuple(range(GROUPS))
        self.clients = range(FIRST_CLIENT, FIRST_CLIENT + clients)
        for client in self.clients:
            self._join(self.gateway, client)
        self.sent = dict.fromkeys(self.clients, 0)
        self.payload = encode_batch([bytes(payload)] * batch)
        self.ready = list(self.clients)
        self.done = 0
        self.ticks = 0

    def _join(self, host: Host, peer: int) -> None:
        link = host.network.peers.link(peer)
        end = self.ends[host.me, peer] = Connection(host.network, host.limits)
        end._transport = Wire()  # type: ignore[assignment]
        end.write = end._transport.write  # type: ignore[union-attr]
        end.link, link.connection, link.peer_incarnation = link, end, (0, 1)
        end.carry_link(link)
        link._write, link._is_flowing = end.write, True
        end._buffer = bytearray(1 << 17)
        end._view = memoryview(end._buffer)

    def round(self) -> float:
        """Every client that may asks, every replica takes its turn; the CPU seconds of their code."""
        asked = [(self.ends[self.gateway.me, client]._transport, self._ask(client)) for client in self.ready]
        used = 0.0
        for host in self.hosts:
            frames = [(self.ends[host.me, other], self._taken(other, host.me)) for other in self._others[host.me]]
            read = [(end, data) for end, data in frames if data]
            host._tick_is_scheduled = True  # it ticks when it is its turn
            begin = time.process_time()
            if host is self.gateway:
                for wire, frame in asked:
                    wire.protocol.data_received(frame)  # type: ignore[union-attr]
            for end, data in read:
                while data:
                    room = end.get_buffer(-1)
                    count = min(len(room), len(data))
                    room[:count], data = data[:count], data[count:]
                    end.buffer_updated(count)
            if host._inbox or host.network.client_inbox.arrived:  # type: ignore[union-attr]
                host.tick()
                self.ticks += 1
            used += time.process_time() - begin
        self.ready = [client for client in self.clients if self._taken(self.gateway.me, client)]
        self.done += len(self.ready)
        return used

    def _ask(self, client: int) -> bytes:
        number = self.sent[client]
        self.sent[client] = number + 1
        codec = self.gateway.codec
        message = Message(message_id(client, number), client, self.destinations, self.payload)
        return codec.encode_frame(number + 1, number, [codec.encode(Request(message))])

    def _taken(self, source: int, target: int) -> bytes:
        """What one has written to another, as a socket would give it: all of it."""
        wire: Wire = self.ends[source, target]._transport  # type: ignore[assignment]
        written, wire.written = wire.written, []
        return b"".join(written)


async def measured(
    clients: int, batch: int, payload: int, seconds: float, order: str = "acyclic", is_local: bool = False
) -> list[str]:
    """One row of the table, from rounds of thirty messages of each client."""
    bench = Bench(clients, batch, payload, order, is_local)
    await asyncio.sleep(0)
    for host in bench.hosts:
        host.tick()
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 50, 50)
    best = float("inf")
    end = time.process_time() + seconds
    while time.process_time() < end:
        done, used, ticks = bench.done, 0.0, bench.ticks
        while bench.done - done < 30 * clients:
            used += bench.round()
        best = min(best, used / (bench.done - done))
    for host in bench.hosts:
        host._is_running = False
    per_client = (bench.ticks - ticks) / (bench.done - done)
    return [f"{clients} x {batch}", f"{1e6 * best / batch:.2f}", f"{1e6 * best:.0f}", f"{per_client:.2f}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("clients", type=int, nargs="?")
    parser.add_argument("batch", type=int, nargs="?", default=1)
    parser.add_argument("--payload", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=3.0, help="of CPU, for each load; the best round counts")
    parser.add_argument("--order", choices=("acyclic", "real-time"), default="acyclic")
    parser.add_argument("--local", action="store_true", help="messages to the gateway's group alone")
    given = parser.parse_args()
    print("clients x batch | us/multicast | us/client message | ticks/client message")
    for clients, batch in LOADS if given.clients is None else ((given.clients, given.batch),):
        row = asyncio.run(measured(clients, batch, given.payload, given.seconds, given.order, given.local))
        print(" | ".join(row), flush=True)


if __name__ == "__main__":
    main()
