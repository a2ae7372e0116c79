"""RPC requests with absurd values are answered or refused; a handler that fails ends its own connection only."""

import logging

import pytest

from amcast.kernel.topology import Topology
from amcast.live.rpc.client import NoAnswerError, RpcClient
from amcast.live.rpc.messages import (
    AnyRequest,
    FetchState,
    GetNodeStatus,
    GetProgress,
    Progress,
    ReleaseClientId,
    Subscribe,
)
from tests.live.cluster import QUICK, cluster, run

pytestmark = pytest.mark.live

REQUESTS: list[AnyRequest] = [
    Subscribe(0, 2**63),
    Subscribe(2**62, 0),
    Subscribe(0, -(2**62)),
    ReleaseClientId(2**63, b"", -1, 2**63),
    ReleaseClientId(-1, b"x" * 1000, 2**63, -1),
    FetchState(2**63),
    FetchState(-(2**62)),
    GetNodeStatus(2**63),
    GetNodeStatus(-(2**62)),
]


def test_absurd_requests_are_answered_or_refused(caplog: pytest.LogCaptureFixture) -> None:
    failures: list[str] = []

    async def main() -> None:
        async with cluster(Topology.grid(1, 1), QUICK) as made, made.client() as client:
            rpc = RpcClient("amcast", made.addresses, QUICK)
            for request in REQUESTS:
                call = await rpc.call(0, request)
                try:
                    await call.reply(3.0)
                except NoAnswerError as error:
                    failures.append(f"{request}: {error}")
                call.close()
                assert isinstance(await rpc.request(0, GetProgress()), Progress)
            await client.multicast({0}, b"x")

    with caplog.at_level(logging.ERROR):
        run(main())
    assert not [failure for failure in failures if "TimeoutError" in failure]
    assert "was never retrieved" not in caplog.text
    assert "Traceback" not in caplog.text


def test_failing_handler_ends_its_connection_only(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with cluster(Topology.grid(1, 1), QUICK) as made:

            def fail() -> None:
                raise ZeroDivisionError("a bug")

            monkeypatch.setattr(made.replicas[0].status, "status", fail)
            rpc = RpcClient("amcast", made.addresses, QUICK)
            with pytest.raises(NoAnswerError, match="the request failed at process 0"):
                await rpc.request(0, GetNodeStatus())
            assert isinstance(await rpc.request(0, GetProgress()), Progress)
            assert not made.hosts[0].ended.done()

    with caplog.at_level(logging.ERROR, "amcast.live"):
        run(main())
    assert "GetNodeStatus cannot be answered" in caplog.text
