"""A replicated cluster of real processes under traffic for fault tests, and the check of its trace."""

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, nullcontext, suppress
from pathlib import Path
from typing import Any

from amcast.check.judge import judge
from amcast.cluster import connect, local_cluster, subscribe
from amcast.kernel.errors import CannotTellError
from amcast.kernel.ids import sender_of
from amcast.live.client.client import Client
from amcast.live.config.cluster import Cluster, read_cluster
from amcast.live.host.recent_deliveries import MissedDeliveriesError
from amcast.live.operations.local_cluster import LocalCluster, format_local_config
from amcast.trace.meta import Meta, RunClaims
from amcast.trace.run import Run, read_run
from amcast.trace.run_folder import FolderRecorder
from tests.live.cluster import run

GROUPS: Mapping[str, int] = {"orders": 3, "stock": 3}
DESTINATIONS = (("orders", "stock"), ("orders",), ("stock",))
CLIENTS = (100, 101)
CAMPAIGN = "AMCAST_CAMPAIGN" in os.environ
"""Longer scenarios and every protocol: `make campaign` sets it."""
EVERYBODY = tuple(f"{group}/{place}" for group in GROUPS for place in (1, 2, 3))


class Scene:
    """Actions of a scenario on a cluster while several clients multicast one message after the other."""

    def __init__(self, cluster: Cluster, running: LocalCluster) -> None:
        self.cluster = cluster
        self.running = running
        self.acknowledged: list[int] = []
        self.to_orders: set[int] = set()
        """Acknowledged messages to orders."""
        self.payload = b"x"
        self.read: list[tuple[int, int]] = []
        """(position, message) of everything that a subscriber to orders read."""
        self._stopping = False

    async def use(self, client: Client, number: int) -> None:
        while not self._stopping:
            try:
                receipt = await client.multicast(DESTINATIONS[number % 3], self.payload, timeout_s=60)
            except CannotTellError:
                continue
            self.acknowledged.append(receipt.message)
            if "orders" in DESTINATIONS[number % 3]:
                self.to_orders.add(receipt.message)
            await asyncio.sleep(0.03)

    async def follow(self) -> None:
        """Subscribes from the first delivery on."""
        async with subscribe(self.cluster, "orders", since=0) as deliveries:
            async for delivery in deliveries:
                if delivery.place == 0:
                    self.read.append((delivery.position, delivery.message))

    async def followed(self, following: asyncio.Task[None]) -> None:
        """Waits until the subscriber read every acknowledged message to orders; raises what ended it before."""
        while not self.to_orders <= {message for _, message in self.read}:
            if following.done():
                following.result()
            await asyncio.sleep(0.05)

    async def more(self, count: int) -> None:
        """Waits until a number of further messages is acknowledged."""
        goal = len(self.acknowledged) + count * (5 if CAMPAIGN else 1)
        while len(self.acknowledged) < goal:
            self.running.check()
            await asyncio.sleep(0.01)

    async def logged(self, node: str, text: str) -> None:
        """Waits until the log of a node contains a text."""
        while text not in self.log(node):
            self.running.check()
            await asyncio.sleep(0.05)

    async def kill(self, *nodes: str) -> None:
        await self.do(lambda: self.running.kill(*nodes))

    async def start(self, *nodes: str) -> None:
        await self.do(lambda: self.running.start(*nodes))

    def silence(self) -> None:
        """Stops the traffic."""
        self._stopping = True

    async def do(self, act: Callable[[], object]) -> None:
        """Runs a blocking function beside the traffic."""
        await asyncio.get_running_loop().run_in_executor(None, act)

    def log(self, node: str) -> str:
        return (self.running.logs / f"{node.replace('/', '-')}.log").read_text()


Play = Callable[[Scene], Awaitable[None]]


def staged(
    folder: Path,
    play: Play,
    *,
    config: str | None = None,
    around: AbstractAsyncContextManager[Any] | None = None,
    skew: Path | None = None,
    reads_all: bool = False,
    timeout_s: float = 240,
    **fields: Any,
) -> Run:
    """Starts a cluster, runs traffic and the scenario, waits until it settles, stops; then checks P1 to P9 and all
    receipts."""
    file = folder / "cluster.toml"
    settings = {"protocol": "primcast", "durability": "os", "trace": {"mode": "deliveries", "folder": "run"}, **fields}
    file.write_text(config or format_local_config(GROUPS, **settings))
    cluster = read_cluster(file)
    meta = Meta(run=cluster.run, claims=RunClaims(complete=True, exactly_once=True))
    scenes: list[Scene] = []
    recorder = FolderRecorder(cluster.trace_folder, meta, packets=cluster.trace_mode == "full", writer="clients")
    with recorder:
        with local_cluster(cluster, skew=skew) as running:
            scenes.append(Scene(cluster, running))
            run(_played(scenes[0], play, recorder, around or nullcontext(), reads_all), timeout_s)
        running.record_dead(recorder)
    return judged(cluster, scenes[0])


async def _played(
    scene: Scene, play: Play, recorder: FolderRecorder, around: AbstractAsyncContextManager[Any], reads_all: bool
) -> None:
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(around)
        clients = [connect(scene.cluster, me=me, recorder=recorder, connect_s=60) for me in CLIENTS]
        one, two = [await stack.enter_async_context(client) for client in clients]
        tasks = [asyncio.create_task(scene.use(client, n)) for client in (one, two) for n in range(6)]
        following = asyncio.create_task(scene.follow())
        for task in (*tasks, following):
            stack.callback(task.cancel)  # else users of clients that are closed would try again for ever
        await scene.more(50)
        await play(scene)
        await scene.more(50)
        scene.silence()
        await asyncio.gather(*tasks)
        await scene.do(scene.running.wait_until_settled)
        if reads_all:
            await scene.followed(following)
        if not following.done():
            following.cancel()
        with suppress(asyncio.CancelledError, MissedDeliveriesError):
            await following


def judged(cluster: Cluster, scene: Scene) -> Run:
    """Checks the trace, and that it contains every acknowledged message."""
    found = read_run(cluster.trace_folder)
    report = judge(found)
    assert report.verdict == "holds", "\n".join(report.story())
    delivered = set(found.deliveries["message"])
    assert [message for message in scene.acknowledged if message not in delivered] == []
    assert len(scene.acknowledged) > 100
    rows = delivered_in_orders(found)
    message_at = {position: message for _, position, message in rows}
    assert len(message_at) > 10  # batches, each of up to a dozen messages
    hidden = hidden_positions(rows)
    last = scene.read[-1][0] if scene.read else -1
    assert [position for position, _ in scene.read] == [place for place in range(last + 1) if place not in hidden]
    assert [message_at[position] for position, _ in scene.read] == [message for _, message in scene.read]
    return found


def hidden_positions(rows: list[tuple[int, int, int]]) -> set[int]:
    """The positions that readers do not see: those of changes of members, and of markers of replicas that lost their
    memory. Everything that readers see is multicast by the clients of the scene."""
    return {position for _, position, message in rows if sender_of(message) not in CLIENTS}


def delivered_in_orders(found: Run) -> list[tuple[int, int, int]]:
    """(process, position, message) of all deliveries of group 0."""
    table = found.deliveries
    rows = zip(table["process"], table["group"], table["position"], table["message"], strict=True)
    return [(process, position, message) for process, group, position, message in rows if group == 0]
