"""One interface to cut links of a cluster, from any thread: through network namespaces or through proxies."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import NamedTuple, Protocol

from amcast.kernel.ids import ProcessId
from amcast.live.operations.local_cluster import find_free_ports
from amcast.live.torture.proxies import Direction, Proxies
from amcast.live.wire.network import Address


class NodeAddress(NamedTuple):
    """Where other processes reach a node, and where it listens."""

    address: Address
    listen: Address

    def describe(self) -> dict[str, str]:
        """The fields of a replica in cluster.toml."""
        fields = {"address": f"{self.address[0]}:{self.address[1]}"}
        if self.listen != self.address:
            fields["listen"] = f"{self.listen[0]}:{self.listen[1]}"
        return fields


class CuttableNetwork(Protocol):
    """A network whose links can be cut in each direction."""

    name: str
    corrupts: bool
    """Whether it can flip bits on their way."""

    def cut(self, directions: Iterable[Direction]) -> None:
        """Stops all bytes in these directions."""

    def corrupt(self, directions: Iterable[Direction], seed: int) -> None:
        """Flips bits in these directions."""

    def heal(self) -> None:
        """Ends everything."""

    def add_node(self, process: ProcessId) -> NodeAddress:
        """Connects one more node."""


class ProxyNetwork:
    """Cuts by proxies, which run on the event loop of the session."""

    name = "proxy"
    corrupts = True

    def __init__(self) -> None:
        self._proxies = Proxies({}, {})
        self._loop: asyncio.AbstractEventLoop | None = None

    @asynccontextmanager
    async def run(self) -> AsyncIterator[None]:
        """Runs the proxies."""
        async with self._proxies:
            self._loop = asyncio.get_running_loop()
            yield

    def cut(self, directions: Iterable[Direction]) -> None:
        chosen = sorted(set(directions))
        both = [frozenset(one) for one in chosen if one[::-1] in chosen]
        self._call(lambda: self._proxies.cut(both))
        self._call(lambda: self._proxies.hold(chosen))

    def corrupt(self, directions: Iterable[Direction], seed: int) -> None:
        chosen = sorted(set(directions))
        self._call(lambda: self._proxies.corrupt(chosen, seed))

    def heal(self) -> None:
        self._call(self._proxies.heal)

    def add_node(self, process: ProcessId) -> NodeAddress:
        front, back = (("127.0.0.1", port) for port in find_free_ports(2))
        if self._loop is None:
            self._proxies.prepare(process, front, back)
        else:
            asyncio.run_coroutine_threadsafe(self._proxies.add(process, front, back), self._loop).result()
        return NodeAddress(front, back)

    def _call(self, act: Callable[[], None]) -> None:
        assert self._loop is not None, "the proxies do not run"
        self._loop.call_soon_threadsafe(act)
