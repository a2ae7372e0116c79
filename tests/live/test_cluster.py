"""A cluster of real operating-system processes: cluster.toml, start, kill -9, stop, and its run folder."""

import asyncio
import platform
import random
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from amcast.assembly import build_node_spec
from amcast.check.judge import judge
from amcast.cluster import assemble, cluster_spec, connect, local_cluster
from amcast.kernel.effects import SendEach
from amcast.kernel.errors import CannotTellError, UsageError
from amcast.kernel.events import Requests
from amcast.kernel.ids import message_id
from amcast.kernel.message import Message
from amcast.live.config.cluster import Cluster, read_cluster
from amcast.live.host.step_log import StepLog, read_header, read_steps, replay
from amcast.live.operations.local_cluster import find_free_ports, format_local_config
from amcast.live.storage.store import open_folder
from amcast.live.wire.frames import Codec
from amcast.parts.client.messages import Done
from amcast.parts.node.messages import NodeConfig
from amcast.protocols.catalogue import CATALOGUE
from amcast.trace.meta import Meta
from amcast.trace.run import read_run
from amcast.trace.run_folder import FolderRecorder
from tests.live.cluster import CLAIMS, holds, run

THREE = {"orders": 1, "stock": 1, "users": 1}


def configured(folder: Path, **fields: object) -> Cluster:
    text = format_local_config(THREE, **{"protocol": "skeen", "durability": "memory", **fields})
    (folder / "cluster.toml").write_text(text)
    return read_cluster(folder / "cluster.toml")


async def talk(cluster: Cluster, me: int, recorder: FolderRecorder, count: int) -> int:
    chance = random.Random(me)
    deliveries = 0
    async with connect(cluster, me=me, recorder=recorder) as client:
        for _ in range(count // 10):
            sets = [chance.sample(sorted(THREE), chance.randint(1, 3)) for _ in range(10)]
            receipts = await asyncio.gather(*(client.multicast(names, b"x" * 20) for names in sets))
            deliveries += sum(len(receipt.destinations) for receipt in receipts)
    return deliveries


@pytest.mark.live
def test_trace_of_real_processes_satisfies_the_order_properties(tmp_path: Path) -> None:
    cluster = configured(tmp_path, trace={"mode": "full", "folder": "runs/one"})
    steps = tmp_path / "steps"
    expected = 0

    async def clients(recorder: FolderRecorder) -> None:
        nonlocal expected
        expected = sum(await asyncio.gather(*(talk(cluster, me, recorder, 100) for me in (100, 101, 102))))

    folder = FolderRecorder(cluster.trace_folder, Meta(run=cluster.run, claims=CLAIMS), writer="clients")
    with folder as recorder, local_cluster(cluster, steps=steps):
        run(clients(recorder))
    found = read_run(tmp_path / "runs" / "latest")
    holds(found)
    assert 30 <= len(found.multicasts["message"]) < 300
    assert len(found.deliveries["message"]) == sum(map(len, found.multicasts["destinations"])) < expected
    assert sorted(found.processes["process"]) == [0, 1, 2, 100, 101, 102]
    assert set(found.processes["host"]) == {platform.node()}
    assert found.answers is not None
    assert sorted(found.answers["message"]) == sorted(found.multicasts["message"])
    sent = dict(zip(found.multicasts["message"], found.multicasts["at_ns"], strict=True))
    assert all(at > sent[m] for m, at in zip(found.answers["message"], found.answers["at_ns"], strict=True))
    assert found.packets is not None
    assert len(found.packets) > 200
    spec = cluster_spec(cluster)
    for file in steps.glob("*.steps"):
        me = read_header(file).process
        fresh = spec.process(me, cluster.topology, spec.configure(cluster.options))
        assert replay(file, Codec(spec.wire_bodies(), spec.records), fresh) > 10


@pytest.mark.live
def test_trace_of_a_cluster_in_the_real_time_setting_is_in_real_time_order(tmp_path: Path) -> None:
    trace = {"mode": "full", "folder": "runs/one"}
    cluster = configured(tmp_path, protocol="primcast", order="real-time", trace=trace)
    node = assemble(cluster).node
    assert node is not None
    assert node.real_time is not None

    async def clients(recorder: FolderRecorder) -> None:
        await asyncio.gather(*(talk(cluster, me, recorder, 100) for me in (100, 101, 102)))

    claims = msgspec.structs.replace(CLAIMS, real_time=True)
    folder = FolderRecorder(cluster.trace_folder, Meta(run=cluster.run, claims=claims), writer="clients")
    with folder as recorder, local_cluster(cluster):
        run(clients(recorder))
    found = read_run(tmp_path / "runs" / "latest")
    holds(found)
    assert judge(found).properties["P9"].verdict == "holds"
    assert found.answers is not None
    assert sorted(found.answers["message"]) == sorted(found.multicasts["message"])
    assert found.packets is not None
    bodies = {body for batch in found.packets.batches("body") for body in batch["body"]}
    assert "OrderReport" in bodies
    assert "Reply" not in bodies


def test_step_log_contains_request_batches_and_replies(tmp_path: Path) -> None:
    spec = build_node_spec(CATALOGUE["primcast"], NodeConfig(omega=None))
    messages = [Message(message_id(client, 0), client, (0,), b"x") for client in (6, 7)]
    ids = tuple(message.id for message in messages)
    replies = SendEach((6, 7), tuple(Done((id,)) for id in ids), ids)
    log = StepLog(tmp_path / "0.steps", spec.name, 0)
    log.write(5, [Requests(messages)], [replies])
    log.close()
    steps = list(read_steps(log.path, Codec(spec.wire_bodies(), spec.records)))
    assert steps == [(5, [Requests(messages)], [replies])]


@pytest.mark.live
def test_killed_node_restarts_in_a_new_incarnation(tmp_path: Path) -> None:
    cluster = configured(tmp_path)

    async def talk_to(*names: str) -> None:
        async with connect(cluster) as client:
            await client.multicast(names, b"x")

    with local_cluster(cluster) as running:
        run(talk_to("orders", "users"))
        old = running.pid("orders/1")
        running.kill("orders/1")
        with pytest.raises(CannotTellError, match=r"reaches no majority of groups \[0\]"):
            run(_connect_briefly(cluster))
        running.start("orders/1")
        assert running.pid("orders/1") != old
        run(talk_to("orders"))
        run(talk_to("stock", "users"))
        assert running.cpu_s("orders/1") > 0
    assert open_folder(cluster.data / "process-00000", keeps_log=False).incarnation == 2
    assert open_folder(cluster.data / "process-00001", keeps_log=False).incarnation == 1


async def _connect_briefly(cluster: Cluster) -> None:
    async with connect(cluster, connect_s=0.3):
        pass


@pytest.mark.live
def test_node_reports_why_it_cannot_start(tmp_path: Path) -> None:
    cluster = configured(tmp_path, options={"speed": 9})
    with (
        pytest.raises(CannotTellError, match=r"exit code 64.*options of protocol skeen.*speed"),
        local_cluster(cluster),
    ):
        pass


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("name = 1", "name: Expected `str`, got `int`"),
        ("name = 'x'", "missing required field `groups`"),
        ("name = 'x'\ncolour = 1\ngroups = {}", "unknown field `colour`"),
        ("name = 'x'\n[groups]", "0 groups; expected 1"),
        ("name = ''\n[groups.a]\nreplicas=['h:1']", "name is empty"),
        ("name = 'x'\n[groups.a]\nreplicas=[]", "0 members; expected 1"),
        ("name = 'x'\n[groups.a]\nreplicas=['h']", "the address 'h'; expected host:port"),
        ("name = 'x'\n[groups.a]\nreplicas=['h:70000']", "expected host:port with a port from 1 to 65535"),
        ("name = 'x'\n[groups.a]\nreplicas=['h:1', 'h:1']", "the address h:1 appears twice"),
        ("name = 'x'\n[groups.a]\nid=1\nreplicas=['h:1']\n[groups.b]\nreplicas=['h:2']", "a has this id already"),
        ("name = 'x'\n[groups.'a/b']\nreplicas=['h:1']", "expected one without '/'"),
        ("name = 'x'\ndurability='disk'\n[groups.a]\nreplicas=['h:1']", "durability: Invalid enum value 'disk'"),
        ("name = 'x'\n[groups.a]\nreplicas=['h:1']\n[limits]\nheartbeat_s=0", "limits.heartbeat_s = 0"),
        ("name = 'x'\n[groups.a]\nreplicas=['h:1']\n[limits]\nframe_bytes=1", "expected at least twice message_bytes"),
        ("name = ", "expected TOML"),
    ],
)
def test_invalid_cluster_toml_error_names_the_field(tmp_path: Path, text: str, sentence: str) -> None:
    file = tmp_path / "cluster.toml"
    file.write_text(text)
    with pytest.raises(UsageError) as refused:
        read_cluster(file)
    assert str(file) in str(refused.value)
    assert sentence in str(refused.value)


def test_cluster_toml_assigns_processes_and_addresses(tmp_path: Path) -> None:
    file = tmp_path / "cluster.toml"
    file.write_text("""
        name = "shop"
        durability = "os"
        [groups.orders]
        replicas = ["10.0.0.1:7001", { address = "[::1]:7002", region = "eu", process = 9 }]
        [groups.stock]
        id = 4
        replicas = ["10.0.0.1:7003"]
    """)
    cluster = read_cluster(file)
    assert cluster.nodes() == {"orders/1": 0, "orders/2": 9, "stock/1": 10}
    assert cluster.addresses == {0: ("10.0.0.1", 7001), 9: ("::1", 7002), 10: ("10.0.0.1", 7003)}
    assert cluster.topology.members(4) == (10,)
    assert cluster.topology.region(9) == "eu"
    assert cluster.process_of("orders/2") == 9
    assert cluster.data == tmp_path / "data"
    for wrong in ("orders/3", "orders/0", "orders", "nobody/1", "orders/x"):
        with pytest.raises(UsageError, match="does not exist"):
            cluster.process_of(wrong)
    with pytest.raises(UsageError, match=r"expected a cluster\.toml"):
        read_cluster(tmp_path / "nothing.toml")


def test_free_ports_are_distinct() -> None:
    assert len(set(find_free_ports(50))) == 50


def test_free_port_is_not_given_to_another_process() -> None:
    (port,) = find_free_ports(1)
    program = (
        "from amcast.live.operations import local_cluster\n"
        f"local_cluster.FIRST_PORT = local_cluster.LAST_PORT = {port}\n"
        "local_cluster.find_free_ports(1)"
    )
    other = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert "no 1 free ports" in other.stderr
