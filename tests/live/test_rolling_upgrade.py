"""Graceful restarts while the cluster serves: no message lost, none delayed by more than one leader change.

Against real processes, with the trace checked; and upgrades between wire versions, node by node.
"""

import asyncio
import random
import shlex
import sys
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from amcast.assembly import build_node_spec
from amcast.check.judge import judge
from amcast.cli.main import run as command
from amcast.cluster import connect, local_cluster, run_replica, subscribe
from amcast.kernel.effects import Send
from amcast.kernel.events import Receive, Started, Timer
from amcast.kernel.topology import Topology
from amcast.live.config.cluster import Cluster
from amcast.live.limits import Limits
from amcast.live.load.closed_loop import Traffic, run_stages
from amcast.live.operations.cluster_status import fetch_statuses, restart_all, restart_order
from amcast.live.operations.local_cluster import LocalCluster
from amcast.live.wire import frames as wire
from amcast.live.wire.frames import HEAD, Codec
from amcast.live.wire.network import Network
from amcast.live.wire.transport import VERSIONS, TransportOptions
from amcast.parts.client.messages import Farewell
from amcast.parts.node.messages import Heartbeat, NodeConfig, OmegaConfig
from amcast.parts.node.node import Node
from amcast.protocols.catalogue import get_protocol
from amcast.trace.meta import Meta, RunClaims
from amcast.trace.run import read_run
from amcast.trace.run_folder import FolderRecorder
from tests.live.cluster import run
from tests.live.secure_cluster import plain, secured, until

live = pytest.mark.live
slow = pytest.mark.slow

SETS = ((0,), (1,), (0, 1))


def tracing(cluster: Cluster) -> FolderRecorder:
    """The clients' part of the trace, which exists before the nodes start."""
    meta = Meta(run=cluster.run, claims=RunClaims(complete=True, exactly_once=True))
    return FolderRecorder(cluster.trace_folder, meta, packets=False, writer="clients")


def served_through(
    cluster: Cluster, running: LocalCluster, recorder: FolderRecorder, act: Callable[[], None],
    numbers: tuple[int | None, ...] = (None, None), client: str | None = None,
) -> Traffic:  # fmt: skip
    """Runs two clients while an action happens."""
    sets = [groups for groups in SETS if max(groups) < len(cluster.topology.groups)]
    traffic = Traffic(lambda number: sets[number % len(sets)], payload=64, outstanding=4, think_s=0.02)
    clients = [connect(cluster, me=me, recorder=recorder, client=client) for me in numbers]
    run(run_stages(clients, traffic, [(0.5, act), (0.5, lambda: None)]), timeout_s=240)
    running.wait_until_settled()
    return traffic


def judged(cluster: Cluster) -> None:
    report = judge(read_run(cluster.trace_folder))
    assert report.verdict == "holds", "\n".join(report.story())


def notes_of(cluster: Cluster, name: str) -> list[tuple[int, float]]:
    """Processes that recorded a note, and its value."""
    notes = read_run(cluster.trace_folder).notes
    assert notes is not None
    columns = zip(notes["process"], notes["name"], notes["value"], strict=True)
    return [(process, value) for process, known, value in columns if known == name]


@live
@slow
def test_rolling_restart_loses_no_message_and_needs_no_timeout(tmp_path: Path) -> None:
    cluster = secured(
        tmp_path, {"orders": 3, "stock": 3}, durability="os", trace={"mode": "deliveries", "folder": "run"}
    )
    before: dict[str, int] = {}
    changes: dict[str, int] = {}

    def restart(node: str) -> None:
        running.stop(node)
        running.start(node)

    with tracing(cluster) as recorder, local_cluster(cluster) as running:
        before = {node: status["protocol_status"]["epoch"] for node, status in fetch_statuses(cluster, "till").items()}
        act = lambda: restart_all(cluster, "till", restart, 60.0)  # noqa: E731
        traffic = served_through(cluster, running, recorder, act, client="till")
        for node, status in fetch_statuses(cluster, "till").items():
            assert status["incarnation"] == 1
            changes[node] = status["protocol_status"]["epoch"] - before[node]
    judged(cluster)
    assert traffic.unanswered == 0
    assert traffic.done > 50
    # A change of leaders that had to wait for silence takes 500 to 700 ms at least; the machine may be busy.
    assert max(traffic.latencies_ns) < 5e9, f"a message took {max(traffic.latencies_ns) / 1e9:.2f} s"
    # Followers were restarted first and have run longer than the old leader when that comes back: it follows. A busy
    # machine may also make a group suspect who is only slow: that is another matter.
    suspected = {note[0] for note in notes_of(cluster, "suspected")}
    for node, count in changes.items():
        calm = not suspected & set(cluster.topology.members(cluster.group_id(node.partition("/")[0])))
        assert count <= 1 or not calm, f"leader changes: {changes}; suspicions by {sorted(suspected)}"
    assert notes_of(cluster, "left"), "nobody said farewell"
    for node in cluster.nodes():
        log = (running.logs / f"{node.replace('/', '-')}.log").read_text()
        assert "Traceback" not in log


@live
@slow
def test_roll_command_restarts_in_order_and_stops_on_failure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command restarts nodes in the right order, and stops when a restart fails."""
    cluster = plain(tmp_path, {"orders": 3})
    with local_cluster(cluster) as running:
        first = restart_order(fetch_statuses(cluster, None))[0]
        script = "import sys; print(sys.argv); sys.exit(3)"
        restart = f"{sys.executable} -c {shlex.quote(script)} {{node}} {{host}}"
        code = command(["roll", "--config", str(cluster.file), restart])
        assert code == 2
        errors = capsys.readouterr().err
        assert f"restarting {first}" in errors
        assert "exited with code 3; the rolling restart stops" in errors
        assert running.pid(first)


def nodes_of_one_group() -> list[Node]:
    spec = build_node_spec(get_protocol("primcast"), NodeConfig(omega=OmegaConfig()))
    topology = Topology.grid(1, 3)
    made = [spec.process(me, topology, spec.configure()) for me in range(3)]
    for node in made:
        node.step([Started((), 0)], 0)
    return made  # type: ignore[return-value]


def test_farewell_moves_leadership_despite_old_heartbeats() -> None:
    _, second, third = nodes_of_one_group()
    effects = second.step([Receive(0, Farewell(0))], 1)
    assert any(isinstance(e, Send) and type(e.body).__name__ == "NewEpoch" for e in effects)
    assert second.status()["role"] == "candidate"
    second.step([Receive(0, Heartbeat(0))], 2)
    assert second.omega is not None
    assert second.omega.leader == 1
    third.step([Receive(0, Farewell(0)), Receive(0, Heartbeat(0))], 2)
    assert third.omega is not None
    assert third.omega.leader == 1
    copy = nodes_of_one_group()[1]
    copy.restore(second.snapshot())
    assert copy.snapshot() == second.snapshot()
    second.step([Receive(0, Heartbeat(1, 3))], 3)
    assert second.omega.leader == 1, "who comes back in a later incarnation does not take the lead back"
    second.step([Timer("omega-0")], 4)
    assert second.omega._mistakes == {}, "it was away indeed"


def test_farewell_moves_clients_to_another_gateway() -> None:
    from amcast.kernel.events import Submit
    from amcast.kernel.message import Message, Request
    from amcast.parts.client.messages import SessionConfig
    from amcast.parts.client.session import ClientSession

    topology = Topology.grid(1, 3)
    client = ClientSession(9, topology, lambda t, m: t.processes_of(m.destinations), SessionConfig(gateways=True))
    message = Message(9 * 10**9, 9, (0,))
    first = next(e.targets[0] for e in client.step([Submit(message)], 0) if isinstance(e, Send))
    other = next(member for member in range(3) if member != first)
    assert not [e for e in client.step([Receive(other, Farewell(0))], 1) if isinstance(e, Send)]
    moved = [e for e in client.step([Receive(first, Farewell(0))], 1) if isinstance(e, Send)]
    assert [type(e.body) for e in moved] == [Request]
    assert moved[0].targets[0] != first


# Wire versions


class End:
    """A network that supports a range of versions."""

    def __init__(self, me: int, versions: tuple[int, int]) -> None:
        limits = Limits(reconnect_min_s=0.005, reconnect_max_s=0.05)
        spec = build_node_spec(get_protocol("skeen"), NodeConfig(omega=None))
        self.got: list[object] = []
        self.coder = Codec(spec.wire_bodies(), limits=limits)
        self.network = Network(
            me, 0, "test", "skeen", self.coder, on_bodies=lambda peer, bodies: self.got.extend(bodies),
            on_frame=lambda *_: None, on_link_reset=lambda *_: None, rng=random.Random(1),
            wiring=TransportOptions(versions=versions),
        )  # fmt: skip


@live
@pytest.mark.parametrize(
    ("low", "high", "agreed"),
    [((6, 7), (6, 7), 7), ((6, 6), (6, 7), 6), ((6, 7), (6, 6), 6), ((7, 7), (6, 7), 7), ((6, 6), (7, 7), None)],
)
def test_peers_agree_on_the_highest_common_wire_version(
    low: tuple[int, int], high: tuple[int, int], agreed: int | None
) -> None:
    async def main() -> None:
        one, two = End(0, low), End(1, high)
        one_at = await one.network.listen(("127.0.0.1", 0))
        addresses = {0: one_at, 1: ("127.0.0.1", 1)}
        for end, peer in ((one, 1), (two, 0)):
            end.network.start(addresses)
            # Before anybody knows what the other speaks.
            end.network.outbox.send((peer,), end.coder.encode(Heartbeat(7)), None)
            end.network.outbox.flush(None)
        if agreed is None:
            with pytest.raises(TimeoutError, match="process 1 speaks wire version 7; process 0 speaks 6"):
                await two.network.wait_connected({0}, 0.5)
        else:
            await two.network.wait_connected({0}, 5)
            while not (one.got and two.got):
                await asyncio.sleep(0.01)
            assert one.got == two.got == [Heartbeat(7)]
            assert one.network.links[1].version == two.network.links[0].version == agreed
        await two.network.stop()
        await one.network.stop()

    run(main())


@live
@pytest.mark.parametrize("version", [3, 4, 5])
def test_node_that_knows_no_admission_is_refused_with_both_versions(version: int) -> None:
    """A HELLO of an older version is read, so that an operator learns what is wrong."""
    old = (version, "test", "skeen", 0, 1, 0, 1, None, 0, version)
    fields = (*old, "", -1, 0, 0)
    sealed = (*fields, wire.crc32(wire.encode_body(list(fields))) or 1)  # type: ignore[arg-type]

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        length, _, _ = HEAD.unpack(await reader.readexactly(wire.HEAD_BYTES))
        await reader.readexactly(length - 2)
        writer.write(wire.make_frame(wire.HELLO, wire.encode_body(sealed if version == 5 else old), version))  # type: ignore[arg-type]
        refusals.append(wire.read_refusal((await reader.read())[wire.HEAD_BYTES :]).reason)
        writer.close()

    async def main() -> None:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        two = End(1, VERSIONS)
        two.network.start({0: server.sockets[0].getsockname(), 1: ("127.0.0.1", 1)})
        while not refusals:
            await asyncio.sleep(0.01)
        await two.network.stop()
        server.close()

    refusals: list[str] = []
    run(main())
    assert refusals[0] == f"process 0 speaks wire version {version}; process 1 speaks 6"


@live
def test_rolling_upgrade_between_wire_versions(tmp_path: Path) -> None:
    """All nodes speak one version; each restarts with that one and the next, one after the other; nothing is lost."""
    oldest, newest = VERSIONS
    before = plain(tmp_path, {"orders": 3}, durability="os")
    after = replace(before, wire=(oldest, newest + 1))

    async def main() -> None:
        sent = 0

        async def send(cluster: Cluster) -> None:
            nonlocal sent
            async with connect(cluster) as client:
                for _ in range(5):
                    await client.multicast(["orders"], b"%d" % sent)
                    sent += 1

        async with AsyncExitStack() as stack:
            replicas = {name: run_replica(before, name) for name in before.nodes()}
            for replica in replicas.values():
                await stack.enter_async_context(replica)
            reader = await stack.enter_async_context(subscribe(after, "orders", since=0))
            await send(before)
            for name in before.nodes():
                await replicas[name].close()
                replicas[name] = await stack.enter_async_context(run_replica(after, name))
                for cluster in (before, after):
                    await send(cluster)
            await until(lambda: all(replica.position == sent for replica in replicas.values()))
            for replica in replicas.values():
                links = [link for link in replica.host.network.links.values() if link.is_server]
                assert {link.version for link in links} == {newest + 1}
            assert [(await anext(reader)).payload for _ in range(sent)] == [b"%d" % number for number in range(sent)]

    run(main(), timeout_s=60)
