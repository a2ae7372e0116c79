"""Client numbers: no two clients that could be confused ever get the same one, over all incarnations of the servers."""

import asyncio
from pathlib import Path

import pytest

from amcast.cluster import connect, run_replica
from amcast.kernel.errors import CannotTellError, UsageError
from amcast.kernel.ids import MAX_SENDER, sender_of, sequence_of
from amcast.live.config.cluster import Cluster, read_cluster
from amcast.live.operations.local_cluster import format_local_config
from amcast.live.security.permissions import FIRST_CLIENT_ID, IDS_PER_CLIENT
from amcast.live.storage.client_ids import AHEAD, MOST_USED, STRIDE, ClientIdAllocator
from tests.live.cluster import run

WHOLE = (FIRST_CLIENT_ID, MAX_SENDER)


def test_servers_and_incarnations_never_issue_a_number_twice(tmp_path: Path) -> None:
    seen: set[int] = set()
    for server in (0, 1, 7, STRIDE - 1):
        for incarnation, count in enumerate((3, AHEAD, 1, 2 * AHEAD + 1)):
            numbers = ClientIdAllocator(tmp_path / str(server), server, incarnation)
            for _ in range(count):
                issue = numbers.allocate(*WHOLE)
                assert issue.number not in seen
                assert FIRST_CLIENT_ID <= issue.number <= MAX_SENDER
                assert (issue.incarnation, issue.sequence) == (0, 0)
                seen.add(issue.number)


def test_ranges_of_certificates_are_kept_apart(tmp_path: Path) -> None:
    numbers = ClientIdAllocator(tmp_path, 3, 0)
    blocks = [(FIRST_CLIENT_ID + n * IDS_PER_CLIENT, FIRST_CLIENT_ID + (n + 1) * IDS_PER_CLIENT - 1) for n in range(3)]
    for first, last in blocks * 5:
        assert first <= numbers.allocate(first, last).number <= last
    small = ClientIdAllocator(tmp_path / "small", 3, 0)
    assert [small.allocate(FIRST_CLIENT_ID, FIRST_CLIENT_ID + 324).number - FIRST_CLIENT_ID for _ in range(6)][
        -1
    ] == 323
    with pytest.raises(UsageError, match="has issued all its numbers from 1048576 to 1048900"):
        small.allocate(FIRST_CLIENT_ID, FIRST_CLIENT_ID + 324)


def test_a_number_comes_back_only_from_its_holder_and_goes_on_where_it_was(tmp_path: Path) -> None:
    numbers = ClientIdAllocator(tmp_path, 0, 0)
    one = numbers.allocate(*WHOLE)
    assert not numbers.release(one.number, b"guessed", 1, 10)
    assert not numbers.release(one.number + STRIDE, one.secret, 1, 10)
    assert numbers.release(one.number, one.secret, 1, 10)
    assert not numbers.release(one.number, one.secret, 1, 10), "once"
    again = numbers.allocate(*WHOLE)
    assert (again.number, again.incarnation, again.sequence) == (one.number, 1, 10)
    assert again.secret != one.secret
    assert not numbers.release(again.number, again.secret, 2, MOST_USED + 1)
    assert numbers.allocate(*WHOLE).number != one.number, "a used-up number is retired"


def test_who_lost_its_disk_or_has_a_high_number_issues_nothing(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="numbers is lost; expected another process than 0"):
        ClientIdAllocator(tmp_path / "lost", 0, incarnation=4).allocate(*WHOLE)
    with pytest.raises(UsageError, match="process 64 issues no numbers"):
        ClientIdAllocator(tmp_path / "high", STRIDE, 0).allocate(*WHOLE)
    (tmp_path / "numbers").write_text("?")
    with pytest.raises(UsageError, match="expected how many numbers were issued"):
        ClientIdAllocator(tmp_path, 0, 0)


def configured(folder: Path) -> Cluster:
    (folder / "cluster.toml").write_text(format_local_config({"orders": 1}, protocol="skeen", durability="memory"))
    return read_cluster(folder / "cluster.toml")


@pytest.mark.live
def test_short_lived_clients_share_a_number_and_deliver_everything(tmp_path: Path) -> None:
    cluster = configured(tmp_path)
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
def test_clients_at_the_same_time_and_those_that_left_something_open_have_their_own(tmp_path: Path) -> None:
    cluster = configured(tmp_path)

    async def main() -> None:
        async with run_replica(cluster, "orders/1") as replica:
            async with connect(cluster) as one, connect(cluster) as two:
                first, second = one.me, two.me
                assert first != second
            async with connect(cluster) as three:
                assert three.me in (first, second)
                open_number = three.me
                replica.host.network.pause_reading(True)
                with pytest.raises(CannotTellError):
                    await three.multicast({"orders"}, b"x", timeout_s=0.1)
            replica.host.network.pause_reading(False)
            async with connect(cluster) as four, connect(cluster) as five:
                assert open_number not in (four.me, five.me)

    run(main())


@pytest.mark.live
def test_a_restarted_server_issues_new_numbers(tmp_path: Path) -> None:
    cluster = configured(tmp_path)

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
