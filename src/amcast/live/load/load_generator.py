"""A load for measurements, and what the replicas delivered under it, read back from them.

Every connection keeps a number of messages on their way; when one is answered the next is sent. Or it sends so many of
them together, at a rate: then a message that could not be sent in time, because an earlier one was not answered, is
late from the time at which it was due. What is counted is taken in windows of half a second, because a machine that
does other things as well disturbs some and not others.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from amcast.kernel.errors import CannotTellError
from amcast.kernel.ids import GroupId, MessageId, ProcessId
from amcast.live.client.client import Client
from amcast.live.rpc.client import RpcClient
from amcast.live.rpc.server import Deliveries, GetProgress, PositionExpired, Progress, Subscribe

WINDOW_S: Final = 0.5
SETTLE_S: Final = 30.0
"""How long the replicas may take to deliver everywhere what was answered."""
CONNECTS_AT_ONCE: Final = 32
"""Connections that are opened at the same time."""


class Window(NamedTuple):
    """What happened in a part of a second."""

    seconds: float
    multicasts: int
    replicas_s: float
    """CPU that all replicas used."""
    clients_s: float
    """CPU that the process with the clients used."""


class LoadGenerator:
    """A closed loop over many connections; with a rate (messages per second and connection), a paced one."""

    def __init__(self, payload: bytes, outstanding: int, rate: float | None = None) -> None:
        self.done = 0
        self.latencies_ns: list[int] = []
        self.windows: list[Window] = []
        self._payload = payload
        self._outstanding = outstanding
        self._every_ns = 0 if rate is None else round(1e9 * outstanding / rate)
        """From one time to the next at which a connection sends; 0: whenever it is answered."""
        self._stopping = False

    async def run(
        self,
        clients: Sequence[Client],
        sets: Sequence[tuple[GroupId, ...]],
        warm_s: float,
        seconds: float,
        cpus_s: Callable[[], tuple[float, float]],
    ) -> None:
        """Warm up, count for some seconds, let everything be answered. The n-th client goes to the n-th set."""
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
        """What loads the cluster; connections with a rate take turns."""
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

    async def _count(
        self, seconds: float, tasks: Sequence[asyncio.Task[None]], cpus_s: Callable[[], tuple[float, float]]
    ) -> None:
        end = time.perf_counter() + seconds
        before = (time.perf_counter(), self.done, *cpus_s())
        # Timers may end a little early: what is left then is no window.
        while (left := end - time.perf_counter()) > WINDOW_S / 2 or not self.windows:
            await self._wait_or_fail(left if left < 2 * WINDOW_S else WINDOW_S, tasks)
            after = (time.perf_counter(), self.done, *cpus_s())
            at, done, replicas_s, clients_s = (b - a for a, b in zip(before, after, strict=True))
            self.windows.append(Window(at, int(done), replicas_s, clients_s))
            before = after

    async def _wait_or_fail(self, seconds: float, tasks: Sequence[asyncio.Task[None]]) -> None:
        """They only end when something is wrong."""
        ended, _ = await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_EXCEPTION)
        for task in ended:
            task.result()


class DeliveredPrefix(NamedTuple):
    """What a replica delivered, from the first position that it still keeps."""

    first: int
    messages: list[tuple[MessageId, tuple[GroupId, ...]]]


async def read_delivered(
    asker: RpcClient, groups: Mapping[GroupId, Iterable[ProcessId]]
) -> dict[ProcessId, DeliveredPrefix]:
    """Wait until the members of each group stand at the same position, and read what each of them keeps."""
    members = [(member, group) for group, some in groups.items() for member in some]
    await _wait_until_settled(asker, groups)
    return {member: await _read_prefix(asker, member, group) for member, group in members}


async def _wait_until_settled(asker: RpcClient, groups: Mapping[GroupId, Iterable[ProcessId]]) -> None:
    deadline = time.monotonic() + SETTLE_S
    before: dict[GroupId, set[int]] = {}
    while True:
        now: dict[GroupId, set[int]] = {}
        for group, members in groups.items():
            now[group] = {(await _fetch_progress(asker, member)).next for member in members}
        if now == before and all(len(positions) == 1 for positions in now.values()):
            return
        if time.monotonic() > deadline:
            raise CannotTellError(
                f"after {SETTLE_S:g} s the members of a group still stand at different positions: {now}"
            )
        before = now
        await asyncio.sleep(0.1)


async def _fetch_progress(asker: RpcClient, member: ProcessId) -> Progress:
    answer = await asker.request(member, GetProgress())
    assert isinstance(answer, Progress), f"process {member} answers {answer!r}"
    return answer


async def _read_prefix(asker: RpcClient, member: ProcessId, group: GroupId) -> DeliveredPrefix:
    stands = await _fetch_progress(asker, member)
    messages: list[tuple[MessageId, tuple[GroupId, ...]]] = []
    if stands.next == stands.first:
        return DeliveredPrefix(stands.first, messages)
    conversation = await asker.call(member, Subscribe(group, stands.first))
    try:
        while len(messages) < stands.next - stands.first:
            answer = await conversation.reply()
            if isinstance(answer, PositionExpired):
                raise CannotTellError(f"process {member} keeps nothing before position {answer.first} any more")
            if isinstance(answer, Deliveries):
                messages += [(message.id, message.destinations) for message in answer.messages]
    finally:
        conversation.close()
    return DeliveredPrefix(stands.first, messages)
