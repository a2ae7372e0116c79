"""TCP proxies in front of the nodes of a cluster, which cut or freeze connections between pairs of processes."""

import asyncio
from collections.abc import Iterable, Mapping
from contextlib import suppress

from amcast.live.wire import frames as codec
from amcast.live.wire.frames import HEAD, HEAD_BYTES
from amcast.live.wire.network import Address

Pair = frozenset[int]


class _ProxiedConnection:
    """One connection through a proxy."""

    def __init__(self, pair: Pair, writers: tuple[asyncio.StreamWriter, asyncio.StreamWriter]) -> None:
        self.pair = pair
        self.writers = writers

    def cut(self) -> None:
        for writer in self.writers:
            writer.transport.abort()


class Proxies:
    """Peers dial a node at its proxy's address; the node listens elsewhere."""

    def __init__(self, proxies: Mapping[int, Address], nodes: Mapping[int, Address]) -> None:
        self._proxies = proxies
        self._nodes = nodes
        self._servers: list[asyncio.Server] = []
        self._connections: set[_ProxiedConnection] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._cut: set[Pair] = set()
        self._frozen: set[Pair] = set()
        self._thawed = asyncio.Event()
        self.cuts = 0

    async def __aenter__(self) -> "Proxies":
        for process, (host, port) in self._proxies.items():
            self._servers.append(await asyncio.start_server(self._make_acceptor(process), host, port))
        return self

    async def __aexit__(self, *error: object) -> None:
        for server in self._servers:
            server.close()
        for connection in self._connections:
            connection.cut()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut(self, pairs: Iterable[Pair]) -> None:
        """Aborts the connections of these pairs, and lets them make no new ones."""
        self._cut |= set(pairs)
        for connection in [connection for connection in self._connections if connection.pair in self._cut]:
            self.cuts += 1
            connection.cut()

    def freeze(self, pairs: Iterable[Pair]) -> None:
        """Holds the bytes of these pairs back; their connections stay open."""
        self._frozen |= set(pairs)

    def heal(self) -> None:
        """Ends all cuts and freezes."""
        self._cut.clear()
        self._frozen.clear()
        self._thawed.set()
        self._thawed = asyncio.Event()

    def _make_acceptor(self, process: int):  # type: ignore[no-untyped-def]
        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            with suppress(OSError, EOFError, asyncio.CancelledError):
                await self._join(process, reader, writer)
            writer.transport.abort()

        return accept

    async def _join(self, process: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readexactly(HEAD_BYTES)
        length, _, kind = HEAD.unpack(head)
        payload = await reader.readexactly(length - 2)
        source = codec.read_hello(payload).process if kind == codec.HELLO else -1
        pair = frozenset({source, process})
        if pair in self._cut:
            return
        other_reader, other_writer = await asyncio.open_connection(*self._nodes[process])
        connection = _ProxiedConnection(pair, (writer, other_writer))
        self._connections.add(connection)
        try:
            other_writer.write(head + payload)
            await asyncio.gather(self._forward(pair, reader, other_writer), self._forward(pair, other_reader, writer))
        finally:
            self._connections.discard(connection)
            connection.cut()

    async def _forward(self, pair: Pair, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            while pair in self._frozen:
                await self._thawed.wait()
            writer.write(data)
            await writer.drain()
        raise EOFError


def between(some: Iterable[int], others: Iterable[int]) -> list[Pair]:
    """All pairs of one of these processes and one of the others."""
    others = list(others)
    return [frozenset({one, other}) for one in some for other in others if one != other]
