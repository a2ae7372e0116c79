"""Lists of payloads: one receipt for all of them, in the order of the list."""

import asyncio
from pathlib import Path

import pytest

import amcast
from amcast.cluster import connect, connect_blocking, subscribe
from amcast.live.client_batch import MAX_BATCH_MESSAGES
from tests.live.cluster import run
from tests.live.secure_cluster import plain, replicas

pytestmark = pytest.mark.live


def test_list_of_payloads_is_delivered_in_its_order_with_one_receipt(tmp_path: Path) -> None:
    cluster = plain(tmp_path)
    payloads = [b"%d" % number for number in range(2 * MAX_BATCH_MESSAGES + 1)]

    async def main() -> None:
        async with replicas(cluster), connect(cluster) as client:
            earlier = await client.post({"orders", "stock"}, b"earlier")
            receipt = await client.multicast_many({"orders", "stock"}, iter(payloads))
            assert earlier.done(), "what was multicast earlier is ordered earlier"
            assert receipt.payloads == len(payloads)
            assert len(receipt.messages) == 3
            assert receipt.destinations == ("orders", "stock")
            assert client.multicaster.outstanding == 0
            for group in ("orders", "stock"):
                async with subscribe(cluster, group, since=0) as deliveries:
                    read = [await anext(deliveries) for _ in range(1 + len(payloads))]
                    assert [delivery.payload for delivery in read] == [b"earlier", *payloads]
                    assert list(dict.fromkeys(delivery.message for delivery in read[1:])) == list(receipt.messages)

    run(main())


def test_list_is_split_where_it_is_larger_than_a_message(tmp_path: Path) -> None:
    cluster = plain(tmp_path, limits={"message_bytes": 1000})

    def use() -> amcast.BatchReceipt:
        with connect_blocking(cluster) as client:
            return client.multicast_many("orders", [bytes(400)] * 5)

    async def main() -> None:
        async with replicas(cluster):
            receipt = await asyncio.to_thread(use)
        assert len(receipt.messages) == 3
        assert receipt.payloads == 5

    run(main())


def test_wrong_list_is_refused_as_a_whole(tmp_path: Path) -> None:
    cluster = plain(tmp_path)

    async def main() -> None:
        async with replicas(cluster), connect(cluster) as client:
            for payloads, reason in (
                ([], "payloads is empty"),
                (b"abc", "payloads of type bytes; expected a list"),
                ([b"good", "text"], "payload of type str; expected bytes; encode it first"),
                ([b"good", bytes(cluster.limits.message_bytes + 1)], "limits.message_bytes"),
            ):
                with pytest.raises(amcast.UsageError, match=reason):
                    await client.multicast_many("orders", payloads)  # type: ignore[arg-type]
            assert client.multicaster.outstanding == 0
            assert client.multicaster.sequence == 0, "nothing of a wrong list is sent"

    run(main())


def test_list_without_an_answer_may_or_may_not_be_delivered(tmp_path: Path) -> None:
    cluster = plain(tmp_path, {"orders": 3})

    async def main() -> None:
        async with replicas(cluster) as running, connect(cluster) as client:
            for replica in list(running.values())[1:]:
                await replica.close()
            with pytest.raises(amcast.DeliveryUnknownError, match="2 payloads to orders were not all answered"):
                await client.multicast_many("orders", [b"a", b"b"], timeout_s=0.3)

    run(main())
