"""The public functions: replicas inside a program, and clients with and without an event loop."""

import asyncio
import threading
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from amcast.cluster import cluster_spec, connect, connect_blocking, local_cluster, run_replica
from amcast.kernel.errors import CannotTellError, UsageError
from amcast.live.client_batch import Delivery
from amcast.live.config.cluster import read_cluster
from amcast.live.operations.local_cluster import format_local_config
from amcast.live.server.node import protocol_options
from tests.live.cluster import run

pytestmark = pytest.mark.live


def test_replicas_inside_a_program_deliver_in_one_order(tmp_path: Path) -> None:
    file = tmp_path / "cluster.toml"
    file.write_text(format_local_config({"orders": 1, "stock": 1}, protocol="skeen", durability="memory"))
    got: dict[str, list[Delivery]] = {"orders/1": [], "stock/1": []}

    async def main() -> None:
        async with AsyncExitStack() as stack:
            for name, deliveries in got.items():
                await stack.enter_async_context(run_replica(file, name, deliveries.append))
            client = await stack.enter_async_context(connect(file))
            jobs = [client.multicast({"orders", "stock"}, b"%d" % number) for number in range(50)]
            receipts = await asyncio.gather(*jobs)
        assert [(one.message, one.place) for one in got["orders/1"]] == sorted((r.message, r.place) for r in receipts)

    run(main())
    assert [one.payload for one in got["orders/1"]] == [b"%d" % number for number in range(50)]
    assert got["orders/1"] == got["stock/1"]


def test_threads_share_a_blocking_client(tmp_path: Path) -> None:
    file = tmp_path / "cluster.toml"
    file.write_text(format_local_config({"orders": 1, "stock": 1}, protocol="skeen", durability="memory"))
    cluster = read_cluster(file)
    with (
        pytest.raises(CannotTellError, match="no server gave this client a process id"),
        connect_blocking(cluster, connect_s=0.2),
    ):
        pass
    receipts = []
    with local_cluster(cluster), connect_blocking(cluster) as client:

        def talk() -> None:
            receipts.extend(client.multicast({"orders", "stock"}, b"x") for _ in range(20))

        threads = [threading.Thread(target=talk) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        with pytest.raises(UsageError, match="group 'nobody' does not exist"):
            client.multicast({"nobody"}, b"x")
    assert len({(receipt.message, receipt.place) for receipt in receipts}) == 80
    with pytest.raises(UsageError, match="not connected"):
        client.multicast({"orders"}, b"x")


def test_closing_a_client_fails_unanswered_messages_as_unknown(tmp_path: Path) -> None:
    file = tmp_path / "cluster.toml"
    file.write_text(format_local_config({"orders": 1}, protocol="skeen", durability="memory"))

    async def main() -> None:
        async with run_replica(file, "orders/1") as replica:
            async with connect(file) as client:
                replica.host.network.pause_reading(True)
                asking = asyncio.create_task(client.multicast({"orders"}, b"x"))
                await asyncio.sleep(0.05)
            replica.host.network.pause_reading(False)
            with pytest.raises(CannotTellError, match="the client was closed; the message may or may not be delivered"):
                await asking

    run(main())


@pytest.mark.parametrize(
    ("protocol", "durability", "trace", "records"),
    [
        ("primcast", "memory", "off", False),
        ("primcast", "memory", "deliveries", False),
        ("primcast", "memory", "full", None),
        ("primcast", "os", "off", None),
        ("whitebox", "memory", "off", None),
    ],
)
def test_memory_durability_disables_records(
    tmp_path: Path, protocol: str, durability: str, trace: str, records: bool | None
) -> None:
    file = tmp_path / "cluster.toml"
    settings = {"protocol": protocol, "durability": durability, "trace": {"mode": trace}}
    file.write_text(format_local_config({"orders": 3}, **settings))
    cluster = read_cluster(file)
    assert protocol_options(cluster, cluster_spec(cluster)).get("records") is records


def test_log_durability_without_records_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "cluster.toml"
    file.write_text(
        format_local_config({"orders": 3}, protocol="primcast", durability="fsync", options={"records": False})
    )
    cluster = read_cluster(file)
    with pytest.raises(UsageError, match=r"options\.records = false; expected true, or no such option, with .*'fsync'"):
        protocol_options(cluster, cluster_spec(cluster))
