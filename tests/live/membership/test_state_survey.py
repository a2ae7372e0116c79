"""A group that has lost its state cannot continue: status, log and clients report it with advice."""

import asyncio
import json
import shutil
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import cast

import pytest

from amcast.cli.main import run as command
from amcast.cluster import connect, local_cluster, run_replica
from amcast.kernel.errors import CannotTellError
from amcast.kernel.ids import ProcessId
from amcast.kernel.topology import Topology
from amcast.live.config.cluster import Cluster, format_toml, read_cluster
from amcast.live.membership import state_survey as holding
from amcast.live.membership import topology_follower as moving
from amcast.live.membership.state_survey import StateCount, UnansweredDiagnosis, count_state
from amcast.live.operations.cluster_status import collect_advice
from amcast.live.operations.local_cluster import LocalCluster, find_free_ports
from amcast.live.rpc.client import RpcClient
from amcast.live.rpc.messages import Progress
from amcast.live.server import http
from amcast.live.server.replica import Replica
from amcast.live.server.status import StatusReporter
from tests.live.cluster import run
from tests.live.secure_cluster import listening, plain, replicas, until

THREE = {"orders": 3}


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shortens the intervals of checks and warnings."""
    monkeypatch.setattr(moving, "CHECK_S", 0.05)
    monkeypatch.setattr(holding, "WARN_AFTER_S", 0.3)


def watch_of(replica: Replica) -> StatusReporter:
    watch = replica.runtime.status
    assert watch is not None
    return watch


class Group:
    """Three replicas in this process, some of which restart without state."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.running: dict[str, Replica] = {}

    async def __aenter__(self) -> "Group":
        await self.start(*self.cluster.nodes())
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.stop(*self.running)

    async def start(self, *names: str) -> None:
        for name in names:
            replica = self.running[name] = run_replica(self.cluster, name)
            await replica.open()

    async def stop(self, *names: str) -> None:
        for name in names:
            replica = self.running.pop(name)
            await replica.close()
            if replica.failed.done():
                raise CannotTellError(f"replica {name} has stopped: {replica.failed.result()}")

    def watch(self, name: str) -> StatusReporter:
        return watch_of(self.running[name])


# What is lost, and what is not


@pytest.mark.parametrize(
    ("members", "quorum", "holding", "silent", "lost"),
    [
        (1, 1, 0, 0, True),
        (1, 1, 0, 1, False),
        (3, 2, 2, 0, False),
        (3, 2, 1, 0, True),
        (3, 2, 0, 1, True),
        (3, 2, 1, 1, False),
        (3, 2, 0, 3, False),
        (4, 3, 2, 0, False),
        (4, 3, 1, 0, True),
        (5, 3, 2, 0, True),
        (5, 3, 2, 1, False),
    ],
)
def test_state_is_lost_when_possible_holders_miss_a_majority(
    members: int, quorum: int, holding: int, silent: int, lost: bool
) -> None:
    assert StateCount(members, quorum, holding, members - holding - silent, silent).is_lost == lost


def test_count_state_separates_silent_and_lacking_members() -> None:
    topology = Topology.grid(2, 3)
    answers = {0: Progress(0, 5, True, 0), 2: Progress(0, 0, False, 1, has_state=False), 4: Progress(0, 0, True, 0)}
    assert count_state(topology, 0, answers) == StateCount(3, 2, holding=1, lacking=1, silent=1)
    assert count_state(topology, 1, answers) == StateCount(3, 2, holding=1, lacking=0, silent=2)


# In one process


@pytest.mark.live
@pytest.mark.parametrize("protocol", ["primcast", "whitebox", "skeen", "a-ng"])
def test_lost_state_is_reported_by_all_and_logged_once(tmp_path: Path, hasty: None, protocol: str) -> None:
    cluster = plain(tmp_path, THREE, protocol=protocol)

    async def main() -> None:
        async with replicas(cluster), connect(cluster) as client:
            await client.multicast({"orders"}, b"x")
        async with replicas(cluster) as running:
            watches = [watch_of(replica) for replica in running.values()]
            await until(lambda: all(watch.survey.count == StateCount(3, 2, 0, 3, 0) for watch in watches))
            for watch in watches:
                assert watch.reasons_not_ready() == [
                    "it lost its memory, and waits for its group to give it its state (2 of 2 others answer, none has"
                    " it): group orders has lost it for good"
                ]
                status = watch.status()
                assert not status["ready"]
                assert status["group_state"] == {
                    "has_state": False, "members": 3, "quorum": 2,
                    "holding": 0, "lacking": 3, "silent": 0, "lost": True,
                }  # fmt: skip
                code, _, content = http.HttpServer(watch).respond(b"GET /ready HTTP/1.1")
                assert code == 503
                assert b"lost it for good\nwhere too few replicas" in content
                assert b"empty the data folder of every node" in content
                assert b'"fsync" instead of "memory"' in content
            assert len(collect_advice({watch.name: watch.status() for watch in watches})) == 1
            await until(lambda: len(log.having("lost it for good")) == 3)
            await asyncio.sleep(0.5)
            assert len(log.having("lost it for good")) == 3, "each has said it, and does not repeat it"
            assert not any(replica.runtime.caught_up.is_set() for replica in running.values())

    with listening() as log:
        run(main())
    assert not log.having("has caught up")


@pytest.mark.live
def test_single_member_with_state_is_not_ready(tmp_path: Path, hasty: None) -> None:
    cluster = plain(tmp_path, THREE)

    async def main() -> None:
        async with Group(cluster) as group:
            keeper = group.watch("orders/3")
            await until(lambda: all(group.watch(name).status()["ready"] for name in group.running))
            # A member may have surveyed the others before it was admitted; once all are ready, all have the state.
            await until(lambda: keeper.survey.count in (None, StateCount(3, 2, 3, 0, 0)))
            await group.stop("orders/1", "orders/2")
            await group.start("orders/1", "orders/2")
            await until(lambda: bool(keeper.survey.advice()))
            assert keeper.reasons_not_ready() == [
                "1 of 3 members of its group have its state (2 of 2 others answer, none has it): group orders has lost"
                " it for good"
            ]
            assert keeper.status()["group_state"]["has_state"]
            first = group.watch("orders/1")
            await until(
                lambda: "2 of 2 others answer, 1 has it): group orders has lost" in str(first.reasons_not_ready())
            )

    run(main())


@pytest.mark.live
def test_member_that_received_state_is_ready_without_warnings(
    tmp_path: Path, hasty: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = plain(tmp_path, THREE)
    monkeypatch.setattr(holding, "WARN_AFTER_S", 5.0)

    async def main() -> None:
        async with Group(cluster) as group, connect(cluster) as client:
            await client.multicast({"orders"}, b"x")
            await group.stop("orders/2")
            await group.start("orders/2")
            await until(lambda: group.watch("orders/2").status()["ready"])
            for name in ("orders/1", "orders/3"):  # they have noticed its new incarnation, and asked
                state_survey = group.watch(name).survey
                await until(lambda state_survey=state_survey: state_survey.count == StateCount(3, 2, 3, 0, 0))
                assert state_survey.advice() == []

    with listening() as log:
        run(main())
    assert not log.having("its state")
    assert log.having("has caught up")


@pytest.mark.live
def test_lone_member_waits_for_a_majority_to_confirm_its_folder(tmp_path: Path, hasty: None) -> None:
    cluster = plain(tmp_path, THREE)

    async def main() -> None:
        async with Group(cluster) as group:
            await until(lambda: all(group.watch(f"orders/{number}").status()["ready"] for number in (1, 2, 3)))
        async with run_replica(cluster, "orders/1") as alone:
            watch = watch_of(alone)
            await until(lambda: watch.survey.count is not None)
            reason = "it waits for admission: 0 of 1 other members needed have confirmed its data folder"
            assert watch.reasons_not_ready() == [reason]
            assert watch.status()["advice"] == []
            await until(lambda: bool(log.having(reason)))

    with listening() as log:
        run(main())


# Clients


class Answering:
    """An RPC client with fixed answers that counts its requests."""

    def __init__(self, answers: dict[ProcessId, Progress]) -> None:
        self.answers = answers
        self.asked = 0

    async def fetch_progress(self, processes: object, within_s: float) -> dict[ProcessId, Progress]:
        self.asked += 1
        await asyncio.sleep(0.01)
        return self.answers


def test_client_diagnosis_uses_one_survey_for_all_messages() -> None:
    topology = Topology.grid(2, 3)
    holds, lacks = Progress(0, 1, True, 0), Progress(0, 0, False, 1, has_state=False)

    async def describe_all(answers: dict[ProcessId, Progress], genuine: bool = True) -> list[str]:
        asker = Answering(answers)
        doubt = UnansweredDiagnosis(cast(RpcClient, asker), lambda: topology, genuine)
        sentences = await asyncio.gather(*(doubt.describe((0,), 1.0) for _ in range(50)))
        assert asker.asked == 1
        return list(sentences)

    async def main() -> None:
        well = dict.fromkeys(topology.servers, holds)
        assert set(await describe_all(well)) == {""}
        forgotten = {**well, **dict.fromkeys((0, 1, 2), lacks)}
        (sentence,) = set(await describe_all(forgotten))
        assert sentence == (
            "; group 0 has lost its state (3 of 3 replicas answer, none with it) and cannot go on: see `amcast status`"
        )
        assert set(await describe_all({0: holds})) == {"; of group 0, 1 of 3 replicas answer"}
        (sentence,) = set(await describe_all({**well, 1: lacks, 2: lacks}))
        assert "group 0 has lost its state (3 of 3 replicas answer, 1 with it)" in sentence
        (sentence,) = set(await describe_all({0: holds, 1: lacks, 3: holds, 4: holds}))
        assert sentence == "; group 0 waits for its state (2 of 3 replicas answer, 1 with it)"
        elsewhere = {**well, **dict.fromkeys((3, 4, 5), lacks)}
        assert set(await describe_all(elsewhere)) == {""}
        (sentence,) = set(await describe_all(elsewhere, genuine=False))
        assert "group 1 has lost its state" in sentence, "without it, nobody orders anything"
        hurried = Answering({})
        assert (
            await UnansweredDiagnosis(cast(RpcClient, hurried), lambda: topology, genuine=True).describe((0,), 0.1)
            == ""
        )
        assert hurried.asked == 0

    run(main())


# Real processes


async def sent(cluster: Cluster, timeout_s: float) -> None:
    async with connect(cluster) as client:
        await client.multicast({"orders"}, b"x", timeout_s=timeout_s)


def ready(address: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://{address}/ready", timeout=5) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as refused:
        return refused.code, refused.read().decode()


def stood(running: LocalCluster, file: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, object]:
    """`amcast status` once all nodes know which members have the state: they survey each other every other second."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        running.check()
        assert command(["status", "--config", str(file), "--json"]) == 2
        status = json.loads(capsys.readouterr().out)
        assert isinstance(status, dict)
        if all("2 of 2 others answer" in str(node.get("not_ready_reasons")) for node in status["nodes"].values()):
            return status
        time.sleep(0.1)
    raise AssertionError(f"not all nodes know it: {status}")


@pytest.mark.live
def test_killed_memory_cluster_reports_lost_state_and_starts_anew(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "cluster.toml"
    at, *ports = (f"127.0.0.1:{port}" for port in find_free_ports(4))
    groups = {"orders": {"replicas": [{"address": ports[0], "http": at}, *ports[1:]]}}
    file.write_text(
        format_toml({"name": "local", "durability": "memory", "security": {"mode": "plain"}, "groups": groups})
    )
    cluster = read_cluster(file)
    with local_cluster(cluster) as running:
        asyncio.run(sent(cluster, 30))
        running.kill(*cluster.nodes())
        running.start(*cluster.nodes())
        assert set(running.waiting) == set(cluster.nodes()), "a node without its group's state says that it is ready"
        assert all("it lost its memory" in why for why in running.waiting.values())
        status = stood(running, file, capsys)
        assert command(["status", "--config", str(file)]) == 2
        shown = capsys.readouterr().err
        for name in cluster.nodes():
            assert f"{name} is not ready: it lost its memory" in shown
        assert shown.count("To start over, stop all nodes") == len(status["advice"]) == 1  # type: ignore[arg-type]
        code, why = ready(at)
        assert code == 503
        assert "2 of 2 others answer, none has it" in why
        assert "To start over" in why
        with pytest.raises(
            CannotTellError, match=r"may or may not be delivered; group orders has lost its state \(3 of 3"
        ):
            asyncio.run(sent(cluster, 1.0))
        for name in cluster.nodes():
            log = running.logs / f"{name.replace('/', '-')}.log"
            asyncio.run(until(lambda log=log: "group orders has lost it for good" in log.read_text()))
            assert log.read_text().count("lost it for good") == 1
        running.stop(*cluster.nodes())
        for process in cluster.nodes().values():
            shutil.rmtree(cluster.data_folder(process))
        running.start(*cluster.nodes())
        assert command(["status", "--config", str(file), "--wait", "30"]) == 0
        asyncio.run(sent(cluster, 30))
        assert ready(at) == (200, "ready\n")
