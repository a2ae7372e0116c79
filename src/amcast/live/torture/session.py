"""The traffic and the observers of a tortured cluster.

Every payload names its client and its number, so that what clients were told can be compared with what replicas
executed and with what observers read.
"""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from amcast.kernel.errors import CannotTellError
from amcast.kernel.ids import GroupId, MessageId
from amcast.live.client.client import Client
from amcast.live.client_batch import Delivery
from amcast.live.host.recent_deliveries import MissedDeliveriesError
from amcast.live.rpc.subscription import Subscription

ANSWER_S: Final = 30.0
"""After this time a multicast counts as unanswered; it may be delivered or not."""
PAUSE_S: Final = 0.005
"""Pause of a client between two messages."""
FINAL_READ_S: Final = 10.0
"""How long observers may read on after the cluster has settled."""


class Acknowledgement(NamedTuple):
    """A receipt of one client."""

    payload: str
    message: MessageId
    destinations: tuple[GroupId, ...]


class Observation(NamedTuple):
    """One payload as an observer read it."""

    position: int
    place: int
    message: MessageId
    payload: str


@dataclass
class TortureSession:
    """What clients were told and observers read during one run."""

    groups: tuple[GroupId, ...]
    seed: int
    acknowledged: list[Acknowledgement] = field(default_factory=list)
    unanswered: int = 0
    observed: dict[GroupId, list[Observation]] = field(default_factory=dict)
    gaps: dict[GroupId, int] = field(default_factory=dict)
    """By group: how often an observer was told that it had missed deliveries."""
    longest_gap_ns: int = 0
    """The longest time without any receipt."""
    _stopping: bool = False
    _last_ns: int = 0

    async def run(
        self,
        clients: Sequence[Client],
        observe: Callable[[GroupId, int | None], Subscription],
        nemesis: Callable[[], None],
        settle: Callable[[], None],
        around: AbstractAsyncContextManager[Any],
    ) -> None:
        """Runs traffic and observers while `nemesis`, a blocking function, strikes; then waits with `settle` until the
        cluster has processed everything."""
        async with around, _connected(clients):
            self._last_ns = time.perf_counter_ns()
            users = [asyncio.create_task(self._use(client, number)) for number, client in enumerate(clients)]
            observers = [asyncio.create_task(self._observe(group, observe)) for group in self.groups]
            try:
                await asyncio.to_thread(nemesis)
                self._stopping = True
                await asyncio.gather(*users)
                await asyncio.to_thread(settle)
                await self._finish_reading()
            finally:
                for task in (*users, *observers):
                    task.cancel()
                await asyncio.gather(*users, *observers, return_exceptions=True)

    async def _use(self, client: Client, number: int) -> None:
        rng = random.Random(f"{self.seed} client {number}")
        count = 0
        while not self._stopping:
            destinations = tuple(sorted(rng.sample(self.groups, rng.randint(1, len(self.groups)))))
            payload = f"client {number} message {count}"
            count += 1
            try:
                receipt = await client.multicast(destinations, payload.encode(), timeout_s=ANSWER_S)
            except CannotTellError:
                self.unanswered += 1
                continue
            now = time.perf_counter_ns()
            self.longest_gap_ns = max(self.longest_gap_ns, now - self._last_ns)
            self._last_ns = now
            self.acknowledged.append(Acknowledgement(payload, receipt.message, destinations))
            await asyncio.sleep(PAUSE_S)

    async def _observe(self, group: GroupId, observe: Callable[[GroupId, int | None], Subscription]) -> None:
        """Reads everything that a group delivers, from its first position on. An observer that was too slow goes on
        with the newest delivery."""
        rows = self.observed.setdefault(group, [])
        since: int | None = 0
        while True:
            try:
                async for delivery in observe(group, since):
                    payload = delivery.payload.decode(errors="replace")
                    rows.append(Observation(delivery.position, delivery.place, delivery.message, payload))
                    self._see(delivery)
            except MissedDeliveriesError:
                self.gaps[group] = self.gaps.get(group, 0) + 1
                since = None
            except CannotTellError:
                since = rows[-1].position + 1 if rows else 0
            await asyncio.sleep(0.1)

    def _see(self, delivery: Delivery) -> None:
        """Called for every delivery that an observer reads."""

    async def _finish_reading(self) -> None:
        """Waits until observers have read nothing new for a second."""
        deadline = time.monotonic() + FINAL_READ_S
        before = -1
        while time.monotonic() < deadline:
            now = sum(len(rows) for rows in self.observed.values())
            if now == before:
                return
            before = now
            await asyncio.sleep(1.0)


@asynccontextmanager
async def _connected(clients: Sequence[Client]) -> AsyncIterator[None]:
    opened: list[Client] = []
    try:
        for client in clients:
            opened.append(await client.__aenter__())
        yield
    finally:
        for client in opened:
            await client.__aexit__(None, None, None)
