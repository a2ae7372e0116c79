"""Reads without ordering in live clusters: what each consistency promises, and when it is refused."""

import asyncio
import time
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from amcast.cluster import connect, local_cluster, run_service
from amcast.kernel.errors import UsageError
from amcast.live.config.cluster import Cluster, read_cluster
from amcast.live.operations.local_cluster import LocalCluster, format_local_config
from amcast.live.server.replica import Replica
from amcast.services.declaration import At, Key, Service, command, query
from amcast.services.errors import OutcomeUnknownError, ReadRefusedError
from tests.live.cluster import run

pytestmark = pytest.mark.live


class Counter(Service):
    """Counts."""

    def __init__(self, group: str) -> None:
        self.count: int = 0

    @command
    def add(self, at: At, name: Key) -> int:
        self.count += 1
        return self.count

    @query
    def read(self, name: Key) -> int:
        return self.count


def make_cluster(folder: Path, groups: dict[str, int], **fields: str) -> Cluster:
    (folder / "cluster.toml").write_text(format_local_config(groups, **fields))
    return read_cluster(folder / "cluster.toml")


def test_reads_are_fresh_through_the_death_of_leaders_and_are_not_ordered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[3]))
    cluster = make_cluster(tmp_path, {"north": 3})
    with local_cluster(cluster, service="tests.live.server.test_service_reads:Counter") as running:
        run(_read_through_kills(cluster, running), 90)


async def _read_through_kills(cluster: Cluster, running: LocalCluster) -> None:
    async with connect(cluster) as writer, connect(cluster) as reader:
        adding, reading = writer.service(Counter), reader.service(Counter)
        known = reads = 0
        is_over = False

        async def add() -> None:
            nonlocal known
            for _ in range(120):
                known = max(known, (await adding.add("x", timeout_s=60)).value)

        async def read() -> None:
            nonlocal reads
            while not is_over:
                before = known
                value = (await reading.read("x", timeout_s=60)).value
                assert value >= before, f"a read of {value} began after the answer {before}"
                reads += 1

        tasks = [asyncio.create_task(read()) for _ in range(4)]
        adds = asyncio.create_task(add())
        for node, after in (("north/1", 20), ("north/2", 70)):
            while known < after:
                await asyncio.sleep(0.01)
            running.kill(node)
            running.start(node)
        await adds
        is_over = True
        await asyncio.gather(*tasks)
        assert reads > 20
        position = (await adding.add("x")).positions["north"]
        assert {(await reading.read("x")).positions["north"] for _ in range(20)} == {position + 1}
        assert (await adding.add("x")).positions["north"] - position < 20, "reads are not ordered"


def test_a_replica_without_majority_refuses_what_it_cannot_promise(tmp_path: Path) -> None:
    cluster = make_cluster(tmp_path, {"north": 3, "south": 1}, durability="memory")

    async def main() -> None:
        async with AsyncExitStack() as stack:
            replicas: dict[str, Replica] = {}
            for name in cluster.nodes():
                replicas[name] = await stack.enter_async_context(run_service(cluster, name, Counter))
            client = await stack.enter_async_context(connect(cluster))
            counter = client.service(Counter)
            name = next(f"key-{n}" for n in range(9) if Counter.partition(f"key-{n}", ("north", "south")) == "north")
            await counter.add(name)
            assert (await counter.read(name)).value == 1
            assert (await counter.read(name, consistency="group")).value == 1
            assert (await counter.read(name, consistency="stale", max_age_s=60)).value == 1
            many = await asyncio.gather(*(counter.read(name, consistency="group") for _ in range(1500)))
            assert {outcome.value for outcome in many} == {1}, "more reads than may be open at once"
            both = await counter.read(name, consistency="group", groups=["north", "south"])
            assert both.by_group == {"north": 1, "south": 0}
            with pytest.raises(UsageError, match="consistency = 'fresh'; expected one of 'linearizable', 'group', 'st"):
                await counter.read(name, consistency="fresh")
            with pytest.raises(UsageError, match="max_age_s = None; expected a bound in seconds above 0 with 'stale'"):
                await counter.read(name, consistency="stale")
            with pytest.raises(UsageError, match="add: consistency = 'group'; expected a query"):
                await counter.add(name, consistency="group")
            await replicas["north/2"].close()
            await replicas["north/3"].close()
            assert (await counter.read(name, consistency="group")).value == 1
            assert (await counter.read(name, consistency="stale", max_age_s=600)).value == 1
            with pytest.raises(
                ReadRefusedError, match=r"its state is up to .* s old, and no majority of its group answ"
            ):
                await counter.read(name, consistency="stale", max_age_s=0.001, timeout_s=40)

    run(main(), 60)


def test_a_replica_whose_leader_is_gone_still_answers_what_it_can(tmp_path: Path) -> None:
    """Without a majority there is no other leader: replicas go on naming the one that does not answer."""
    cluster = make_cluster(tmp_path, {"north": 3}, durability="memory")

    async def main() -> None:
        async with AsyncExitStack() as stack:
            replicas: dict[str, Replica] = {}
            for name in cluster.nodes():
                replicas[name] = await stack.enter_async_context(run_service(cluster, name, Counter))
            client = await stack.enter_async_context(connect(cluster))
            await client.service(Counter).add("x")
            await replicas["north/1"].close()
            await replicas["north/2"].close()
            assert (await client.service(Counter).read("x", consistency="group", timeout_s=20)).value == 1
            begin = time.monotonic()
            with pytest.raises(OutcomeUnknownError, match="within 3 s"):
                await client.service(Counter).read("x", timeout_s=3)
            assert time.monotonic() - begin < 4, "all that it tries counts"

    run(main(), 60)


@pytest.mark.parametrize("protocol", ["whitebox", "multipaxos"])
def test_protocols_without_a_read_index_order_what_must_be_fresh(
    tmp_path: Path, protocol: str, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = make_cluster(tmp_path, {"north": 1, "south": 1}, durability="memory", protocol=protocol)

    async def main() -> None:
        async with AsyncExitStack() as stack:
            for name in cluster.nodes():
                await stack.enter_async_context(run_service(cluster, name, Counter))
            counter = (await stack.enter_async_context(connect(cluster))).service(Counter)
            owner = Counter.partition("x", ("north", "south"))
            last = (await counter.add("x")).positions[owner]
            for number in range(1, 4):
                assert (await counter.read("x", consistency="group")).value == number
                for given in ({}, {"consistency": "stale", "max_age_s": 0.5}):
                    outcome = await counter.read("x", **given)
                    assert outcome.value == number
                    assert outcome.positions[owner] > last, "it is ordered"
                    last = outcome.positions[owner]
                both = await counter.read("x", consistency="stale", max_age_s=9, groups=["north", "south"])
                assert both.by_group[owner] == number
                last = (await counter.add("x")).positions[owner]

    run(main(), 60)
    warnings = [record.getMessage() for record in caplog.records if "cost as much as commands" in record.getMessage()]
    assert len(warnings) == len(set(warnings)) >= 1, "once per group"
