"""Changes of members: the rewritten cluster.toml, and how hosts, permissions and applications follow."""

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from amcast.cluster import connect, run_replica, subscribe
from amcast.kernel.errors import CannotTellError, UsageError
from amcast.kernel.reconfiguration import encode_change
from amcast.live.client_batch import Delivery
from amcast.live.config.cluster import Cluster, read_cluster
from amcast.live.config.rewrite import replace_file, rewrite_members
from amcast.live.errors import RefusedError
from amcast.live.membership import topology_follower as moving
from amcast.live.operations import reconfiguration as changes
from amcast.live.operations.local_cluster import find_free_ports
from amcast.live.rpc.client import RpcClient
from amcast.live.security.permissions import Permissions, Subject
from amcast.live.server.replica import Replica
from tests.live.cluster import run
from tests.live.secure_cluster import plain, until

TEXT = """\
# The shop's cluster. Keep in step with the firewall.
name = "shop"
durability = "memory"

[groups.orders]        # three machines
replicas = [
    { address = "127.0.0.1:7001", http = "127.0.0.1:9001" },   # in the cellar [old]
    "127.0.0.1:7002",
    "127.0.0.1:7003",
]

[groups."back office"]
replicas = ["127.0.0.1:7004"]

[security]
mode = "plain"         # for now
"""


def shop(folder: Path, text: str = TEXT) -> Cluster:
    file = folder / "cluster.toml"
    file.write_text(text)
    return read_cluster(file)


def after(cluster: Cluster, *replica_changes: changes.ReplicaChange) -> Cluster:
    for replica_change in replica_changes:
        cluster = cluster.with_topology(changes.next_topology(cluster, replica_change))
    return cluster


def test_rewritten_file_keeps_names_ids_and_comments(tmp_path: Path) -> None:
    cluster = after(
        shop(tmp_path), changes.ReplicaChange("orders/7", "127.0.0.1:7009"), changes.ReplicaChange("orders/2")
    )
    backup = replace_file(cluster.file, rewrite_members(cluster))
    assert backup is not None
    assert backup.read_text() == TEXT
    text = cluster.file.read_text()
    for comment in ("# The shop's cluster. Keep in step with the firewall.", "# three machines", "# for now"):
        assert comment in text
    read = read_cluster(cluster.file)
    assert read.nodes() == {"orders/1": 0, "orders/3": 2, "orders/7": 4, "back office/1": 3}
    assert (read.topology.configuration, read.topology.next_process) == (2, 5)
    assert read.addresses == cluster.addresses
    assert read.http_addresses == cluster.http_addresses
    again = after(
        read, changes.ReplicaChange("back office/2", "127.0.0.1:7010"), changes.ReplicaChange("back office/1")
    )
    replace_file(again.file, rewrite_members(again))
    assert again.file.read_text().count("[members]") == 1
    assert read_cluster(again.file).nodes() == {"orders/1": 0, "orders/3": 2, "orders/7": 4, "back office/2": 5}
    assert read_cluster(again.file).topology.configuration == 4


def test_file_with_inline_tables_is_rewritten_from_values(tmp_path: Path) -> None:
    text = 'name = "shop"\nsecurity = { mode = "plain" }\ngroups = { orders = { replicas = ["127.0.0.1:7001"] } }\n'
    cluster = after(shop(tmp_path, text), changes.ReplicaChange("orders/2", "[::1]:7002", region="eu"))
    replace_file(cluster.file, rewrite_members(cluster))
    read = read_cluster(cluster.file)
    assert read.addresses == {0: ("127.0.0.1", 7001), 1: ("::1", 7002)}
    assert read.topology.region(1) == "eu"


@pytest.mark.parametrize(
    ("members", "replicas", "sentence"),
    [
        ("configuration = 1\nnext_process = 2", '["127.0.0.1:1"]', "replicas[0] lacks `process` or `name`"),
        (
            "configuration = 1",
            '[{ address = "127.0.0.1:1", name = "a/1", process = 0 }]',
            "members.next_process = None",
        ),
        ("next_process = 1", '[{ address = "127.0.0.1:1", name = "a/1", process = 0 }]', "expected both, as"),
        (
            "configuration = -1",
            '[{ address = "127.0.0.1:1", name = "a/1", process = 0 }]',
            "members.configuration = -1; expected 0 or more",
        ),
        (
            "configuration = 1\nnext_process = 3",
            '[{ address = "127.0.0.1:1", name = "a/1", process = 3 }]',
            "next_process = 3; expected 4",
        ),
        ("", '[{ address = "127.0.0.1:1", name = "b/1" }]', "the name 'b/1'; expected a/NUMBER"),
        ("", '[{ address = "127.0.0.1:1", name = "a/0" }]', "the name 'a/0'; expected a/NUMBER"),
        ("", '[{ address = "127.0.0.1:1", name = "a/2" }, "127.0.0.1:2"]', "the name a/2 appears twice"),
    ],
)
def test_invalid_members_error_names_the_field(tmp_path: Path, members: str, replicas: str, sentence: str) -> None:
    text = f'name = "shop"\n[security]\nmode = "plain"\n[groups.a]\nreplicas = {replicas}\n[members]\n{members}\n'
    with pytest.raises(UsageError) as refused:
        shop(tmp_path, text)
    assert sentence in str(refused.value)
    assert "cluster.toml: " in str(refused.value)


def test_permissions_follow_changes_of_members(tmp_path: Path) -> None:
    cluster = shop(tmp_path)
    rights: Permissions = cluster.permissions()
    gone, fresh = Subject("shop", "node", "orders/2"), Subject("shop", "node", "orders/4")
    with pytest.raises(RefusedError, match="which is no node"):
        rights.check(fresh, 4)
    rights.follow_topology(after(cluster, changes.ReplicaChange("orders/4", "127.0.0.1:7009")).topology)
    rights.check(fresh, 4)
    rights.check_node(gone)
    rights.follow_topology(
        after(cluster, changes.ReplicaChange("orders/4", "127.0.0.1:7009"), changes.ReplicaChange("orders/2")).topology
    )
    rights.follow_topology(cluster.topology)  # what is older changes nothing
    rights.check_known_or_removed(gone)
    checks: list[Callable[[Subject], object]] = [rights.check_node, rights.check_operator, rights.client_id_range]
    for check in checks:
        with pytest.raises(RefusedError, match="was removed from cluster 'shop'"):
            check(gone)


def test_change_permission_requires_all_groups(tmp_path: Path) -> None:
    text = TEXT.replace('"plain"', '"tls"') + '[clients.ops]\ngroups = ["orders"]\nchange = true\n'
    with pytest.raises(UsageError, match=r'clients.ops.change = true .*; expected groups = "all"'):
        shop(tmp_path, text)


async def order(cluster: Cluster, replica_change: changes.ReplicaChange) -> Cluster:
    """Does what `amcast change` does, without its file."""
    asker = RpcClient(cluster.name, cluster.addresses, cluster.limits, cluster.client_transport())
    topology = changes.next_topology(cluster, replica_change)
    async with connect(cluster, batches=False) as operator:
        assert await changes.order_change(operator, asker, cluster.topology, topology, 20) == "done"
    return cluster.with_topology(topology)


def test_applications_agree_across_changes_of_members(tmp_path: Path) -> None:
    """A new replica installs the application's state, changes are not delivered, and readers end where their replica
    does."""

    class Book:
        def __init__(self) -> None:
            self.lines: list[bytes] = []

        def record(self, delivery: Delivery) -> None:
            self.lines.append(delivery.payload)

        def take(self) -> bytes:
            return b"\n".join(self.lines)

        def install(self, data: bytes, position: int) -> None:
            self.lines = data.split(b"\n") if data else []

    async def main() -> None:
        cluster = plain(tmp_path, {"orders": 3})
        books = {name: Book() for name in ("orders/1", "orders/2", "orders/3", "orders/4")}
        async with AsyncExitStack() as stack:

            async def enter(cluster: Cluster, name: str) -> Replica:
                book = books[name]
                replica = run_replica(cluster, name, book.record, take=book.take, install=book.install)
                await stack.enter_async_context(replica)
                return replica

            leaver, *_ = [await enter(cluster, name) for name in cluster.nodes()]
            read = asyncio.create_task(_all(leaver, 0))
            client = await stack.enter_async_context(connect(cluster))
            reader = await stack.enter_async_context(subscribe(cluster, "orders", since=0))
            for number in range(10):
                await client.multicast(["orders"], b"%d" % number)
            cluster = await order(cluster, changes.ReplicaChange("orders/4", f"127.0.0.1:{find_free_ports(1)[0]}"))
            await enter(cluster, "orders/4")
            await until(lambda: len(books["orders/4"].lines) == 10)
            cluster = await order(cluster, changes.ReplicaChange("orders/1"))
            for number in range(10, 20):
                await client.multicast(["orders"], b"%d" % number)
            await until(lambda: client.topology.members(0) == (1, 2, 3))
            lines = [(await anext(reader)).payload for _ in range(20)]
            assert lines == [b"%d" % number for number in range(20)]
            await until(lambda: all(len(books[name].lines) == 20 for name in ("orders/2", "orders/3", "orders/4")))
            assert [books[name].lines == lines for name in ("orders/2", "orders/3", "orders/4")] == [True] * 3
            async with asyncio.timeout(10):
                assert [delivery.payload for delivery in await read] == lines[:10]
            await until(leaver.host.ended.done)

    run(main(), timeout_s=60)


async def _all(replica: Replica, since: int) -> list[Delivery]:
    return [delivery async for delivery in replica.deliveries(since)]


def test_absent_replica_learns_of_its_groups_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The absent replica requests the topology: one that was removed retires, one that was not continues."""
    monkeypatch.setattr(moving, "REMOVAL_S", 0.05)
    monkeypatch.setattr(moving, "CHECK_S", 0.1)

    async def main() -> None:
        first = cluster = plain(tmp_path, {"orders": 3}, durability="os")
        async with AsyncExitStack() as stack:
            leaver = run_replica(cluster, "orders/1")
            for replica in (run_replica(cluster, "orders/2"), run_replica(cluster, "orders/3")):
                await stack.enter_async_context(replica)
            async with leaver:
                client = await stack.enter_async_context(connect(cluster))
                await client.multicast(["orders"], b"x")
            cluster = await order(cluster, changes.ReplicaChange("orders/4", f"127.0.0.1:{find_free_ports(1)[0]}"))
            await stack.enter_async_context(run_replica(cluster, "orders/4"))
            cluster = await order(cluster, changes.ReplicaChange("orders/1"))
            await client.multicast(["orders"], b"y")
            await asyncio.sleep(0.2)
            async with run_replica(first, "orders/1") as late:
                await until(lambda: late.host.retired_ns is not None)
            with pytest.raises(
                moving.RemovedFromGroupError, match="orders/1 was removed from its group by configuration 2"
            ):
                run_replica(first, "orders/1")

    run(main(), timeout_s=60)


def test_replica_without_usable_records_asks_the_members_that_its_group_has_now(tmp_path: Path) -> None:
    """Its file and the first records of its log name members that are gone."""

    async def main() -> None:
        first = cluster = plain(tmp_path, {"orders": 3}, durability="os")
        async with AsyncExitStack() as stack:
            survivor = run_replica(cluster, "orders/1")
            async with survivor:
                for name in ("orders/2", "orders/3"):
                    await stack.enter_async_context(run_replica(cluster, name))
                client = await stack.enter_async_context(connect(cluster))
                for number, leaver in ((4, "orders/2"), (5, "orders/3")):
                    await client.multicast(["orders"], b"x")
                    address = f"127.0.0.1:{find_free_ports(1)[0]}"
                    cluster = await order(cluster, changes.ReplicaChange(f"orders/{number}", address))
                    late = await stack.enter_async_context(run_replica(cluster, f"orders/{number}"))
                    await until(late.runtime.caught_up.is_set)
                    cluster = await order(cluster, changes.ReplicaChange(leaver))
                await client.multicast(["orders"], b"y")
                await until(lambda: survivor.position == late.position)
            log = cluster.data_folder(0) / "00000001.log"
            data = bytearray(log.read_bytes())
            data[600] ^= 1
            log.write_bytes(data)
            with pytest.raises(CannotTellError, match="its records were put aside, and its group sends it its state"):
                async with run_replica(first, "orders/1") as doubtful:
                    await until(doubtful.host.ended.done)
            async with run_replica(first, "orders/1") as healed:
                await until(lambda: healed.position == late.position > 4)
                await client.multicast(["orders"], b"z")
                await until(lambda: healed.position == late.position)

    run(main(), timeout_s=60)


def test_change_is_refused_where_members_are_fixed(tmp_path: Path) -> None:
    async def main() -> None:
        cluster = plain(tmp_path, {"orders": 1}, members={"change": False})
        topology = changes.next_topology(
            cluster, changes.ReplicaChange("orders/2", f"127.0.0.1:{find_free_ports(1)[0]}")
        )
        async with run_replica(cluster, "orders/1") as replica, connect(cluster, batches=False) as client:
            receipt = await client.post(["orders"], encode_change(topology))
            await until(lambda: replica.host.network.pending.refused > 0)
            assert not receipt.done()
            assert replica.host.process.topology.configuration == 0

    run(main())


def test_removal_without_remaining_quorum_is_refused(tmp_path: Path) -> None:
    async def main() -> None:
        cluster = plain(tmp_path, {"orders": 3})
        asker = RpcClient(cluster.name, cluster.addresses, cluster.limits, cluster.client_transport())

        async def check(node: str) -> None:
            replica_change = changes.ReplicaChange(node)
            await changes.check_remaining_quorum(asker, changes.next_topology(cluster, replica_change), replica_change)

        async with run_replica(cluster, "orders/1") as one, run_replica(cluster, "orders/2") as two:
            # Both wait for the third: of a new group, all members must be there once.
            with pytest.raises(UsageError, match=r"remain in orders, 2 answer and 0 have the group's state"):
                await check("orders/3")
            async with run_replica(cluster, "orders/3"):
                for replica in (one, two):
                    assert await replica.runtime.wait_admitted(10), replica.runtime.status.admission_reason()
            await check("orders/3")
            with pytest.raises(UsageError, match=r"of the 2 replicas that would remain in orders, 1 answer and 1 have"):
                await check("orders/1")

    run(main())
