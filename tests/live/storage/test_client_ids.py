"""Client ids: no two clients whose messages could be confused get the same id, over all incarnations of servers."""

import asyncio
from pathlib import Path

import pytest

from amcast.cluster import connect, run_replica
from amcast.kernel.errors import CannotTellError, UsageError
from amcast.kernel.ids import MAX_SENDER, sender_of, sequence_of
from amcast.live.config.cluster import Cluster, read_cluster
from amcast.live.operations.local_cluster import format_local_config
from amcast.live.security.permissions import FIRST_CLIENT_ID, IDS_PER_CLIENT
from amcast.live.storage.system_files import SystemFiles
from amcast.storage.client_ids import AHEAD, MAX_SEQUENCE, STRIDE, ClientIdAllocator
from tests.live.cluster import run

WHOLE = (FIRST_CLIENT_ID, MAX_SENDER)


def test_servers_and_incarnations_never_allocate_an_id_twice(tmp_path: Path) -> None:
    seen: set[int] = set()
    for server in (0, 1, 7, STRIDE - 1):
        for incarnation, count in enumerate((3, AHEAD, 1, 2 * AHEAD + 1)):
            allocator = ClientIdAllocator(SystemFiles(tmp_path / str(server)).make_folder(), server, incarnation)
            for _ in range(count):
                allocated = allocator.allocate(*WHOLE)
                assert allocated.process not in seen
                assert FIRST_CLIENT_ID <= allocated.process <= MAX_SENDER
                assert (allocated.incarnation, allocated.sequence) == (0, 0)
                seen.add(allocated.process)


def test_ids_come_from_the_range_of_the_certificate(tmp_path: Path) -> None:
    allocator = ClientIdAllocator(SystemFiles(tmp_path), 3, 0)
    blocks = [(FIRST_CLIENT_ID + n * IDS_PER_CLIENT, FIRST_CLIENT_ID + (n + 1) * IDS_PER_CLIENT - 1) for n in range(3)]
    for first, last in blocks * 5:
        assert first <= allocator.allocate(first, last).process <= last
    small = ClientIdAllocator(SystemFiles(tmp_path / "small").make_folder(), 3, 0)
    assert [small.allocate(FIRST_CLIENT_ID, FIRST_CLIENT_ID + 324).process - FIRST_CLIENT_ID for _ in range(6)][
        -1
    ] == 323
    with pytest.raises(UsageError, match="has allocated all its client ids from 1048576 to 1048900"):
        small.allocate(FIRST_CLIENT_ID, FIRST_CLIENT_ID + 324)


def test_released_id_continues_its_sequence_and_only_its_holder_releases_it(tmp_path: Path) -> None:
    allocator = ClientIdAllocator(SystemFiles(tmp_path), 0, 0)
    one = allocator.allocate(*WHOLE)
    assert not allocator.release(one.process, b"guessed", 1, 10)
    assert not allocator.release(one.process + STRIDE, one.secret, 1, 10)
    assert allocator.release(one.process, one.secret, 1, 10)
    assert not allocator.release(one.process, one.secret, 1, 10), "once"
    again = allocator.allocate(*WHOLE)
    assert (again.process, again.incarnation, again.sequence) == (one.process, 1, 10)
    assert again.secret != one.secret
    assert not allocator.release(again.process, again.secret, 2, MAX_SEQUENCE + 1)
    assert allocator.allocate(*WHOLE).process != one.process, "a used-up id is retired"


def test_server_without_disk_or_with_a_high_number_allocates_nothing(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="client_ids is lost; expected another process than 0"):
        ClientIdAllocator(SystemFiles(tmp_path / "lost").make_folder(), 0, incarnation=4).allocate(*WHOLE)
    with pytest.raises(UsageError, match="process 64 allocates no client ids"):
        ClientIdAllocator(SystemFiles(tmp_path / "high").make_folder(), STRIDE, 0).allocate(*WHOLE)
    (tmp_path / "client_ids").write_text("?")
    with pytest.raises(UsageError, match="client_ids is lost"):
        ClientIdAllocator(SystemFiles(tmp_path), 0, 0).allocate(*WHOLE)


def make_cluster(folder: Path) -> Cluster:
    (folder / "cluster.toml").write_text(format_local_config({"orders": 1}, protocol="skeen", durability="memory"))
    return read_cluster(folder / "cluster.toml")


@pytest.mark.live
def test_short_lived_clients_reuse_an_id_and_deliver_everything(tmp_path: Path) -> None:
    cluster = make_cluster(tmp_path)
    got: list[bytes] = []

    async def main() -> None:
        ids = []
        async with run_replica(cluster, "orders/1", lambda delivery: got.append(delivery.payload)):
            for number in range(20):
                async with connect(cluster) as client:
                    ids.append((await client.multicast({"orders"}, b"%d" % number)).message)
        assert len({sender_of(id) for id in ids}) == 1
        assert [sequence_of(id) for id in ids] == list(range(20))

    run(main())
    assert got == [b"%d" % number for number in range(20)]


@pytest.mark.live
def test_concurrent_clients_and_those_with_unanswered_messages_keep_their_ids(tmp_path: Path) -> None:
    cluster = make_cluster(tmp_path)

    async def main() -> None:
        async with run_replica(cluster, "orders/1") as replica:
            async with connect(cluster) as one, connect(cluster) as two:
                first, second = one.me, two.me
                assert first != second
            async with connect(cluster) as three:
                assert three.me in (first, second)
                unanswered = three.me
                replica.host.network.pause_reading(True)
                with pytest.raises(CannotTellError):
                    await three.multicast({"orders"}, b"x", timeout_s=0.1)
            replica.host.network.pause_reading(False)
            async with connect(cluster) as four, connect(cluster) as five:
                assert unanswered not in (four.me, five.me)

    run(main())


@pytest.mark.live
def test_restarted_server_allocates_new_ids(tmp_path: Path) -> None:
    cluster = make_cluster(tmp_path)

    async def main() -> None:
        seen = []
        for _ in range(3):
            async with run_replica(cluster, "orders/1"):
                client = await connect(cluster).__aenter__()
                seen.append(client.me)
                client.multicaster.outstanding = 1
                await client.__aexit__(None, None, None)
                await asyncio.sleep(0)
        assert len(set(seen)) == 3

    run(main())
