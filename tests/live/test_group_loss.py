"""A whole group of an A_dt cluster is killed; the others continue, and receipts name the lost group."""

import asyncio
from pathlib import Path

import pytest

from amcast.check.judge import judge
from amcast.cluster import connect, local_cluster
from amcast.live.client.client import Client
from amcast.live.client.multicaster import Receipt
from amcast.live.config.cluster import Cluster, read_cluster
from amcast.live.operations.local_cluster import LocalCluster, format_local_config
from amcast.trace.meta import Meta, RunClaims
from amcast.trace.run import read_run
from amcast.trace.run_folder import FolderRecorder
from tests.live.cluster import run

pytestmark = [pytest.mark.live, pytest.mark.slow]

GROUPS = {"orders": 3, "stock": 3, "users": 3}
LOST = "stock"
SETS = (("orders", "stock"), ("orders", "users"), ("stock", "users"), ("orders", "stock", "users"), ("users",))
RETRY_NS = (150_000_000, 300_000_000)


async def talk(client: Client, count: int) -> list[Receipt]:
    """Messages to every set of groups, some to each set concurrently, one round after the other."""
    receipts: list[Receipt] = []
    for _ in range(count):
        receipts += await asyncio.gather(*(client.multicast(names, b"x", timeout_s=60) for names in SETS))
    return receipts


async def played(cluster: Cluster, running: LocalCluster, recorder: FolderRecorder) -> list[Receipt]:
    """Runs traffic and kills `stock` in the middle of it; a client that connects later reaches the others, too."""
    async with connect(cluster, me=100, recorder=recorder, connect_s=60) as client:
        before = await talk(client, 8)
        assert all(receipt.absent == () for receipt in before)
        talking = asyncio.create_task(talk(client, 4))
        await asyncio.sleep(0.02)
        await asyncio.to_thread(running.kill, "stock/1", "stock/2", "stock/3")
        during = await talking
        lost_alone = await client.multicast(("stock",), b"x", timeout_s=60)
        assert lost_alone.absent == (LOST,), "nobody is there who could deliver it"
    async with connect(cluster, me=101, recorder=recorder, connect_s=1.0) as late:
        after = await talk(late, 2)
    for receipt in after:
        assert receipt.absent == ((LOST,) if LOST in receipt.destinations else ())
    await asyncio.to_thread(running.wait_until_settled)
    return before + during + after


def test_remaining_groups_deliver_when_a_group_is_killed(tmp_path: Path) -> None:
    text = format_local_config(
        GROUPS,
        protocol="a-dt",
        durability="memory",
        options={"retry_ns": list(RETRY_NS)},
        trace={"mode": "deliveries", "folder": "run"},
    )
    (tmp_path / "cluster.toml").write_text(text)
    cluster = read_cluster(tmp_path / "cluster.toml")
    meta = Meta(run=cluster.run, claims=RunClaims(complete=True, exactly_once=True))
    receipts: list[Receipt] = []
    with FolderRecorder(cluster.trace_folder, meta, packets=False, writer="clients") as recorder:
        with local_cluster(cluster) as running:

            async def play() -> None:
                receipts.extend(await played(cluster, running, recorder))

            run(play(), 240)
        running.record_dead(recorder)
    found = read_run(cluster.trace_folder)
    report = judge(found)
    assert report.verdict == "holds", "\n".join(report.story())
    table = found.deliveries
    names = cluster.topology.names
    delivered = {(names[group], message) for group, message in zip(table["group"], table["message"], strict=True)}
    for receipt in receipts:
        for group in set(receipt.destinations) - {LOST}:  # those who were killed did not record their last deliveries
            assert (group, receipt.message) in delivered, receipt
    crashed = dict(zip(found.processes["process"], found.processes["crashed_at_ns"], strict=True))
    assert [process for process, at_ns in sorted(crashed.items()) if at_ns is not None] == [3, 4, 5]
