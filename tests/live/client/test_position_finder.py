"""Receipts have the positions of their messages, if the caller asks for them."""

import asyncio
from pathlib import Path

import pytest

import amcast
from amcast.cluster import connect, local_cluster, subscribe
from amcast.kernel.bundle import make_bundle
from amcast.kernel.message import Message
from amcast.live.config.cluster import Cluster, read_cluster
from amcast.live.host.recent_deliveries import RecentDeliveries
from amcast.live.operations.local_cluster import format_local_config
from amcast.live.rpc.client import NoAnswerError, RpcClient
from amcast.live.rpc.messages import FindPosition, FoundPosition
from tests.live.cluster import run
from tests.live.secure_cluster import replicas, secured

DESTINATIONS = (("orders", "stock"), ("orders",), ("stock",))


async def read_positions(cluster: Cluster, group: str, count: int) -> dict[int, int]:
    """The positions of so many messages of a group, as a subscriber reads them."""
    found: dict[int, int] = {}
    async with subscribe(cluster, group, since=0) as deliveries:
        while len(found) < count:
            delivery = await deliveries.read(timeout_s=20)
            assert delivery is not None
            found[delivery.message] = delivery.position
    return found


@pytest.mark.live
@pytest.mark.slow
def test_positions_are_those_of_deliveries_through_batches_bundles_and_a_leader_change(tmp_path: Path) -> None:
    file = tmp_path / "cluster.toml"
    file.write_text(format_local_config({"orders": 3, "stock": 3}, protocol="primcast", durability="os"))
    cluster = read_cluster(file)
    receipts: list[amcast.Receipt] = []

    async def use(client: amcast.Client, number: int, count: int) -> None:
        for turn in range(count):
            groups = DESTINATIONS[(number + turn) % 3]
            receipts.append(await client.multicast(groups, b"x", timeout_s=60, positions=True))

    async def main() -> None:
        async with connect(cluster) as one, connect(cluster) as two, connect(cluster) as three:
            clients = (one, two, three)
            await asyncio.gather(*(use(clients[number % 3], number, 10) for number in range(9)))
            talking = asyncio.gather(*(use(clients[number % 3], number, 10) for number in range(9)))
            await asyncio.sleep(0.05)
            await asyncio.to_thread(running.kill, "stock/1")
            await talking
            plain = await one.multicast("orders", b"x")
            assert plain.positions == {}, "nobody pays for positions that he does not ask for"
            receipts.append(plain)
        for group in ("orders", "stock"):
            messages = {receipt.message for receipt in receipts if group in receipt.destinations}
            read = await read_positions(cluster, group, len(messages))
            for receipt in receipts[:-1]:
                assert set(receipt.positions) == set(receipt.destinations)
                if group in receipt.destinations:
                    assert receipt.positions[group] == read[receipt.message], receipt
        assert len({receipt.message for receipt in receipts}) < len(receipts), "some messages shared a batch"

    with local_cluster(cluster) as running:
        run(main(), timeout_s=90)


@pytest.mark.live
def test_position_that_no_replica_keeps_is_missing(tmp_path: Path) -> None:
    file = tmp_path / "cluster.toml"
    limits = {"recent_bytes": 4096, "heartbeat_s": 0.1}
    file.write_text(format_local_config({"orders": 1, "stock": 1}, protocol="primcast", limits=limits))
    cluster = read_cluster(file)

    async def main() -> None:
        rpc = RpcClient(cluster.name, cluster.addresses, cluster.limits)
        async with connect(cluster) as client:
            first = await client.multicast({"orders", "stock"}, b"first", positions=True)
            assert first.positions == {"orders": 0, "stock": 0}
            for _ in range(30):
                last = await client.multicast("orders", bytes(1000))
            assert await rpc.request(0, FindPosition(last.message)) == FoundPosition(30)
            assert await rpc.request(0, FindPosition(first.message)) == FoundPosition(None)
            finder = client.multicaster.position_finder
            assert finder is not None
            assert await finder.find(first.message, (0, 1), 5.0) == {"stock": 0}
            with pytest.raises(NoAnswerError, match="has not delivered message"):
                await rpc.request(0, FindPosition(last.message + 5))

    with local_cluster(cluster):
        run(main(), timeout_s=60)


@pytest.mark.live
def test_client_learns_positions_of_its_own_messages_only(tmp_path: Path) -> None:
    cluster = secured(tmp_path)

    async def main() -> None:
        till, guest = connect(cluster, client="till"), connect(cluster, client="guest")
        async with replicas(cluster), till, guest:
            receipt = await till.multicast({"orders", "stock"}, b"x", positions=True)
            assert receipt.positions == {"orders": 0, "stock": 0}
            finder = guest.multicaster.position_finder
            assert finder is not None
            assert await finder.find(receipt.message, (0, 1), 5.0) == {}
            own = await guest.multicast("stock", b"y", positions=True)
            assert own.positions == {"stock": 1}

    run(main(), timeout_s=30)


def test_search_finds_messages_of_bundles_and_others() -> None:
    def message(number: int) -> Message:
        return Message(number, 1, (0,), b"%d" % number)

    bundle = make_bundle(9, 0, (0,), [message(number) for number in (20, 21, 22)])
    recent = RecentDeliveries(1 << 20, lambda one: [message(number) for number in (20, 21, 22)])
    recent.add(0, message(10))
    assert recent.add_bundle(1, bundle, 3)
    recent.add(4, message(30))
    assert [recent.find(number) for number in (10, 20, 21, 22, 30, 40)] == [0, 1, 2, 3, 4, None]
    assert recent.find(20, since=4) is None
    assert recent.find(30, since=4) == 4
