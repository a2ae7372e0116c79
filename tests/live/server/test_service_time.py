"""`at.now` is stamped by the server that orders a call: the caller's clock does not count."""

import asyncio
import time
from contextlib import AsyncExitStack
from pathlib import Path
from types import SimpleNamespace

import pytest

from amcast.cluster import connect, run_service
from amcast.kernel.message import Message
from amcast.live.client import service_stub
from amcast.live.client_batch import encode_batch, open_batch, stamp_calls
from amcast.live.config.cluster import read_cluster
from amcast.live.operations.local_cluster import format_local_config
from amcast.services.calls import CallSession
from amcast.services.declaration import SECOND_NS, At, Key, Service, command, describe_service
from amcast.services.messages import Command, decode_payload, encode_payload
from tests.live.cluster import run

YEAR_NS = 365 * 86_400 * SECOND_NS


class Clock(Service):
    """Keeps the times of all calls."""

    def __init__(self, group: str) -> None:
        self.times: list[int] = []

    @command
    def look(self, at: At, key: Key) -> int:
        self.times.append(at.now_ns)
        return at.now_ns


def make_command(now_ns: int) -> Command:
    return CallSession(describe_service(Clock), ("north",), 7).make("look", ("x",), {}, now_ns).command


def test_a_stamp_replaces_the_time_and_nothing_else() -> None:
    payloads = [encode_payload(make_command(YEAR_NS)), b"no call of a service", b"\xc1"]
    message = Message(5, 9, (0,), encode_batch(payloads))
    stamped = stamp_calls(message, 123)
    assert (stamped.id, stamped.sender, stamped.destinations) == (5, 9, (0,))
    parts = open_batch(stamped.payload)
    assert parts[1:] == payloads[1:]
    assert decode_payload(parts[0]) == make_command(123)
    assert stamp_calls(stamped, 123) is stamped


@pytest.mark.parametrize("payload", [b"", b"text", encode_batch([b"a", b"b"]), b"\xc1service\x01", b"\x91\xc4"])
def test_what_is_no_call_is_not_touched(payload: bytes) -> None:
    message = Message(5, 9, (0,), payload)
    assert stamp_calls(message, 123) is message


def test_a_call_outside_of_a_batch_stays_outside() -> None:
    stamped = stamp_calls(Message(5, 9, (0,), encode_payload(make_command(YEAR_NS))), 123)
    assert decode_payload(stamped.payload) == make_command(123)


@pytest.mark.live
@pytest.mark.parametrize(("protocol", "is_stamped"), [("primcast", True), ("whitebox", False)])
def test_a_caller_whose_clock_is_ahead_does_not_move_the_time_of_a_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, protocol: str, is_stamped: bool
) -> None:
    (tmp_path / "cluster.toml").write_text(format_local_config({"north": 3}, protocol=protocol, durability="os"))
    cluster = read_cluster(tmp_path / "cluster.toml")
    ahead = SimpleNamespace(time_ns=lambda: time.time_ns() + YEAR_NS, monotonic=time.monotonic)
    monkeypatch.setattr(service_stub, "time", ahead)

    async def main() -> None:
        async with AsyncExitStack() as stack:
            replicas = {name: run_service(cluster, name, Clock) for name in cluster.nodes()}
            for replica in replicas.values():
                await replica.open()
                stack.push_async_callback(replica.close)
            clock = (await stack.enter_async_context(connect(cluster))).service(Clock)
            times = [(await clock.look("x")).value for _ in range(5)]
            await replicas["north/1"].close()
            times += [(await clock.look("x", timeout_s=60)).value for _ in range(5)]
            await replicas["north/1"].open()
            await replicas["north/1"].caught_up()
            times += [(await clock.look("x", timeout_s=60)).value for _ in range(5)]
            assert times == sorted(times)
            limit = time.time_ns() + YEAR_NS // 2
            assert (times[-1] < limit) == is_stamped
            for replica in replicas.values():
                service = replica.service
                assert service is not None
                while service.executor.executed < 15:
                    await asyncio.sleep(0.02)
                assert service.executor.service.times == times  # type: ignore[attr-defined]

    run(main(), 90)
