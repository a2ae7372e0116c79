"""An application on a replica receives every delivery once, whatever its replica missed or lost."""

import asyncio
import shutil
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from amcast.cluster import connect, run_replica
from amcast.kernel.effects import Deliver
from amcast.kernel.errors import CannotTellError, UsageError
from amcast.kernel.message import Message
from amcast.kernel.topology import Topology
from amcast.live.client_batch import Delivery, encode_batch
from amcast.live.config.cluster import Cluster, read_cluster
from amcast.live.host.recent_deliveries import MissedDeliveriesError
from amcast.live.operations.local_cluster import LocalCluster, format_local_config
from amcast.live.rpc.client import RpcClient
from amcast.live.server.application import Application
from amcast.live.server.journal import RESERVED, Journal
from amcast.live.server.replica import Replica
from amcast.live.storage.state_files import StateFile, write_state
from tests.live.cluster import run

GROUP = Topology.grid(1, 3)
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
        markers = position - len(self.rows)
        assert 0 <= markers <= 2, "one message per batch in these tests, and markers of replicas that lost their memory"


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
        one = run_replica(shop.cluster, "orders/1", fail)
        await one.open()
        await talk(shop, 0, 1)
        assert str(await one.failed) == "no such item"
        with pytest.raises(CannotTellError, match="has stopped: no such item"):
            await anext(one.deliveries())
        await one.close()
        await talk(shop, 1, 5)
        await shop.stop(*shop.running)

    run(main(), timeout_s=60)


@pytest.mark.live
def test_block_around_a_failing_replica_is_cancelled(tmp_path: Path) -> None:
    """A program must not go on answering from the frozen state of its application."""

    def fail(delivery: Delivery) -> None:
        raise ValueError("no such item")

    async def main() -> None:
        shop = Shop(tmp_path, durability="memory")
        await shop.start("orders/2", "orders/3")
        went_on = False
        with pytest.raises(CannotTellError, match="replica orders/1 has stopped: no such item"):  # noqa: PT012, the block is tested
            async with run_replica(shop.cluster, "orders/1", fail):
                await talk(shop, 0, 1)
                await asyncio.sleep(30)
                went_on = True
        assert not went_on
        current = asyncio.current_task()
        assert current is not None
        assert current.cancelling() == 0, "the failure is an error, not a cancellation of the program"
        await shop.stop(*shop.running)

    run(main(), timeout_s=25)


@pytest.mark.live
def test_caught_up_means_that_the_application_has_its_state(tmp_path: Path) -> None:
    async def main() -> None:
        shop = Shop(tmp_path, durability="memory")
        await shop.start("orders/1", "orders/2", "orders/3")
        await talk(shop, 0, 5)
        await shop.stop("orders/3")
        await talk(shop, 5, 60)
        fetch = RpcClient.fetch_state

        async def fetch_late(*arguments: Any) -> StateFile:
            await asyncio.sleep(0.3)
            return await fetch(*arguments)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(RpcClient, "fetch_state", fetch_late)
            await shop.start("orders/3")
            replica = shop.running["orders/3"]
            while replica.runtime.recent.next < 65:
                await asyncio.sleep(0.01)
            is_ready_too_early = not replica.runtime.status.reasons_not_ready()
            await replica.caught_up()
        found = shop.ledgers["orders/3"].rows
        reasons = replica.runtime.status.reasons_not_ready()
        await shop.stop(*shop.running)
        assert found == rows(65)
        assert not reasons
        assert not is_ready_too_early, "the protocol has caught up, the application has not"

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
    journal.begin_state()
    for number in range(5, 8):
        journal.add(message(number))
    journal.write()
    journal.add(message(8))
    journal._close_log()
    for has_state in (False, True):
        if has_state:
            state = write_state(tmp_path, 5, b"0|1|2|3|4", True, lambda: False)
            for superfluous in journal.adopt(state):
                shutil.rmtree(superfluous)
        ledger = Ledger()
        again = Journal(tmp_path, "os")
        hosted = Application(ledger.enter, GROUP, take=ledger.take, install=ledger.install, journal=again)
        assert hosted.position == 8
        assert ledger.rows == rows(8)
        assert ledger.installs == has_state
        again._close_log()
    assert len(list(tmp_path.glob("from-*"))) == 1, "the state replaces the deliveries before it"


def test_journal_continues_behind_a_state_that_is_ahead_of_the_replica(tmp_path: Path) -> None:
    """Another member's state contains deliveries that the replica has yet to make, and that nobody keeps."""
    journal = Journal(tmp_path, "os")
    journal.replay(Ledger().install, lambda position, message: None)
    journal.spool_from(2)
    journal.spool(message(2))
    journal.write()
    journal.adopt(write_state(tmp_path, 5, b"0|1|2|3|4", True, lambda: False))
    journal.end_spool(5)
    for number in (5, 6):
        journal.add(message(number))
    journal.write()
    journal._close_log()
    for _ in range(2):
        ledger = Ledger()
        again = Journal(tmp_path, "os")
        hosted = Application(ledger.enter, GROUP, take=ledger.take, install=ledger.install, journal=again)
        assert (hosted.position, ledger.rows) == (7, rows(7))
        again._close_log()


def test_journal_does_not_write_behind_a_gap(tmp_path: Path) -> None:
    """A crash right behind the installation of a state that is ahead: the log on disk ends before it."""
    journal = Journal(tmp_path, "os")
    journal.replay(Ledger().install, lambda position, message: None)
    journal.add(message(0))
    journal.close(1)
    state = write_state(tmp_path, 3, b"0|1|2", True, lambda: False)
    again = Journal(tmp_path, "os")
    assert again.replay(Ledger().install, lambda position, message: None) == 3
    again.add(message(3))
    again.close(4)
    state.path.unlink()
    ledger = Ledger()
    hosted = Application(ledger.enter, GROUP, take=ledger.take, install=ledger.install, journal=Journal(tmp_path, "os"))
    assert (hosted.position, ledger.rows) == (1, rows(1)), "what is behind the gap needs the state"


def test_log_that_is_being_removed_is_not_read_and_not_removed_twice(tmp_path: Path) -> None:
    journal = Journal(tmp_path, "os")
    for first in (0, 2):
        for number in (first, first + 1):
            journal.add(message(number))
        journal.begin_state()
    superfluous = journal.adopt(write_state(tmp_path, 2, b"0|1", True, lambda: False))
    superfluous += journal.adopt(write_state(tmp_path, 4, b"0|1|2|3", True, lambda: False))
    assert sorted(len(path.suffix) for path in superfluous) == sorted(len(set(superfluous)) * [len(".removed-1")])
    for half in superfluous:
        for file in half.glob("*.json"):
            file.unlink()
    ledger = Ledger()
    Application(ledger.enter, GROUP, take=ledger.take, install=ledger.install, journal=Journal(tmp_path, "os"))
    assert ledger.rows == rows(4)
    assert not list(tmp_path.glob("*.removed-*")), "a start ends what a crash interrupted"


def test_damaged_journal_is_put_aside_and_the_application_begins_anew(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What the log does not repeat comes from another member."""
    journal = Journal(tmp_path, "os")
    for number in range(5):
        journal.add(message(number))
    journal.close(5)
    (segment,) = tmp_path.glob("from-*/00000001.log")
    data = bytearray(segment.read_bytes())
    data[700] ^= 4
    segment.write_bytes(data)
    for reached in (0, 2):
        ledger = Ledger()
        journal = Journal(tmp_path, "os")
        assert journal.replay(ledger.install, lambda position, message: None) == reached
        for number in range(2):
            journal.add(message(number))
        journal.close(2)
    assert caplog.text.count("the journal of the application is damaged and put aside") == 1
    assert [file.name for file in tmp_path.glob("from-*/*.log.damaged-*")] == ["00000001.log.damaged-1"]


def test_damaged_state_is_put_aside(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    state = write_state(tmp_path, 3, b"0|1|2", True, lambda: False)
    data = bytearray(state.path.read_bytes())
    data[-20] ^= 1
    state.path.write_bytes(data)
    ledger = Ledger()
    assert Journal(tmp_path, "os").replay(ledger.install, lambda position, message: None) == 0
    assert ledger.installs == 0
    assert "It is put aside" in caplog.text


def test_deliveries_that_an_earlier_run_may_have_received_are_marked(tmp_path: Path) -> None:
    def run_application() -> tuple[Application, Journal, list[tuple[bytes, bool]]]:
        marks: list[tuple[bytes, bool]] = []

        def receive(delivery: Delivery) -> None:
            marks.append((delivery.payload, delivery.is_replayed))

        journal = Journal(tmp_path, "os")
        return Application(receive, GROUP, take=bytes, install=lambda *_: None, journal=journal), journal, marks

    def deliver(application: Application, *numbers: int) -> None:
        for number in numbers:
            application.deliver(Deliver(message(number), number))

    application, journal, marks = run_application()
    deliver(application, 0, 1)
    journal.write()
    deliver(application, 2)
    assert marks == [(b"0", False), (b"1", False), (b"2", False)]
    journal._close_log()  # a crash: what is at position 2 is in no file
    application, journal, marks = run_application()
    deliver(application, 2)
    assert marks == [(b"0", True), (b"1", True), (b"2", True)]
    deliver(application, *range(3, RESERVED))
    assert all(is_replayed for _, is_replayed in marks), "the crashed run had reserved them"
    deliver(application, RESERVED)
    assert marks[-1] == (b"%d" % RESERVED, False)
    asyncio.run(application.close())
    application, _, marks = run_application()
    deliver(application, RESERVED + 1)
    assert marks[-2:] == [(b"%d" % RESERVED, True), (b"%d" % (RESERVED + 1), False)]


def test_take_without_install_is_refused() -> None:
    with pytest.raises(UsageError, match="take and install belong together"):
        Application(None, GROUP, take=lambda: b"")


def test_asynchronous_functions_are_refused() -> None:
    async def deliver(delivery: Delivery) -> None:
        pass

    class Program:
        async def __call__(self, delivery: Delivery) -> None:
            pass

    for function in (deliver, Program(), partial(deliver)):
        with pytest.raises(UsageError, match="on_delivery is an `async def`; expected a plain function"):
            Application(function, GROUP)  # type: ignore[arg-type]


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
