"""The network of one process: its listener, the connections it dials, and the HELLOs that admit peers.

Of two processes exactly one dials: the one whose peer has an address; if both have one, the one with the higher number.
Clients have no address, so they dial, and replies come back over the connection that they opened. A process that dials
keeps dialling, with back-off, until the network stops.
"""

import asyncio
import contextlib
import logging
import random
import socket
import ssl
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from amcast.kernel.errors import UsageError
from amcast.kernel.ids import MAX_SENDER, GroupId, ProcessId
from amcast.kernel.message import Body
from amcast.kernel.topology import Topology
from amcast.live.audit_log import record_audit
from amcast.live.errors import RefusedError
from amcast.live.log_output import warn_rate_limited
from amcast.live.wire import frames
from amcast.live.wire.connection import ClientInbox, Connection
from amcast.live.wire.frames import Codec, Frame, Framing, Hello, Refusal, TopologyVersion
from amcast.live.wire.link import Link
from amcast.live.wire.listener import Listener, PendingConnections
from amcast.live.wire.local_sockets import connect_locally
from amcast.live.wire.outbox import Outbox
from amcast.live.wire.peers import Address as Address
from amcast.live.wire.peers import PeerTable
from amcast.live.wire.quotas import ClientQuotas
from amcast.live.wire.transport import PLAIN, TransportOptions

log = logging.getLogger("amcast.live")

CONNECT_S: Final = 3.0
"""How long one attempt to connect may take."""
NEXT_SERVER_S: Final = 0.25
"""How long `dial_until_connected` waits for one server before it dials another as well."""
COUNTS_PER_LIMIT: Final = 16
"""Unanswered bytes are counted by name when they have changed by so small a part of the limit."""
CLIENTS_PAUSED: Final = (
    "reads nothing from clients: too many of their bytes are unanswered (limits.unordered_bytes);"
    " they wait until their destinations answer"
)


class Network:
    """Owns the peers, the outbox and the connections of one process in one incarnation."""

    # fmt: off
    __slots__ = (
        "_changed", "_client_names", "_connections", "_counted_bytes", "_dialling", "_down", "_excess_bytes",
        "_is_lazy", "_is_stopping", "_limits", "_listener", "_on_peer_down", "_on_rpc", "_probing", "_rng", "_start",
        "_tasks", "_topology_version", "are_clients_paused", "client_inbox", "cluster", "has_checksums",
        "is_reading_paused", "links", "me", "names_over_bytes", "names_over_rate", "outbox", "peers", "pending",
        "protocol", "quotas", "refusals", "versions", "wiring",
    )
    # fmt: on

    def __init__(
        self,
        me: ProcessId,
        incarnation: int,
        cluster: str,
        protocol: str,
        codec: Codec,
        *,
        on_bodies: Callable[[ProcessId, list[Body]], None],
        on_frame: Callable[[ProcessId, Frame], None],
        on_link_reset: Callable[[ProcessId, int], None],
        rng: random.Random,
        on_peer_down: Callable[[ProcessId], None] = lambda peer: None,
        on_rpc: Callable[[Connection, Any], None] | None = None,
        on_lost: Callable[[ProcessId, list[bytes]], None] | None = None,
        topology_version: Callable[[], TopologyVersion] = lambda: (-1, 0),
        start: int = 0,
        client_inbox: ClientInbox | None = None,
        wiring: TransportOptions = PLAIN,
        is_traced: bool = False,
    ) -> None:
        """`on_peer_down` is called when a peer's address refuses connections, once until the peer is back; `on_rpc`
        gets connections that begin with an RPC request (None: they are refused); `on_lost` gets the unacknowledged
        frames of a link that is reset; `topology_version` names the topology that this process uses; `start` is a
        random number of this start (0: it has no data folder); servers have a
        `client_inbox`."""
        self.me = me
        self.cluster = cluster
        self.protocol = protocol
        self.wiring = wiring
        self.versions = wiring.versions
        self.has_checksums = wiring.security is None
        """Frames carry checksums; with TLS they need none."""
        self.client_inbox = client_inbox
        self.peers = PeerTable(
            me, incarnation, codec, on_bodies, on_frame, on_link_reset, on_lost, self._framing(), start
        )
        self.outbox = Outbox(self.peers, codec.limits, self._dial_on_demand, is_traced, self.has_checksums)
        self.links = self.peers.links
        self.pending = PendingConnections(codec.limits.pending_connections)
        self.quotas = ClientQuotas(codec.limits)
        self.is_reading_paused = False
        """Nothing is read from any peer."""
        self.are_clients_paused = False
        """Nothing is read from clients, because too many of their bytes are unanswered."""
        self.names_over_rate: frozenset[str] = frozenset()
        """Clients that nothing is read from, because they send too many multicasts per second."""
        self.names_over_bytes: frozenset[str] = frozenset()
        """Clients that nothing is read from, because too many of their bytes are unanswered."""
        self._client_names: dict[ProcessId, str] = {}
        """The names of clients with a link, for quotas."""
        self._counted_bytes = 0
        """The unanswered bytes when they were last counted by name."""
        self._excess_bytes = 0
        """Those above the limits of their names."""
        self.refusals: dict[ProcessId, str] = {}
        """The reason of each peer that refused the last connection."""
        self._limits = codec.limits
        self._rng = rng
        self._on_rpc = on_rpc
        self._on_peer_down = on_peer_down
        self._topology_version = topology_version
        self._start = start
        self._down: set[ProcessId] = set()
        """Peers that `on_peer_down` was called for."""
        self._listener: Listener | None = None
        self._connections: set[Connection] = set()
        self._dialling: dict[ProcessId, asyncio.Task[None]] = {}
        self._probing: set[asyncio.Task[None]] = set()
        self._tasks: list[asyncio.Task[None]] = []
        self._is_lazy = False
        """Servers are dialled when something is sent to them."""
        self._is_stopping = False
        self._changed = asyncio.Event()
        """Set when a link gets or loses its connection."""

    def _framing(self, version: int | None = None) -> Framing:
        return frames.find_framing(version or self.versions[1], self.has_checksums)

    # Start and stop

    async def listen(self, address: Address) -> Address:
        """Accepts connections; port 0 lets the system choose. Returns the address that peers should dial."""
        self._listener = Listener(
            lambda: Connection(self, self._limits), self.pending, self._server_context, self._limits.hello_timeout_s
        )
        try:
            await self._listener.open(*address)
        except OSError as error:
            self._listener.close()
            raise UsageError(f"process {self.me} cannot listen on {address[0]}:{address[1]}: {error}") from None
        host, port = self._listener.sockets[0].getsockname()[:2]
        return host, port

    def _server_context(self) -> ssl.SSLContext | None:
        return None if self.wiring.security is None else self.wiring.security.server

    def start(self, addresses: Mapping[ProcessId, Address], lazy: bool = False) -> None:
        """Dials the servers that this process must dial: at once, or each when something is sent to it."""
        self.peers.addresses = dict(sorted(addresses.items()))
        self._is_lazy = lazy
        for peer in self.peers.addresses:
            if peer != self.me and self.peers.dials(peer) and not lazy:
                self.dial(peer)
        self._tasks.append(asyncio.create_task(self._send_heartbeats()))

    def dial(self, peer: ProcessId) -> None:
        """Starts to dial a peer."""
        self._dialling[peer] = asyncio.create_task(self._keep_dialling(self.peers.link(peer)))

    def _dial_on_demand(self, peer: ProcessId) -> None:
        if self._is_lazy:
            self.dial(peer)

    async def stop(self, timeout_s: float = 1.0) -> None:
        """Closes all connections. Written frames are still sent if the peers take them in time, and received frames are
        acknowledged, so that no peer takes them for lost."""
        self._stop_accepting()
        for link in self.links.values():
            link.acknowledge()
        await asyncio.gather(*self._tasks, *self._dialling.values(), *self._probing, return_exceptions=True)
        open_connections = list(self._connections)
        for connection in open_connections:
            connection.finish()
        if open_connections:
            await asyncio.wait([connection.closed for connection in open_connections], timeout=timeout_s)
        for connection in list(self._connections):
            connection.abort()
        if self._listener is not None:
            await self._listener.wait_closed()
        await asyncio.sleep(0)

    def discard_unsent(self) -> None:
        """Drops the frames for disconnected peers, which will not arrive."""
        for link in self.links.values():
            if link.connection is None:
                link.reset()

    def abort(self) -> None:
        """Closes all connections at once, and neither listens nor dials any more."""
        self._stop_accepting()
        for connection in list(self._connections):
            connection.abort()

    def _stop_accepting(self) -> None:
        self._is_stopping = True
        if self._listener is not None:
            self._listener.close()
        for task in (*self._tasks, *self._dialling.values(), *self._probing):
            task.cancel()

    # Servers that come and go

    @property
    def addresses(self) -> dict[ProcessId, Address]:
        """The addresses of all servers."""
        return self.peers.addresses

    def add_server(self, peer: ProcessId, address: Address) -> None:
        """Adds a server, and dials it if that is up to this process."""
        if self.peers.add_server(peer, address) and self.peers.dials(peer) and not self._is_lazy:
            self.dial(peer)
        self.outbox.add_server()

    def remove_server(self, peer: ProcessId) -> None:
        """Removes a server that left the cluster, and closes its connection."""
        self.outbox.remove_peer(peer)
        dialling = self._dialling.pop(peer, None)
        if dialling is not None:
            dialling.cancel()
        self.peers.remove_server(peer)

    # Waiting for connections

    def is_connected(self, peer: ProcessId) -> bool:
        """Whether the link with a peer has a connection."""
        return self.peers.is_connected(peer)

    async def wait_connected(self, peers: set[ProcessId], timeout_s: float) -> None:
        """Waits for the links with all of these peers; the error names those that are missing."""
        try:
            async with asyncio.timeout(timeout_s):
                while missing := sorted(p for p in peers if p != self.me and not self.is_connected(p)):
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise TimeoutError(
                f"process {self.me} is not connected to {missing} after {timeout_s:.3g} s"
                f"{self._describe_refusals(missing)}"
            ) from None

    async def dial_until_connected(self, peers: Iterable[ProcessId], timeout_s: float) -> None:
        """Dials these peers one after the other until one of them is connected."""
        tried: list[ProcessId] = []
        try:
            async with asyncio.timeout(timeout_s):
                for peer in peers:
                    tried.append(peer)
                    if peer not in self.links:
                        self.dial(peer)
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(NEXT_SERVER_S):
                            await self._wait_any_connected()
                            return
                await self._wait_any_connected()
        except TimeoutError:
            raise TimeoutError(
                f"process {self.me} reaches none of {tried} after {timeout_s:.3g} s{self._describe_refusals(tried)}"
            ) from None

    async def _wait_any_connected(self) -> None:
        while not any(link.connection is not None for link in self.links.values()):
            self._changed.clear()
            await self._changed.wait()

    async def wait_quorums(self, topology: Topology, timeout_s: float) -> None:
        """Waits until a quorum of every group is connected; the error names the groups that are missing."""
        try:
            async with asyncio.timeout(timeout_s):
                while missing := [g for g in topology.groups if self._count_up(topology, g) < topology.quorum(g)]:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise TimeoutError(
                f"process {self.me} reaches no majority of groups {missing} after {timeout_s:.3g} s"
                f"{self._describe_refusals(topology.servers)}"
            ) from None

    def _count_up(self, topology: Topology, group: GroupId) -> int:
        return sum(member == self.me or self.is_connected(member) for member in topology.members(group))

    def _describe_refusals(self, peers: Iterable[ProcessId]) -> str:
        return "".join(f"; process {peer} refused: {self.refusals[peer]}" for peer in peers if peer in self.refusals)

    # Back-pressure

    def pause_reading(self, paused: bool) -> None:
        """Stops or resumes reading from every peer; their queues fill instead of this process's memory."""
        self.is_reading_paused = paused
        for connection in self._connections:
            self._apply_pause(connection)

    def pause_clients(self, paused: bool) -> None:
        """Stops or resumes reading from clients."""
        if paused != self.are_clients_paused:
            self.are_clients_paused = paused
            log.warning("process %d %s", self.me, CLIENTS_PAUSED if paused else "reads from clients again")
            self.pause_reading(self.is_reading_paused)

    def limit_unordered(self, unanswered: int, count_by_client: Callable[[], Mapping[ProcessId, int]]) -> None:
        """Pauses reading from names of which too many bytes are unanswered, and from all clients if it is too many in
        all; resumes it when half are left. Counts bytes by name only if that may have changed."""
        limit = self._limits.client_unordered_bytes
        if unanswered <= limit // 2:
            self._counted_bytes = self._excess_bytes = 0
            self._pause_names(self.names_over_rate, self.quotas.limit_unordered({})[0])
        elif abs(unanswered - self._counted_bytes) >= limit // COUNTS_PER_LIMIT:
            self._counted_bytes = unanswered
            counts: Counter[str] = Counter()
            for client, count in count_by_client().items():
                counts[self._client_names.get(client, "")] += count
            del counts[""]
            over_bytes, self._excess_bytes = self.quotas.limit_unordered(counts)
            self._pause_names(self.names_over_rate, over_bytes)
        limit, counted = self._limits.unordered_bytes, unanswered - self._excess_bytes
        if counted > limit or counted <= limit // 2:
            self.pause_clients(counted > limit)

    def _pause_names(self, over_rate: frozenset[str], over_bytes: frozenset[str]) -> None:
        """Reads nothing from these names, and from others again."""
        if (over_rate, over_bytes) == (self.names_over_rate, self.names_over_bytes):
            return
        for name in sorted(over_rate - self.names_over_rate):
            rate = self._limits.client_multicasts_per_s
            warn_rate_limited("rate", "%s sends more than %d multicasts/s (limits.client_multicasts_per_s)", name, rate)
        for name in sorted(over_bytes - self.names_over_bytes):
            limit = self._limits.client_unordered_bytes
            warn_rate_limited("bytes", "%s waits for %d bytes (limits.client_unordered_bytes)", name, limit)
        before = self.names_over_rate | self.names_over_bytes
        self.names_over_rate, self.names_over_bytes = over_rate, over_bytes
        changed = before ^ (over_rate | over_bytes)
        for connection in self._connections:
            if connection.client_name in changed:
                self._apply_pause(connection)

    def _apply_pause(self, connection: Connection) -> None:
        link, name = connection.link, connection.client_name
        is_client = link is not None and link.peer not in self.peers.addresses
        is_over = is_client and (name in self.names_over_rate or name in self.names_over_bytes)
        if self.is_reading_paused or (self.are_clients_paused and is_client) or is_over:
            connection.pause_reading()
        else:
            connection.resume_reading()

    # Called by connections

    def add_connection(self, connection: Connection) -> None:
        """Sends the HELLO on a connection that this process dialled; another one is pending until it sends its own."""
        self._connections.add(connection)
        if connection.dialled_link is None:
            self.pending.add(connection)
        else:
            connection.sent_incarnation = connection.dialled_link.incarnation
            connection.write(self._encode_hello(connection.dialled_link))

    def handle_hello(self, connection: Connection, hello: Hello) -> None:
        """Accepts or refuses a peer. Bytes of its previous connection are handled first, because the answer states how
        many of its frames have arrived."""
        self.read_client_inbox()
        try:
            version = self._check_hello(connection, hello)
            link = self.peers.link(hello.process)
            link.check_hello(hello)
            if connection.dialled_link is None and hello.process not in self.peers.addresses:
                self.admit_client(connection)
                self._client_names[hello.process] = connection.client_name
        except RefusedError as refused:
            connection.refuse(str(refused))
            return
        if connection.dialled_link is None:
            connection.write(self._encode_hello(link, version))
        elif connection.sent_incarnation != link.incarnation:
            # The queue overflowed meanwhile and the link was reset: the peer must learn of that. Dial again.
            connection.abort()
            return
        link.set_framing(self._framing(version))
        connection.complete_handshake(link)
        if self.wiring.lines is not None:
            connection.emulate_line(self.wiring.lines, hello.region)
        self.pending.remove(connection)
        self.refusals.pop(hello.process, None)
        self._apply_pause(connection)
        self._down.discard(hello.process)
        link.attach(connection, hello)
        self._changed.set()
        if self.wiring.security is not None:
            connection.end_with_certificate()
        if connection.dialled_link is None:
            record_audit(
                "connected",
                connection.describe_owner(),
                connection.peername,
                process=hello.process,
                incarnation=hello.incarnation,
            )

    def admit_client(self, connection: Connection, is_short: bool = False) -> None:
        """Counts a connection of a client until it is closed, or refuses it because of a quota."""
        name = connection.owner()
        self.quotas.count_request(name)
        close = self.quotas.open_connection(name, is_short)
        connection.identify_client(name)
        connection.closed.add_done_callback(lambda _: close())

    def end_connections(self, is_affected: Callable[[Connection], bool]) -> int:
        """Closes the connections of peers that must identify themselves again; links lose nothing by it. Returns how
        many."""
        affected = [connection for connection in self._connections if is_affected(connection)]
        for connection in affected:
            connection.abort()
        return len(affected)

    def handle_rpc(self, connection: Connection, payload: memoryview) -> None:
        """Passes an RPC request on; with TLS, the sender's certificate must be known."""
        if connection.dialled_link is not None or self._on_rpc is None:
            raise RefusedError(f"process {self.me} answers no RPC requests")
        if self.wiring.security is not None:
            self.wiring.security.permissions.check_known_or_removed(connection.subject())
            connection.end_with_certificate()
        self.pending.remove(connection)
        connection.complete_handshake(None)
        self._on_rpc(connection, payload)

    def handle_refusal(self, connection: Connection, refusal: Refusal) -> None:
        """Records the reason, and closes the connection."""
        link = connection.dialled_link
        if link is not None:
            if self.refusals.get(link.peer) != refusal.reason:
                log.error("process %d at %s refuses this process: %s", link.peer, connection.peername, refusal.reason)
            self.refusals[link.peer] = refusal.reason
        connection.abort()

    def read_client_inbox(self) -> None:
        """Handles all bytes of clients that wait for the next tick."""
        if self.client_inbox is not None and self.client_inbox.arrived:
            self.client_inbox.fast_receive()

    def remove_connection(self, connection: Connection) -> None:
        """Detaches the link of a lost connection, and probes the address of a server that dials this process."""
        self._connections.discard(connection)
        self.pending.remove(connection)
        link = connection.link
        if link is not None and connection.dialled_link is None:
            record_audit("disconnected", address=connection.peername, process=link.peer)
        if link is not None:
            link.detach(connection, asyncio.get_running_loop().time())
            if link.peer in self.peers.addresses and not self.peers.dials(link.peer) and not self._is_stopping:
                # A process that dials notices by itself.
                probe = asyncio.create_task(self._probe_address(link))
                self._probing.add(probe)
                probe.add_done_callback(self._probing.discard)
        self._changed.set()

    # Admission

    def _encode_hello(self, link: Link, version: int | None = None) -> bytes:
        oldest, newest = self.versions
        region = "" if self.wiring.lines is None else self.wiring.lines.region
        topology = self._topology_version()
        hello = link.make_hello(
            self.cluster, self.protocol, self.me, version or newest, oldest, region, topology, self._start,
            self.wiring.order,
        )  # fmt: skip
        return frames.encode_hello(hello)

    def _check_hello(self, connection: Connection, hello: Hello) -> int:
        """Refuses processes that this one cannot or must not talk to; returns the version to use otherwise."""
        if self.wiring.security is not None:
            self.wiring.security.permissions.check(connection.subject(), hello.process)
        version = frames.negotiate_version(self.versions, hello)
        if version is None:
            oldest = hello.oldest or hello.version
            raise RefusedError(
                f"process {hello.process} speaks wire version {_format_range(oldest, hello.version)};"
                f" process {self.me} speaks {_format_range(*self.versions)}"
            )
        self._check_target(hello)
        self._check_topology(hello)
        self._check_identity(connection, hello)
        return version

    def _check_target(self, hello: Hello) -> None:
        if hello.cluster != self.cluster:
            raise RefusedError(f"this is cluster {self.cluster!r}, not {hello.cluster!r}")
        if hello.target != self.me:
            raise RefusedError(f"this is process {self.me}, not {hello.target}")
        if hello.process in self.peers.removed:
            raise RefusedError(f"process {hello.process} was removed from cluster {self.cluster!r}")
        if hello.protocol != self.protocol:
            raise RefusedError(f"this cluster runs protocol {self.protocol!r}, not {hello.protocol!r}")
        if hello.order and self.wiring.order and hello.order != self.wiring.order:
            raise RefusedError(
                f'process {hello.process} has order = "{hello.order}", and process {self.me} order ='
                f' "{self.wiring.order}"; expected one setting in the cluster.toml of all nodes'
            )

    def _check_topology(self, hello: Hello) -> None:
        configuration, digest = self._topology_version()
        if hello.configuration == configuration >= 0 and hello.members_digest != digest:
            raise RefusedError(
                f"process {hello.process} and process {self.me} have different groups or replicas in configuration"
                f" {configuration}: is cluster.toml the same at both?"
            )

    def _check_identity(self, connection: Connection, hello: Hello) -> None:
        peer, dialled = hello.process, connection.dialled_link
        if not 0 <= peer <= MAX_SENDER:
            raise RefusedError(f"process number {peer}; expected 0 to {MAX_SENDER}")
        if peer == self.me:
            raise RefusedError(f"process {self.me} does not talk to itself; is its number used twice?")
        if dialled is not None and peer != dialled.peer:
            raise RefusedError(f"expected process {dialled.peer}, found {peer}")
        if dialled is None and peer in self.peers.addresses and self.peers.dials(peer):
            raise RefusedError(f"process {self.me} dials process {peer}, not the other way round")
        if dialled is None and peer not in self.peers.addresses:
            self._check_capacity(peer)

    def _check_capacity(self, client: ProcessId) -> None:
        """Refuses a client if `limits.peers` clients have links, disconnected ones included."""
        if client not in self.links and len(self.links) - len(self.peers.addresses) >= self._limits.peers:
            raise RefusedError(f"{self._limits.peers} clients are connected; limits.peers allows no more")

    # Tasks

    async def _keep_dialling(self, link: Link) -> None:
        wait = self._limits.reconnect_min_s
        while True:
            connection = await self._connect(link)
            if connection is not None:
                await connection.closed
                if connection.link is not None:
                    wait = self._limits.reconnect_min_s
            await asyncio.sleep(wait * self._rng.uniform(0.5, 1.0))
            wait = min(2 * wait, self._limits.reconnect_max_s)

    async def _connect(self, link: Link) -> Connection | None:
        loop = asyncio.get_running_loop()
        address = self.peers.addresses[link.peer]
        connection, tls = Connection(self, self._limits, link), self._tls()
        is_given_up = True
        local = connect_locally(*address)
        try:
            async with asyncio.timeout(CONNECT_S):
                if local is not None:
                    name: dict[str, Any] = {"server_hostname": address[0]} if tls else {}
                    made, _ = await loop.create_unix_connection(lambda: connection, sock=local, **name, **tls)
                    if made.is_closing() and not isinstance(loop, asyncio.BaseEventLoop):
                        # uvloop has closed the descriptor already, and would not tell the socket.
                        local.detach()
                else:
                    await loop.create_connection(lambda: connection, *address, family=socket.AF_UNSPEC, **tls)
            is_given_up = False
            return connection
        except ConnectionRefusedError:
            self._record_down(link)
        except (OSError, TimeoutError):
            pass
        finally:
            if is_given_up:
                # It may have been made in the same turn. Then uvloop closes it, and does not tell.
                connection.connection_lost(None)
                if local is not None:
                    local.close()
        return None

    async def _probe_address(self, link: Link) -> None:
        """Finds out whether a disconnected peer, which dials this process, still listens. A killed process may lose its
        connections before its listening socket, which accepts one more: probe until it refuses, or the peer is back."""
        wait = self._limits.reconnect_min_s
        while link.connection is None and link.peer in self.peers.addresses:
            try:
                async with asyncio.timeout(CONNECT_S):
                    _, writer = await asyncio.open_connection(*self.peers.addresses[link.peer])
                    writer.close()
            except ConnectionRefusedError:
                self._record_down(link)
                return
            except (OSError, TimeoutError):
                pass
            await asyncio.sleep(wait * self._rng.uniform(0.5, 1.0))
            wait = min(2 * wait, self._limits.reconnect_max_s)

    def _record_down(self, link: Link) -> None:
        """Reports a peer whose address refuses connections: its process died. A server that boots may just be late."""
        has_connected = link.peer_incarnation is not None
        if (has_connected or self.me not in self.peers.addresses) and link.peer not in self._down:
            self._down.add(link.peer)
            self._on_peer_down(link.peer)

    def _tls(self) -> dict[str, Any]:
        security = self.wiring.security
        return {} if security is None else {"ssl": security.client, "ssl_handshake_timeout": CONNECT_S}

    async def _send_heartbeats(self) -> None:
        loop, heartbeat_s = asyncio.get_running_loop(), self._limits.heartbeat_s
        last = loop.time()
        while True:
            # All processes beat at the same instants of their clocks: one that is awake then hears from all at once. A
            # timer may expire a little early.
            after_s = heartbeat_s - time.time() % heartbeat_s
            await asyncio.sleep(after_s if after_s >= heartbeat_s / 2 else after_s + heartbeat_s)
            now = loop.time()
            # After a pause of this process, silence proves nothing: the bytes wait in the sockets.
            was_awake = now - last < 3 * heartbeat_s
            last = now
            self._limit_rates(now)
            for peer, link in list(self.links.items()):
                if link.connection is not None:
                    link.heartbeat(now if was_awake else link.connection.last_received_at)
                elif peer not in self.peers.addresses and now - link.disconnected_at > self._limits.client_link_ttl_s:
                    self._drop_client(peer)

    def _limit_rates(self, now: float) -> None:
        """Pauses reading from client names that send too many multicasts, and resumes it when they may send again."""
        counts: Counter[str] = Counter()
        for connection in self._connections:
            if connection.client_name:
                counts[connection.client_name] += connection.take_body_count()
        self._pause_names(self.quotas.limit_multicasts(counts, now), self.names_over_bytes)

    def _drop_client(self, peer: ProcessId) -> None:
        log.info(
            "client %d was disconnected for %g s (limits.client_link_ttl_s); its link is dropped",
            peer,
            self._limits.client_link_ttl_s,
        )
        self.outbox.invalidate_fanouts()
        del self.links[peer]
        self._client_names.pop(peer, None)


def _format_range(oldest: int, newest: int) -> str:
    return str(newest) if oldest == newest else f"{oldest} to {newest}"
