"""Followers deliver early although deferrable bodies are held back for long: their primary announces its deliveries."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from amcast.cluster import connect, run_replica
from amcast.live.client.client import Client
from amcast.live.config.cluster import read_cluster
from amcast.live.operations.local_cluster import format_local_config
from tests.live.cluster import run

pytestmark = pytest.mark.live

PATIENCE_S = 20
LIMITS = {
    "heartbeat_s": 0.05, "heartbeat_timeout_s": 2.0, "reconnect_min_s": 0.01, "reconnect_max_s": 0.1,
    "follower_delay_us": PATIENCE_S * 1_000_000,
}  # fmt: skip
BOTH = {"orders", "stock"}


async def one_by_one(client: Client) -> int:
    for number in range(10):
        await client.multicast(BOTH, b"%d" % number)
    return 10


async def many_at_once(client: Client) -> int:
    for turn in range(3):
        await asyncio.gather(*(client.multicast(BOTH, b"%d.%d" % (turn, number)) for number in range(40)))
    return 120


@pytest.mark.parametrize("talk", [one_by_one, many_at_once])
@pytest.mark.parametrize("replicas", [3, 5])
def test_followers_deliver_before_deferred_bodies_arrive(tmp_path: Path, talk: object, replicas: int) -> None:
    minute_ns = 60_000_000_000
    settings = {
        "protocol": "primcast",
        "durability": "memory",
        "limits": LIMITS,
        "options": {"repair_ns": [minute_ns, minute_ns]},  # who misses something asks for it after that time
    }
    (tmp_path / "cluster.toml").write_text(format_local_config({"orders": replicas, "stock": replicas}, **settings))
    cluster = read_cluster(tmp_path / "cluster.toml")
    rows: dict[str, list[bytes]] = {name: [] for name in cluster.nodes()}

    async def main() -> None:
        async with AsyncExitStack() as stack:
            for name in cluster.nodes():
                row = rows[name]
                await stack.enter_async_context(
                    run_replica(cluster, name, lambda delivery, row=row: row.append(delivery.payload))
                )
            client = await stack.enter_async_context(connect(cluster))
            count = await talk(client)  # type: ignore[operator]
            async with asyncio.timeout(PATIENCE_S / 2):
                while min(map(len, rows.values())) < count:
                    await asyncio.sleep(0.01)
            first, *others = rows.values()
            assert len(first) == len(set(first)) == count
            assert all(row == first for row in others), "all destinations are the same, and so is the order"

    run(main(), timeout_s=60)
