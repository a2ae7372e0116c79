"""Proxies between real processes, one in front of each node: they pass bytes on, and cut or freeze when told."""

import asyncio
from collections.abc import Iterable, Mapping
from contextlib import suppress

from amcast.live.wire import frames as codec
from amcast.live.wire.frames import HEAD, HEAD_BYTES
from amcast.live.wire.network import Address

Pair = frozenset[int]


class _Line:
    """One connection through a proxy."""

    def __init__(self, pair: Pair, writers: tuple[asyncio.StreamWriter, asyncio.StreamWriter]) -> None:
        self.pair = pair
        self.writers = writers

    def cut(self) -> None:
        for writer in self.writers:
            writer.transport.abort()


class Wires:
    """Everybody reaches a node at the proxy's address; the node listens elsewhere."""

    def __init__(self, proxies: Mapping[int, Address], nodes: Mapping[int, Address]) -> None:
        self._proxies = proxies
        self._nodes = nodes
        self._servers: list[asyncio.Server] = []
        self._lines: set[_Line] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._cut: set[Pair] = set()
        self._frozen: set[Pair] = set()
        self._thawed = asyncio.Event()
        self.cuts = 0

    async def __aenter__(self) -> "Wires":
        for process, (host, port) in self._proxies.items():
            self._servers.append(await asyncio.start_server(self._accepting(process), host, port))
        return self

    async def __aexit__(self, *error: object) -> None:
        for server in self._servers:
            server.close()
        for line in self._lines:
            line.cut()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut(self, pairs: Iterable[Pair]) -> None:
        """Break the connections of these pairs, and let them make no new ones."""
        self._cut |= set(pairs)
        for line in [line for line in self._lines if line.pair in self._cut]:
            self.cuts += 1
            line.cut()

    def freeze(self, pairs: Iterable[Pair]) -> None:
        """Nothing passes, and nobody is told."""
        self._frozen |= set(pairs)

    def heal(self) -> None:
        self._cut.clear()
        self._frozen.clear()
        self._thawed.set()
        self._thawed = asyncio.Event()

    def _accepting(self, process: int):  # type: ignore[no-untyped-def]
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
        line = _Line(pair, (writer, other_writer))
        self._lines.add(line)
        try:
            other_writer.write(head + payload)
            await asyncio.gather(self._pass(pair, reader, other_writer), self._pass(pair, other_reader, writer))
        finally:
            self._lines.discard(line)
            line.cut()

    async def _pass(self, pair: Pair, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            while pair in self._frozen:
                await self._thawed.wait()
            writer.write(data)
            await writer.drain()
        raise EOFError


def between(some: Iterable[int], others: Iterable[int]) -> list[Pair]:
    others = list(others)
    return [frozenset({one, other}) for one in some for other in others if one != other]
