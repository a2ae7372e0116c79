"""Finds external programs, skips tests by name where one is missing, and runs servers for the length of a test.

`AMCAST_REQUIRE` lists programs, separated by commas, that must be there: a test that misses one of them fails instead
of being skipped. `.ci/run` sets it to what it has installed.
"""

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

PROGRAMS = {
    "chromium": ("chromium", "chromium-browser", "google-chrome"),
    "redis-server": ("redis-server",),
    "etcd": ("etcd",),
    "nats-server": ("nats-server", "/usr/sbin/nats-server"),
}
"""Names under which each program may be installed."""
START_S = 20.0


def find_program(name: str) -> str | None:
    """The path of a program, or None where it is not installed."""
    return next((path for path in map(shutil.which, PROGRAMS[name]) if path is not None), None)


def need_program(name: str) -> str:
    """The path of a program; skips the calling test where it is missing, fails it where it is required."""
    path = find_program(name)
    if path is None:
        reason = f"no {name}; install it, for example: apt-get install {'etcd-server' if name == 'etcd' else name}"
        if name in os.environ.get("AMCAST_REQUIRE", "").split(","):
            pytest.fail(f"AMCAST_REQUIRE names {name}: {reason}")
        pytest.skip(reason)
    return path


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


@contextmanager
def run_server(name: str, arguments: Callable[[int, Path], list[str]]) -> Iterator[int]:
    """A server on a free port of loopback with a folder of its own, stopped and removed at the end; gives the port."""
    path, port = need_program(name), free_port()
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        with log.open("wb") as output:
            server = subprocess.Popen([path, *arguments(port, Path(folder))], stdout=output, stderr=subprocess.STDOUT)
        try:
            _await_port(server, port, log)
            yield port
        finally:
            server.terminate()
            server.wait(START_S)


def _await_port(server: "subprocess.Popen[bytes]", port: int, log: Path) -> None:
    until = time.monotonic() + START_S
    while time.monotonic() < until and server.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    pytest.fail(f"{server.args!r} does not listen on port {port}: {log.read_text(errors='replace')[-500:]}")


def redis_server() -> Iterator[int]:
    """Redis without persistence."""
    with run_server("redis-server", lambda port, _: ["--port", str(port), "--save", "", "--bind", "127.0.0.1"]) as port:
        yield port


def etcd_server() -> Iterator[int]:
    """One member of etcd; the port is that for clients."""

    def arguments(port: int, folder: Path) -> list[str]:
        peer = f"http://127.0.0.1:{free_port()}"
        client = f"http://127.0.0.1:{port}"
        return [
            "--data-dir", str(folder / "data"), "--listen-client-urls", client, "--advertise-client-urls", client,
            "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", f"default={peer}",
        ]  # fmt: skip

    with run_server("etcd", arguments) as port:
        yield port


def nats_server() -> Iterator[int]:
    """NATS without JetStream."""
    with run_server("nats-server", lambda port, _: ["--addr", "127.0.0.1", "--port", str(port)]) as port:
        yield port
