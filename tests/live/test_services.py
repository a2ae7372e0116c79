"""Services in live clusters: results, exchange and exactly-once execution through kill -9 and restarts."""

import asyncio
import re
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

import amcast
from amcast.cli.main import run as run_command
from amcast.cluster import connect, local_cluster, run_service
from amcast.kernel.errors import UsageError
from amcast.live.config.cluster import Cluster, read_cluster
from amcast.live.operations.local_cluster import LocalCluster, format_local_config
from amcast.live.server import service_host
from amcast.services.declaration import At, Key, Service, command, query
from amcast.services.errors import CommandError, OutcomeUnknownError
from amcast.services.loader import load_service
from tests.live.cluster import run
from tests.services.test_partitioner import Notes

pytestmark = pytest.mark.live

NAMES = [f"account-{number}" for number in range(6)]
EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def bank(monkeypatch: pytest.MonkeyPatch) -> type[Service]:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.setenv("PYTHONPATH", str(EXAMPLES))
    return load_service("bank:Bank").service


def make_cluster(folder: Path, **fields: Any) -> Cluster:
    (folder / "cluster.toml").write_text(format_local_config({"north": 3, "south": 3}, **fields))
    return read_cluster(folder / "cluster.toml")


def test_money_stays_through_kills_of_leaders_and_of_all_nodes(
    tmp_path: Path, bank: type[Service], capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = make_cluster(tmp_path)
    with local_cluster(cluster, service="bank:Bank") as running:
        run(_transfer_through_kills(cluster, running, bank), 120)
        config = str(tmp_path / "cluster.toml")
        assert run_command(["call", "--config", config, "bank:Bank.deposit", "ann", "5", "--json"]) == 0
        assert '"value": 5' in capsys.readouterr().out
        assert run_command(["call", "--config", config, "bank:Bank.deposit", "ann", "much"]) == 64
        assert "deposit: amount = 'much'" in capsys.readouterr().err


async def _transfer_through_kills(cluster: Cluster, running: LocalCluster, bank: type[Service]) -> None:
    async with connect(cluster) as client:
        stub = client.service(bank)
        for name in NAMES:
            assert (await stub.deposit(name, 100)).value == 100
        moved = 0

        async def transfer(teller: int) -> None:
            nonlocal moved
            for number in range(12):
                source, target = NAMES[(teller + number) % 6], NAMES[(teller + 2 * number + 1) % 6]
                if source != target:
                    outcome = await stub.transfer(source, target, 1, timeout_s=60)
                    assert set(outcome.by_group.values()) == {True}
                    moved += 1

        tellers = [asyncio.create_task(transfer(number)) for number in range(4)]
        while moved < 5:
            await asyncio.sleep(0.01)
        running.kill("north/1")
        while moved < 20:
            await asyncio.sleep(0.01)
        running.start("north/1")
        running.kill("south/1")
        await asyncio.gather(*tellers)
        running.start("south/1")
        assert sum((await stub.total()).by_group.values()) == 600
        running.kill(*cluster.nodes())
        running.start(*cluster.nodes())
        assert sum((await stub.total(timeout_s=60)).by_group.values()) == 600
        outcome = await stub.transfer(NAMES[0], NAMES[1], 1, timeout_s=60)
        assert outcome.value is True


class Journal(Service):
    """Appends, and fails on request."""

    def __init__(self, group: str) -> None:
        self.lines: list[str] = []

    @command
    def append(self, at: At, key: Key, line: str) -> int:
        if not line:
            raise ValueError("the line is empty")
        self.lines.append(line)
        return len(self.lines)

    @query
    def read(self, key: Key) -> list[str]:
        return self.lines


class Ledger(Journal):
    """Another service than the cluster's."""


def test_services_in_programs_answer_and_name_what_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "cluster.toml").write_text(format_local_config({"north": 1, "south": 1}, durability="memory"))
    cluster = read_cluster(tmp_path / "cluster.toml")

    async def main() -> None:
        async with run_service(cluster, "north/1", Journal) as north, run_service(cluster, "south/1", Journal) as south:
            assert north.service is not None
            assert north.host.process.real_time is not None, "services use real-time order"  # type: ignore[attr-defined]
            async with connect(cluster) as client:
                journal = client.service(Journal)
                outcomes = await asyncio.gather(*(journal.append(f"key-{n}", f"line {n}") for n in range(1500)))
                assert all(len(outcome.by_group) == 1 for outcome in outcomes), "more calls than a session's window"
                assert (await journal.append("a", "both", groups=["north", "south"])).by_group.keys() == {
                    "north",
                    "south",
                }
                assert "both" in (await journal.read("a")).value
                with pytest.raises(CommandError, match="append raised ValueError: the line is empty"):
                    await journal.append("a", "")
                with pytest.raises(UsageError, match="append: line = 7: Expected `str`, got `int`"):
                    await journal.append("a", 7)
                with pytest.raises(UsageError, match=r"Journal.erase does not exist"):
                    await journal.erase("a")
                positions = (await journal.append("a", "again")).positions
                with pytest.raises(UsageError, match=r"append: .* refuses: the caller's service has digest"):
                    await client.service(Ledger).append("a", "x")
                [(group, position)] = positions.items()
                assert (await journal.append("a", "more")).positions == {group: position + 1}, "nothing was ordered"
                assert len(north.service.executor.results_of(1)) == 0
            south_service = south.service
            assert south_service is not None
            lines = north.service.executor.service.lines + south_service.executor.service.lines  # type: ignore[attr-defined]
            assert len(lines) == 1504, "the line of the other service was executed"

    run(main(), 30)


def test_the_partitioner_of_the_cluster_places_keys_at_nodes_and_callers(tmp_path: Path) -> None:
    text = format_local_config({"north": 1, "south": 1}, durability="memory")
    file, other = tmp_path / "cluster.toml", tmp_path / "other.toml"
    file.write_text(f'partitioner = "tests.services.test_partitioner:by_prefix"\n{text}')
    other.write_text(text)

    async def main() -> None:
        async with AsyncExitStack() as stack:
            for node in ("north/1", "south/1"):
                await stack.enter_async_context(run_service(file, node, Notes))
            notes = (await stack.enter_async_context(connect(file))).service(Notes)
            for group in ("north", "south"):
                assert (await notes.write(f"{group}:1", "text")).by_group == {group: True}
            elsewhere = (await stack.enter_async_context(connect(other))).service(Notes)
            with pytest.raises(UsageError, match="expected the same class on both sides"):
                await elsewhere.write("north:1", "text")

    run(main(), 60)


@pytest.mark.parametrize("forked_bytes", [0, service_host.FORKED_BYTES])
def test_a_replica_that_lost_its_memory_gets_the_service_of_another(
    tmp_path: Path, bank: type[Service], monkeypatch: pytest.MonkeyPatch, forked_bytes: int
) -> None:
    """Small states are taken at once, large ones from a copy of the process, and installed in a thread."""
    monkeypatch.setattr(service_host, "FORKED_BYTES", forked_bytes)
    cluster = make_cluster(tmp_path, durability="memory")

    async def main() -> None:
        async with AsyncExitStack() as stack:
            replicas = {}
            for name in cluster.nodes():
                replicas[name] = await stack.enter_async_context(run_service(cluster, name, bank))
            client = await stack.enter_async_context(connect(cluster))
            stub = client.service(bank)
            await asyncio.gather(*(stub.deposit(name, 5) for name in NAMES))
            await replicas["north/3"].close()
            source, target = next((a, b) for a in NAMES for b in NAMES if _owner(bank, a) != _owner(bank, b))
            assert (await stub.transfer(source, target, 1)).value is True
            await replicas["north/3"].open()
            await replicas["north/3"].caught_up()
            assert (await stub.transfer(source, target, 1)).value is True
            one, other = replicas["north/1"].service, replicas["north/3"].service
            assert one is not None
            assert other is not None
            while other.executor.snapshot() != one.executor.snapshot():
                await asyncio.sleep(0.05)
            assert other.executor.executed == one.executor.executed > 0

    run(main(), 60)


def test_a_service_that_waits_for_another_group_says_so(tmp_path: Path, bank: type[Service]) -> None:
    cluster = make_cluster(tmp_path, durability="memory", order="acyclic")

    async def main() -> None:
        async with AsyncExitStack() as stack:
            replicas = {}
            for name in cluster.nodes():
                replicas[name] = await stack.enter_async_context(run_service(cluster, name, bank))
            client = await stack.enter_async_context(connect(cluster))
            stub = client.service(bank)
            source, target = next((a, b) for a in NAMES for b in NAMES if _owner(bank, a) != _owner(bank, b))
            await stub.deposit(source, 9)
            assert (await stub.transfer(source, target, 1)).value is True
            for name in ("south/1", "south/2", "south/3"):
                service = replicas[name].service
                assert service is not None
                await service.close()  # its values are not multicast any more
            with pytest.raises(OutcomeUnknownError, match=r"is ordered .*, and north gave no result") as raised:
                await stub.transfer(source, target, 1, timeout_s=4)
            message = int(re.search(r"message (\d+), for amcast explain", str(raised.value))[1])  # type: ignore[index]
            for name, is_done in (("north/1", False), ("south/1", True)):
                *_, executed = replicas[name].runtime.status.explain(message)["phases"]
                assert (executed["name"], executed["is_done"]) == ("executed", is_done)
                assert ("waits at yield 0 for the values of south" in executed["description"]) is not is_done
            status = replicas["north/1"].runtime.status
            assert "waits at yield 0 for the values of south; 0 commands wait behind it" in "".join(status.warnings())
            assert not replicas["south/1"].runtime.status.warnings()
            await replicas["south/2"].close()
            await replicas["south/3"].close()
            there = next(name for name in NAMES if _owner(bank, name) == "south")
            with pytest.raises(OutcomeUnknownError, match=r"deposit to south was not ordered within 3 s; it may or"):
                await stub.deposit(there, 1, timeout_s=3)

    run(main(), 60)


def _owner(bank: type[Service], key: str) -> str:
    return bank.partition(key, ("north", "south"))


@pytest.mark.parametrize("other", [Ledger, None])
def test_a_node_with_another_service_stops_and_the_others_go_on(tmp_path: Path, other: type[Service] | None) -> None:
    cluster = make_cluster(tmp_path, durability="memory").for_service()

    async def main() -> None:
        async with AsyncExitStack() as stack:
            replicas = [run_service(cluster, name, Journal) for name in list(cluster.nodes())[:5]]
            for replica in replicas:
                await stack.enter_async_context(replica)
            stranger = run_service(cluster, "south/3", other) if other else amcast.run_replica(cluster, "south/3")
            await stranger.open()
            if other is not None:
                error = await asyncio.wait_for(stranger.failed, 10)
                assert "runs another service" in str(error)
                assert "expected Ledger with digest" in str(error)
                await stranger.close()
            client = await stack.enter_async_context(connect(cluster))
            assert (await client.service(Journal).append("a", "x")).value == 1
            assert not any(replica.failed.done() for replica in replicas)
            if other is None:
                await stranger.close()

    run(main(), 60)


def test_the_smallest_example_is_a_service(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    assert set(load_service("counter:Counter").operations) == {"add", "read"}


def test_the_page_shows_the_examples() -> None:
    shown = (EXAMPLES.parent / "docs" / "services.md").read_text().split("```python\n")[1:]
    written = [(EXAMPLES / name).read_text() for name in ("bank.py", "ledger.py")]
    assert [block.partition("```")[0] for block in shown] == written


def test_replicas_without_a_service_say_so(tmp_path: Path) -> None:
    (tmp_path / "cluster.toml").write_text(format_local_config({"north": 1}, durability="memory"))
    cluster = read_cluster(tmp_path / "cluster.toml")

    async def main() -> None:
        async with amcast.run_replica(cluster, "north/1"), connect(cluster) as client:
            with pytest.raises(UsageError, match="runs no service; expected nodes that were started with"):
                await client.service(Journal).append("a", "x")

    run(main(), 30)


def test_command_lines_name_the_service_that_cannot_be_loaded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_cluster(tmp_path)
    config = str(tmp_path / "cluster.toml")
    assert run_command(["up", "--config", config, "--service", "nothing:Here"]) == 64
    assert "module nothing cannot be imported" in capsys.readouterr().err.replace("\n", " ")
    assert run_command(["call", "--config", config, "transfer", "a"]) == 64
    assert "expected MODULE:CLASS.METHOD" in capsys.readouterr().err.replace("\n", " ")
    assert sys.modules.get("nothing") is None
