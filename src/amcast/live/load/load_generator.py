"""Load for measurements, and the deliveries of the replicas under it.

Every connection keeps a number of messages unanswered and sends the next one when one is answered. Or it sends that
number together, at a rate: then the latency of a message that was sent late, because an earlier one was not answered,
counts from the time at which it was due. Or the loop is open: messages arrive one by one at random moments, whatever
was answered. Counts are taken in windows of half a second, because other work on the
machine disturbs some windows and not others.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from random import Random
from typing import Any, Final, Literal, NamedTuple

from amcast.kernel.errors import CannotTellError
from amcast.kernel.ids import GroupId, MessageId, ProcessId
from amcast.live.client.client import Client
from amcast.live.load.poisson_arrivals import PoissonArrivals
from amcast.live.rpc.client import RpcClient
from amcast.live.rpc.messages import Deliveries, GetProgress, PositionExpired, Progress, Subscribe

Arrivals = Literal["paced", "poisson"]
"""How messages arrive at a rate: together at equal intervals, or one by one at random moments."""
WINDOW_S: Final = 0.5
SETTLE_S: Final = 30.0
"""How long the replicas may take to deliver every answered message."""
CONNECTS_AT_ONCE: Final = 32
"""Number of connections that are opened concurrently."""


class Window(NamedTuple):
    """Counts of one window."""

    seconds: float
    multicasts: int
    replicas_s: float
    """CPU seconds of all replicas."""
    clients_s: float
    """CPU seconds of the process with the clients."""


class LoadGenerator:
    """Closed-loop load over many connections; with a rate (messages per second and connection), a paced or open one."""

    def __init__(
        self,
        payload: bytes,
        outstanding: int,
        rate: float | None = None,
        arrivals: Arrivals = "paced",
        rng: Random | None = None,
    ) -> None:
        self.done = 0
        self.latencies_ns: list[int] = []
        self.windows: list[Window] = []
        self._payload = payload
        self._outstanding = outstanding
        self._every_ns = 0 if rate is None else round(1e9 * outstanding / rate)
        """Interval at which a connection sends; 0: whenever a message is answered."""
        self._rate = rate
        self._is_open = arrivals == "poisson"
        self._rng = rng or Random()
        self._stopping = False

    async def run(
        self,
        clients: Sequence[Client],
        sets: Sequence[tuple[GroupId, ...]],
        warm_s: float,
        seconds: float,
        cpus_s: Callable[[], tuple[float, float]],
    ) -> None:
        """Warms up, counts for some seconds, and waits for all answers. The n-th client sends to the n-th set."""
        for start in range(0, len(clients), CONNECTS_AT_ONCE):
            await asyncio.gather(*(client.__aenter__() for client in clients[start : start + CONNECTS_AT_ONCE]))
        tasks = [asyncio.create_task(task) for task in self._tasks(list(zip(clients, sets, strict=True)))]
        try:
            await self._wait_or_fail(warm_s, tasks)
            self.latencies_ns.clear()
            await self._count(seconds, tasks, cpus_s)
        finally:
            self._stopping = True
            await asyncio.gather(*tasks)
            await asyncio.gather(*(client.__aexit__(None, None, None) for client in clients))

    def _tasks(self, places: list[tuple[Client, tuple[GroupId, ...]]]) -> list[Coroutine[Any, Any, None]]:
        """The coroutines that load the cluster; paced connections are staggered."""
        if self._is_open:
            return [self._run_open(places)]
        if not self._every_ns:
            return [self._run_closed(*place) for place in places for _ in range(self._outstanding)]
        begin, every_ns = time.perf_counter_ns(), self._every_ns
        return [self._run_paced(*place, begin + turn * every_ns // len(places)) for turn, place in enumerate(places)]

    async def _run_closed(self, client: Client, groups: tuple[GroupId, ...]) -> None:
        payload, post, clock = self._payload, client.post, time.perf_counter_ns
        while not self._stopping:
            begin = clock()
            await (await post(groups, payload))
            self.latencies_ns.append(clock() - begin)
            self.done += 1

    async def _run_paced(self, client: Client, groups: tuple[GroupId, ...], due: int) -> None:
        payload, post, clock = self._payload, client.post, time.perf_counter_ns
        while not self._stopping:
            await asyncio.sleep(max(0, due - clock()) / 1e9)
            for receipt in [await post(groups, payload) for _ in range(self._outstanding)]:
                await receipt
                self.latencies_ns.append(clock() - due)
                self.done += 1
            due += self._every_ns

    async def _run_open(self, places: list[tuple[Client, tuple[GroupId, ...]]]) -> None:
        """Posts each message when it arrives; waits in the end until all are answered."""
        assert self._rate is not None
        payload, clock = self._payload, time.perf_counter_ns
        unanswered: set[asyncio.Task[None]] = set()

        async def send(due: int, client: Client, groups: tuple[GroupId, ...]) -> None:
            await (await client.post(groups, payload))
            self.latencies_ns.append(clock() - due)
            self.done += 1

        def arrive(due: int, place: int) -> None:
            task = asyncio.create_task(send(due, *places[place]))
            unanswered.add(task)
            task.add_done_callback(unanswered.discard)

        arrivals = PoissonArrivals(self._rate * len(places), len(places), self._rng, arrive)
        arrivals.start()
        while not self._stopping:
            await asyncio.sleep(0.02)
        arrivals.stop()
        await asyncio.gather(*unanswered)

    async def _count(
        self, seconds: float, tasks: Sequence[asyncio.Task[None]], cpus_s: Callable[[], tuple[float, float]]
    ) -> None:
        end = time.perf_counter() + seconds
        before = (time.perf_counter(), self.done, *cpus_s())
        # A timer may end a little early; the remainder is not a window.
        while (left := end - time.perf_counter()) > WINDOW_S / 2 or not self.windows:
            await self._wait_or_fail(left if left < 2 * WINDOW_S else WINDOW_S, tasks)
            after = (time.perf_counter(), self.done, *cpus_s())
            at, done, replicas_s, clients_s = (b - a for a, b in zip(before, after, strict=True))
            self.windows.append(Window(at, int(done), replicas_s, clients_s))
            before = after

    async def _wait_or_fail(self, seconds: float, tasks: Sequence[asyncio.Task[None]]) -> None:
        """Waits for some seconds; raises the error of a task that ended."""
        ended, _ = await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_EXCEPTION)
        for task in ended:
            task.result()


class DeliveredPrefix(NamedTuple):
    """Messages that a replica delivered, from the first position that it still holds."""

    first: int
    messages: list[tuple[MessageId, tuple[GroupId, ...]]]


async def read_delivered(
    rpc: RpcClient, groups: Mapping[GroupId, Iterable[ProcessId]]
) -> dict[ProcessId, DeliveredPrefix]:
    """Waits until the members of each group are at the same position; reads the deliveries that each still holds."""
    members = [(member, group) for group, some in groups.items() for member in some]
    await _wait_until_settled(rpc, groups)
    return {member: await _read_prefix(rpc, member, group) for member, group in members}


async def _wait_until_settled(rpc: RpcClient, groups: Mapping[GroupId, Iterable[ProcessId]]) -> None:
    deadline = time.monotonic() + SETTLE_S
    before: dict[GroupId, set[int]] = {}
    while True:
        now: dict[GroupId, set[int]] = {}
        for group, members in groups.items():
            now[group] = {(await _fetch_progress(rpc, member)).next for member in members}
        if now == before and all(len(positions) == 1 for positions in now.values()):
            return
        if time.monotonic() > deadline:
            raise CannotTellError(
                f"after {SETTLE_S:g} s the members of a group are still at different positions: {now}"
            )
        before = now
        await asyncio.sleep(0.1)


async def _fetch_progress(rpc: RpcClient, member: ProcessId) -> Progress:
    answer = await rpc.request(member, GetProgress())
    assert isinstance(answer, Progress), f"process {member} replied {answer!r}"
    return answer


async def _read_prefix(rpc: RpcClient, member: ProcessId, group: GroupId) -> DeliveredPrefix:
    progress = await _fetch_progress(rpc, member)
    messages: list[tuple[MessageId, tuple[GroupId, ...]]] = []
    if progress.next == progress.first:
        return DeliveredPrefix(progress.first, messages)
    call = await rpc.call(member, Subscribe(group, progress.first))
    try:
        while len(messages) < progress.next - progress.first:
            answer = await call.reply()
            if isinstance(answer, PositionExpired):
                raise CannotTellError(f"process {member} no longer holds positions before {answer.first}")
            if isinstance(answer, Deliveries):
                messages += [(message.id, message.destinations) for message in answer.messages]
    finally:
        call.close()
    return DeliveredPrefix(progress.first, messages)
