"""External servers start for a test and stop after it; a missing one is skipped by name, or fails where required."""

import json
import socket
import urllib.request

import pytest

from tests.external import programs

redis = pytest.fixture(programs.redis_server)
etcd = pytest.fixture(programs.etcd_server)
nats = pytest.fixture(programs.nats_server)


def exchange(port: int, line: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", port), 5) as connection:
        connection.sendall(line)
        return connection.recv(4096)


def test_redis_answers(redis: int) -> None:
    assert exchange(redis, b"PING\r\n") == b"+PONG\r\n"


def test_etcd_answers(etcd: int) -> None:
    with urllib.request.urlopen(f"http://127.0.0.1:{etcd}/version", timeout=5) as answer:
        assert json.load(answer)["etcdserver"]


def test_nats_answers(nats: int) -> None:
    assert exchange(nats, b"").startswith(b"INFO {")


def test_missing_program_skips_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(programs.PROGRAMS, "etcd", ("no-such-program",))
    monkeypatch.delenv("AMCAST_REQUIRE", raising=False)
    with pytest.raises(pytest.skip.Exception, match="no etcd; install it"):
        programs.need_program("etcd")


def test_missing_program_that_is_required_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(programs.PROGRAMS, "etcd", ("no-such-program",))
    monkeypatch.setenv("AMCAST_REQUIRE", "chromium,etcd")
    with pytest.raises(pytest.fail.Exception, match="AMCAST_REQUIRE names etcd"):
        programs.need_program("etcd")
