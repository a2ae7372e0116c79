"""Calls with a key in live clusters: once over restarts of clients and of all servers."""

import os
from pathlib import Path

import pytest

from amcast.cli.main import run as run_command
from amcast.cluster import connect, local_cluster
from amcast.kernel.errors import UsageError
from amcast.live.config.cluster import Cluster, read_cluster
from amcast.live.operations.local_cluster import LocalCluster, format_local_config
from tests.live.cluster import run
from tests.live.server.test_service_reads import Counter

pytestmark = pytest.mark.live

SERVICE = "tests.live.server.test_service_reads:Counter"


def test_a_restarted_client_does_not_call_twice_through_kill_9_of_all_nodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[3]), prepend=os.pathsep)
    config = tmp_path / "cluster.toml"
    config.write_text(format_local_config({"north": 3}))
    cluster = read_cluster(config)
    with local_cluster(cluster, service=SERVICE) as running:
        run(_call_again(cluster, running), 60)
        for _ in range(2):
            arguments = ["call", "--config", str(config), f"{SERVICE}.add", "x", "--key", "order-19", "--json"]
            assert run_command(arguments) == 0
            assert '"value": 3' in capsys.readouterr().out


async def _call_again(cluster: Cluster, running: LocalCluster) -> None:
    async with connect(cluster) as client:
        counter = client.service(Counter)
        first = await counter.add("x", call_key="order-17")
        assert await counter.add("x", call_key="order-17") == first
    async with connect(cluster) as client:
        assert await client.service(Counter).add("x", call_key="order-17") == first
    running.kill(*cluster.nodes())
    running.start(*cluster.nodes())
    async with connect(cluster, connect_s=30) as client:
        counter = client.service(Counter)
        assert await counter.add("x", call_key="order-17", timeout_s=60) == first
        assert (await counter.add("x", call_key="order-18")).value == 2
        assert (await counter.read("x")).value == 2
        with pytest.raises(UsageError, match="call_key = 'order-17' was used for another call"):
            await counter.add("y", call_key="order-17", groups=["north"])
