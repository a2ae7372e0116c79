"""Lost packets are in the trace."""

import asyncio

import pytest

from amcast.kernel.errors import CannotTellError
from amcast.kernel.topology import Topology
from tests.live.cluster import cluster, run

pytestmark = pytest.mark.live


def test_packets_to_a_dead_peer_are_recorded_as_lost() -> None:
    async def main() -> None:
        async with cluster(Topology.grid(2, 1)) as made:
            async with made.client(me=7, batches=False) as client:
                await client.multicast({0, 1}, b"arrives")
                await asyncio.sleep(0.3)
                made.hosts[1].fail(RuntimeError("killed by the test"))
                with pytest.raises(CannotTellError):
                    await client.multicast({0, 1}, b"does not", timeout_s=0.3)
            await asyncio.sleep(0.05)
        packets = made.recorder.packets
        lost = [(row[0], row[1], row[2], row[3]) for row in packets if row[6] is None]
        assert (7_000_000_001, "Propose", 0, 1) in lost
        assert (7_000_000_001, "Request", 7, 1) in lost
        assert {row[0] for row in packets if row[6] is None} <= {7_000_000_001, None}
        assert any(row[0] == 7_000_000_000 and row[6] is not None for row in packets)

    run(main())


def test_unacknowledged_packets_of_a_reset_link_are_recorded_as_lost() -> None:
    async def main() -> None:
        async with cluster(Topology.grid(2, 1)) as made, made.client(me=7, batches=False) as client:
            await client.multicast({0, 1}, b"arrives")
            await asyncio.sleep(0.15)
            link = made.hosts[0].network.links[1]
            link.connection.is_writing_paused = True
            asking = asyncio.create_task(client.multicast({0, 1}, b"overflows", timeout_s=0.3))
            await asyncio.sleep(0.1)
            link.overflow()
            with pytest.raises(CannotTellError):
                await asking
            lost = [row[:4] for row in made.recorder.packets if row[6] is None]
            assert (7_000_000_001, "Propose", 0, 1) in lost

    run(main())
