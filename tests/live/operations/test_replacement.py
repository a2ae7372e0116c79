"""A dead replica is replaced by a machine with an empty disk, under the same name, while the others serve."""

import dataclasses
import shutil
from pathlib import Path

import pytest

from amcast.check.judge import judge
from amcast.cli.main import run as command
from amcast.cluster import connect, local_cluster, run_replica
from amcast.kernel.errors import CannotTellError, UsageError
from amcast.live.operations import replacement as replacing
from amcast.live.operations.cluster_status import wait_until_ready
from amcast.trace.meta import Meta, RunClaims
from amcast.trace.run import read_run
from amcast.trace.run_folder import FolderRecorder
from tests.live.cluster import run
from tests.live.secure_cluster import plain

pytestmark = [pytest.mark.live, pytest.mark.slow]


def test_new_machine_replaces_a_dead_node(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cluster = plain(tmp_path, {"orders": 3}, durability="os", trace={"mode": "deliveries", "folder": "run"})
    meta = Meta(run=cluster.run, claims=RunClaims(complete=True, exactly_once=True))
    replace = ["replace", "--config", str(cluster.file), "--node", "orders/2"]

    async def multicast(number: int) -> None:
        async with connect(cluster, recorder=recorder) as client:
            for _ in range(number):
                await client.multicast({"orders"}, b"x", timeout_s=60)

    async def briefly() -> None:
        async with connect(cluster, recorder=recorder, connect_s=1.0) as client:
            await client.multicast({"orders"}, b"nobody knows", timeout_s=1.0)

    tracing = FolderRecorder(cluster.trace_folder, meta, packets=False, writer="clients")
    with tracing as recorder, local_cluster(cluster) as running:
        run(multicast(20), timeout_s=90)
        assert command(replace) == 64
        assert "process-00001 is not empty" in capsys.readouterr().err
        running.kill("orders/2")
        shutil.move(cluster.data_folder(1), tmp_path / "the old machine")
        running.kill("orders/3")
        with pytest.raises(CannotTellError, match=r"not within|no server|not answered"):
            run(briefly(), timeout_s=60)
        running.start("orders/3")
        assert not wait_until_ready(cluster, None, ["orders/3"], 60)["orders/3"].get("error")
        run(multicast(20), timeout_s=90)
        elsewhere = dataclasses.replace(cluster, data=tmp_path / "elsewhere")
        with pytest.raises(UsageError, match="orders/3 answers at its address; expected a dead node"):
            replacing.prepare_replacement(elsewhere, "orders/3", None)
        assert command(replace) == 0
        assert "will begin incarnation 16 without state" in capsys.readouterr().out
        running.start("orders/2")
        status = wait_until_ready(cluster, None, ["orders/2"], 90)["orders/2"]
        assert status["ready"], status
        assert status["incarnation"] == 16
        assert status["protocol_status"]["position"] >= 40, "by a snapshot, or by what other members still had"
        running.kill("orders/1")  # now the newcomer's vote is needed
        run(multicast(20), timeout_s=90)
        running.start("orders/1")
        running.wait_until_settled()
    report = judge(read_run(cluster.trace_folder))
    assert report.verdict == "holds", "\n".join(report.story())


def test_folder_of_a_refused_hosted_program_can_be_prepared(tmp_path: Path) -> None:
    """The start that was refused has left the journal of the program's application."""
    cluster = plain(tmp_path, {"orders": 3}, durability="os")

    async def start() -> None:
        async with run_replica(cluster, "orders/2", lambda delivery: None, take=bytes, install=lambda *_: None):
            pass

    run(start())
    assert (cluster.data_folder(1) / "application").is_dir()
    assert replacing.prepare_replacement(cluster, "orders/2", None, incarnation=7) == 7
    assert sorted(file.name for file in cluster.data_folder(1).iterdir()) == ["identity", "identity.copy", "lock"]


def test_replacement_requires_a_protocol_that_tolerates_amnesia(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = plain(tmp_path, {"orders": 1, "stock": 1}, protocol="skeen")
    assert command(["replace", "--config", str(cluster.file), "--node", "orders/1"]) == 64
    assert "protocol skeen does not tolerate the loss of a member's state" in capsys.readouterr().err
