"""Named subscribers resume where they were, through restarts of readers and of all servers."""

from pathlib import Path

import pytest

from amcast.cluster import connect, local_cluster
from amcast.kernel.errors import CannotTellError, UsageError
from amcast.live.config.cluster import Cluster, read_cluster
from amcast.live.errors import RefusedError
from amcast.live.host.recent_deliveries import MissedDeliveriesError
from amcast.live.operations.local_cluster import LocalCluster, format_local_config
from amcast.live.storage import cursors
from amcast.live.storage.cursors import Cursor, Cursors
from tests.live.cluster import run

pytestmark = pytest.mark.live


def make_cluster(folder: Path, **fields: object) -> Cluster:
    (folder / "cluster.toml").write_text(format_local_config({"orders": 3}, **fields))
    return read_cluster(folder / "cluster.toml")


async def read(cluster: Cluster, name: str, count: int, acknowledged: int) -> list[bytes]:
    """Reads so many payloads as a new program, and acknowledges the first ones of them."""
    payloads = []
    async with connect(cluster, connect_s=30) as client, client.deliveries("orders", name=name) as orders:
        for number in range(count):
            delivery = await orders.read(30)
            assert delivery is not None
            payloads.append(delivery.payload)
            if number < acknowledged:
                await orders.acknowledge(delivery)
    return payloads


async def write(cluster: Cluster, *payloads: bytes) -> None:
    async with connect(cluster, connect_s=30) as client:
        for payload in payloads:
            await client.multicast("orders", payload)


def test_a_reader_resumes_behind_what_it_acknowledged_after_kill_9_of_all_nodes(tmp_path: Path) -> None:
    cluster = make_cluster(tmp_path, limits={"retained_bytes": 1 << 24})

    async def main(running: LocalCluster) -> None:
        await write(cluster, b"before")
        assert await read(cluster, "billing", 0, 0) == [], "the first time, it begins at the current position"
        await write(cluster, b"1", b"2", b"3", b"4")
        assert await read(cluster, "billing", 3, 2) == [b"1", b"2", b"3"]
        assert await read(cluster, "billing", 1, 0) == [b"3"], "what was not acknowledged comes again"
        running.kill(*cluster.nodes())
        running.start(*cluster.nodes())
        running.kill("orders/1")
        assert await read(cluster, "billing", 2, 2) == [b"3", b"4"], "a majority of the group knows"
        running.start("orders/1")
        await write(cluster, b"5")
        assert await read(cluster, "billing", 1, 1) == [b"5"]

    with local_cluster(cluster) as running:
        run(main(running), 90)


def test_payloads_of_a_batch_are_acknowledged_one_by_one_and_a_lost_place_is_an_error(tmp_path: Path) -> None:
    cluster = make_cluster(tmp_path, durability="memory", limits={"recent_bytes": 65536})

    async def main() -> None:
        await read(cluster, "billing", 0, 0)
        async with connect(cluster) as client:
            for receipt in [await client.post("orders", payload) for payload in (b"1", b"2", b"3")]:
                await receipt
            assert await read(cluster, "billing", 2, 1) == [b"1", b"2"]
            assert await read(cluster, "billing", 2, 2) == [b"2", b"3"]
            for _ in range(40):
                await client.multicast("orders", bytes(10_000))
            with pytest.raises(
                MissedDeliveriesError, match="are no longer kept; the oldest kept is at position"
            ) as missed:
                await read(cluster, "billing", 1, 0)
            assert missed.value.first > missed.value.position
            with pytest.raises(UsageError, match="more than one of since, after and name are given"):
                client.deliveries("orders", name="billing", since=3)
            async with client.deliveries("orders") as nameless:
                await client.multicast("orders", b"x")
                delivery = await nameless.read(10)
                assert delivery is not None
                with pytest.raises(UsageError, match="the subscription has no name"):
                    await nameless.acknowledge(delivery)

    with local_cluster(cluster):
        run(main(), 60)


def test_cursors_are_kept_on_disk_never_go_back_and_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cursors, "MAX_CURSORS", 2)

    async def main() -> None:
        kept = Cursors(tmp_path)
        assert await kept.save("billing", Cursor(5)) == Cursor(5)
        assert await kept.save("billing", Cursor(4, 2)) == Cursor(5)
        assert await kept.save("billing", Cursor(5, 0)) == Cursor(5, 0)
        assert Cursors(tmp_path).find("billing") == Cursor(5, 0)
        await kept.save("audit", Cursor(0))
        with pytest.raises(RefusedError, match="2 subscribers have cursors here; expected one of them, not 'third'"):
            await kept.save("third", Cursor(0))
        await kept.remove("audit")
        await kept.save("third", Cursor(0))
        assert Cursors(tmp_path).find("audit") is None
        (tmp_path / cursors.FILE).write_bytes(b"damaged")
        with pytest.raises((UsageError, CannotTellError), match="damaged"):
            Cursors(tmp_path)

    run(main(), 10)
