"""Replicas of a real cluster that diverge: the minority stops, the majority goes on, and operators see why."""

import asyncio
import shutil
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, ClassVar

import pytest
from msgspec import structs

from amcast.cluster import connect, run_replica, run_service, subscribe
from amcast.kernel.effects import Deliver, Effect
from amcast.kernel.errors import CannotTellError, UsageError
from amcast.kernel.events import Event
from amcast.kernel.topology import Topology
from amcast.live.client_batch import Delivery
from amcast.live.config.cluster import Cluster, read_cluster
from amcast.live.errors import RefusedError
from amcast.live.operations.local_cluster import format_local_config
from amcast.live.operations.replacement import accept_loss, prepare_replacement
from amcast.live.rpc.client import NoAnswerError, RpcClient
from amcast.live.rpc.messages import FetchState
from amcast.live.server import node
from amcast.live.server.application import Application
from amcast.live.server.metrics import METRICS
from amcast.live.server.replica import Replica
from amcast.services.declaration import At, Key, Service, command
from tests.live.cluster import run

QUICK = {"heartbeat_s": 0.05, "heartbeat_timeout_s": 1.0, "reconnect_min_s": 0.01, "reconnect_max_s": 0.1}


class Ledger:
    """A program that keeps all payloads, but for one that it loses."""

    def __init__(self, lost: bytes = b"") -> None:
        self.rows: list[bytes] = []
        self._lost = lost

    def enter(self, delivery: Delivery) -> None:
        if delivery.payload != self._lost:
            self.rows.append(delivery.payload)

    def take(self) -> bytes:
        return b"|".join(self.rows)

    def install(self, state: bytes, position: int) -> None:
        self.rows = state.split(b"|") if state else []


class Shop:
    """Replicas of one group in this process, each with its ledger."""

    def __init__(self, folder: Path, replicas: int = 3, **fields: object) -> None:
        settings = {"protocol": "primcast", "limits": QUICK, "durability": "os", **fields}
        (folder / "cluster.toml").write_text(format_local_config({"orders": replicas}, **settings))
        self.cluster: Cluster = read_cluster(folder / "cluster.toml")
        self.ledgers: dict[str, Ledger] = {}
        self.running: dict[str, Replica] = {}

    async def __aenter__(self) -> "Shop":
        return self

    async def __aexit__(self, *failure: object) -> None:
        await self.stop()

    async def start(self, *names: str, lost: bytes = b"", compare_every: int = 4) -> None:
        for name in names or self.cluster.nodes():
            ledger = self.ledgers[name] = Ledger(lost)
            replica = self.running[name] = run_replica(
                self.cluster,
                name,
                ledger.enter,
                take=ledger.take,
                install=ledger.install,
                compare_every=compare_every,
            )
            await replica.open()

    async def stop(self, *names: str) -> None:
        for name in names or list(self.running):
            await self.running.pop(name).close()

    async def multicast(self, first: int, count: int) -> None:
        async with connect(self.cluster) as client:
            for number in range(first, first + count):
                await client.multicast({"orders"}, b"%d" % number)

    def status(self, name: str) -> dict[str, Any]:
        return self.running[name].runtime.status.status()

    async def wait_for(self, name: str, field: str, value: object) -> dict[str, Any]:
        """Waits until a field of a replica's status has a value."""
        while (status := self.status(name))[field] != value:
            await asyncio.sleep(0.02)
        return status


def read_metric(name: str, status: dict[str, Any]) -> float:
    (metric,) = (metric for metric in METRICS if metric.name == name)
    ((_, value),) = metric.values(status)
    return value


def corrupt_deliveries(replica: Replica) -> None:
    """Spoils the last byte of everything that a replica delivers from now on."""
    protocol: Any = replica.host.process.protocol  # type: ignore[attr-defined]
    step, fast_step = protocol.step, protocol.fast_step

    def spoil(effects: list[Effect]) -> list[Effect]:
        return [corrupt(effect) if type(effect) is Deliver else effect for effect in effects]

    def spoilt_step(events: Sequence[Event], now: int) -> list[Effect]:
        return spoil(step(events, now))

    def spoilt_fast_step(events: Sequence[Event], now: int) -> list[Effect]:
        return spoil(fast_step(events, now))

    protocol.step, protocol.fast_step = spoilt_step, spoilt_fast_step


def corrupt(delivery: Deliver) -> Deliver:
    message = delivery.message
    payload = message.payload[:-1] + b"?"  # the same if a step passes both functions
    return structs.replace(delivery, message=structs.replace(message, payload=payload))


@pytest.mark.live
def test_program_with_another_state_stops_and_is_replaced(tmp_path: Path) -> None:
    async def main() -> None:
        async with Shop(tmp_path) as shop:
            await shop.start("orders/1", "orders/2")
            await shop.start("orders/3", lost=b"5")
            await shop.multicast(0, 10)
            with pytest.raises(CannotTellError, match=r"orders/3 has stopped: it has diverged .*amcast replace"):
                async for _ in shop.running["orders/3"].deliveries():
                    pass
            await shop.multicast(10, 10)
            for name in ("orders/1", "orders/2"):
                status = await shop.wait_for(name, "differs", True)
                assert "the application's state before position 8" in status["divergence"]
                assert "process 2 is wrong: a majority agrees with process" in status["divergence"]
                assert status["ready"]
                assert read_metric("amcast_replicas_differ", status) == 1
                assert shop.ledgers[name].rows[-1] == b"19"

            await shop.stop("orders/3")
            await shop.start("orders/3")
            with pytest.raises(CannotTellError, match="orders/3 has stopped: it has diverged"):
                async for _ in shop.running["orders/3"].deliveries():
                    pass
            await shop.stop("orders/3")

            folder = shop.cluster.data_folder(2)
            with pytest.raises(UsageError, match="is not empty"):
                prepare_replacement(shop.cluster, "orders/3", None, 17)
            shutil.move(folder, tmp_path / "diverged")
            prepare_replacement(shop.cluster, "orders/3", None, 17)
            await shop.start("orders/3")
            await shop.running["orders/3"].caught_up()
            await shop.multicast(20, 10)
            while shop.ledgers["orders/3"].rows != shop.ledgers["orders/1"].rows:
                await asyncio.sleep(0.02)
            for name in shop.running:
                status = await shop.wait_for(name, "differs", False)
                while "not compared" in status["protocol_status"]["compared"]:
                    await asyncio.sleep(0.05)
                    status = shop.status(name)

    run(main(), timeout_s=60)


@pytest.mark.live
def test_replica_that_delivers_other_payloads_serves_nobody(tmp_path: Path) -> None:
    """A node as `amcast serve` runs it stays up, so that operators can ask it."""

    async def main() -> None:
        async with Shop(tmp_path) as shop:
            await shop.start(compare_every=0)
            diverging = shop.running["orders/3"]
            diverging.runtime._on_diverged = None
            await shop.multicast(0, 10)
            corrupt_deliveries(diverging)
            await shop.multicast(10, 5)
            status = await shop.wait_for("orders/3", "diverged", True)
            assert not status["ready"]
            assert "it has stopped, because it diverged from its group" in status["not_ready_reasons"][0]
            assert "deliveries before position" in status["divergence"]
            assert "amcast replace" in status["advice"][0]
            assert read_metric("amcast_diverged", status) == 1
            assert read_metric("amcast_diverged", await shop.wait_for("orders/1", "differs", True)) == 0
            rpc = RpcClient(shop.cluster.name, shop.cluster.addresses, shop.cluster.limits)
            with pytest.raises((NoAnswerError, RefusedError), match="it has stopped, because it diverged"):
                await rpc.request(2, FetchState(0))
            await shop.multicast(15, 5)
            async with asyncio.timeout(20):
                seen = []
                async for delivery in subscribe(shop.cluster, "orders", since=0):
                    seen.append(delivery.payload)
                    if len(seen) == 20:
                        break
            assert seen == [b"%d" % number for number in range(20)]

    run(main(), timeout_s=60)


@pytest.mark.live
def test_split_group_takes_no_messages_until_an_operator_decides(tmp_path: Path) -> None:
    async def main() -> None:
        async with Shop(tmp_path, replicas=2) as shop:
            await shop.start(compare_every=0)
            await shop.multicast(0, 6)
            async with connect(shop.cluster) as client:
                corrupt_deliveries(shop.running["orders/2"])
                await client.multicast({"orders"}, b"6")
                for name in shop.running:
                    status = await shop.wait_for(name, "differs", True)
                    assert not status["ready"]
                    assert "process 0 holds" in status["divergence"]
                    assert "process 1 holds" in status["divergence"]
                    assert status["divergence"] in status["not_ready_reasons"]
                    assert "decide which of them are right" in status["advice"][0]
                    (phase, *_) = shop.running[name].runtime.status.explain(12345)["phases"]
                    assert phase["name"] == "comparison"
                with pytest.raises(CannotTellError):
                    await client.multicast({"orders"}, b"7", timeout_s=1.0)
            with pytest.raises(CannotTellError, match=r"process . serves nobody: replicas differ"):
                async with connect(shop.cluster, connect_s=0.5):
                    pass
            assert [ledger.rows[7:] for ledger in shop.ledgers.values()] == [[], []]

    run(main(), timeout_s=60)


@pytest.mark.live
def test_operator_may_decide_for_the_minority(tmp_path: Path) -> None:
    """The consent to a loss is also the way to use a folder that a majority contradicted."""

    async def main() -> None:
        async with Shop(tmp_path) as shop:
            await shop.start(compare_every=0)
            await shop.multicast(0, 6)
            corrupt_deliveries(shop.running["orders/3"])
            await shop.multicast(6, 4)
            while not shop.running["orders/3"].host.ended.done():
                await asyncio.sleep(0.02)
            await shop.stop("orders/3")
            accept_loss(shop.cluster, "orders/3")
            await shop.start("orders/3", compare_every=0)
            await shop.wait_for("orders/3", "admitted", True)

    run(main(), timeout_s=60)


@pytest.mark.parametrize("every", [-1, 5])
def test_comparison_of_states_needs_a_state(every: int) -> None:
    with pytest.raises(UsageError, match=f"compare_every = {every}; expected 0, or, together with take"):
        Application(None, Topology.grid(1, 3), compare_every=every)


class Tally(Service):
    """Counts."""

    step: ClassVar[int] = 1

    def __init__(self, group: str) -> None:
        self.count: int = 0

    @command
    def add(self, at: At, key: Key) -> int:
        self.count += self.step
        return self.count


def make_wrong_tally() -> type[Service]:
    """A service of the same name and types that counts in another way."""
    return type("Tally", (Tally,), {"step": 2, "__module__": __name__})


@pytest.mark.live
def test_service_that_answers_differently_stops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node, "COMPARE_DELIVERIES", 4)
    (tmp_path / "cluster.toml").write_text(
        format_local_config({"orders": 3}, protocol="primcast", limits=QUICK, durability="os")
    )
    cluster = read_cluster(tmp_path / "cluster.toml")

    async def main() -> None:
        async with AsyncExitStack() as stack:
            for name in ("orders/1", "orders/2"):
                await stack.enter_async_context(run_service(cluster, name, Tally))
            wrong = run_service(cluster, "orders/3", make_wrong_tally())
            await wrong.open()
            stack.push_async_callback(wrong.close)
            client = await stack.enter_async_context(connect(cluster))
            tally = client.service(Tally)
            for _ in range(9):
                await tally.add("x", timeout_s=20)
            error = await asyncio.wait_for(wrong.failed, 20)
            assert "has diverged" in str(error)
            assert (await tally.add("x", timeout_s=20)).positions == {"orders": 9}

    run(main(), 60)
