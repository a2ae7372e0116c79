"""Descriptors: clients cannot take those that the log, the members and the operators of a node need."""

import json
import socket
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from amcast.cluster import connect
from amcast.kernel.errors import CannotTellError, UsageError
from amcast.live.limits import Limits
from amcast.live.operations.local_cluster import LocalCluster
from amcast.live.rpc.client import NoAnswerError, RpcClient
from amcast.live.rpc.messages import GetNodeStatus, NodeStatus, Subscribe
from amcast.live.server.descriptors import plan_descriptors
from tests.live.cluster import run
from tests.live.secure_cluster import plain

LIMIT = 330


def test_budget_leaves_the_reserve_untouched() -> None:
    for limit in (320, 1024, 65_536):
        budget = plan_descriptors(limit, 6, Limits())
        assert budget.pending <= 256
        assert limit - budget.pending - budget.clients >= 200
        assert budget.clients >= 16


def test_too_low_limit_is_refused_with_the_limit_that_is_needed() -> None:
    with pytest.raises(UsageError, match="RLIMIT_NOFILE") as refused:
        plan_descriptors(100, 6, Limits())
    needed = int(str(refused.value).split("at least ")[1].split(":")[0])
    assert plan_descriptors(needed, 6, Limits()).clients >= 16


@pytest.mark.live
def test_idle_subscribers_cannot_take_the_descriptors_of_the_log(tmp_path: Path) -> None:
    """Far more idle subscribers and silent connections than descriptors: the group keeps its log, an operator is
    answered, and a new client multicasts once there is a place."""
    made = plain(tmp_path, {"orders": 1}, durability="fsync", limits={"heartbeat_s": 2.0, "heartbeat_timeout_s": 8.0})
    command = ["prlimit", f"--nofile={LIMIT // 2}:{LIMIT}", sys.executable, "-m", "amcast.cluster"]

    async def main() -> None:
        rpc = RpcClient(made.name, made.addresses, made.limits)
        async with connect(made) as client:
            await client.multicast({"orders"}, b"before")
            calls, refused = [], []
            try:
                for _ in range(2 * LIMIT):
                    try:
                        call = await rpc.call(0, Subscribe(0, 0))
                        await call.reply()
                        calls.append(call)
                    except NoAnswerError as error:
                        refused.append(str(error))
                    if len(refused) >= 20 or (refused and "RLIMIT_NOFILE" not in refused[-1]):
                        break
                assert all("open files (RLIMIT_NOFILE) allows no more" in reason for reason in refused)
                assert len(refused) >= 20
                with ExitStack() as stack:
                    for _ in range(200):
                        stack.enter_context(socket.create_connection(made.addresses[0]))
                    for _ in range(20):
                        await client.multicast({"orders"}, b"x" * 100_000)
                    reply = await rpc.request(0, GetNodeStatus())
                    assert isinstance(reply, NodeStatus)
                    status = json.loads(reply.json)
                    assert status["ready"], status["not_ready_reasons"]
                    assert status["quota_refusals"] >= 20
            finally:
                for call in calls:
                    call.close()

    with LocalCluster(made, command) as running:
        run(main(), timeout_s=60)
        running.check()


@pytest.mark.live
def test_node_with_too_few_descriptors_does_not_start(tmp_path: Path) -> None:
    made = plain(tmp_path, {"orders": 1})
    command = ["prlimit", "--nofile=128:128", sys.executable, "-m", "amcast.cluster"]
    with pytest.raises(CannotTellError, match=r"exit code 64.*RLIMIT_NOFILE.*is 128; expected at least"):
        LocalCluster(made, command).__enter__()
