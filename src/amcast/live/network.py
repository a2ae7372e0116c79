"""All links of one process: who listens, who dials, who may speak.

Of two processes exactly one dials: the one whose peer has an address; if both have one, the one with the higher
number. Clients have no address, so they dial, and replies come back over the connection that they opened. Whoever
dials keeps dialling, with back-off, for as long as the network lives.
"""

import asyncio
import contextlib
import logging
import random
import socket
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from amcast.kernel.effects import About
from amcast.kernel.errors import WrongUse
from amcast.kernel.ids import GroupId, ProcessId
from amcast.kernel.topology import Topology
from amcast.live import codec
from amcast.live.codec import Codec, Frame, Hello, Mark, Refused
from amcast.live.connection import Connection
from amcast.live.limits import Limits
from amcast.live.link import Link

log = logging.getLogger("amcast.live")

Address = tuple[str, int]
CONNECT_S: Final = 3.0
"""How long one attempt to connect may take."""


class Network:
    """The links of one process in one life."""

    def __init__(
        self,
        me: ProcessId,
        life: int,
        cluster: str,
        protocol: str,
        coder: Codec,
        on_frame: Callable[[ProcessId, Frame], None],
        on_peer: Callable[[ProcessId, int], None],
        chance: random.Random,
    ) -> None:
        self.me = me
        self.cluster = cluster
        self.protocol = protocol
        self.links: dict[ProcessId, Link] = {}
        self._life = life
        self._coder = coder
        self._limits: Limits = coder.limits
        self._on_frame = on_frame
        self._on_peer = on_peer
        self._chance = chance
        self._numbers = 0
        self._addresses: dict[ProcessId, Address] = {}
        self._server: asyncio.Server | None = None
        self._connections: set[Connection] = set()
        self._tasks: list[asyncio.Task[None]] = []
        self._dirty: dict[ProcessId, Link] = {}
        self._pressed: dict[ProcessId, Link] = {}
        self._changed = asyncio.Event()
        self.refusals: dict[ProcessId, str] = {}
        """Why a peer would not talk to us, last time we dialled it."""

    # Life

    async def listen(self, address: Address) -> Address:
        """Accept connections; port 0 lets the system choose. Returns the address that peers should dial."""
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(
                lambda: Connection(self, self._limits), *address, reuse_address=True, backlog=1024
            )
        except OSError as error:
            raise WrongUse(f"process {self.me} cannot listen on {address[0]}:{address[1]}: {error}") from None
        host, port = self._server.sockets[0].getsockname()[:2]
        return host, port

    def start(self, addresses: Mapping[ProcessId, Address]) -> None:
        """Dial those whom it is on us to dial, and keep at it."""
        self._addresses = dict(sorted(addresses.items()))
        for peer in self._addresses:
            if peer != self.me and self._dials(peer):
                self._tasks.append(asyncio.create_task(self._keep_dialling(self.link(peer))))
        self._tasks.append(asyncio.create_task(self._keep_beating()))

    async def stop(self, patience_s: float = 1.0) -> None:
        """Hang up; what was written still goes out if the peers take it within our patience."""
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
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

    def abandon(self) -> None:
        """Hang up on everybody at once, and neither listen nor dial any more."""
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()
        for connection in list(self._connections):
            connection.abort()

    async def connected(self, peers: set[ProcessId], timeout_s: float) -> None:
        """Wait until links with all of these are up; say who is missing otherwise."""
        try:
            async with asyncio.timeout(timeout_s):
                while missing := sorted(p for p in peers if p != self.me and not self.is_up(p)):
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise TimeoutError(
                f"process {self.me} is not connected to {missing} after {timeout_s} s{self._said(missing)}"
            ) from None

    async def reached(self, topology: Topology, timeout_s: float) -> None:
        """Wait until in every group more than half of the members are connected; say who is missing otherwise."""
        try:
            async with asyncio.timeout(timeout_s):
                while silent := [g for g in topology.groups if self._up_in(topology, g) < topology.quorum(g)]:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise TimeoutError(
                f"process {self.me} reaches no majority of groups {silent} after {timeout_s} s"
                f"{self._said(topology.servers)}"
            ) from None

    def _up_in(self, topology: Topology, group: GroupId) -> int:
        return sum(member == self.me or self.is_up(member) for member in topology.members(group))

    def _said(self, peers: Iterable[ProcessId]) -> str:
        return "".join(f"; process {peer} said: {self.refusals[peer]}" for peer in peers if peer in self.refusals)

    def is_up(self, peer: ProcessId) -> bool:
        link = self.links.get(peer)
        return link is not None and link.connection is not None

    # Sending

    def link(self, peer: ProcessId) -> Link:
        link = self.links.get(peer)
        if link is None:
            link = Link(
                peer, self._next_mark(), self._coder, self._limits, self._on_frame, self._on_peer, self._next_mark
            )
            self.links[peer] = link
        return link

    def send(self, target: ProcessId, part: bytes, about: About) -> bool:
        """Give one encoded body to the link with `target`; False if there is nobody of that number."""
        link = self.links.get(target)
        if link is None:
            if target not in self._addresses:
                return False
            link = self.link(target)
        if link.send(part, about):
            self._dirty[target] = link
        return True

    def flush(self, sent_ns: int | None) -> None:
        """End of a tick: one write to every peer that something was sent to."""
        if self._dirty:
            for link in self._dirty.values():
                link.flush(sent_ns)
                if link.pressed:
                    self._pressed[link.peer] = link
            self._dirty.clear()

    @property
    def pressed(self) -> bool:
        """Some peer takes what it is sent too slowly."""
        return bool(self._pressed)

    async def room(self) -> None:
        """Wait until every peer that is there has taken enough of what was sent to it."""
        while self._pressed:
            for link in list(self._pressed.values()):
                await link.room()
                self._pressed.pop(link.peer, None)

    def pause_reading(self, paused: bool) -> None:
        """Stop or go on taking bytes from every peer; their queues fill instead of our memory."""
        for connection in self._connections:
            if paused:
                connection.pause_reading()
            else:
                connection.resume_reading()

    # What connections call

    def opened(self, connection: Connection) -> None:
        self._connections.add(connection)
        if len(self._connections) > self._limits.peers:
            connection.refuse(f"{self._limits.peers} connections are open; limits.peers allows no more")
        elif connection.dials is not None:
            connection.write(self._greeting(connection.dials))

    def greet(self, connection: Connection, hello: Hello) -> None:
        """The other side said who it is: let it in, or say why not."""
        try:
            self._check(connection, hello)
            link = self.link(hello.process)
            link.check(hello)
        except Refused as refused:
            connection.refuse(str(refused))
            return
        if connection.dials is None:
            connection.write(self._greeting(link))
        connection.greeted(link)
        self.refusals.pop(hello.process, None)
        link.attach(connection, hello)
        self._changed.set()

    def was_refused(self, connection: Connection, reason: str) -> None:
        peer = connection.dials.peer if connection.dials is not None else None
        if peer is not None:
            if self.refusals.get(peer) != reason:
                log.error("process %d at %s refuses us: %s", peer, connection.peername, reason)
            self.refusals[peer] = reason
        connection.abort()

    def lost(self, connection: Connection) -> None:
        self._connections.discard(connection)
        if connection.link is not None:
            connection.link.detach(connection, asyncio.get_running_loop().time())
        self._changed.set()

    # Inside

    def _next_mark(self) -> Mark:
        self._numbers += 1
        return self._life, self._numbers

    def _greeting(self, link: Link) -> bytes:
        return codec.hello_frame(link.greeting(self.cluster, self.protocol, self.me))

    def _dials(self, peer: ProcessId) -> bool:
        return self.me not in self._addresses or self.me > peer

    def _check(self, connection: Connection, hello: Hello) -> None:
        if hello.version != codec.WIRE_VERSION:
            raise Refused(
                f"process {hello.process} speaks wire version {hello.version};"
                f" process {self.me} speaks {codec.WIRE_VERSION}"
            )
        if hello.cluster != self.cluster:
            raise Refused(f"this is cluster {self.cluster!r}, not {hello.cluster!r}")
        if hello.protocol != self.protocol:
            raise Refused(f"this cluster runs protocol {self.protocol!r}, not {hello.protocol!r}")
        if hello.target != self.me:
            raise Refused(f"this is process {self.me}, not {hello.target}")
        if hello.process == self.me:
            raise Refused(f"process {self.me} does not talk to itself; is its number used twice?")
        if connection.dials is not None and hello.process != connection.dials.peer:
            raise Refused(f"expected process {connection.dials.peer}, found {hello.process}")
        if connection.dials is None and hello.process in self._addresses and self._dials(hello.process):
            raise Refused(f"process {self.me} dials process {hello.process}, not the other way round")

    async def _keep_dialling(self, link: Link) -> None:
        wait = self._limits.retry_low_s
        while True:
            connection = await self._dial(link)
            if connection is not None:
                await connection.closed
                if connection.link is not None:
                    wait = self._limits.retry_low_s
            await asyncio.sleep(wait * self._chance.uniform(0.5, 1.0))
            wait = min(2 * wait, self._limits.retry_high_s)

    async def _dial(self, link: Link) -> Connection | None:
        loop = asyncio.get_running_loop()
        address = self._addresses[link.peer]
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(CONNECT_S):
                _, connection = await loop.create_connection(
                    lambda: Connection(self, self._limits, link), *address, family=socket.AF_UNSPEC
                )
                return connection
        return None

    async def _keep_beating(self) -> None:
        loop = asyncio.get_running_loop()
        last = loop.time()
        while True:
            await asyncio.sleep(self._limits.beat_s)
            now = loop.time()
            # After a pause of our own, silence proves nothing: the bytes wait in the sockets.
            awake = now - last < 3 * self._limits.beat_s
            last = now
            for peer, link in list(self.links.items()):
                if link.connection is not None:
                    link.beat(now if awake else link.connection.heard_at)
                elif peer not in self._addresses and now - link.away_since > self._limits.linger_s:
                    log.info("process %d was away for %g s; its link is forgotten", peer, self._limits.linger_s)
                    del self.links[peer]
