"""Commands of the live cluster as a user types them, mistakes included."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from amcast.cli.main import run
from amcast.live.config.cluster import format_toml
from amcast.live.operations.local_cluster import format_local_config


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "cluster.toml"
    file.write_text(format_local_config({"orders": 1, "stock": 2}, durability="os"))
    return file


@pytest.fixture
def nowhere(tmp_path: Path) -> Iterator[Path]:
    """A cluster whose addresses have no listener."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(3)]
        for listener in sockets:
            listener.bind(("127.0.0.1", 0))
        addresses = [f"127.0.0.1:{listener.getsockname()[1]}" for listener in sockets]
        groups = {"orders": {"replicas": addresses[:1]}, "stock": {"replicas": addresses[1:]}}
        file = tmp_path / "cluster.toml"
        file.write_text(format_toml({"name": "nowhere", "security": {"mode": "plain"}, "groups": groups}))
        yield file


def lines_until(process: "subprocess.Popen[str]", end: str) -> list[str]:
    """The output up to a line that begins with a text."""
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line)
        if line.startswith(end):
            return lines
    raise AssertionError(f"{end!r} not found in {lines}")


@pytest.mark.live
def test_up_reports_exited_nodes_and_how_to_restart_them(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = [sys.executable, "-m", "amcast", "up", "--config", str(file)]
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process,
        ExitStack() as stack,
    ):
        stack.callback(process.terminate)  # else a failure would wait for the cluster to end
        started = lines_until(process, "all nodes are ready")
        pids = {line.split(":")[0]: int(line.split("pid ")[1].split(",")[0]) for line in started if ", pid " in line}
        assert list(pids) == ["orders/1", "stock/1", "stock/2"]
        assert run(["send", "--config", str(file), "orders,stock", "hello", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["destinations"] == ["orders", "stock"]
        assert run(["up", "--config", str(file)]) == 2, "the cluster is running"
        assert "in use by another process" in capsys.readouterr().err
        os.kill(pids["stock/2"], signal.SIGKILL)
        report = lines_until(process, "stock/2 was killed by SIGKILL")[-1]
        assert report.strip().endswith(f"to restart it: amcast serve --config {file} --node stock/2")
        process.send_signal(signal.SIGTERM)
        lines_until(process, "stopping")
        assert process.wait(30) == 2, "one node was killed"


def test_commands_fail_when_no_node_answers(nowhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = ["--config", str(nowhere)]
    assert run(["send", *config, "orders,shop", "x"]) == 64, "checked before connecting"
    assert f"group 'shop' does not exist in {nowhere}; expected one of: orders, stock" in capsys.readouterr().err
    assert run(["send", *config, "orders", "x", "--timeout", "1"]) == 2
    error = capsys.readouterr().err
    assert "no server gave this client a process id within 1 s" in error
    assert error.count("cannot be reached: connection refused") == 1, "equal failures are grouped"
    assert error.rstrip().endswith("is the cluster running?")
    assert run(["explain", *config, "5"]) == 2
    output = capsys.readouterr().out
    assert output.count("cannot be reached: connection refused") == 3
    assert "delivered" not in output, "no node can tell"
    assert run(["explain", *config, "5", "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["delivered"] == []


def test_tail_says_that_no_replica_answers_while_it_waits(nowhere: Path) -> None:
    command = [sys.executable, "-m", "amcast", "tail", "orders", "--config", str(nowhere)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        lines_until(process, "no replica of group orders answers yet; trying for 30 s")
        process.terminate()
