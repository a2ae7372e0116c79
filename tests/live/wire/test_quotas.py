"""Quotas of clients: one name cannot take all places of a node, and operators are answered when it is full."""

import asyncio
from pathlib import Path

import pytest

from amcast.cluster import connect, run_replica
from amcast.kernel.errors import UsageError
from amcast.kernel.topology import Topology
from amcast.live.errors import RefusedError
from amcast.live.limits import Limits
from amcast.live.rpc.client import NoAnswerError, RpcClient
from amcast.live.rpc.messages import Deliveries, GetNodeStatus, GetProgress, NodeStatus, Progress, Subscribe
from amcast.live.wire.quotas import BURST_S, REQUEST_PLACES, ClientQuotas
from tests.live.cluster import cluster, run
from tests.live.secure_cluster import replicas, secured, until


def test_name_at_its_limit_leaves_places_for_others() -> None:
    quotas = ClientQuotas(Limits(client_connections=3, peers=10))
    closes = [quotas.open_connection("client a") for _ in range(3)]
    with pytest.raises(RefusedError, match=r"client a has 3 connections; limits.client_connections allows no more"):
        quotas.open_connection("client a")
    quotas.open_connection("client b")
    closes.pop()()
    quotas.open_connection("client a")
    assert quotas.refused == 1
    assert quotas.connections == 4


def test_subscriptions_of_a_name_are_limited() -> None:
    quotas = ClientQuotas(Limits(client_subscriptions=2))
    ends = [quotas.open_subscription("client a") for _ in range(2)]
    with pytest.raises(RefusedError, match=r"limits.client_subscriptions"):
        quotas.open_subscription("client a")
    ends[0]()
    quotas.open_subscription("client a")


def test_rate_of_requests_is_limited_by_name_and_recovers() -> None:
    quotas = ClientQuotas(Limits(client_requests_per_s=10))
    for _ in range(10 * BURST_S):
        quotas.count_request("client a", now=100.0)
    with pytest.raises(RefusedError, match="client a makes more than 10 requests per second"):
        quotas.count_request("client a", now=100.0)
    quotas.count_request("client b", now=100.0)
    quotas.count_request("client a", now=100.2)
    quotas.count_request("client a", now=100.2)
    with pytest.raises(RefusedError):
        quotas.count_request("client a", now=100.2)


def test_rates_of_many_addresses_cost_bounded_memory() -> None:
    quotas = ClientQuotas(Limits())
    for number in range(50_000):
        quotas.count_request(f"10.0.{number // 256}.{number % 256}", now=number * 0.01)
    assert len(quotas._buckets) <= 10_000
    quotas = ClientQuotas(Limits())
    for number in range(25_000):
        quotas.count_request(f"all at once {number}", now=1.0)
        assert len(quotas._buckets) <= 10_000


def test_name_that_sends_too_fast_waits_until_its_average_is_below_the_limit() -> None:
    quotas = ClientQuotas(Limits(client_multicasts_per_s=100))
    assert quotas.limit_multicasts({}, 10.0) == frozenset()
    assert quotas.limit_multicasts({"a": 90, "b": 50}, 10.5) == frozenset()
    assert quotas.limit_multicasts({"a": 200, "b": 50}, 11.0) == {"a"}
    assert quotas.limit_multicasts({"b": 50}, 11.5) == {"a"}
    assert quotas.limit_multicasts({}, 13.0) == frozenset()
    assert quotas.limit_multicasts({}, 14.0) == frozenset()
    assert quotas._multicasts_left == {}, "quiet names are forgotten"


@pytest.mark.live
def test_client_that_sends_too_fast_is_slowed_down_and_loses_nothing() -> None:
    """The clock of the quota is the test's: 300 multicasts at once are too many at a limit of 100 per second."""

    async def main() -> None:
        limits = Limits(client_multicasts_per_s=100, heartbeat_s=60.0, heartbeat_timeout_s=600.0)
        async with cluster(Topology.grid(1, 1), limits) as made, made.client(batches=False) as client:
            network = made.hosts[0].network
            network._limit_rates(0.0)
            await asyncio.gather(*(client.multicast({0}, b"x") for _ in range(300)))
            network._limit_rates(0.5)
            assert network.names_over_rate == {"127.0.0.1"}
            waiting = asyncio.create_task(client.multicast({0}, b"later"))
            await asyncio.sleep(0.2)
            assert not waiting.done()
            network._limit_rates(10.0)
            assert not network.names_over_rate
            await waiting
            assert len(made.delivered[0]) == 301

    run(main())


def test_name_with_too_many_unordered_bytes_waits_until_half_are_left() -> None:
    quotas = ClientQuotas(Limits(client_unordered_bytes=100))
    assert quotas.limit_unordered({"a": 100, "b": 20}) == (frozenset(), 0)
    assert quotas.limit_unordered({"a": 130, "b": 20}) == ({"a"}, 30)
    assert quotas.limit_unordered({"a": 51, "b": 100}) == ({"a"}, 0)
    assert quotas.limit_unordered({"a": 50, "b": 100}) == (frozenset(), 0)
    assert quotas.limit_unordered({"a": 51}) == (frozenset(), 0)


def test_full_node_has_places_for_short_requests() -> None:
    quotas = ClientQuotas(Limits())
    quotas.limit_total(5, "the limit of 64 open files")
    for _ in range(5):
        quotas.open_connection("client a")
    with pytest.raises(RefusedError, match="5 client connections are open; the limit of 64 open files allows no more"):
        quotas.open_connection("client b")
    closes = [quotas.open_connection("client ops", is_short=True) for _ in range(REQUEST_PLACES)]
    with pytest.raises(RefusedError):
        quotas.open_connection("client ops", is_short=True)
    for close in closes:
        close()
    quotas.open_connection("client ops", is_short=True)
    assert quotas.connections == 5


@pytest.mark.parametrize(
    "name",
    [
        "client_connections",
        "client_subscriptions",
        "client_requests_per_s",
        "client_multicasts_per_s",
        "client_unordered_bytes",
    ],
)
def test_quota_of_zero_is_an_error(name: str) -> None:
    with pytest.raises(UsageError, match=f"limits.{name} = 0; expected more than 0"):
        Limits(**{name: 0})


@pytest.mark.live
def test_subscriber_over_its_quota_reads_which_limit_it_reached() -> None:
    async def main() -> None:
        limits = Limits(client_subscriptions=3, heartbeat_s=0.05)
        async with cluster(Topology.grid(1, 1), limits) as made, made.client() as client:
            rpc = RpcClient("amcast", made.addresses, limits)
            calls = [await rpc.call(0, Subscribe(0, 0)) for _ in range(3)]
            await client.multicast({0}, b"x")
            for call in calls:
                assert isinstance(await call.reply(), Deliveries)
            refused = await rpc.call(0, Subscribe(0, 0))
            with pytest.raises(NoAnswerError, match=r"127.0.0.1 has 3 subscriptions; limits.client_subscriptions"):
                await refused.reply()
            assert isinstance(await rpc.request(0, GetNodeStatus()), NodeStatus)
            assert made.hosts[0].network.quotas.refused == 1
            calls.pop().close()
            async with asyncio.timeout(5):
                while made.replicas[0].recent.subscribers > 2:
                    await asyncio.sleep(0.01)
            again = await rpc.call(0, Subscribe(0, 0))
            assert isinstance(await again.reply(), Deliveries)
            for call in (*calls, again):
                call.close()

    run(main())


@pytest.mark.live
def test_one_certificate_cannot_take_the_places_of_another(tmp_path: Path) -> None:
    """Connections of guest fill its quota; till connects and multicasts, and nodes are not counted."""
    limits = {"client_connections": 4, "client_subscriptions": 4}
    made = secured(tmp_path, limits=limits)

    async def main() -> None:
        async with replicas(made) as running:
            await running[0].host.network.wait_connected({1}, 10)
            guest = RpcClient(made.name, made.addresses, made.limits, made.client_transport("guest"))
            held = [await guest.call(1, Subscribe(1, 0)) for _ in range(4)]
            async with asyncio.timeout(10):
                while running[1].runtime.recent.subscribers < 4:
                    await asyncio.sleep(0.01)
            with pytest.raises(NoAnswerError, match="client guest has 4 connections"):
                await guest.request(1, GetProgress())
            node = RpcClient(made.name, made.addresses, made.limits, made.node_transport("orders/1"))
            for _ in range(6):
                assert isinstance(await node.request(1, GetProgress()), Progress)
            async with connect(made, client="till") as till:
                await till.multicast({"orders", "stock"}, b"x")
            for call in held:
                call.close()

    run(main(), timeout_s=60)


@pytest.mark.live
def test_name_whose_bytes_are_not_ordered_leaves_room_for_others(tmp_path: Path) -> None:
    """A destination is down. The node reads no more from guest, which waits for it, and still reads from till."""
    limits = {"client_unordered_bytes": 10_000, "unordered_bytes": 40_000}
    clients = {name: {"groups": "all"} for name in ("till", "guest")}
    made = secured(tmp_path, clients=clients, limits=limits, durability="os")

    async def main() -> None:
        async with replicas(made) as running:
            gateway = running[0].host
            await running[1].close()
            async with connect(made, client="guest", batches=False) as guest, connect(made, client="till") as till:
                waiting = []
                for _ in range(60):
                    waiting.append(asyncio.create_task(guest.multicast({"orders", "stock"}, bytes(1000))))
                    await asyncio.sleep(0.001)
                await until(lambda: gateway.network.names_over_bytes == {"client guest"})
                waiting.append(asyncio.create_task(till.multicast({"orders", "stock"}, b"from till")))
                await until(lambda: till.me in gateway.process.unanswered_bytes_by_client())
                counts = gateway.process.unanswered_bytes_by_client()
                assert counts[guest.me] > 10_000
                assert not gateway.network.are_clients_paused
                async with run_replica(made, "stock/1"):
                    await asyncio.gather(*waiting)
                assert not gateway.network.names_over_bytes

    run(main(), timeout_s=60)
