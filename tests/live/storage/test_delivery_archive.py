"""Deliveries are kept on disk for subscribers, over restarts of servers and readers, within bounds."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from amcast.cluster import connect, local_cluster, run_replica, subscribe
from amcast.kernel.errors import UsageError
from amcast.kernel.message import Message
from amcast.live.client_batch import Delivery
from amcast.live.config.cluster import Cluster, read_cluster
from amcast.live.host.recent_deliveries import MissedDeliveriesError, RecentDeliveries
from amcast.live.limits import MIB, Limits
from amcast.live.operations.local_cluster import format_local_config
from amcast.live.storage.delivery_archive import DeliveryArchive
from tests.live.cluster import run

DAY_S = 86_400.0


def message(number: int, size: int = 10) -> Message:
    return Message(number, 1, (0,), bytes(size))


def fill(recent: RecentDeliveries, archive: DeliveryArchive, first: int, count: int, size: int = 1000) -> None:
    for number in range(first, first + count):
        recent.add(number, message(number, size))
        archive.save()


def follow(folder: Path, limit_bytes: int = MIB, limit_s: float = DAY_S, **options: object) -> DeliveryArchive:
    return DeliveryArchive(folder, "os", limit_bytes, limit_s, **options)  # type: ignore[arg-type]


def use(archive: DeliveryArchive, recent: RecentDeliveries, body: Callable[[], Awaitable[None]] | None = None) -> None:
    """Attaches an archive to deliveries, and runs a body."""
    archive.follow(recent)

    async def main() -> None:
        task = asyncio.get_running_loop().create_task(archive.run())
        await asyncio.sleep(0)
        if body is not None:
            await body()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    run(main())


async def read_all(archive: DeliveryArchive, position: int) -> list[int]:
    """The numbers of all messages from a position on."""
    read: list[int] = []
    while position < archive.next:
        pages = await archive.read_from(position)
        if not pages:
            break
        for page in pages:
            assert page.position == position, "no gap and no repetition"
            read += [one.id for one in page.messages]
            position += len(page.messages)
    return read


def test_archive_reads_back_what_memory_forgot_and_continues_after_a_restart(tmp_path: Path) -> None:
    for turn in range(3):
        archive, recent = follow(tmp_path), RecentDeliveries(5000)
        assert archive.next == turn * 100

        async def body(archive: DeliveryArchive = archive, recent: RecentDeliveries = recent, turn: int = turn) -> None:
            begin = max(0, turn * 100 - 3)  # the log repeats the last ones
            fill(recent, archive, begin, turn * 100 + 100 - begin)
            assert recent.first > turn * 100 + 50
            assert await read_all(archive, 0) == list(range(turn * 100 + 100))
            assert await read_all(archive, 57) == list(range(57, turn * 100 + 100))

        use(archive, recent, body)
        archive.close()


def test_archive_is_bounded_by_size_and_says_what_is_left(tmp_path: Path) -> None:
    archive, recent = follow(tmp_path), RecentDeliveries(5000)

    async def body() -> None:
        fill(recent, archive, 0, 1500)
        first = archive.first
        assert 500 < first < 1499
        assert await read_all(archive, first) == list(range(first, 1500))
        assert await archive.read_from(first - 1) == []
        used = sum(file.stat().st_size for file in tmp_path.rglob("*") if file.is_file())
        assert used < 1.3 * MIB

    use(archive, recent, body)
    archive.close()


def test_archive_is_bounded_by_age(tmp_path: Path) -> None:
    now = 0.0
    archive, recent = follow(tmp_path, 2 * MIB, clock=lambda: now), RecentDeliveries(5000)

    async def body() -> None:
        nonlocal now
        fill(recent, archive, 0, 400)
        assert archive.first == 0
        newest = max(file.stat().st_mtime for file in tmp_path.rglob("*.log"))
        now = newest + DAY_S + 10
        fill(recent, archive, 400, 1)
        assert archive.first > 200
        assert await read_all(archive, archive.first) == list(range(archive.first, 401))

    use(archive, recent, body)
    archive.close()


def test_archive_begins_anew_behind_a_gap(tmp_path: Path) -> None:
    archive, recent = follow(tmp_path), RecentDeliveries(5000)

    async def body() -> None:
        fill(recent, archive, 0, 50)
        recent.skip_to(80)
        fill(recent, archive, 80, 5)
        assert (archive.first, archive.next) == (80, 85)
        assert await read_all(archive, 80) == list(range(80, 85))

    use(archive, recent, body)
    archive.close()
    assert len(list(tmp_path.iterdir())) == 1


def test_failing_disk_ends_the_archive_and_not_the_replica(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    archive, recent = follow(tmp_path), RecentDeliveries(5000)
    archive.follow(recent)
    fill(recent, archive, 0, 3)

    def fail(*arguments: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(DeliveryArchive, "_write", fail)
    fill(recent, archive, 3, 20)
    assert caplog.text.count("the archive of deliveries is not continued: no space left") == 1
    assert recent.first_held == recent.first, "what memory forgot is not held any more"
    archive.close()


@pytest.mark.parametrize("place", [0, -1])
def test_damaged_archive_gives_no_wrong_delivery(tmp_path: Path, place: int) -> None:
    archive, recent = follow(tmp_path), RecentDeliveries(5000)
    use(archive, recent, None)
    fill(recent, archive, 0, 500)
    archive.close()
    damaged = sorted(tmp_path.iterdir())[place] / "00000001.log"
    data = bytearray(damaged.read_bytes())
    data[2000] ^= 1
    damaged.write_bytes(data)
    archive, recent = follow(tmp_path), RecentDeliveries(5000)

    async def body() -> None:
        if place == -1:
            assert (archive.first, archive.next) == (0, 0), "its end is not known"
            fill(recent, archive, 500, 3)
            assert await read_all(archive, archive.first) == [500, 501, 502]
        else:
            before = archive.first
            read = await read_all(archive, before)
            assert read == list(range(before, before + len(read)))
            first = archive.first
            assert before + len(read) < first, "the damaged log is dropped"
            assert await read_all(archive, first) == list(range(first, 500))

    use(archive, recent, body)
    archive.close()


def test_small_retention_is_refused() -> None:
    with pytest.raises(UsageError, match=r"limits\.retained_bytes = 5; expected 0, or at least 1 MiB"):
        Limits(retained_bytes=5)


def configured(folder: Path, **limits: int) -> Cluster:
    file = folder / "cluster.toml"
    options = {"keep": 8}
    text = format_local_config(
        {"orders": 3}, protocol="primcast", durability="os", options=options, limits={"recent_bytes": 5000, **limits}
    )
    file.write_text(text)
    return read_cluster(file)


async def talk(cluster: Cluster, first: int, count: int) -> None:
    async with connect(cluster) as client:
        for number in range(first, first + count):
            await client.multicast("orders", b"%0500d" % number, timeout_s=60)


async def read(cluster: Cluster, count: int, since: int | None = None, after: Delivery | None = None) -> list[Delivery]:
    got: list[Delivery] = []
    async with subscribe(cluster, "orders", since=since, after=after) as deliveries:
        while len(got) < count:
            delivery = await deliveries.read(timeout_s=20)
            assert delivery is not None
            got.append(delivery)
    return got


@pytest.mark.live
@pytest.mark.slow
def test_subscription_outlives_kill_of_all_servers_and_of_its_reader(tmp_path: Path) -> None:
    cluster = configured(tmp_path, retained_bytes=4 * MIB)
    nodes = tuple(cluster.nodes())
    with local_cluster(cluster) as running:
        run(talk(cluster, 0, 100), timeout_s=60)
        running.kill(*nodes)
        running.start(*nodes)
        run(talk(cluster, 100, 50), timeout_s=60)

        async def main() -> None:
            first = await read(cluster, 70, since=0)
            assert [int(one.payload) for one in first] == list(range(70))
            rest = await read(cluster, 80, after=first[-1])  # by a new reader
            assert [int(one.payload) for one in rest] == list(range(70, 150))

        run(main(), timeout_s=60)


@pytest.mark.live
def test_reader_behind_the_retention_learns_the_first_position_that_is_left(tmp_path: Path) -> None:
    cluster = configured(tmp_path, retained_bytes=MIB)

    async def main() -> None:
        async with AsyncExitStack() as stack:
            replicas = [await stack.enter_async_context(run_replica(cluster, name)) for name in cluster.nodes()]
            one = replicas[0]
            async with connect(cluster) as client:
                for _ in range(60):
                    await client.multicast("orders", bytes(40_000))
            for replica in replicas:
                while replica.position < 60:
                    await asyncio.sleep(0.01)
                assert replica.runtime.recent.archive is not None
                replica.runtime.recent.archive.save()
            with pytest.raises(MissedDeliveriesError) as caught:
                await read(cluster, 1, since=0)
            assert 30 < caught.value.first < 60
            assert (await read(cluster, 1, since=caught.value.first))[0].position == caught.value.first
            archived = anext(one.deliveries(since=one.runtime.recent.first_held))
            assert (await archived).position == one.runtime.recent.first_held

    run(main(), timeout_s=60)
