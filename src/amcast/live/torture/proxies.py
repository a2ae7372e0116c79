"""TCP proxies in front of the nodes of a cluster, which cut, hold or corrupt the bytes between pairs of processes.

Peers dial a node at its proxy's address; the node listens elsewhere. A proxy learns from the HELLO at the beginning of
a connection which process dials. Clients and operators pass through untouched.
"""

import asyncio
import random
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress

from amcast.live.wire import frames
from amcast.live.wire.frames import HEAD, HEAD_BYTES
from amcast.live.wire.network import Address

Pair = frozenset[int]
Direction = tuple[int, int]
"""Source and target of bytes."""


class _ProxiedConnection:
    """One connection through a proxy."""

    def __init__(self, pair: Pair, writers: tuple[asyncio.StreamWriter, asyncio.StreamWriter]) -> None:
        self.pair = pair
        self.writers = writers

    def abort(self) -> None:
        for writer in self.writers:
            writer.transport.abort()


class Proxies:
    """The proxies of all nodes of a cluster."""

    def __init__(self, proxies: Mapping[int, Address], nodes: Mapping[int, Address]) -> None:
        self._proxies = dict(proxies)
        self._nodes = dict(nodes)
        self._servers: list[asyncio.Server] = []
        self._connections: set[_ProxiedConnection] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._cut: set[Pair] = set()
        self._held: set[Direction] = set()
        self._released = asyncio.Event()
        self._is_closed = False
        self._corrupted: dict[Direction, random.Random] = {}
        self.cuts = 0
        """How many connections were aborted."""
        self.corruptions = 0
        """How many bits were flipped."""

    async def __aenter__(self) -> "Proxies":
        for process in self._proxies:
            await self._open(process)
        return self

    def prepare(self, process: int, proxy: Address, node: Address) -> None:
        """Adds a node before the proxies run."""
        self._proxies[process], self._nodes[process] = proxy, node

    async def add(self, process: int, proxy: Address, node: Address) -> None:
        """Adds a node while the proxies run."""
        self.prepare(process, proxy, node)
        await self._open(process)

    async def _open(self, process: int) -> None:
        host, port = self._proxies[process]
        self._servers.append(await asyncio.start_server(self._make_acceptor(process), host, port))

    async def __aexit__(self, *error: object) -> None:
        self._is_closed = True
        for server in self._servers:
            server.close()
        for connection in self._connections:
            connection.abort()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut(self, pairs: Iterable[Pair]) -> None:
        """Aborts the connections of these pairs, and refuses new ones."""
        self._cut |= set(pairs)
        for connection in [connection for connection in self._connections if connection.pair in self._cut]:
            self.cuts += 1
            connection.abort()

    def hold(self, directions: Iterable[Direction]) -> None:
        """Holds bytes back in these directions; the connections stay open."""
        self._held |= set(directions)

    def freeze(self, pairs: Iterable[Pair]) -> None:
        """Holds the bytes of these pairs back in both directions."""
        for one, other in map(sorted, pairs):
            self.hold([(one, other), (other, one)])

    def corrupt(self, directions: Iterable[Direction], seed: int) -> None:
        """Flips a bit of each later read in these directions."""
        for direction in directions:
            self._corrupted[direction] = random.Random(f"{seed} {direction}")

    def heal(self) -> None:
        """Ends all cuts, holds and corruptions."""
        self._cut.clear()
        self._held.clear()
        self._corrupted.clear()
        self._released.set()
        self._released = asyncio.Event()

    def _make_acceptor(self, process: int) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], None]:
        def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            if self._is_closed:  # the system had accepted it before the end
                writer.transport.abort()
                return
            # No coroutine: one that is cancelled before its first step would never close its connection.
            task = asyncio.get_running_loop().create_task(self._serve(process, reader, writer))
            self._tasks.add(task)
            task.add_done_callback(lambda _: self._release(task, writer))

        return accept

    async def _serve(self, process: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # uvloop raises RuntimeError for a write to a connection that is closed.
        with suppress(OSError, EOFError, RuntimeError):
            await self._join(process, reader, writer)

    def _release(self, task: "asyncio.Task[None]", writer: asyncio.StreamWriter) -> None:
        self._tasks.discard(task)
        writer.transport.abort()

    async def _join(self, process: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readexactly(HEAD_BYTES)
        length, _, kind = HEAD.unpack(head)
        payload = await reader.readexactly(length - 2)
        source = frames.read_hello(payload).process if kind == frames.HELLO else -1
        pair = frozenset({source, process})
        if pair in self._cut:
            return
        other_reader, other_writer = await asyncio.open_connection(*self._nodes[process])
        connection = _ProxiedConnection(pair, (writer, other_writer))
        self._connections.add(connection)
        try:
            other_writer.write(head + payload)
            await asyncio.gather(
                self._forward((source, process), reader, other_writer),
                self._forward((process, source), other_reader, writer),
            )
        finally:
            self._connections.discard(connection)
            connection.abort()

    async def _forward(self, direction: Direction, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            while direction in self._held:
                await self._released.wait()
            if direction in self._corrupted:
                data = self._flip_bit(data, self._corrupted[direction])
            writer.write(data)
            await writer.drain()
        raise EOFError

    def _flip_bit(self, data: bytes, rng: random.Random) -> bytes:
        self.corruptions += 1
        changed = bytearray(data)
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
        return bytes(changed)


def between(some: Iterable[int], others: Iterable[int]) -> list[Pair]:
    """All pairs of one of these processes and one of the others."""
    others = list(others)
    return [frozenset({one, other}) for one in some for other in others if one != other]
