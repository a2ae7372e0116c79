"""An application on a replica receives every delivery once, whatever its replica missed or lost."""

import asyncio
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from amcast.cluster import connect, run_replica
from amcast.kernel.errors import CannotTellError, UsageError
from amcast.kernel.message import Message
from amcast.live.client_batch import Delivery, encode_batch
from amcast.live.config.cluster import Cluster, read_cluster
from amcast.live.host.recent_deliveries import MissedDeliveriesError
from amcast.live.operations.local_cluster import LocalCluster, format_local_config
from amcast.live.server.application import Application, Journal
from amcast.live.server.replica import Replica
from tests.live.cluster import run

QUICK = {"heartbeat_s": 0.05, "heartbeat_timeout_s": 1.0, "reconnect_min_s": 0.01, "reconnect_max_s": 0.1}


class Ledger:
    """The simplest application: a list of all payloads."""

    def __init__(self) -> None:
        self.rows: list[bytes] = []
        self.installs = 0

    def enter(self, delivery: Delivery) -> None:
        self.rows.append(delivery.payload)

    def take(self) -> bytes:
        return b"|".join(self.rows)

    def install(self, state: bytes, position: int) -> None:
        self.installs += 1
        self.rows = state.split(b"|") if state else []
        assert len(self.rows) == position, "one message per batch in these tests"


class Shop:
    """Three replicas of one group in this process, each with its ledger."""

    def __init__(self, folder: Path, **fields: object) -> None:
        settings = {"protocol": "primcast", "limits": QUICK, "options": {"keep": 8}, **fields}
        (folder / "cluster.toml").write_text(format_local_config({"orders": 3}, **settings))
        self.cluster: Cluster = read_cluster(folder / "cluster.toml")
        self.ledgers: dict[str, Ledger] = {}
        self.running: dict[str, Replica] = {}

    async def start(self, *names: str) -> None:
        for name in names:
            ledger = self.ledgers[name] = Ledger()
            one = run_replica(self.cluster, name, ledger.enter, take=ledger.take, install=ledger.install)
            self.running[name] = one
            await one.__aenter__()

    async def stop(self, *names: str) -> None:
        for name in list(names):
            await self.running.pop(name).__aexit__(None, None, None)

    async def level(self, rows: int) -> None:
        """Waits until every running application has a number of rows."""
        while any(len(self.ledgers[name].rows) < rows for name in self.running):
            await asyncio.sleep(0.02)


async def talk(shop: Shop, first: int, count: int) -> None:
    async with connect(shop.cluster) as client:
        for number in range(first, first + count):
            await client.multicast({"orders"}, b"%d" % number)


def rows(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


@pytest.mark.live
@pytest.mark.parametrize("durability", ["memory", "os"])
def test_replica_down_for_long_installs_another_members_state(tmp_path: Path, durability: str) -> None:
    async def main() -> None:
        shop = Shop(tmp_path, durability=durability)
        await shop.start("orders/1", "orders/2", "orders/3")
        await talk(shop, 0, 30)
        await shop.stop("orders/3")
        await talk(shop, 30, 60)
        await shop.start("orders/3")
        await shop.running["orders/3"].caught_up()
        await talk(shop, 90, 10)
        await shop.level(100)
        for name in shop.cluster.nodes():
            assert shop.ledgers[name].rows == rows(100), name
        assert shop.ledgers["orders/3"].installs >= 1
        await shop.stop(*shop.running)

    run(main(), timeout_s=60)


@pytest.mark.live
@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_applications_of_a_whole_group_recover_after_restart(tmp_path: Path, durability: str) -> None:
    async def main() -> None:
        shop = Shop(tmp_path, durability=durability)
        for turn in range(3):
            await shop.start(*shop.cluster.nodes())
            await talk(shop, turn * 40, 40)
            await shop.level(turn * 40 + 40)
            for name in shop.cluster.nodes():
                assert shop.ledgers[name].rows == rows(turn * 40 + 40), name
            await shop.stop(*shop.running)

    run(main(), timeout_s=60)


@pytest.mark.live
def test_application_without_state_gets_on_missed(tmp_path: Path) -> None:
    missed: list[tuple[int, int]] = []
    got: list[Delivery] = []

    async def main() -> None:
        shop = Shop(tmp_path, durability="memory")
        await shop.start("orders/1", "orders/2")
        async with run_replica(shop.cluster, "orders/3", got.append):
            await talk(shop, 0, 10)
        await talk(shop, 10, 40)
        hole = lambda first, position: missed.append((first, position))  # noqa: E731
        async with run_replica(shop.cluster, "orders/3", got.append, on_missed=hole, delivered_until=10) as third:
            await third.caught_up()
            await talk(shop, 50, 10)
            while not got or got[-1].payload != b"59":
                await asyncio.sleep(0.02)
            with pytest.raises(MissedDeliveriesError):
                await anext(third.deliveries(since=0))
        await shop.stop(*shop.running)

    run(main(), timeout_s=60)
    (first, position), *more = missed
    assert first == 10
    assert more == []
    assert [one.payload for one in got if one.position >= position] == rows(60)[position:]


@pytest.mark.live
def test_replica_multicasts_and_iterates_over_deliveries(tmp_path: Path) -> None:
    async def main() -> None:
        shop = Shop(tmp_path, durability="memory")
        await shop.start("orders/1", "orders/2", "orders/3")
        one = shop.running["orders/1"]
        got: list[bytes] = []

        async def follow() -> None:
            async for delivery in one.deliveries(since=0):
                got.append(delivery.payload)

        following = asyncio.create_task(follow())
        for number in range(20):
            await one.multicast({"orders"}, b"%d" % number)
        while len(got) < 20:
            await asyncio.sleep(0.01)
        following.cancel()
        with suppress(asyncio.CancelledError):
            await following
        assert got == rows(20)
        assert one.position == 20
        await shop.stop(*shop.running)
        with pytest.raises(UsageError, match="replica orders/1 is not running"):
            assert one.position

    run(main())


@pytest.mark.live
def test_failing_application_stops_its_replica(tmp_path: Path) -> None:
    def fail(delivery: Delivery) -> None:
        raise ValueError("no such item")

    async def main() -> None:
        shop = Shop(tmp_path, durability="memory")
        await shop.start("orders/2", "orders/3")
        one = await run_replica(shop.cluster, "orders/1", fail).__aenter__()
        await talk(shop, 0, 1)
        with pytest.raises(CannotTellError, match="has stopped: no such item"):
            await anext(one.deliveries())
        with pytest.raises(CannotTellError, match="replica orders/1 has stopped: no such item"):
            await one.__aexit__(None, None, None)
        await talk(shop, 1, 5)
        await shop.stop(*shop.running)

    run(main(), timeout_s=60)


def message(number: int) -> Message:
    return Message(number, 0, (0,), encode_batch([b"%d" % number]))


def test_journal_replays_exactly_what_was_written(tmp_path: Path) -> None:
    ledger = Ledger()
    journal = Journal(tmp_path, "fsync")
    assert journal.replay(ledger.install, lambda position, message: None) == 0
    for number in range(5):
        journal.add(message(number))
    journal.write()
    journal.begin_with(5, b"0|1|2|3|4")
    for number in range(5, 8):
        journal.add(message(number))
    journal.write()
    journal.add(message(8))
    journal._store.close()
    again = Application(ledger.enter, take=ledger.take, install=ledger.install, journal=Journal(tmp_path, "os"))
    assert again.position == 8
    assert ledger.rows == rows(8)


def test_take_without_install_is_refused() -> None:
    with pytest.raises(UsageError, match="take and install belong together"):
        Application(None, take=lambda: b"")


@pytest.mark.live
@pytest.mark.slow
def test_applications_survive_kill_of_the_whole_group(tmp_path: Path) -> None:
    file = tmp_path / "cluster.toml"
    file.write_text(format_local_config({"orders": 3}, protocol="primcast", durability="os", options={"keep": 8}))
    cluster = read_cluster(file)
    nodes = tuple(cluster.nodes())

    async def talk_on(first: int, count: int) -> None:
        async with connect(cluster) as client:
            for number in range(first, first + count):
                await client.multicast({"orders"}, b"%d" % number, timeout_s=60)

    with LocalCluster(cluster, [sys.executable, str(Path(__file__).with_name("hosted_ledger.py"))]) as running:
        for turn in range(3):
            run(talk_on(turn * 40, 40), timeout_s=60)
            running.kill(*nodes)
            running.start(*nodes)
        run(talk_on(120, 10), timeout_s=60)
        running.wait_until_settled()
    for node in nodes:
        assert (tmp_path / f"{node.replace('/', '-')}.rows").read_bytes().split(b"|") == rows(130), node
