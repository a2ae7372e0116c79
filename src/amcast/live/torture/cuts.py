"""One interface to cut links of a cluster, from any thread: through network namespaces or through proxies."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Protocol

from amcast.live.torture.proxies import Direction, Proxies


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


class ProxyNetwork:
    """Cuts by proxies, which run on the event loop of the session."""

    name = "proxy"
    corrupts = True

    def __init__(self, proxies: Proxies) -> None:
        self._proxies = proxies
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

    def _call(self, act: Callable[[], None]) -> None:
        assert self._loop is not None, "the proxies do not run"
        self._loop.call_soon_threadsafe(act)
