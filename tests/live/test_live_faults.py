"""kill -9 against a replicated cluster of real processes: nothing acknowledged is lost, doubled or out of order."""

import asyncio
from pathlib import Path

import pytest
from live_cluster import run

from amcast.check.judge import judge
from amcast.live.client import Client
from amcast.live.config import Cluster, read_cluster
from amcast.live.launch import Launcher, local_config
from amcast.service import connect, launcher
from amcast.trace.folder import FolderRecorder
from amcast.trace.meta import Meta, RunClaims
from amcast.trace.run import read

pytestmark = [pytest.mark.live, pytest.mark.slow]

DESTINATIONS = (("orders", "stock"), ("orders",), ("stock",))
EVERYBODY = tuple(f"{group}/{place}" for group in ("orders", "stock") for place in (1, 2, 3))


class Users:
    """Some logical clients that multicast one message after the other, and keep every receipt."""

    def __init__(self) -> None:
        self.acknowledged: list[int] = []
        self.stopping = False

    async def use(self, client: Client, number: int) -> None:
        while not self.stopping:
            receipt = await client.multicast(DESTINATIONS[number % 3], b"%d" % number, timeout_s=60)
            self.acknowledged.append(receipt.message)
            await asyncio.sleep(0.01)

    async def more(self, count: int) -> None:
        """Wait until so many more messages are acknowledged."""
        goal = len(self.acknowledged) + count
        while len(self.acknowledged) < goal:
            await asyncio.sleep(0.01)


async def live_through(
    cluster: Cluster, running: Launcher, recorder: FolderRecorder, victims: tuple[str, ...]
) -> Users:
    """Talk, kill, talk on if a majority is left, bring back, talk."""
    users = Users()
    loop = asyncio.get_running_loop()
    async with connect(cluster, me=100, recorder=recorder) as one, connect(cluster, me=101, recorder=recorder) as two:
        tasks = [asyncio.create_task(users.use(client, n)) for client in (one, two) for n in range(6)]
        await users.more(100)
        await loop.run_in_executor(None, lambda: running.kill(*victims))
        if len(victims) < 2:
            await users.more(100)
        await loop.run_in_executor(None, lambda: running.start(*victims))
        await users.more(100)
        if cluster.durability == "memory":
            await caught_up(running, victims)
        users.stopping = True
        await asyncio.gather(*tasks)
        await asyncio.sleep(3.0)
    return users


async def caught_up(running: Launcher, victims: tuple[str, ...]) -> None:
    """A replica without memory has no vote and delivers nothing before it has a snapshot; it says so when it has."""
    for victim in victims:
        log = running.logs / f"{victim.replace('/', '-')}.log"
        while "installed a snapshot" not in log.read_text():
            await asyncio.sleep(0.1)


@pytest.mark.parametrize(
    ("durability", "victims"),
    [("memory", ("orders/1",)), ("os", ("orders/1",)), ("os", EVERYBODY), ("fsync", EVERYBODY)],
    ids=["memory-leader", "os-leader", "os-everybody", "fsync-everybody"],
)
def test_kill_nine_loses_nothing_acknowledged(tmp_path: Path, durability: str, victims: tuple[str, ...]) -> None:
    file = tmp_path / "cluster.toml"
    trace = {"mode": "deliveries", "folder": "run"}
    file.write_text(local_config({"orders": 3, "stock": 3}, protocol="primcast", durability=durability, trace=trace))
    cluster = read_cluster(file)
    meta = Meta(run=cluster.run, claims=RunClaims(complete=True, exactly_once=True))
    seen: list[Users] = []
    folder = FolderRecorder(cluster.trace_folder, meta, packets=False, writer="clients")
    with folder as recorder, launcher(cluster) as running:

        async def main() -> None:
            seen.append(await live_through(cluster, running, recorder, victims))

        run(main(), timeout_s=150)
    found = read(cluster.trace_folder)
    report = judge(found)
    assert report.verdict == "holds", "\n".join(report.story())
    delivered = set(found.deliveries["message"])
    assert [message for message in seen[0].acknowledged if message not in delivered] == []
