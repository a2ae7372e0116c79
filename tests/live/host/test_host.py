"""Hosts over TCP run the process objects of the simulator: order, trace and replay of Skeen's protocol."""

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest

from amcast.kernel.errors import CannotTellError, UsageError
from amcast.kernel.events import Receive
from amcast.kernel.message import Message, Request
from amcast.kernel.topology import Topology
from amcast.live.client.client import Client
from amcast.live.host.step_log import read_steps, replay
from amcast.live.wire.frames import Codec
from tests.live.cluster import SKEEN, Cluster, cluster, holds, ids, recorded, run

pytestmark = pytest.mark.live

GROUPS = Topology.grid(3, 1)


async def multicast_randomly(client: Client, count: int, seed: int) -> int:
    """Multicasts to random destinations from several coroutines at once; returns the expected number of deliveries."""
    rng = random.Random(seed)
    plans = [tuple(rng.sample(range(3), rng.randint(1, 3))) for _ in range(count)]

    async def multicast_share(share: list[tuple[int, ...]]) -> None:
        for groups in share:
            receipt = await client.multicast(groups, rng.randbytes(rng.randint(0, 100)))
            assert receipt.destinations == tuple(str(group) for group in sorted(groups))

    await asyncio.gather(*(multicast_share(plans[start::5]) for start in range(5)))
    return sum(map(len, plans))


async def run_clients(cluster: Cluster, *, batches: bool, clients: int = 3, count: int = 100) -> int:
    """Runs several clients at once; returns the expected number of deliveries."""

    async def one(seed: int) -> int:
        async with cluster.client(batches=batches) as client:
            return await multicast_randomly(client, count, seed)

    return sum(await asyncio.gather(*(one(seed) for seed in range(clients))))


@pytest.mark.parametrize("batches", [False, True])
def test_concurrent_clients_see_one_order_and_a_complete_trace(batches: bool) -> None:
    async def main() -> None:
        async with cluster(GROUPS) as made:
            expected = await run_clients(made, batches=batches)
            await made.settled(expected)
        trace = made.recorder
        holds(recorded(trace))
        assert expected == sum(map(len, made.delivered.values()))
        assert len(trace.deliveries) == sum(len(row[2]) for row in trace.multicasts)
        assert (len(trace.multicasts) == 300) is not batches, "batches of several must have occurred"
        by_process: dict[int, list[tuple[int, int]]] = {}
        for process, _group, position, message, *_ in trace.deliveries:
            by_process.setdefault(process, []).append((position, message))
        for process, rows in by_process.items():
            assert [position for position, _ in sorted(rows)] == list(range(len(rows)))
            assert [message for _, message in sorted(rows)] == ids(made.delivered)[process]
        assert {row[0] for row in trace.processes} >= {0, 1, 2}

    run(main())


def test_receiver_records_each_packet_once_as_many_as_claimed() -> None:
    async def main() -> None:
        async with cluster(GROUPS) as made, made.client(me=7, batches=False) as client:
            receipt = await client.multicast({0, 1}, b"x" * 10)
            await made.settled(2)
            await asyncio.sleep(0.05)
        rows = [row for row in made.recorder.packets if row[1] != "Reply"]
        assert len(rows) == SKEEN.for_topology(Topology.grid(2, 1)).claims.packets(2, 1)
        assert {row[0] for row in rows} == {receipt.message}
        for _, body, source, target, size, sent_ns, received_ns, *_ in rows:
            assert body in ("Request", "Propose")
            assert source in (7, 0, 1)
            assert target in (0, 1)
            assert size > 10 or body == "Propose"
            assert sent_ns <= received_ns

    run(main())


def test_fresh_process_repeats_every_live_step(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster(GROUPS, folder=tmp_path) as made:
            await made.settled(await run_clients(made, batches=True))
        codec = Codec(SKEEN.wire_bodies(), SKEEN.records)
        for me, path in made.steps.items():
            assert replay(path, codec, SKEEN.process(me, GROUPS, SKEEN.configure())) == made.hosts[me].steps_taken
            effects = [effect for step in read_steps(path, codec) for effect in step.effects]
            assert any(type(effect).__name__ == "Deliver" for effect in effects)

    run(main())


def test_replay_reports_a_process_that_behaves_differently(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster(GROUPS, folder=tmp_path) as made:
            await made.settled(await run_clients(made, batches=True, clients=1, count=10))
        wrong = SKEEN.process(0, GROUPS, SKEEN.configure())
        wrong.step([Receive(99, Request(Message(99_000_000_000, 99, (0,))))], 0)
        with pytest.raises(UsageError, match=r"step [0-9]+ differs"):
            replay(made.steps[0], Codec(SKEEN.wire_bodies()), wrong)

    run(main())


def test_too_large_message_is_refused_before_it_is_sent() -> None:
    async def main() -> None:
        async with cluster(GROUPS) as made, made.client() as client:
            most = client.limits.message_bytes
            with pytest.raises(UsageError, match=f"payload of {most + 1} bytes; expected at most {most}"):
                await client.multicast({0, 1}, b"x" * (most + 1))
            await client.multicast({0, 1}, b"x" * most)
            with pytest.raises(UsageError, match="group 9 does not exist"):
                await client.multicast({0, 9}, b"")
            await made.settled(2)
        assert [len(message.payload) for message in made.delivered[0]] == [most]

    run(main())


def test_payload_other_than_bytes_is_refused_and_spoils_no_batch() -> None:
    wrong: list[tuple[Any, str]] = [
        ("text", "payload of type str; expected bytes; encode it first"),
        (None, "payload of type NoneType; expected bytes"),
        ([1, 2], "payload of type list; expected bytes"),
    ]

    async def main() -> None:
        async with cluster(GROUPS) as made, made.client() as client:
            changing = bytearray(b"second")
            sound = [client.multicast({0}, b"first"), client.multicast({0}, changing)]  # type: ignore[arg-type]
            outcomes = await asyncio.gather(*sound, *(client.multicast({0}, payload) for payload, _ in wrong),
                                            client.multicast({0}, memoryview(b"third")),  # type: ignore[arg-type]
                                            return_exceptions=True)  # fmt: skip
            changing[:] = b"later."
            assert [isinstance(one, UsageError) for one in outcomes] == [False, False, True, True, True, False]
            assert [str(one) for one in outcomes[2:5]] == [sentence for _, sentence in wrong]
            with pytest.raises(UsageError, match="destinations: group 'a' does not exist"):
                await client.multicast("a", b"x")
            with pytest.raises(UsageError, match=r"destinations = None; expected a group or a set of groups"):
                await client.multicast(None, b"x")  # type: ignore[arg-type]
            with pytest.raises(UsageError, match="timeout_s = 0; expected more than 0 seconds"):
                await client.multicast({0}, b"x", timeout_s=0)
            await made.settled(3)
        assert [message.payload for message in made.delivered[0]] == [b"first", b"second", b"third"]

    run(main())


def test_unanswered_multicast_may_or_may_not_be_delivered() -> None:
    async def main() -> None:
        async with cluster(GROUPS) as made, made.client() as client:
            await made.hosts[1].stop()
            with pytest.raises(CannotTellError, match="may or may not be delivered"):
                await client.multicast({0, 1}, b"x", timeout_s=0.1)

    run(main())
