"""All links of one process: who listens, who dials, who may speak.

Of two processes exactly one dials: the one whose peer has an address; if both have one, the one with the higher
number. Clients have no address, so they dial, and replies come back over the connection that they opened. Whoever
dials keeps dialling, with back-off, for as long as the network incarnations.
"""

import asyncio
import contextlib
import logging
import random
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from amcast.kernel.errors import UsageError
from amcast.kernel.ids import MAX_SENDER, GroupId, ProcessId
from amcast.kernel.message import Body
from amcast.kernel.topology import Topology
from amcast.live.errors import RefusedError
from amcast.live.wire import frames as codec
from amcast.live.wire.client_inbox import ClientInbox
from amcast.live.wire.connection import Connection
from amcast.live.wire.frames import Codec, Frame, Hello, Refusal, TopologyVersion
from amcast.live.wire.link import Link
from amcast.live.wire.listener import Listener, PendingConnections
from amcast.live.wire.outbox import Outbox
from amcast.live.wire.peers import Address as Address
from amcast.live.wire.transport import PLAIN, TransportOptions

log = logging.getLogger("amcast.live")

CONNECT_S: Final = 3.0
"""How long one attempt to connect may take."""
ONE_S: Final = 0.25
"""How long one server is waited for before another is tried as well."""
FULL: Final = "has too much unanswered (limits.unordered_bytes); clients wait until their destinations answer"


class Network(Outbox):
    """The links of one process in one incarnation."""

    # fmt: off
    __slots__ = (
        "_changed", "_connections", "_deaf", "_ending", "_gone", "_looking", "_on_peer_down", "_on_rpc", "_proposals",
        "_server", "_tasks", "_topology_version", "cluster", "crowd", "full", "protocol", "refusals", "strangers",
        "versions", "wiring",
    )
    # fmt: on

    def __init__(
        self,
        me: ProcessId,
        incarnation: int,
        cluster: str,
        protocol: str,
        coder: Codec,
        *,
        on_bodies: Callable[[ProcessId, list[Body]], None],
        on_frame: Callable[[ProcessId, Frame], None],
        on_link_reset: Callable[[ProcessId, int], None],
        chance: random.Random,
        on_peer_down: Callable[[ProcessId], None] = lambda peer: None,
        on_rpc: Callable[[Connection, Any], None] | None = None,
        on_lost: Callable[[ProcessId, list[bytes]], None] | None = None,
        topology_version: Callable[[], TopologyVersion] = lambda: (-1, 0),
        client_inbox: ClientInbox | None = None,
        wiring: TransportOptions = PLAIN,
        traces: bool = False,
    ) -> None:
        """`on_peer_down` is called when a peer's address refuses connections, once until the peer is back; `on_rpc`
        gets connections that begin with an RPC request (None: they are refused); `on_lost` gets the frames that a link
        which begins anew had not brought over."""
        super().__init__(me, incarnation, coder, on_bodies, on_frame, on_link_reset, on_lost, chance, traces)
        self.cluster = cluster
        self.protocol = protocol
        self.wiring = wiring
        self.versions = wiring.versions
        self._on_rpc = on_rpc
        self._on_peer_down = on_peer_down
        self._topology_version = topology_version
        """The topology that this process goes by."""
        self.crowd = client_inbox
        """What clients have sent and nobody has read; those who have no clients have none."""
        self._gone: set[ProcessId] = set()
        self._looking: set[asyncio.Task[None]] = set()
        self._server: Listener | None = None
        self._connections: set[Connection] = set()
        self.strangers = PendingConnections(self._limits.pending_connections)
        self._proposals: dict[ProcessId, int] = {}
        """Peers that refused my newest version, and the one to try next."""
        self._tasks: list[asyncio.Task[None]] = []
        self._ending = False
        self._deaf = False
        self.full = False
        """Clients asked for more than may be unanswered: they are not listened to."""
        self._changed = asyncio.Event()
        self.refusals: dict[ProcessId, str] = {}
        """Why a peer would not talk to us, last time we dialled it."""

    # Incarnation

    async def listen(self, address: Address) -> Address:
        """Accept connections; port 0 lets the system choose. Returns the address that peers should dial."""
        security = self.wiring.security
        context = None if security is None else security.server
        self._server = Listener(
            lambda: Connection(self, self._limits), self.strangers, context, self._limits.hello_timeout_s
        )
        try:
            await self._server.open(*address)
        except OSError as error:
            self._server.close()
            raise UsageError(f"process {self.me} cannot listen on {address[0]}:{address[1]}: {error}") from None
        host, port = self._server.sockets[0].getsockname()[:2]
        return host, port

    def start(self, addresses: Mapping[ProcessId, Address], lazy: bool = False) -> None:
        """Dial those whom it is on us to dial, and keep at it: at once, or each when something is sent to it."""
        self._addresses = dict(sorted(addresses.items()))
        self._lazy = lazy
        for peer in self._addresses:
            if peer != self.me and self._dials(peer) and not lazy:
                self.dial(peer)
        self._tasks.append(asyncio.create_task(self._keep_beating()))

    def dial(self, peer: ProcessId) -> None:
        """Begin to dial a peer."""
        self._dialling[peer] = asyncio.create_task(self._keep_dialling(self.link(peer)))

    async def stop(self, patience_s: float = 1.0) -> None:
        """Hang up; what was written still goes out if the peers take it within our patience, and they are told what has
        arrived, so that nobody takes it for lost."""
        self._hush()
        for link in self.links.values():
            link.acknowledge()
        await asyncio.gather(*self._tasks, *self._dialling.values(), *self._looking, return_exceptions=True)
        open_ones = list(self._connections)
        for connection in open_ones:
            connection.finish()
        if open_ones:
            await asyncio.wait([connection.closed for connection in open_ones], timeout=patience_s)
        for connection in list(self._connections):
            connection.abort()
        if self._server is not None:
            await self._server.wait_closed()
        await asyncio.sleep(0)

    def give_up(self) -> None:
        """What waits for peers that are away will not arrive."""
        for link in self.links.values():
            if link.connection is None:
                link.forget()

    def abandon(self) -> None:
        """Hang up on everybody at once, and neither listen nor dial any more."""
        self._hush()
        for connection in list(self._connections):
            connection.abort()

    def _hush(self) -> None:
        self._ending = True
        if self._server is not None:
            self._server.close()
        for task in (*self._tasks, *self._dialling.values(), *self._looking):
            task.cancel()

    async def connected(self, peers: set[ProcessId], timeout_s: float) -> None:
        """Wait until links with all of these are up; say who is missing otherwise."""
        try:
            async with asyncio.timeout(timeout_s):
                while missing := sorted(p for p in peers if p != self.me and not self.is_up(p)):
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise TimeoutError(
                f"process {self.me} is not connected to {missing} after {timeout_s:.3g} s{self._said(missing)}"
            ) from None

    async def reached_one(self, peers: Iterable[ProcessId], timeout_s: float) -> None:
        """Dial these one after the other, with some patience for each, until one of them is there."""
        tried: list[ProcessId] = []
        try:
            async with asyncio.timeout(timeout_s):
                for peer in peers:
                    tried.append(peer)
                    if peer not in self.links:
                        self.dial(peer)
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(ONE_S):
                            await self._any_up()
                            return
                await self._any_up()
        except TimeoutError:
            raise TimeoutError(
                f"process {self.me} reaches none of {tried} after {timeout_s:.3g} s{self._said(tried)}"
            ) from None

    async def _any_up(self) -> None:
        while not any(link.connection is not None for link in self.links.values()):
            self._changed.clear()
            await self._changed.wait()

    async def reached(self, topology: Topology, timeout_s: float) -> None:
        """Wait until in every group more than half of the members are connected; say who is missing otherwise."""
        try:
            async with asyncio.timeout(timeout_s):
                while silent := [g for g in topology.groups if self._up_in(topology, g) < topology.quorum(g)]:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise TimeoutError(
                f"process {self.me} reaches no majority of groups {silent} after {timeout_s:.3g} s"
                f"{self._said(topology.servers)}"
            ) from None

    def _up_in(self, topology: Topology, group: GroupId) -> int:
        return sum(member == self.me or self.is_up(member) for member in topology.members(group))

    def _said(self, peers: Iterable[ProcessId]) -> str:
        return "".join(f"; process {peer} said: {self.refusals[peer]}" for peer in peers if peer in self.refusals)

    def is_up(self, peer: ProcessId) -> bool:
        link = self.links.get(peer)
        return link is not None and link.connection is not None

    # Listening

    def pause_reading(self, paused: bool) -> None:
        """Stop or go on taking bytes from every peer; their queues fill instead of our memory."""
        self._deaf = paused
        for connection in self._connections:
            self._listen_to(connection)

    def fill(self, full: bool) -> None:
        """The same for clients only."""
        if full != self.full:
            self.full = full
            log.warning("process %d %s", self.me, FULL if full else "takes messages from clients again")
            self.pause_reading(self._deaf)

    def _listen_to(self, connection: Connection) -> None:
        link = connection.link
        if self._deaf or (self.full and link is not None and link.peer not in self._addresses):
            connection.pause_reading()
        else:
            connection.resume_reading()

    # What connections call

    def opened(self, connection: Connection) -> None:
        self._connections.add(connection)
        if connection.dials is None:
            self.strangers.add(connection)
        else:
            connection.said = connection.dials.mark
            connection.write(self._greeting(connection.dials))

    def greet(self, connection: Connection, hello: Hello) -> None:
        """The other side said who it is: let it in, or say why not. If it was connected before, what came that way is
        read first: we say how far that went."""
        self.read_crowd()
        try:
            version = self._check(connection, hello)
            link = self.link(hello.process)
            link.check(hello)
        except RefusedError as refused:
            connection.refuse(str(refused))
            return
        if connection.dials is None:
            connection.write(self._greeting(link, version))
        elif connection.said != link.mark:
            # Meanwhile too much waited for the peer, and the link begins anew: it must hear of that. Dial again.
            connection.abort()
            return
        link.speak(version)
        connection.greeted(link)
        if self.wiring.lines is not None:
            connection.imitate(self.wiring.lines, hello.region)
        self.strangers.remove(connection)
        self.refusals.pop(hello.process, None)
        self._listen_to(connection)
        self._gone.discard(hello.process)
        link.attach(connection, hello)
        self._changed.set()

    def visited(self, connection: Connection, payload: memoryview) -> None:
        """Somebody asks instead of greeting; who has a certificate must be in the configuration."""
        if connection.dials is not None or self._on_rpc is None:
            raise RefusedError(f"process {self.me} answers no questions")
        if self.wiring.security is not None:
            self.wiring.security.permissions.check_known_or_removed(connection.subject())
        self.strangers.remove(connection)
        connection.greeted(None)
        self._on_rpc(connection, payload)

    def was_refused(self, connection: Connection, refusal: Refusal) -> None:
        link = connection.dials
        if link is not None:
            oldest, newest = self.versions
            if oldest <= refusal.version < self._proposals.get(link.peer, newest):
                self._proposals[link.peer] = refusal.version
            elif self.refusals.get(link.peer) != refusal.reason:
                log.error("process %d at %s refuses us: %s", link.peer, connection.peername, refusal.reason)
            self.refusals[link.peer] = refusal.reason
        connection.abort()

    def read_crowd(self) -> None:
        """Do not let what clients have sent wait for the tick."""
        if self.crowd is not None and self.crowd.arrived:
            self.crowd.take()

    def lost(self, connection: Connection) -> None:
        self._connections.discard(connection)
        self.strangers.remove(connection)
        link = connection.link
        if link is not None:
            self._proposals.pop(link.peer, None)
            link.detach(connection, asyncio.get_running_loop().time())
            if link.peer in self._addresses and not self._dials(link.peer) and not self._ending:
                # Who dials notices by itself.
                look = asyncio.create_task(self._look(link))
                self._looking.add(look)
                look.add_done_callback(self._looking.discard)
        self._changed.set()

    # Inside

    def _greeting(self, link: Link, version: int | None = None) -> bytes:
        oldest, newest = self.versions
        said = version or self._proposals.get(link.peer, newest)
        region = "" if self.wiring.lines is None else self.wiring.lines.region
        standing = self._topology_version()
        return codec.hello_frame(link.greeting(self.cluster, self.protocol, self.me, said, oldest, region, standing))

    def _check(self, connection: Connection, hello: Hello) -> int:
        """Refuse whom we cannot or must not talk to; else the version to talk in."""
        if self.wiring.security is not None:
            self.wiring.security.permissions.check(connection.subject(), hello.process)
        version = codec.agreed_version(self.versions, hello)
        if version is None:
            oldest = hello.oldest or hello.version
            raise RefusedError(
                f"process {hello.process} speaks wire version {_range(oldest, hello.version)};"
                f" process {self.me} speaks {_range(*self.versions)}"
            )
        self._check_target(hello.cluster, hello.target)
        if hello.process in self._left:
            raise RefusedError(
                f"process {hello.process} was removed; it is no member of cluster {self.cluster!r} any more"
            )
        if hello.protocol != self.protocol:
            raise RefusedError(f"this cluster runs protocol {self.protocol!r}, not {hello.protocol!r}")
        number, members = self._topology_version()
        if hello.number == number >= 0 and hello.members != members:
            raise RefusedError(
                f"process {hello.process} and process {self.me} have different groups or replicas in topology {number}:"
                f" is cluster.toml the same at both?"
            )
        if not 0 <= hello.process <= MAX_SENDER:
            raise RefusedError(f"it says it is process {hello.process}; expected 0 to {MAX_SENDER}")
        if hello.process == self.me:
            raise RefusedError(f"process {self.me} does not talk to itself; is its number used twice?")
        if connection.dials is not None and hello.process != connection.dials.peer:
            raise RefusedError(f"expected process {connection.dials.peer}, found {hello.process}")
        if connection.dials is None and hello.process in self._addresses and self._dials(hello.process):
            raise RefusedError(f"process {self.me} dials process {hello.process}, not the other way round")
        if connection.dials is None and hello.process not in self._addresses:
            self._check_room(hello.process)
        return version

    def _check_target(self, cluster: str, target: ProcessId) -> None:
        if cluster != self.cluster:
            raise RefusedError(f"this is cluster {self.cluster!r}, not {cluster!r}")
        if target != self.me:
            raise RefusedError(f"this is process {self.me}, not {target}")

    def _check_room(self, client: ProcessId) -> None:
        """Links of clients are few enough, those that linger included."""
        if client not in self.links and len(self.links) - len(self._addresses) >= self._limits.peers:
            raise RefusedError(f"{self._limits.peers} clients are connected; limits.peers allows no more")

    async def _keep_dialling(self, link: Link) -> None:
        wait = self._limits.reconnect_min_s
        while True:
            connection = await self._dial(link)
            if connection is not None:
                await connection.closed
                if connection.link is not None:
                    wait = self._limits.reconnect_min_s
            await asyncio.sleep(wait * self._chance.uniform(0.5, 1.0))
            wait = min(2 * wait, self._limits.reconnect_max_s)

    async def _dial(self, link: Link) -> Connection | None:
        loop = asyncio.get_running_loop()
        address = self._addresses[link.peer]
        try:
            async with asyncio.timeout(CONNECT_S):
                _, connection = await loop.create_connection(
                    lambda: Connection(self, self._limits, link), *address, family=socket.AF_UNSPEC, **self._tls()
                )
                return connection
        except ConnectionRefusedError:
            self._refused(link)
        except (OSError, TimeoutError):
            pass
        return None

    async def _look(self, link: Link) -> None:
        """A peer that dials us is no longer connected: is anybody still at its address? A process that is killed may
        lose its connections before its door, which lets one more in: look until it is shut, or the peer is back."""
        wait = self._limits.reconnect_min_s
        while link.connection is None and link.peer in self._addresses:
            try:
                async with asyncio.timeout(CONNECT_S):
                    _, writer = await asyncio.open_connection(*self._addresses[link.peer])
                    writer.close()
            except ConnectionRefusedError:
                self._refused(link)
                return
            except (OSError, TimeoutError):
                pass
            await asyncio.sleep(wait * self._chance.uniform(0.5, 1.0))
            wait = min(2 * wait, self._limits.reconnect_max_s)

    def _refused(self, link: Link) -> None:
        """Nobody listens at a peer's address: its process died. Servers that boot may just be early."""
        if (link.known is not None or self.me not in self._addresses) and link.peer not in self._gone:
            self._gone.add(link.peer)
            self._on_peer_down(link.peer)

    def _tls(self) -> dict[str, Any]:
        security = self.wiring.security
        return {} if security is None else {"ssl": security.client, "ssl_handshake_timeout": CONNECT_S}

    async def _keep_beating(self) -> None:
        loop, heartbeat_s = asyncio.get_running_loop(), self._limits.heartbeat_s
        last = loop.time()
        while True:
            # At the same instants of everybody's clock: whoever is awake then hears from all at once. A timer may run
            # out a little early.
            after_s = heartbeat_s - time.time() % heartbeat_s
            await asyncio.sleep(after_s if after_s >= heartbeat_s / 2 else after_s + heartbeat_s)
            now = loop.time()
            # After a pause of our own, silence proves nothing: the bytes wait in the sockets.
            awake = now - last < 3 * heartbeat_s
            last = now
            for peer, link in list(self.links.items()):
                if link.connection is not None:
                    link.beat(now if awake else link.connection.heard_at)
                elif peer not in self._addresses and now - link.away_since > self._limits.client_link_ttl_s:
                    log.info(
                        "process %d was away for %g s; its link is forgotten", peer, self._limits.client_link_ttl_s
                    )
                    self.unlearn()
                    del self.links[peer]


def _range(oldest: int, newest: int) -> str:
    return str(newest) if oldest == newest else f"{oldest} to {newest}"
