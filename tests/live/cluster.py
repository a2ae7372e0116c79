"""A cluster of hosts inside the test process, over real sockets on loopback, and checks of its trace."""

import asyncio
import warnings
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

import uvloop

from amcast.assembly import build_node_spec
from amcast.check.judge import judge
from amcast.kernel.ids import ProcessId
from amcast.kernel.process import Process
from amcast.kernel.spec import Spec
from amcast.kernel.topology import Topology
from amcast.live import log_output as logs
from amcast.live.client.client import Client
from amcast.live.client_batch import Delivery, batch_deliveries
from amcast.live.host.host import Host
from amcast.live.host.step_log import StepLog
from amcast.live.limits import Limits
from amcast.live.server.replica_runtime import ReplicaRuntime
from amcast.live.storage.store import Store
from amcast.live.wire.network import Address
from amcast.parts.client.messages import SessionConfig
from amcast.parts.client.session import ClientSession
from amcast.parts.node.messages import NodeConfig
from amcast.protocols.catalogue import get_protocol
from amcast.trace.meta import Meta, RunClaims
from amcast.trace.recorder import Recorder
from amcast.trace.run import Run

SKEEN = build_node_spec(get_protocol("skeen"), NodeConfig(omega=None))
"""Specification of a cluster: the protocol in a node that answers clients. Groups of one need no oracle."""
CLAIMS = RunClaims(genuine="strict", complete=True, exactly_once=True)
QUICK = Limits(heartbeat_s=0.05, heartbeat_timeout_s=2.0, reconnect_min_s=0.005, reconnect_max_s=0.05)


def run(main: Coroutine[Any, Any, None], timeout_s: float = 30.0) -> None:
    """Runs a coroutine on uvloop with a time-out; rate limits of the log start anew."""
    logs.rate_limited_log.reset()

    async def limited() -> None:
        async with asyncio.timeout(timeout_s):
            await main

    runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
    leaks: list[warnings.WarningMessage] = []
    try:
        runner.run(limited())
    finally:
        with warnings.catch_warnings(record=True) as leaks:
            warnings.simplefilter("always")  # a loop that may not warn of an open connection never closes
            runner.close()
    assert not leaks, f"left open: {[str(leak.message) for leak in leaks]}"


class Cluster:
    """Hosts by process, with the deliveries of each."""

    def __init__(self, topology: Topology, spec: Spec = SKEEN, limits: Limits = QUICK) -> None:
        self.topology = topology
        self.spec = spec
        self.limits = limits
        self.recorder = Recorder()
        self.replicas: dict[ProcessId, ReplicaRuntime] = {}
        self.hosts: dict[ProcessId, Host] = {}
        self.addresses: dict[ProcessId, Address] = {}
        self.delivered: dict[ProcessId, list[Delivery]] = {}
        self.steps: dict[ProcessId, Path] = {}
        self._numbers = count(1000)

    async def up(
        self,
        *,
        folder: Path | None = None,
        store: Callable[[ProcessId], Store] | None = None,
        via: Mapping[ProcessId, Address] | None = None,
    ) -> None:
        for me in self.topology.servers:
            await self.prepare(me, folder=folder, store=store(me) if store else None)
        self.addresses.update(via or {})
        for replica in self.replicas.values():
            replica.start(self.addresses)
        for host in self.hosts.values():
            await host.network.wait_connected(set(self.topology.servers), 10)

    async def prepare(self, me: ProcessId, *, folder: Path | None = None, store: Store | None = None) -> ReplicaRuntime:
        """A host that listens, at its old address if it had one, and has not started."""
        steps = None
        if folder is not None:
            self.steps[me] = folder / f"{me}.steps"
            steps = StepLog(self.steps[me], self.spec.name, me)
        self.delivered[me] = []
        runtime = ReplicaRuntime(
            self.spec.process(me, self.topology, self.spec.configure()),
            self.spec,
            limits=self.limits,
            recorder=self.recorder,
            step_log=steps,
            store=store,
            on_deliver=lambda effect: self.delivered[me].extend(batch_deliveries(effect, self.topology)),
        )
        self.replicas[me] = runtime
        self.hosts[me] = runtime.host
        self.addresses[me] = await runtime.listen(self.addresses.get(me, ("127.0.0.1", 0)))
        return runtime

    def client(self, me: ProcessId | None = None, *, batches: bool = True, **options: Any) -> Client:
        options.setdefault("limits", self.limits)
        options.setdefault("recorder", self.recorder)
        number = next(self._numbers) if me is None else me

        def session(process: ProcessId) -> Process:
            return ClientSession(process, self.topology, self.spec.contacts, SessionConfig())

        return Client(session, self.topology, self.spec, self.addresses, me=number, batches=batches, **options)

    async def settled(self, count: int) -> None:
        """Waits until a number of deliveries happened, over all processes."""
        while sum(map(len, self.delivered.values())) < count:
            await asyncio.sleep(0.005)

    async def down(self) -> None:
        for replica in self.replicas.values():
            await replica.stop()


@asynccontextmanager
async def cluster(topology: Topology, limits: Limits = QUICK, **options: Any) -> AsyncIterator[Cluster]:
    made = Cluster(topology, limits=limits)
    try:
        await made.up(**options)
        yield made
    finally:
        await made.down()


def holds(run: Run) -> None:
    """Checks that every claimed property of the run holds: P1 to P5, and genuineness."""
    report = judge(run)
    assert report.verdict == "holds", "\n".join(report.story())


def recorded(recorder: Recorder) -> Run:
    """The trace of hosts in this process, after all of them have stopped."""
    return Run.from_recorder(recorder, Meta(run="live", claims=CLAIMS))


def ids(delivered: Mapping[ProcessId, list[Delivery]]) -> dict[ProcessId, list[int]]:
    """The ordered messages of each process, each batch once."""
    return {process: [one.message for one in row if one.place == 0] for process, row in delivered.items()}
