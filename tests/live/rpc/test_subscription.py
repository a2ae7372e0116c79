"""Subscriptions read a group's deliveries without gap or repetition, whatever replicas and readers do."""

import asyncio
from collections.abc import Iterable, Mapping
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from amcast.cluster import connect, connect_blocking, local_cluster, run_replica, subscribe
from amcast.kernel.errors import CannotTellError, UsageError
from amcast.kernel.ids import ProcessId
from amcast.kernel.message import Message
from amcast.live.client.client import Client
from amcast.live.client_batch import Delivery
from amcast.live.config.cluster import Cluster, read_cluster
from amcast.live.host.recent_deliveries import MissedDeliveriesError, RecentDeliveries
from amcast.live.operations.local_cluster import format_local_config
from amcast.live.rpc.client import RpcClient
from amcast.live.rpc.messages import Progress
from amcast.live.rpc.subscription import Subscription
from amcast.live.server.replica import Replica
from tests.live.cluster import run

pytestmark = pytest.mark.live

QUICK = {"heartbeat_s": 0.05, "heartbeat_timeout_s": 1.0, "reconnect_min_s": 0.01, "reconnect_max_s": 0.1}


def configured(folder: Path, **fields: object) -> Cluster:
    settings = {"protocol": "primcast", "durability": "memory", "limits": QUICK, **fields}
    (folder / "cluster.toml").write_text(format_local_config({"orders": 3}, **settings))
    return read_cluster(folder / "cluster.toml")


class Members:
    """The replicas of one group inside the test, which can stop and restart each."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.running: dict[str, Replica] = {}

    async def start(self, *names: str) -> None:
        for name in names:
            self.running[name] = run_replica(self.cluster, name)
            await self.running[name].__aenter__()

    async def stop(self, *names: str) -> None:
        for name in names:
            await self.running.pop(name).__aexit__(None, None, None)

    async def __aenter__(self) -> "Members":
        await self.start(*self.cluster.nodes())
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.stop(*self.running)


async def talk(client: Client, first: int, count: int) -> None:
    for number in range(first, first + count):
        await client.multicast({"orders"}, b"%d" % number)


async def read(subscription: Subscription, count: int) -> list[Delivery]:
    async with asyncio.timeout(20):
        return [await anext(subscription) for _ in range(count)]


def numbers(deliveries: list[Delivery]) -> list[int]:
    return [int(delivery.payload) for delivery in deliveries]


def test_subscription_starts_at_current_or_given_position(tmp_path: Path) -> None:
    async def main() -> None:
        cluster = configured(tmp_path)
        async with Members(cluster), connect(cluster) as client:
            await talk(client, 0, 20)
            async with client.deliveries("orders") as now:
                await talk(client, 20, 10)
                assert numbers(await read(now, 10)) == list(range(20, 30))
            everything = await read(client.deliveries("orders", since=0), 30)
            assert numbers(everything) == list(range(30))
            assert [delivery.position for delivery in everything] == sorted(d.position for d in everything)
            rest = await read(subscribe(cluster, "orders", after=everything[11]), 18)
            assert rest == everything[12:]

    run(main())


def test_subscription_resumes_inside_a_batch(tmp_path: Path) -> None:
    async def main() -> None:
        cluster = configured(tmp_path)
        async with Members(cluster), connect(cluster) as client:
            await asyncio.gather(*(client.multicast({"orders"}, b"%d" % number) for number in range(50)))
            everything = await read(client.deliveries("orders", since=0), 50)
            assert max(delivery.place for delivery in everything) > 5, "a batch of several must have occurred"
            for index in (3, 20, 48):
                assert (
                    await read(client.deliveries("orders", after=everything[index]), 49 - index)
                    == everything[index + 1 :]
                )

    run(main())


def test_subscription_survives_restarts_of_replicas(tmp_path: Path) -> None:
    async def main() -> None:
        cluster = configured(tmp_path, durability="os")
        async with Members(cluster) as members, connect(cluster) as client:
            subscription = client.deliveries("orders", since=0)
            got: list[Delivery] = []
            for turn in range(4):
                await talk(client, turn * 10, 10)
                got += await read(subscription, 10)
                serving = cluster.name_of(subscription.source)
                await members.stop(serving)
                await talk(client, 1000 + turn, 1)
                got += await read(subscription, 1)
                assert cluster.name_of(subscription.source) != serving
                await members.start(serving)
                await members.running[serving].caught_up()
            expected = [number for turn in range(4) for number in (*range(turn * 10, turn * 10 + 10), 1000 + turn)]
            assert numbers(got) == expected
            assert subscription.switches >= 4

    run(main(), timeout_s=60)


def test_expired_position_raises_missed_deliveries(tmp_path: Path) -> None:
    async def main() -> None:
        cluster = configured(tmp_path, limits={**QUICK, "recent_bytes": 5000})
        async with Members(cluster) as members, connect(cluster) as client:
            slow = client.deliveries("orders", since=0)
            await read_nothing_while(talk(client, 0, 60))
            while any(member.host.sink.delivered_until < 60 for member in members.running.values()):
                await asyncio.sleep(0.01)  # followers deliver, and forget, a little later than their leader
            with pytest.raises(
                MissedDeliveriesError, match=r"group orders: deliveries 0 to \d+ are no longer kept"
            ) as missed:
                await read(slow, 1)
            first = missed.value.first
            assert numbers(await read(client.deliveries("orders", since=first), 60 - first)) == list(range(first, 60))

    run(main())


def test_deliveries_are_not_called_missed_while_a_silent_replica_may_hold_them(tmp_path: Path) -> None:
    async def main() -> None:
        (tmp_path / "small").mkdir()
        small = configured(tmp_path / "small", limits={**QUICK, "recent_bytes": 500})
        cluster = configured(tmp_path)
        async with Members(cluster) as members:
            await members.stop("orders/1")
            members.running["orders/1"] = forgetful = run_replica(replace(cluster, limits=small.limits), "orders/1")
            await forgetful.__aenter__()
            await forgetful.caught_up()
            async with connect(cluster) as client:
                await talk(client, 0, 20)
                subscription = client.deliveries("orders", since=0)
                fetch = subscription._rpc.fetch_progress
                answers: list[Mapping[ProcessId, Progress]] = []

                async def fetch_of_one(
                    processes: Iterable[ProcessId], within_s: float | None = None
                ) -> Mapping[ProcessId, Progress]:
                    """Answers as if only the first replica did, three times."""
                    answers.append(await fetch([0] if len(answers) < 3 else processes, within_s))
                    return answers[-1]

                subscription._rpc.fetch_progress = fetch_of_one  # type: ignore[method-assign, assignment]
                assert numbers(await read(subscription, 20)) == list(range(20))
            assert [answer[0].first > 0 for answer in answers] == [True] * 4

    run(main(), timeout_s=60)


async def read_nothing_while(work: object) -> None:
    await work  # type: ignore[misc]


def test_slow_reader_costs_no_memory(tmp_path: Path) -> None:
    async def main() -> None:
        cluster = configured(tmp_path, limits={**QUICK, "recent_bytes": 2_000_000})
        async with Members(cluster) as members, connect(cluster) as client:
            slow = client.deliveries("orders", since=0)
            await client.multicast({"orders"}, b"0")
            await read(slow, 1)
            serving = members.running[cluster.name_of(slow.source)]
            for _ in range(40):
                await client.multicast({"orders"}, bytes(500_000))
            waiting = [one._transport.get_write_buffer_size() for one in serving.host.network._connections]
            assert max(waiting) < 2_000_000, "one chunk more than the socket takes, and no more"
            with pytest.raises(MissedDeliveriesError):
                await read(slow, 41)

    run(main(), timeout_s=60)


def test_subscription_leaves_a_lagging_replica(tmp_path: Path) -> None:
    async def main() -> None:
        cluster = configured(tmp_path)
        async with Members(cluster) as members, connect(cluster) as client:
            subscription = client.deliveries("orders", since=0)
            await talk(client, 0, 5)
            await read(subscription, 5)
            behind = members.running[cluster.name_of(subscription.source)]
            for link in behind.host.network.links.values():
                link._write = lambda data: None
                link._on_bodies = lambda peer, bodies: None
            await talk(client, 5, 5)
            assert numbers(await read(subscription, 5)) == list(range(5, 10))
            assert cluster.name_of(subscription.source) != behind.name

    run(main())


def test_impossible_subscriptions_raise_errors(tmp_path: Path) -> None:
    async def main() -> None:
        cluster = configured(tmp_path)
        with pytest.raises(UsageError, match="since = -1"):
            subscribe(cluster, "orders", since=-1)
        with pytest.raises(UsageError, match="group 'nobody' does not exist"):
            subscribe(cluster, "nobody")
        asker = RpcClient(cluster.name, cluster.addresses, cluster.limits)
        topology = cluster.topology
        with pytest.raises(CannotTellError, match="no replica of group orders answered for"):
            await read(Subscription(asker, 0, topology, since=0, timeout_s=0.2), 1)
        with pytest.raises(CannotTellError, match="0 of 3 replicas of group orders answer"):
            await read(Subscription(asker, 0, topology, timeout_s=0.2), 1)
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(Members(cluster))
            stranger = RpcClient("another", cluster.addresses, cluster.limits)
            with pytest.raises(CannotTellError, match="no replica of group orders answered"):
                await read(Subscription(stranger, 0, topology, since=0, timeout_s=0.2), 1)

    run(main())


def test_blocking_client_reads_deliveries(tmp_path: Path) -> None:
    file = tmp_path / "cluster.toml"
    file.write_text(format_local_config({"orders": 1}, protocol="skeen", durability="memory"))
    with local_cluster(read_cluster(file)), connect_blocking(file) as client:
        deliveries = client.deliveries("orders")
        for number in range(3):
            client.multicast({"orders"}, b"%d" % number)
        assert [next(deliveries).payload for _ in range(3)] == [b"0", b"1", b"2"]
        with client.deliveries("orders", since=0) as again:
            assert [next(again).payload for _ in range(3)] == [b"0", b"1", b"2"]
            assert again.read(timeout_s=0.05) is None
            client.multicast("orders", b"3")
            delivery = again.read(timeout_s=30)
            assert delivery is not None
            assert (delivery.payload, delivery.destinations) == (b"3", ("orders",))
    with pytest.raises(UsageError, match="the client of this subscription is closed"):
        again.read()


def test_reader_that_stops_waiting_loses_nothing(tmp_path: Path) -> None:
    """A cancelled `anext` must not leave half of a reply behind, whenever it is cancelled."""

    async def main() -> None:
        cluster = configured(tmp_path)
        async with Members(cluster), connect(cluster) as client:
            deliveries = client.deliveries("orders", since=0)
            payloads: list[bytes] = []
            talking = asyncio.create_task(talk(client, 0, 60))
            while len(payloads) < 40:
                delivery = await deliveries.read(timeout_s=0.002)
                if delivery is not None:
                    payloads.append(delivery.payload)
            assert deliveries.switches == 0, "it reads from the same replica all the time"
            while len(payloads) < 60:
                try:
                    async with asyncio.timeout(0.3):
                        payloads.append((await anext(deliveries)).payload)
                except TimeoutError:
                    continue
            await talking
            assert payloads == [b"%d" % number for number in range(60)]
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.01):
                    await anext(deliveries)
            await talk(client, 60, 1)
            assert (await anext(deliveries)).payload == b"60"
            assert await deliveries.read(timeout_s=0.01) is None
            waiting = asyncio.create_task(deliveries.read())
            await asyncio.sleep(0.01)
            deliveries.close()
            with pytest.raises(CannotTellError, match="group orders was closed while it was read"):
                await waiting

    run(main())


def test_recent_deliveries_are_contiguous_and_bounded() -> None:
    recent = RecentDeliveries(10_000)
    for position in range(100):
        recent.add(position, Message(position, 0, (0,), bytes(100)))
    assert (recent.first, recent.next) == (67, 100)
    assert [message.id for message in recent.read_from(98, 1)] == [98]
    assert [message.id for message in recent.read_from(90, 10**6)] == list(range(90, 100))
    recent.add(99, Message(99, 0, (0,)))
    assert recent.next == 100, "what is told again changes nothing"
    recent.add(150, Message(150, 0, (0,)))
    assert (recent.first, recent.next) == (150, 151), "behind a gap everything begins anew"
    recent.skip_to(200)
    assert recent.read_from(200, 1) == []
