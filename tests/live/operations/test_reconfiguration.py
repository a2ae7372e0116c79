"""Replicas change while real processes serve clients: no acknowledged message is lost, duplicated or reordered.

Each play goes through several changes, because starting six processes takes longer than any of them.
"""

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from amcast.cli.main import run as command
from amcast.cluster import connect, local_cluster
from amcast.kernel.errors import CannotTellError
from amcast.kernel.reconfiguration import encode_change
from amcast.live.config.cluster import Cluster, read_cluster
from amcast.live.membership.topology_follower import RemovedFromGroupError, load_known_members
from amcast.live.operations import cluster_status as inspection
from amcast.live.operations import reconfiguration as changes
from amcast.live.operations.local_cluster import LocalCluster, find_free_ports
from amcast.live.rpc.client import RpcClient
from amcast.protocols.catalogue import CATALOGUE
from amcast.trace.run import Run
from tests.live.cluster import run
from tests.live.fault_scene import CAMPAIGN, GROUPS, Scene, staged
from tests.live.secure_cluster import secured

pytestmark = [pytest.mark.live, pytest.mark.slow]

RESTARTING = sorted(name for name, spec in CATALOGUE.items() if "recovery" in spec.claims.faults)
PROTOCOLS = RESTARTING if CAMPAIGN else ["primcast"]
"""The second scenario runs another protocol in any case."""


async def change(scene: Scene, *options: str) -> None:
    """Changes members as an operator does, and continues with the new file."""
    codes: list[int] = []
    file = str(scene.running.cluster.file)
    await scene.do(lambda: codes.append(command(["change", "--config", file, *options])))
    assert codes == [0], options
    scene.running.follow(Path(file))


async def add(scene: Scene, node: str) -> None:
    await change(scene, "--add", f"{node}=127.0.0.1:{find_free_ports(1)[0]}")
    await scene.start(node)


async def remove(scene: Scene, node: str) -> None:
    """Waits until the removed node exits by itself, with code 0."""
    await change(scene, "--remove", node)
    codes: list[int] = []
    await scene.do(lambda: codes.append(scene.running.wait_for_exit(node, 20)))
    assert codes == [0], scene.log(node)
    assert "was removed from its group by configuration" in scene.log(node)


def crashed(found: Run) -> dict[int, bool]:
    """The facts of each replica in the trace, added and removed ones."""
    table = found.processes
    rows = zip(table["process"], table["group"], table["crashed_at_ns"], strict=True)
    return {process: at is not None for process, group, at in rows if group is not None}


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_replicas_are_added_and_removed_under_traffic(tmp_path: Path, protocol: str) -> None:
    first = tmp_path / "first.toml"

    async def play(scene: Scene) -> None:
        file = scene.running.cluster.file
        shutil.copy(file, first)
        await add(scene, "orders/4")
        await scene.more(30)
        await remove(scene, "orders/1")  # the leader
        await scene.more(30)
        await scene.kill("orders/3", "stock/3")
        await scene.more(10)
        scene.running.follow(first)  # a file that knows of no change
        await scene.start("orders/3", "stock/3")
        scene.running.follow(file)
        assert "this node continues with configuration 2, which it stored" in scene.log("orders/3")
        await scene.kill("stock/1")  # a machine that will not come back, and its successor
        await add(scene, "stock/4")
        await change(scene, "--remove", "stock/1")
        await scene.more(30)

    found = staged(tmp_path, play, protocol=protocol, reads_all=True)
    assert crashed(found) == {0: True, 1: False, 2: False, 6: False, 3: True, 4: False, 5: False, 7: False}
    table = found.deliveries
    assert {0, 6, 3, 7} <= set(table["process"])
    last = dict(zip(table["process"], table["position"], strict=True))
    assert last[1] == last[2] == last[6] > last[0]


def test_cluster_recovers_from_disk_after_a_change(tmp_path: Path) -> None:
    first = tmp_path / "first.toml"

    async def play(scene: Scene) -> None:
        shutil.copy(scene.running.cluster.file, first)
        old = [f"{group}/{place}" for group in GROUPS for place in (1, 2, 3)]
        await add(scene, "orders/4")
        await remove(scene, "orders/2")
        old.remove("orders/2")
        await scene.more(30)
        file = scene.running.cluster.file
        await scene.kill(*old, "orders/4")
        await scene.start("orders/4")
        scene.running.follow(first)
        # A majority of orders now is orders/4, which the file does not know, and orders/1.
        old.remove("orders/3")
        await scene.start(*old)
        await scene.more(30)
        await scene.start("orders/3")
        scene.running.follow(file)
        await scene.more(30)
        for node in ("orders/1", "orders/3", "stock/1"):
            assert "expected Request" not in scene.log(node), "a member that was added is taken for a client"

    found = staged(tmp_path, play, protocol="multipaxos", durability="fsync")
    assert crashed(found) == {0: False, 1: True, 2: False, 6: False, 3: False, 4: False, 5: False}


CLIENTS = {"till": {"groups": "all", "operate": True}, "ops": {"groups": "all", "operate": True, "change": True}}


def test_change_command_with_certificates_and_refusals(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = secured(tmp_path, {"orders": 3, "stock": 1}, CLIENTS)
    first = tmp_path / "first.toml"
    shutil.copy(cluster.file, first)
    file = str(cluster.file)
    with local_cluster(cluster) as running:
        for options, sentence in REFUSALS.items():
            assert command(["change", "--config", file, *options.split()]) == 64, options
            assert sentence in capsys.readouterr().err
        run(change_without_permission(cluster, running))
        run(served(cluster))
        assert (
            command(["change", "--config", file, "--add", f"orders/4=127.0.0.1:{find_free_ports(1)[0]}", "--json"]) == 0
        )
        made = json.loads(capsys.readouterr().out)
        assert (made["configuration"], made["members"]["orders"]) == (
            1,
            ["orders/1", "orders/2", "orders/3", "orders/4"],
        )
        assert Path(made["old_file"]).read_text() == first.read_text()
        assert command(["certs", "--config", file]) == 0
        running.follow(Path(file))
        running.start("orders/4")
        assert command(["change", "--config", file, "--remove", "orders/1"]) == 0
        assert running.wait_for_exit("orders/1", 20) == 0
        running.follow(Path(file))
        run(served(cluster))  # a client with a file of before
        running.kill("orders/2")
        third = tmp_path / "third.toml"  # an operator with such a file, too
        assert command(["change", "--config", str(first), "--remove", "orders/2", "--write", str(third)]) == 0
        running.follow(first)
        running.start("orders/2")
        assert running.wait_for_exit("orders/2", 30) == 0, "it came back, learned that it was removed, and left"
        running.follow(third)
        with pytest.raises(RemovedFromGroupError, match=r"orders/2 was removed from its group by configuration 3"):
            load_known_members(cluster, "orders/2")
        capsys.readouterr()
        assert command(["status", "--config", str(first), "--wait", "20", "--json"]) == 0
        status = json.loads(capsys.readouterr().out)
        assert status["topology"] == {
            "configuration": 3,
            "members": {"orders": ["orders/3", "orders/4"], "stock": ["stock/1"]},
        }
        run(rivals(read_cluster(first)))
        assert command(["change", "--config", str(first), "--follow"]) == 0
        assert read_cluster(first).topology.configuration == 4
        assert read_cluster(first).topology.next_process == 6
        overtaken(first, capsys, monkeypatch)


REFUSALS = {
    "": "one replica at a time",
    "--add orders/4=127.0.0.1:7001 --remove orders/1": "one replica at a time",
    "--add orders/4": "expected GROUP/NUMBER=HOST:PORT",
    "--add shop/1=127.0.0.1:7001": "group 'shop' does not exist",
    "--add orders/3=127.0.0.1:7001": "the node exists",
    "--add orders/x=127.0.0.1:7001": "a whole number from 1 on",
    "--remove orders/9": "node 'orders/9' does not exist",
    "--remove stock/1": "is its last member",
    "--remove orders/1 --as till": "client till may not change groups' replicas",
}


async def change_without_permission(cluster: Cluster, running: LocalCluster) -> None:
    """A client without the permission is refused by the nodes."""
    topology = changes.next_topology(cluster, changes.ReplicaChange("orders/1"))
    async with connect(cluster, client="till", batches=False) as till:
        with pytest.raises(CannotTellError):
            await till.multicast(topology.groups, encode_change(topology), timeout_s=1.5)
    log_text = "".join(log.read_text() for log in running.logs.iterdir())
    assert "client till may not change groups' members; expected clients.till.change = true" in log_text
    assert "is in configuration 1" not in log_text


async def served(cluster: Cluster) -> None:
    async with connect(cluster, client="till") as till:
        for _ in range(5):
            await till.multicast(["orders", "stock"], b"x")


async def rivals(cluster: Cluster) -> None:
    """Two operators order the same configuration: one succeeds, the other is stale."""
    cluster = await asyncio.get_running_loop().run_in_executor(None, inspection.fetch_current, cluster, "ops")
    asker = RpcClient(cluster.name, cluster.addresses, cluster.limits, cluster.client_transport("ops"))
    replica_changes = [changes.ReplicaChange(f"orders/{name}", f"127.0.0.1:{find_free_ports(1)[0]}") for name in (5, 6)]
    topologies = [changes.next_topology(cluster, replica_change) for replica_change in replica_changes]
    async with (
        connect(cluster, client="ops", batches=False) as one,
        connect(cluster, client="ops", batches=False) as two,
    ):
        found = await asyncio.gather(
            *(
                changes.order_change(client, asker, cluster.topology, topology, 20)
                for client, topology in zip((one, two), topologies, strict=True)
            )
        )
    assert sorted(found) == ["done", "stale"]


def overtaken(file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The topology changes after an operator's command has read it."""
    carried_out = changes.carry_out_change
    [newest] = [node for node in read_cluster(file).names if node in ("orders/5", "orders/6")]
    other = file.with_name("other.toml")

    def late(*asked: Any) -> tuple[changes.Outcome, bool]:
        monkeypatch.setattr(changes, "carry_out_change", carried_out)
        assert command(["change", "--config", str(file), "--remove", newest, "--write", str(other)]) == 0
        capsys.readouterr()
        return carried_out(*asked)

    monkeypatch.setattr(changes, "carry_out_change", late)
    before = file.read_text()
    options = ["--add", f"orders/7=127.0.0.1:{find_free_ports(1)[0]}"]
    assert command(["change", "--config", str(file), *options, "--json"]) == 1
    result = json.loads(capsys.readouterr().out)
    assert (result["outcome"], result["file"]) == ("stale", None)
    assert result["description"] == "orders/7: stale, another change to configuration 5 came first; try again"
    assert file.read_text() == before, "only what was done is written"
    assert read_cluster(other).topology.configuration == 5
    assert command(["status", "--config", str(other), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["topology"]["members"]["orders"] == ["orders/3", "orders/4"]
