"""A client: one process that multicasts for any number of coroutines, over one connection per server.

    async with Client(process, spec, addresses) as client:
        receipt = await client.multicast({0, 2}, b"hello")

The process that asks, waits and asks again is handed in: it is the object that the simulator runs.
"""

import random
from collections.abc import Mapping
from types import TracebackType
from typing import Final

from amcast.kernel.errors import Unknown
from amcast.kernel.ids import MAX_SENDER, ProcessId
from amcast.kernel.process import Process
from amcast.kernel.spec import Spec
from amcast.live.gateway import Gateway
from amcast.live.host import Host
from amcast.live.limits import Limits
from amcast.live.network import Address
from amcast.live.store import MemoryStore
from amcast.trace.recorder import Recorder

FIRST_CLIENT: Final = 1 << 20
"""Clients draw a number from here on; those below are for processes that a configuration names."""


def drawn_number() -> ProcessId:
    """A number for a client that nobody gave one."""
    return random.SystemRandom().randint(FIRST_CLIENT, MAX_SENDER)


class Client:
    """Connects when entered, hangs up when left."""

    def __init__(
        self,
        process: Process,
        spec: Spec,
        addresses: Mapping[ProcessId, Address],
        *,
        life: int = 0,
        cluster: str = "amcast",
        limits: Limits | None = None,
        recorder: Recorder | None = None,
        batches: bool = True,
        connect_s: float = 10.0,
    ) -> None:
        self.me = process.me
        self.limits = limits or Limits()
        self._process = process
        self._spec = spec
        self._addresses = addresses
        self._life = life
        self._cluster = cluster
        self._recorder = recorder
        self._connect_s = connect_s
        self.gateway = Gateway(recorder, batches=batches)
        self.multicast = self.gateway.multicast
        """Order one message: `await client.multicast({"orders", "stock"}, b"...")`."""
        self.post = self.gateway.post
        """Hand one over and get its receipt later."""

    async def __aenter__(self) -> "Client":
        host = self.host = Host(
            self._process,
            self._spec,
            cluster=self._cluster,
            limits=self.limits,
            store=MemoryStore(self._life),
            recorder=self._recorder,
            on_resolve=self.gateway.resolved,
        )
        self.gateway.sit_on(host)
        host.start(self._addresses)
        try:
            await host.network.reached(self._process.topology, self._connect_s)
        except TimeoutError as error:
            await host.stop()
            raise Unknown(str(error)) from None
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.host.stop()
        self.gateway.close()
