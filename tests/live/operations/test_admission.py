"""A data folder that was emptied or replaced by an older copy does not take part; its operator is told what to do."""

import asyncio
import shutil
from pathlib import Path

import pytest

from amcast.cli.main import run as command
from amcast.cluster import connect, local_cluster
from amcast.kernel.errors import CannotTellError
from amcast.live.client.client import Client
from amcast.live.config.cluster import Cluster
from amcast.live.host.host import RestartNeededError
from amcast.live.membership import topology_follower
from amcast.live.operations.cluster_status import wait_until_ready
from amcast.live.rpc.client import NoAnswerError, RpcClient
from amcast.live.rpc.messages import AllocateClientId, GetTopology, Subscribe
from amcast.live.server.http import HttpServer
from tests.live.cluster import run
from tests.live.membership.test_state_survey import Group
from tests.live.secure_cluster import plain, until

pytestmark = [pytest.mark.live]


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shortens the interval of surveys."""
    monkeypatch.setattr(topology_follower, "CHECK_S", 0.1)


async def multicast(client: Client, count: int) -> list[int]:
    return [(await client.multicast({"orders"}, b"x", timeout_s=30)).message for _ in range(count)]


async def wait_ready(group: Group, *names: str) -> None:
    for name in names:
        await until(lambda name=name: not group.watch(name).reasons_not_ready())


async def is_refused(cluster: Cluster, process: int, request: object) -> str:
    rpc = RpcClient(cluster.name, cluster.addresses, cluster.limits)
    with pytest.raises(NoAnswerError) as refused:
        await rpc.request(process, request)  # type: ignore[arg-type]
    return str(refused.value)


def test_emptied_folder_is_refused_until_the_node_is_replaced(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its peers are restarted, too: what they remember is durable."""
    cluster = plain(tmp_path, {"orders": 3}, durability="os")
    replace = ["replace", "--config", str(cluster.file), "--node", "orders/2"]

    async def main() -> None:
        async with Group(cluster) as group:
            await wait_ready(group, "orders/1", "orders/2", "orders/3")
            async with connect(cluster) as client:
                await multicast(client, 10)
            await group.stop("orders/1", "orders/2", "orders/3")
            shutil.rmtree(cluster.data_folder(1))
            await group.start("orders/1", "orders/2", "orders/3")
            await wait_ready(group, "orders/1", "orders/3")
            await until(lambda: group.watch("orders/2").admission() == "refused")
            status = group.watch("orders/2").status()
            assert not status["ready"]
            assert "remembers data folder" in status["not_ready_reasons"][0]
            assert f"run `amcast {' '.join(replace)}`" in status["advice"][0]
            http = HttpServer(group.watch("orders/2"))
            assert b"amcast_admitted 0.0" in http.respond(b"GET /metrics HTTP/1.1")[2]
            assert http.respond(b"GET /health HTTP/1.1")[0] == 200
            for request in (AllocateClientId(), GetTopology(), Subscribe(0, 0)):
                assert "does not take part in its group" in await is_refused(cluster, 1, request)
            async with connect(cluster) as client:
                acknowledged = await multicast(client, 20)
            assert len(set(acknowledged)) == 20
            assert group.running["orders/2"].position == 0, "it delivers nothing"
            await group.stop("orders/2")
            assert await asyncio.to_thread(command, replace) == 0
            await group.start("orders/2")
            await wait_ready(group, "orders/2")
            await until(lambda: group.running["orders/2"].position == 31)  # its marker takes one
            await group.stop("orders/3")  # now its vote is needed
            async with connect(cluster) as client:
                await multicast(client, 5)

    run(main(), timeout_s=60)
    assert "will begin incarnation 16 without state" in capsys.readouterr().out


def test_older_copy_of_a_folder_is_noticed_and_healed_by_the_group(tmp_path: Path) -> None:
    cluster = plain(tmp_path, {"orders": 3}, durability="os")

    async def main() -> None:
        async with Group(cluster) as group:
            await wait_ready(group, "orders/1", "orders/2", "orders/3")
            async with connect(cluster) as client:
                await multicast(client, 5)
                await group.stop("orders/3")
                shutil.copytree(cluster.data_folder(2), tmp_path / "copy")
                await group.start("orders/3")
                await wait_ready(group, "orders/3")
                await multicast(client, 5)
                await group.stop("orders/3")
                shutil.rmtree(cluster.data_folder(2))
                shutil.copytree(tmp_path / "copy", cluster.data_folder(2))
                await group.start("orders/3")
                ended = group.running["orders/3"].host.ended
                await until(ended.done)
                assert isinstance(ended.exception(), RestartNeededError)
                assert "its data folder is doubtful: it is an older copy: process" in str(ended.exception())
                with pytest.raises(CannotTellError, match="it is an older copy"):
                    await group.stop("orders/3")
                await group.start("orders/3")
                await wait_ready(group, "orders/3")
                assert group.running["orders/3"].host.incarnation == 2
                await until(lambda: group.running["orders/3"].position == 11)  # its marker takes one
                assert any(cluster.data_folder(2).glob("*.log.damaged-*")), "the old records are kept aside"
                await group.stop("orders/2")  # now its vote is needed
                await multicast(client, 5)

    run(main(), timeout_s=60)


def test_older_copy_with_too_few_members_waits_until_an_operator_accepts_the_loss(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = plain(tmp_path, {"orders": 3}, durability="os", audit="audit")
    accept = ["replace", "--config", str(cluster.file), "--node", "orders/3", "--accept-loss"]

    async def main() -> None:
        async with Group(cluster) as group:
            await wait_ready(group, "orders/1", "orders/2", "orders/3")
            async with connect(cluster) as client:
                await multicast(client, 5)
            await group.stop("orders/3")
            shutil.copytree(cluster.data_folder(2), tmp_path / "copy")
            await group.start("orders/3")
            await wait_ready(group, "orders/3")
            await group.stop("orders/2", "orders/3")
            shutil.rmtree(cluster.data_folder(2))
            shutil.copytree(tmp_path / "copy", cluster.data_folder(2))
            await group.start("orders/3")
            watch = group.watch("orders/3")
            await until(lambda: bool(watch.advice()) and watch.admission() == "doubtful")
            status = watch.status()
            assert "1 of 2 members that could give it its group's state" in status["not_ready_reasons"][0]
            assert f"run `amcast {' '.join(accept)}`" in status["advice"][0]
            code, _, text = HttpServer(watch).respond(b"GET /ready HTTP/1.1")
            assert (code, b"--accept-loss" in text) == (503, True)
            await group.stop("orders/3")
            assert await asyncio.to_thread(command, accept) == 0
            await group.start("orders/3")
            await wait_ready(group, "orders/3")
            async with connect(cluster) as client:
                await multicast(client, 5)

    run(main(), timeout_s=60)
    assert "what is missing there may be lost" in capsys.readouterr().out
    assert '"action": "loss accepted", "who": ' in (tmp_path / "audit" / "orders-3.log").read_text()


@pytest.mark.slow
def test_node_with_an_older_copy_restarts_itself_and_catches_up(tmp_path: Path) -> None:
    cluster = plain(tmp_path, {"orders": 3}, durability="os")

    async def send(count: int) -> None:
        async with connect(cluster) as client:
            await multicast(client, count)

    with local_cluster(cluster) as running:
        assert running.waiting == {}
        run(send(5))
        running.stop("orders/3")
        shutil.copytree(cluster.data_folder(2), tmp_path / "copy")
        running.start("orders/3")
        running.kill("orders/3")
        shutil.rmtree(cluster.data_folder(2))
        shutil.copytree(tmp_path / "copy", cluster.data_folder(2))
        running.start("orders/3")
        status = wait_until_ready(cluster, None, ["orders/3"], 60)["orders/3"]
        assert status["ready"], status
        assert status["incarnation"] == 2
        assert "it is an older copy" in (running.logs / "orders-3.log").read_text()
        running.kill("orders/2")
        run(send(5))
