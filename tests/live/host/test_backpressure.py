"""Back-pressure: unanswered requests of clients are bounded while a destination group has no majority."""

import asyncio

import pytest

from amcast.assembly import build_node_spec
from amcast.kernel.topology import Topology
from amcast.live.limits import Limits
from amcast.parts.client.messages import SessionConfig
from amcast.parts.client.session import ClientSession as Session
from amcast.parts.node.messages import GatewayConfig, NodeConfig
from amcast.protocols.catalogue import get_protocol
from tests.live.cluster import QUICK, Cluster, run

pytestmark = pytest.mark.live

PRIMCAST = build_node_spec(get_protocol("primcast"), NodeConfig(omega=None, gateway=GatewayConfig()))
UNORDERED_BYTES = 20_000
MESSAGES = 200


def test_clients_wait_while_a_destination_is_silent_and_resume_when_it_is_back() -> None:
    async def scene() -> None:
        limits = Limits(
            **{name: getattr(QUICK, name) for name in ("heartbeat_s", "heartbeat_timeout_s", "reconnect_max_s")},
            unordered_bytes=UNORDERED_BYTES,
        )
        there = Cluster(Topology.grid(3, 1), PRIMCAST, limits)
        for me in there.topology.servers:
            await there.prepare(me)
        gateway, silent = there.hosts[0], there.replicas[2]
        for me in (0, 1):
            there.replicas[me].start(there.addresses)

        def make_session(number: int) -> Session:
            return Session(number, there.topology, PRIMCAST.contacts, SessionConfig(gateways=True))

        client = there.client(batches=False, lazy=True)
        client._make_process = make_session
        async with client:
            multicasts = []
            for _ in range(MESSAGES):
                multicasts.append(asyncio.create_task(client.multicast((0, 2), bytes(1000), timeout_s=30)))
                await asyncio.sleep(0.001)
            while not gateway.network.are_clients_paused:
                await asyncio.sleep(0.01)
            unanswered = gateway.process.unanswered_bytes()
            await asyncio.sleep(0.2)
            assert UNORDERED_BYTES < gateway.process.unanswered_bytes() == unanswered < MESSAGES * 1000, (
                "it reads no more"
            )
            assert not any(task.done() for task in multicasts)
            silent.start(there.addresses)
            await asyncio.gather(*multicasts)
            assert gateway.process.unanswered_bytes() == 0
            assert not gateway.network.are_clients_paused
        assert [len(there.delivered[me]) for me in (0, 1, 2)] == [MESSAGES, 0, MESSAGES]
        await there.down()

    run(scene())
