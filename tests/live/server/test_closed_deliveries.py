"""Readers and applications learn which deliveries are closed, and may be handed only those."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import amcast
from amcast.cluster import connect, run_replica, subscribe
from amcast.kernel.effects import Deliver
from amcast.kernel.errors import UsageError
from amcast.kernel.message import Message
from amcast.kernel.topology import Topology
from amcast.live.client_batch import Delivery, encode_batch
from amcast.live.config.cluster import Cluster, read_cluster
from amcast.live.operations.cluster_status import fetch_statuses
from amcast.live.operations.local_cluster import format_local_config
from amcast.live.server.application import Application
from amcast.live.server.journal import Journal
from amcast.live.server.replica import Replica
from amcast.live.server.state_schedule import StateSchedule
from amcast.parts.node.node import Node
from tests.live.cluster import run

GROUP = Topology.grid(1, 3)
QUICK = {"heartbeat_s": 0.05, "heartbeat_timeout_s": 1.0, "reconnect_min_s": 0.01, "reconnect_max_s": 0.1}
BOTH = {"orders", "stock"}


class Ledger:
    """An application that lists payloads, and positions that are closed."""

    def __init__(self) -> None:
        self.rows: list[bytes] = []
        self.closed: list[int] = []
        self.missed: list[tuple[int, int]] = []

    def enter(self, delivery: Delivery) -> None:
        self.rows.append(delivery.payload)

    def take(self) -> bytes:
        return b"|".join(self.rows)

    def install(self, state: bytes, position: int) -> None:
        self.rows = state.split(b"|") if state else []

    def miss(self, first: int, position: int) -> None:
        self.missed.append((first, position))


class Shop:
    """Groups in this process, in the real-time setting; every replica has a ledger of what is closed."""

    def __init__(self, folder: Path, groups: dict[str, int], **fields: object) -> None:
        settings = {"protocol": "primcast", "order": "real-time", "limits": QUICK, **fields}
        (folder / "cluster.toml").write_text(format_local_config(groups, **settings))
        self.cluster: Cluster = read_cluster(folder / "cluster.toml")
        self.ledgers: dict[str, Ledger] = {}
        self.running: dict[str, Replica] = {}

    async def start(self, *names: str, only_closed: bool = True) -> None:
        for name in names:
            ledger = self.ledgers[name] = Ledger()
            replica = run_replica(
                self.cluster,
                name,
                ledger.enter,
                take=ledger.take,
                install=ledger.install,
                only_closed=only_closed,
                on_closed=ledger.closed.append,
            )
            await replica.open()
            self.running[name] = replica

    async def stop(self, *names: str) -> None:
        for name in names or tuple(self.running):
            await self.running.pop(name).close()

    async def level(self, *rows: bytes) -> None:
        """Waits until every application of the group orders has these payloads."""
        while any(ledger.rows != list(rows) for name, ledger in self.ledgers.items() if name.startswith("orders")):
            await asyncio.sleep(0.02)


@contextmanager
def silence(replica: Replica) -> Iterator[None]:
    """Lets a replica report nothing about the order of its group, so that other groups cannot close what it shares."""
    node = replica.host.process
    assert isinstance(node, Node)
    assert node.real_time is not None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(node.real_time, "_make_reports", lambda _: [])
        patch.setattr(node.real_time, "handle_request", lambda *_: None)
        yield


@pytest.mark.live
def test_readers_of_closed_deliveries_wait_and_others_do_not(tmp_path: Path) -> None:
    async def main() -> None:
        shop = Shop(tmp_path, {"orders": 1, "stock": 1})
        await shop.start("orders/1")
        await shop.start("stock/1", only_closed=False)
        orders, ledger = shop.running["orders/1"], shop.ledgers["orders/1"]
        async with (
            connect(shop.cluster) as client,
            client.deliveries("orders") as early,
            client.deliveries("orders", only_closed=True) as closed,
        ):
            await client.multicast("orders", b"a")
            assert (await anext(closed)).payload == b"a"
            assert (await anext(early)).payload == b"a"
            with silence(shop.running["stock/1"]):
                sent = [asyncio.create_task(client.multicast(BOTH, b"b"))]
                assert (await anext(early)).payload == b"b"
                sent.append(asyncio.create_task(client.multicast("orders", b"c")))
                assert (await anext(early)).payload == b"c", "a delivery does not wait"
                assert (orders.position, orders.closed_until) == (3, 1)
                assert await closed.read(timeout_s=0.3) is None
                assert early.closed_until == closed.closed_until == 1
                with pytest.raises(
                    amcast.NotClosedError, match=r"before position 3 are not closed .* waiting for group stock"
                ):
                    await orders.wait_closed(3, timeout_s=0.2)
                await orders.wait_closed(timeout_s=0.2)  # what the application has is closed
                assert ledger.rows == [b"a"]
                assert not sent[1].done(), "a local message behind an open one is not answered"
                with pytest.raises(amcast.DeliveryUnknownError, match=r"^message \d+ to orders was not") as unanswered:
                    await client.multicast("orders", b"d", timeout_s=0.3)
                assert (await anext(early)).payload == b"d"
                message = int(str(unanswered.value).split()[1])
                answer = (await asyncio.to_thread(fetch_statuses, shop.cluster, None, message))["orders/1"]
                last = answer["phases"][-1]
                assert (answer["delivered"], last["name"], last["is_done"]) == (True, "closed", False)
                assert last["description"] == "closed up to position 1; later answers wait for group stock"
            await orders.wait_closed(4)
            assert [(await anext(closed)).payload for _ in range(3)] == [b"b", b"c", b"d"]
            await asyncio.gather(*sent)
            while early.closed_until != 4:
                assert await early.read(timeout_s=0.05) is None
        assert ledger.rows == [b"a", b"b", b"c", b"d"]
        assert ledger.closed[-1] == 4
        assert shop.ledgers["stock/1"].rows == [b"b"]
        await shop.stop()

    run(main(), timeout_s=60)


@pytest.mark.live
def test_applications_of_closed_deliveries_survive_restarts_and_state_transfer(tmp_path: Path) -> None:
    """Open deliveries that the log has dropped are not lost when the whole cluster restarts, nor handed out early."""

    async def main() -> None:
        shop = Shop(tmp_path, {"orders": 3, "stock": 1}, durability="os", options={"keep": 8})
        await shop.start(*shop.cluster.nodes())
        names = [b"%d" % number for number in range(60)]
        with silence(shop.running["stock/1"]):
            async with connect(shop.cluster) as client:
                sent = [await client.post(BOTH, b"first")]
                while shop.running["orders/1"].position < 1:
                    await asyncio.sleep(0.02)
                await shop.stop("orders/3")
                for name in names:
                    sent.append(await client.post("orders", name))
                    await asyncio.sleep(0.01)
                while shop.running["orders/1"].position < 61:
                    await asyncio.sleep(0.02)
                await shop.start("orders/3")  # takes over the state of another member, which is not closed
                while shop.running["orders/3"].position < 61:
                    await asyncio.sleep(0.02)
                await asyncio.sleep(0.5)
                assert [ledger.rows for name, ledger in shop.ledgers.items() if name != "stock/1"] == [[], [], []]
                for one in sent:
                    one.cancel()
            await shop.stop()
        await shop.start(*shop.cluster.nodes())
        await shop.level(b"first", *names)
        assert all(replica.closed_until == 61 for name, replica in shop.running.items() if name != "stock/1")
        await shop.stop()

    run(main(), timeout_s=60)


@pytest.mark.live
def test_protocol_with_real_time_order_of_its_own_closes_at_delivery(tmp_path: Path) -> None:
    async def main() -> None:
        shop = Shop(tmp_path, {"orders": 1, "stock": 1}, protocol="multipaxos")
        await shop.start(*shop.cluster.nodes())
        replica = shop.running["orders/1"]
        async with connect(shop.cluster) as client, client.deliveries("orders", only_closed=True) as closed:
            await client.multicast(BOTH, b"a")
            assert (await anext(closed)).payload == b"a"
        await replica.wait_closed(1)
        assert (replica.closed_until, shop.ledgers["orders/1"].closed) == (1, [1])
        assert shop.ledgers["orders/1"].rows == [b"a"]
        await shop.stop()

    run(main(), timeout_s=60)


@pytest.mark.live
def test_acyclic_setting_refuses_to_say_what_is_closed(tmp_path: Path) -> None:
    refused = pytest.raises(UsageError, match='order = "acyclic"; expected order = "real-time"')

    async def main() -> None:
        cluster = Shop(tmp_path, {"orders": 1}, order="acyclic").cluster
        with refused:
            subscribe(cluster, "orders", only_closed=True)
        with refused:
            connect(cluster).deliveries("orders", only_closed=True)
        with refused:
            run_replica(cluster, "orders/1", only_closed=True)
        with refused:
            run_replica(cluster, "orders/1", on_closed=lambda position: None)
        async with run_replica(cluster, "orders/1") as replica:
            with refused:
                assert replica.closed_until
            with refused:
                await replica.wait_closed(0)
            with refused:
                await anext(replica.deliveries(only_closed=True))
            (tmp_path / "other.toml").write_text(
                (tmp_path / "cluster.toml").read_text().replace('order = "acyclic"', 'order = "real-time"')
            )
            mistaken = subscribe(tmp_path / "other.toml", "orders", since=0, only_closed=True)
            with refused:
                await anext(mistaken)

    run(main(), timeout_s=60)


def message(number: int) -> Message:
    return Message(number, 0, (0,), encode_batch([b"%d" % number]))


def deliver(application: Application, *numbers: int) -> None:
    for number in numbers:
        application.deliver(Deliver(message(number), number))


def test_missed_deliveries_are_reported_in_their_place(tmp_path: Path) -> None:
    ledger = Ledger()
    application = Application(
        ledger.enter, GROUP, on_missed=ledger.miss, only_closed=True, on_closed=ledger.closed.append, closing="stated"
    )
    deliver(application, 0, 1)
    application.skip_to(5)
    deliver(application, 5)
    assert (ledger.rows, ledger.missed, application.position, application.taken_until) == ([], [], 0, 6)
    application.close_until(4)
    assert (ledger.rows, ledger.missed, application.position) == ([b"0", b"1"], [], 2)
    application.close_until(9)
    assert (ledger.rows, ledger.missed, application.position) == ([b"0", b"1", b"5"], [(2, 5)], 6)
    deliver(application, 6)
    assert ledger.rows[-1] == b"6", "others know that it is closed"
    assert ledger.closed == [2, 6, 7]


@pytest.mark.parametrize("has_state", [False, True])
def test_journal_has_deliveries_that_are_not_closed(tmp_path: Path, has_state: bool) -> None:
    def start() -> tuple[Application, Ledger]:
        ledger = Ledger()
        made = Application(
            ledger.enter,
            GROUP,
            take=ledger.take,
            install=ledger.install,
            only_closed=True,
            journal=Journal(tmp_path, "os"),
            schedule=StateSchedule(deliveries=1 if has_state else None),
        )
        return made, ledger

    async def main() -> None:
        application, ledger = start()
        deliver(application, 0, 1, 2)
        application.close_until(1)
        application.save()
        await asyncio.gather(*application._tasks)
        assert ledger.rows == [b"0"]
        assert application._journal is not None
        application._journal._close_log()  # a crash
        application, ledger = start()
        assert (application.position, application.taken_until) == (int(has_state), 3)
        deliver(application, 2, 3)
        assert ledger.rows == ([b"0"] if has_state else [])
        application.close_until(3)
        assert ledger.rows == [b"0", b"1", b"2"]
        application.close_until(4)
        assert ledger.rows == [b"0", b"1", b"2", b"3"]
        await application.close()

    asyncio.run(main())


def test_nodes_tell_each_other_which_order_they_promise(tmp_path: Path) -> None:
    """Two settings in one cluster promise nothing: a node of the acyclic one would answer for all destinations."""
    for named in ("acyclic", "real-time"):
        file = tmp_path / f"{named}.toml"
        file.write_text(format_local_config({"orders": 1, "stock": 1}, protocol="primcast", order=named))
        cluster = read_cluster(file)
        assert (cluster.node_transport("orders/1").order, cluster.client_transport().order) == (named, "")
