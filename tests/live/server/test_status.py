"""Operators' view: status, explanation of a message, health and readiness, metrics, logs."""

import asyncio
import json
import logging
import re
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from amcast.cli.main import run as command
from amcast.cluster import connect, local_cluster
from amcast.kernel.process import Process
from amcast.live import log_output as logs
from amcast.live.operations.cluster_status import add_lags, late_processes
from amcast.live.rpc.client import NoAnswerError, RpcClient
from amcast.live.rpc.messages import GetNodeStatus
from amcast.live.security.permissions import FIRST_CLIENT_ID
from amcast.live.server import http
from amcast.live.server.metrics import METRICS
from amcast.live.server.status import describe_holding
from amcast.live.wire.frames import WIRE_VERSION
from amcast.parts.node.real_time_order import ORDER_TIMER
from amcast.protocols.skeen.process import Skeen
from tests import ROOT
from tests.live.cluster import run
from tests.live.secure_cluster import listening, plain, replicas, secured, until
from tests.parts.node.free_order import FreeOrder

pytestmark = pytest.mark.live


async def fetch(address: tuple[str, int], request: bytes) -> tuple[int, str]:
    reader, writer = await asyncio.open_connection(*address)
    writer.write(request)
    answer = (await reader.read()).decode()
    writer.close()
    return int(answer.split()[1]), answer.split("\r\n\r\n", 1)[1]


def test_status_of_every_node(tmp_path: Path) -> None:
    cluster = plain(tmp_path, {"orders": 3, "stock": 1})

    async def main() -> None:
        async with replicas(cluster) as running, connect(cluster) as client:
            for _ in range(10):
                await client.multicast({"orders", "stock"}, b"x")
            await until(lambda: all(replica.position == 10 for replica in running.values()))
            statuses = {name: running[me].runtime.status.status() for name, me in cluster.nodes().items()}
        json.dumps(statuses)
        for name, status in add_lags(statuses).items():
            assert status["node"] == name
            assert status["ready"], status["not_ready_reasons"]
            assert status["lag"] == 0
            assert status["protocol_status"]["position"] == status["recent_deliveries"]["next"] == 10
            assert status["protocol_status"]["leader"] in (0, 3)
            assert status["protocol_status"]["pending"] == 0
            assert len(status["links"]) == 3
            assert all(link["up"] and link["version"] == WIRE_VERSION for link in status["links"])

    run(main())


def test_explain_names_the_phase_and_late_processes(tmp_path: Path) -> None:
    """Two of three members of stock are down: a message to stock is proposed, and never decided."""
    cluster = plain(tmp_path, {"orders": 3, "stock": 3})
    explanations: dict[str, dict[str, Any]] = {}

    async def main() -> None:
        async with replicas(cluster) as running, connect(cluster, me=FIRST_CLIENT_ID) as client:
            await client.multicast({"orders", "stock"}, b"x")
            for me in (4, 5):
                await running[me].host.stop()
            await client.post({"orders", "stock"}, b"stuck")
            message = FIRST_CLIENT_ID * 10**9 + 1
            explain = running[0].runtime.status.explain
            # Until their own group has decided.
            await until(lambda: "groups [1] has" in str(explain(message)["phases"][-1]["description"]), 20)
            for name, me in cluster.nodes().items():
                explanations[name] = running[me].runtime.status.explain(message)
            early = FIRST_CLIENT_ID * 10**9
            assert explain(early)["delivered"]
            assert explain(early)["phases"][-1]["name"] == "delivered"
            assert "does not know the message" in explain(7)["phases"][-1]["description"]

    run(main())
    phases = {phase["name"]: phase for phase in explanations["orders/1"]["phases"]}
    assert phases["text"]["is_done"]
    assert phases["proposed"]["is_done"]
    assert not phases["decided"]["is_done"]
    assert "no majority of groups [1]" in phases["decided"]["description"]
    assert phases["decided"]["waiting_for"] == [4, 5]
    assert late_processes(explanations)[:2] == ["4", "5"]
    assert not any(answer["delivered"] for answer in explanations.values())


def test_explain_of_a_protocol_without_phases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = plain(tmp_path, {"orders": 1, "stock": 1}, protocol="skeen")

    async def main() -> None:
        async with replicas(cluster) as running, connect(cluster, me=FIRST_CLIENT_ID) as client:
            await client.multicast({"orders", "stock"}, b"x")
            watch = running[0].runtime.status
            assert watch is not None
            assert watch.explain(FIRST_CLIENT_ID * 10**9)["delivered"]
            assert [phase["name"] for phase in watch.explain(5)["phases"]] == ["text"]
            monkeypatch.setattr(Skeen, "explain", Process.explain)
            assert watch.explain(5)["phases"] == [
                {"name": "delivered", "is_done": False, "waiting_for": [],
                 "description": "it is not delivered here; skeen cannot tell what it waits for"}
            ]  # fmt: skip

    run(main())


def test_only_operators_may_request_the_status(tmp_path: Path) -> None:
    cluster = secured(tmp_path)

    async def main() -> None:
        async with replicas(cluster):
            for name in ("till", "guest"):
                asker = RpcClient(cluster.name, cluster.addresses, cluster.limits, cluster.client_transport(name))
                if name == "till":
                    await asker.request(0, GetNodeStatus())
                else:
                    with pytest.raises(NoAnswerError, match="client guest may not request the status"):
                        await asker.request(0, GetNodeStatus())

    with listening() as log:
        run(main())
    assert len(log.having("may not request the status")) == 1


def test_health_readiness_and_metrics_over_http(tmp_path: Path) -> None:
    cluster = plain(tmp_path, {"orders": 3, "stock": 1})

    async def main() -> None:
        async with replicas(cluster) as running, connect(cluster) as client:
            await client.multicast({"orders"}, b"x")
            watch = running[0].runtime.status
            assert watch is not None
            server = http.HttpServer(watch)
            await server.listen("127.0.0.1", 0)
            assert server._server is not None
            address = server._server.sockets[0].getsockname()
            assert await fetch(address, b"GET /health HTTP/1.1\r\n\r\n") == (200, "ok\n")
            assert await fetch(address, b"GET /ready HTTP/1.1\r\n\r\n") == (200, "ready\n")
            assert (await fetch(address, b"GET / HTTP/1.1\r\n\r\n"))[0] == 404
            assert (await fetch(address, b"POST /status HTTP/1.1\r\n\r\n"))[0] == 405
            assert (await fetch(address, b"nonsense\r\n\r\n"))[0] == 400
            assert (await fetch(address, b"x" * 20_000))[0] == 400
            assert json.loads((await fetch(address, b"GET /status HTTP/1.1\r\n\r\n"))[1])["node"] == "orders/1"
            status, text = await fetch(address, b"GET /metrics HTTP/1.1\r\n\r\n")
            assert status == 200
            for metric in METRICS:
                assert re.search(rf"^{metric.name}{'_total' if metric.kind == 'counter' else ''}[ {{]", text, re.M), (
                    metric.name
                )
            assert 'amcast_link_up{peer="1"} 1.0' in text
            await running[3].host.stop()
            await until(lambda: watch.warnings() == ["it reaches 0 of 1 members of group stock"])
            assert await fetch(address, b"GET /ready HTTP/1.1\r\n\r\n") == (200, "ready\n"), "orders serves"
            for follower in (1, 2):
                await running[follower].host.stop()
            await until(lambda: watch.reasons_not_ready() == ["it reaches 1 of 3 members of group orders"])
            assert await fetch(address, b"GET /ready HTTP/1.1\r\n\r\n") == (
                503,
                "it reaches 1 of 3 members of group orders\n",
            )
            await running[0].host.stop()
            assert (await fetch(address, b"GET /health HTTP/1.1\r\n\r\n"))[0] == 503
            await server.close()

    run(main())


def test_documented_metrics_equal_defined_metrics() -> None:
    page = (ROOT / "docs" / "operate.md").read_text()
    documented = set(re.findall(r"^\| `(amcast_\w+)` \|", page, re.M))
    assert documented == {f"{metric.name}{'_total' if metric.kind == 'counter' else ''}" for metric in METRICS}


def test_dashboard_uses_defined_metrics() -> None:
    board = json.loads((ROOT / "deploy" / "grafana-dashboard.json").read_text())
    asked = set(re.findall(r"amcast_\w+", json.dumps(board["panels"])))
    known = {f"{metric.name}{'_total' if metric.kind == 'counter' else ''}" for metric in METRICS}
    assert asked
    assert asked <= known


def test_json_log_lines() -> None:
    stream = StringIO()
    before = logging.getLogger().handlers[:], logging.getLogger().level
    try:
        logs.configure_logging("orders/1", "json", stream)
        logs.warn_rate_limited("test", "connection with %s refused: %s", "here", "a line\nthat breaks")
        try:
            raise ValueError("a reason")
        except ValueError:
            logging.getLogger("amcast.live").exception("it failed")
    finally:
        logging.getLogger().handlers[:], level = before
        logging.getLogger().setLevel(level)
    rows = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [row["node"] for row in rows] == ["orders/1"] * 2
    assert rows[0]["text"] == "connection with here refused: a line\nthat breaks"
    assert rows[0]["kind"] == "test"
    assert "ValueError: a reason" in rows[1]["error"]


def test_repeated_warnings_are_rate_limited() -> None:
    now = 0.0
    sparing = logs.RateLimitedLog(max_lines=3, window_s=0.05, read_clock=lambda: now)
    with listening() as log:
        for _ in range(1000):
            sparing.warn("flood", "again")
        assert log.lines == ["again"] * 3
        now = 0.06
        sparing.warn("flood", "later")
    assert log.lines[3:] == [log.having("997 more lines of kind 'flood'")[0], "later"]
    assert sparing.suppressed == 997


def test_text_log_escapes_control_characters_of_peers() -> None:
    line = logs.TextLines("n").format(logging.LogRecord("x", 30, "", 0, "said %s", ("\x1b[31m\nevil",), None))
    assert line.endswith("n WARNING said \\x1b[31m\\nevil")


@pytest.mark.slow
def test_status_and_explain_commands_on_real_processes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cluster = secured(tmp_path, {"orders": 3, "stock": 1}, logs="json")
    config = ["--config", str(cluster.file)]
    with local_cluster(cluster) as running:
        assert command(["status", *config, "--wait", "30", "--json"]) == 0
        nodes = json.loads(capsys.readouterr().out)["nodes"]
        assert sorted(nodes) == ["orders/1", "orders/2", "orders/3", "stock/1"]
        assert all(status["ready"] for status in nodes.values())
        running.kill("orders/3")
        assert command(["status", *config]) == 2
        assert "no answer" in capsys.readouterr().out
        assert command(["status", *config, "--node", "orders/1"]) == 0
        assert command(["status", *config, "--as", "guest", "--node", "orders/1"]) == 2
        assert command(["status", *config, "--node", "orders/9"]) == 64
        capsys.readouterr()
        assert command(["explain", *config, "5", "--json"]) == 2, "nobody knows it"
        answer = json.loads(capsys.readouterr().out)
        assert answer["delivered"] == []
        assert "error" in answer["nodes"]["orders/3"]
        assert command(["explain", *config, "5"]) == 2
        assert "orders/1: does not know message 5" in capsys.readouterr().out
        lines = (running.logs / "orders-1.log").read_text().splitlines()
    assert all(json.loads(line)["node"] == "orders/1" for line in lines)


def test_answers_that_are_held_back_for_long_are_a_warning_with_the_group_they_wait_for() -> None:
    run = FreeOrder(2, 1)
    run.deliver_all(0, run.multicast(0, 1))
    assert describe_holding(run.nodes[0]) == ""
    run.moment += 3 * 10**9
    run.fire(0, ORDER_TIMER)
    assert describe_holding(run.nodes[0]) == "it has held back answers for 3 s (real-time order), waiting for group 1"
    assert describe_holding(run.nodes[1]) == "", "group 1 holds nothing"
