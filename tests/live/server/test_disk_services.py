"""Services that keep their state in files: exactly once through kill -9, and in pieces to other members."""

import asyncio
import os
import shutil
import sqlite3
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from amcast.cluster import connect, local_cluster, run_service
from amcast.kernel.effects import Deliver
from amcast.kernel.errors import CannotTellError
from amcast.kernel.message import Message
from amcast.kernel.reconfiguration import make_marker
from amcast.kernel.topology import Topology
from amcast.live.client_batch import encode_batch
from amcast.live.config.cluster import Cluster, read_cluster
from amcast.live.operations.local_cluster import LocalCluster, format_local_config
from amcast.live.server.application import Application
from amcast.live.server.journal import Journal
from amcast.live.server.replica import Replica
from amcast.live.server.service_host import ServiceHost
from amcast.live.storage.service_files import ServiceFiles
from amcast.services.calls import CallSession
from amcast.services.declaration import Applied, describe_service
from amcast.services.errors import ServiceFailedError
from tests.live.cluster import run
from tests.live.server.test_application import QUICK

EXAMPLES = Path(__file__).parents[3] / "examples"
sys.path.insert(0, str(EXAMPLES))

from ledger import Ledger  # noqa: E402, an example is no package

GROUP = Topology.grid(1, 3)
SERVICE = "tests.live.server.test_disk_services:FrequentLedger"


class FrequentLedger(Ledger):
    """Saves often."""

    save_deliveries = 5


class RecordedHost(ServiceHost):
    """Records the positions that it executes."""

    def __init__(self) -> None:
        super().__init__(describe_service(FrequentLedger), "group-0", ("group-0",), lambda: None)  # type: ignore[arg-type, return-value]
        self.positions: list[int] = []

    def deliver(self, delivery: Any) -> None:
        self.positions.append(delivery.position)
        super().deliver(delivery)

    @property
    def total(self) -> int:
        return self.executor.service.total()  # type: ignore[attr-defined, no-any-return]


def host(folder: Path, service: RecordedHost) -> Application:
    """The application around a service, without a replica."""
    journal = Journal(folder, "os")
    service.open_files(folder / "service", journal.keeps)
    return Application(
        service.deliver, GROUP, take=service.take, install=service.install, journal=journal, files=service.files
    )


def deposits(count: int) -> list[Message]:
    """One call per message: each deposits 1."""
    session = CallSession(describe_service(FrequentLedger), ("group-0",), 1)
    calls = [session.make("deposit", (f"account-{number % 7}", 1), {}, number) for number in range(count)]
    return [Message(number, 9, (0,), encode_batch([call.payload])) for number, call in enumerate(calls)]


def kill(folder: Path, copy: Path) -> Path:
    """What kill -9 leaves: a copy of the files while they are open."""
    shutil.copytree(folder, copy)
    return copy


def test_only_what_follows_the_last_save_is_executed_again(tmp_path: Path) -> None:
    async def main() -> None:
        messages = deposits(23)
        service = RecordedHost()
        application = host(tmp_path / "a", service)
        for position, message in enumerate(messages):
            application.deliver(Deliver(message, position))
        application.save()  # the log of the replica forgets what it delivered
        assert service.total == 23
        again = RecordedHost()
        restarted = host(kill(tmp_path / "a", tmp_path / "b"), again)
        assert again.opened == 20
        assert again.positions == [20, 21, 22]
        assert again.total == 23
        assert again.executor.results_of(1) == service.executor.results_of(1), "callers may still ask for them"
        restarted.deliver(Deliver(messages[22], 22))  # the log repeats its end
        assert again.total == 23
        await restarted.close()
        await application.close()
        after = RecordedHost()
        third = host(tmp_path / "b", after)
        assert (after.opened, after.positions, after.total) == (23, [], 23), "an orderly end saves everything"
        await third.close()
        logs = [path.name for path in (tmp_path / "b").glob("from-*")]
        assert len(logs) <= 1, "what is saved is not kept in the journal"

    run(main())


def test_a_change_of_members_is_in_what_is_saved(tmp_path: Path) -> None:
    """A change has a position, and no service hears of it. Files that are saved behind it are not older than the
    journal, which forgets it."""

    async def main() -> None:
        service = RecordedHost()
        application = host(tmp_path / "a", service)
        for position, message in enumerate(deposits(8)):
            application.deliver(Deliver(message, position))
        application.deliver(Deliver(make_marker(1, 0, 1), 8))
        await application.provide_state(9)
        for file in kill(tmp_path / "a", tmp_path / "b").glob("state-*"):
            file.unlink()  # the state that was exported is not kept for ever
        again = RecordedHost()
        restarted = host(tmp_path / "b", again)
        assert (restarted.taken_until, again.opened, again.total) == (9, 9, 8)
        await restarted.close()
        await application.close()

    run(main())


def test_files_that_are_older_than_the_journal_wait_for_another_member(tmp_path: Path) -> None:
    """Deliveries that are gone are not left out."""

    async def main() -> None:
        messages = deposits(30)
        service = RecordedHost()
        application = host(tmp_path / "a", service)
        for position, message in enumerate(messages[:12]):
            application.deliver(Deliver(message, position))
        old = kill(tmp_path / "a" / "service", tmp_path / "old")
        for position, message in enumerate(messages[12:], 12):
            application.deliver(Deliver(message, position))
        application.save()
        crashed = kill(tmp_path / "a", tmp_path / "b")
        await application.close()
        shutil.rmtree(crashed / "service")
        old.rename(crashed / "service")
        again = RecordedHost()
        restarted = host(crashed, again)
        assert (restarted.taken_until, again.total) == (10, 10)
        await restarted.close()

    run(main())


def test_a_state_of_another_member_replaces_the_files_at_once_or_not(tmp_path: Path) -> None:
    async def main() -> None:
        service, source = RecordedHost(), RecordedHost()
        application, other = host(tmp_path / "a", service), host(tmp_path / "s", source)
        for position, message in enumerate(deposits(12)):
            (application if position < 3 else other).deliver(Deliver(message, position))
            if position < 3:
                other.deliver(Deliver(message, position))
        source.save(source.executor.position)
        pieces = list(source.executor.snapshot_pieces())

        def torn() -> Iterator[bytes]:
            yield from pieces[:-1]
            raise CannotTellError("the disk is full")

        with pytest.raises(CannotTellError):
            service.install(torn(), 12)
        crashed = RecordedHost()
        restarted = host(kill(tmp_path / "a", tmp_path / "b"), crashed)
        assert (crashed.opened, crashed.total) == (0, 0), "three deliveries were not saved, and are repeated"
        assert service.total == 3
        service.install(iter(pieces), 12)
        moved = RecordedHost()
        final = host(kill(tmp_path / "a", tmp_path / "c"), moved)
        assert (moved.opened, moved.total) == (12, 12)
        assert len(list((tmp_path / "a" / "service").glob("0*"))) == 1, "the old files are gone"
        for one in (application, other, restarted, final):
            await one.close()

    run(main())


def test_a_failure_of_the_disk_is_no_result_and_nothing_of_it_is_saved(tmp_path: Path) -> None:
    async def main() -> None:
        service = RecordedHost()
        application = host(tmp_path / "a", service)
        messages = deposits(9)
        for position in range(7):
            application.deliver(Deliver(messages[position], position))
        database = service.executor.service.database  # type: ignore[attr-defined]
        database.execute("PRAGMA query_only = ON")  # SQLite refuses to write, with an OperationalError
        with pytest.raises(ServiceFailedError, match="deposit: the files of FrequentLedger fail at this replica"):
            application.deliver(Deliver(messages[7], 7))
        database.execute("PRAGMA query_only = OFF")
        application.save()
        await application.close()
        again = RecordedHost()
        restarted = host(tmp_path / "a", again)
        assert again.opened == 5, "nothing was saved after the failure"
        assert again.positions[:2] == [5, 6]
        assert again.total == 8, "the delivery that failed is in the journal, and is executed once"
        await restarted.close()

    run(main())


def test_files_of_a_cluster_in_memory_do_not_outlive_the_program(tmp_path: Path) -> None:
    first = ServiceFiles(tmp_path / "service", keeps=True)
    (first.folder / "data").write_text("x")
    assert (ServiceFiles(tmp_path / "service", keeps=True).folder / "data").exists()
    assert not (ServiceFiles(tmp_path / "service", keeps=False).folder / "data").exists()


# Real clusters


def make_cluster(folder: Path, **fields: Any) -> Cluster:
    settings = {"protocol": "primcast", "limits": QUICK, "options": {"keep": 8}, **fields}
    (folder / "cluster.toml").write_text(format_local_config({"orders": 3}, **settings))
    return read_cluster(folder / "cluster.toml")


def read_accounts(cluster: Cluster, node: str) -> dict[str, int]:
    """The accounts in the database of a node that has stopped."""
    folder = cluster.data_folder(cluster.process_of(node)) / "application" / "service"
    file = folder / f"{int((folder / 'current').read_text()):08d}" / "ledger.db"
    with sqlite3.connect(file) as database:
        return dict(database.execute("SELECT name, money FROM accounts"))


@pytest.mark.live
def test_deposits_are_executed_once_through_kill_9_of_one_and_of_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[3]), prepend=os.pathsep)
    cluster = make_cluster(tmp_path, durability="os")
    with local_cluster(cluster, service=SERVICE) as running:
        run(_deposit_through_kills(cluster, running), 120)
        running.stop(*cluster.nodes())
    accounts = [read_accounts(cluster, node) for node in cluster.nodes()]
    assert accounts[0] == accounts[1] == accounts[2]
    assert sum(accounts[0].values()) == 4 * 60


async def _deposit_through_kills(cluster: Cluster, running: LocalCluster) -> None:
    done = 0

    async def deposit(teller: int) -> None:
        nonlocal done
        async with connect(cluster, connect_s=30) as client:
            ledger = client.service(FrequentLedger)
            for number in range(60):
                await ledger.deposit(f"account-{(teller + number) % 7}", 1, timeout_s=60)
                done += 1

    tellers = [asyncio.create_task(deposit(number)) for number in range(4)]
    for kills in (("orders/1",), ("orders/2", "orders/3"), cluster.nodes(), ("orders/1",), cluster.nodes()):
        reached = done + 20
        while done < reached and not all(task.done() for task in tellers):
            await asyncio.sleep(0.005)
        running.kill(*kills)
        running.start(*kills)
    await asyncio.gather(*tellers)
    async with connect(cluster, connect_s=30) as client:
        assert (await client.service(FrequentLedger).total(timeout_s=60)).value == 4 * 60


@pytest.mark.live
@pytest.mark.parametrize("durability", ["memory", "os"])
def test_a_replica_that_was_away_fills_its_files_with_those_of_another(tmp_path: Path, durability: str) -> None:
    cluster = make_cluster(tmp_path, durability=durability)

    async def main() -> None:
        replicas: dict[str, Replica] = {name: run_service(cluster, name, FrequentLedger) for name in cluster.nodes()}
        for one in replicas.values():
            await one.open()
        async with connect(cluster) as client:
            ledger = client.service(FrequentLedger)
            await asyncio.gather(*(ledger.deposit(f"account-{number}", 1) for number in range(20)))
            leading, leaving = (replicas[name].service for name in ("orders/1", "orders/3"))
            assert leading is not None
            assert leaving is not None
            while leaving.executor.position < leading.executor.position:
                await asyncio.sleep(0.01)  # a follower executes a little later
            await replicas["orders/3"].close()
            for number in range(60):
                await asyncio.gather(*(ledger.deposit(f"account-{number}-{place}", 1) for place in range(40)))
            await replicas["orders/3"].open()
            await replicas["orders/3"].caught_up()
            await ledger.deposit("account-0", 1)
            first, third = (replicas[name].service for name in ("orders/1", "orders/3"))
            assert first is not None
            assert third is not None
            assert (third.opened > 0) == (durability == "os")
            while third.executor.position < first.executor.position:
                await asyncio.sleep(0.02)
            assert third.executor.service.total() == first.executor.service.total()  # type: ignore[attr-defined]
        for one in replicas.values():
            await one.close()

    run(main(), 60)
    if durability == "os":
        assert read_accounts(cluster, "orders/3") == read_accounts(cluster, "orders/1")


def test_the_position_of_a_save_is_that_of_its_record(tmp_path: Path) -> None:
    ledger = Ledger("orders")
    assert ledger.open(tmp_path) is None
    ledger.save(Applied(7, b"record"))
    ledger.close()
    again = Ledger("orders")
    assert again.open(tmp_path) == Applied(7, b"record")
    again.close()
