"""A replica as it runs: its host, the RPC server beside it, and the tasks that follow its group.

The host runs the protocol's process and knows nothing of the rest. This module builds the rest around it and wires
both together through constructors:

    connection that begins with an RPC request ── host ──> RpcServer
    new topology of the process ─────────────── host ──> TopologyFollower (links, certificates, members file)
    deliveries ──────────────────────────────── host ──> RecentDeliveries <── RpcServer (subscriptions)
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Final

from amcast.kernel.effects import Effect
from amcast.kernel.ids import ProcessId
from amcast.kernel.process import Process
from amcast.kernel.spec import Spec
from amcast.kernel.topology import Topology
from amcast.live.audit_log import record_audit
from amcast.live.host.host import Host
from amcast.live.host.recent_deliveries import Closing, RecentDeliveries
from amcast.live.limits import Limits
from amcast.live.membership.state_survey import StateSurvey
from amcast.live.membership.topology_follower import Roster, TopologyFollower
from amcast.live.rpc.client import RpcClient
from amcast.live.rpc.server import ResultSource, RpcServer, StateSource
from amcast.live.server.log_scrubber import scrub_log
from amcast.live.server.status import StatusReporter
from amcast.live.storage.cursors import Cursors
from amcast.live.storage.delivery_archive import DeliveryArchive
from amcast.live.wire.connection import Connection
from amcast.live.wire.network import Address
from amcast.live.wire.transport import PLAIN, TransportOptions
from amcast.storage.client_ids import ClientIdAllocator
from amcast.storage.scrubber import Scrubber

log = logging.getLogger("amcast.live")

ADMISSION_POLL_S: Final = 0.05
STATE_POLL_S: Final = 0.02
COMPARISON_POLL_S: Final = 0.5
ADMISSION_LOG_S: Final = 1.0
"""Nothing is logged about an admission that is faster."""


class ReplicaRuntime:
    """Owns everything of one replica in one incarnation, from its first connection until it stops."""

    peers: RpcClient | None = None
    """Asks other nodes, once this one has started."""

    def __init__(
        self,
        process: Process,
        spec: Spec,
        *,
        name: str = "",
        protocol: str = "",
        cluster: str = "amcast",
        limits: Limits | None = None,
        durability: str = "",
        config: str = "cluster.toml",
        client_ids: ClientIdAllocator | None = None,
        roster: Roster | None = None,
        folder: Path | None = None,
        state_source: StateSource | None = None,
        wait_for_application: Callable[[int], Awaitable[None]] | None = None,
        on_retired: Callable[[], object] | None = None,
        on_diverged: Callable[[str], object] | None = None,
        scrubber: Scrubber | None = None,
        closing: Closing = "unknown",
        archive: DeliveryArchive | None = None,
        service: ResultSource | None = None,
        wiring: TransportOptions = PLAIN,
        **host_options: Any,
    ) -> None:
        """`state_source` exports the application's state for other members; `wait_for_application` waits until it has a
        number of deliveries; `roster` is written to `folder` whenever the members change; `on_retired` is called when
        the replica was removed from its group and no process needs it any more, `on_diverged` when it has stopped
        because a majority of its group contradicts it; `closing` says when deliveries are known to be closed. Other
        options are those of `Host`."""
        assert process.group is not None, f"process {process.me} is in no group; expected a replica"
        limits, protocol = limits or Limits(), protocol or spec.name
        self.recent = RecentDeliveries(limits.recent_bytes, spec.open_bundle, closing, archive)
        self.admitted = asyncio.Event()
        """The group has admitted this replica's data folder (`parts/node/admission.py`)."""
        self.caught_up = asyncio.Event()
        """This replica has delivered, and its application executed, what its group had delivered when it started."""
        self.wait_for_application, self._on_diverged, self._scrubber = wait_for_application, on_diverged, scrubber
        self.host = Host(
            process,
            spec,
            cluster=cluster,
            limits=limits,
            recent=self.recent,
            on_rpc=self._handle_rpc,
            on_topology=self._follow_topology,
            on_retired=self._retire,
            on_admitted=self.admitted.set,
            stamps_calls=service is not None,
            wiring=wiring,
            **host_options,
        )
        self.survey = StateSurvey(self.host, durability)
        self.follower = TopologyFollower(self.host, roster=roster, folder=folder, on_retired=on_retired)
        labels = (name, cluster, protocol, durability, config, scrubber, service)
        self.status = StatusReporter(self.host, self.survey, self.recent, self.caught_up, *labels)
        self.rpc = RpcServer(
            process,
            process.group,
            cluster,
            self.host.incarnation,
            limits,
            self.recent,
            self.caught_up,
            self.host.network.quotas,
            self.host.network.admit_client,
            permissions=None if wiring.security is None else wiring.security.permissions,
            client_ids=client_ids,
            state_source=state_source,
            topology=self.follower.topology_to_send,
            holds_state=self.survey.has_state,
            refusal=self.status.refusal,
            status=self.status,
            service=service,
            cursors=None if folder is None else Cursors(folder),
        )
        self._attending: list[asyncio.Task[None]] = []

    async def listen(self, address: Address = ("127.0.0.1", 0)) -> Address:
        """Accepts connections; returns the address that peers should dial."""
        return await self.host.listen(address)

    def start(self, addresses: Mapping[ProcessId, Address]) -> None:
        """Starts the host, and the tasks that follow the group beside it."""
        self.peers = RpcClient(self.host.network.cluster, addresses, self.host.limits, self.host.network.wiring)
        loop = asyncio.get_running_loop()
        self._attending = [
            loop.create_task(
                self.follower.run(self.peers, self.survey, self.recent, self.caught_up, self.wait_for_application)
            ),
            loop.create_task(self._log_admission()),
            loop.create_task(self._follow_comparison()),
        ]
        if self._scrubber is not None and self.host.limits.scrub_bytes_per_s:
            self._attending.append(loop.create_task(scrub_log(self._scrubber, self.host.limits)))
        if self.recent.archive is not None:
            self._attending.append(loop.create_task(self.recent.archive.run()))
        self.host.start(addresses)

    async def stop(self) -> None:
        """Stops answering RPCs, then the host."""
        for task in self._attending:
            task.cancel()
        await self.rpc.close()
        await self.host.stop()
        if self.recent.archive is not None:
            self.recent.archive.close()

    async def wait_admitted(self, timeout_s: float) -> bool:
        """Waits until the replica takes part in its group; False if it does not in time, or waits for an operator."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        while self.status.admission_reason():
            if self.status.admission() == "refused" or loop.time() > deadline or self.host.ended.done():
                return False
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(ADMISSION_POLL_S):
                    await self.admitted.wait()
        return True

    async def wait_for_state(self) -> None:
        """Waits until the replica has its group's state."""
        while not self.status.survey.has_state():
            await asyncio.sleep(STATE_POLL_S)

    async def _log_admission(self) -> None:
        """Logs why the replica does not take part, whenever the reason changes."""
        logged = ""
        await asyncio.sleep(ADMISSION_LOG_S)
        while reason := self.status.admission_reason():
            if reason != logged:
                logged = reason
                log.warning(
                    "process %d does not take part: %s", self.host.me, "; ".join([reason, *self.status.advice()])
                )
            await asyncio.sleep(ADMISSION_LOG_S)
        if logged:
            log.info("process %d takes part: its group has admitted its data folder", self.host.me)

    async def _follow_comparison(self) -> None:
        """Logs that replicas of the group differ, whenever what is known of it changes and has come to rest: it takes a
        heartbeat or two until all findings are exchanged."""
        logged = divergence = ""
        while True:
            await asyncio.sleep(COMPARISON_POLL_S)
            earlier, divergence = divergence, self.status.divergence()
            if divergence not in (logged, earlier):
                continue
            if divergence != logged:
                logged = divergence
                advice = "; ".join(["", *self.status.advice()])
                if divergence:
                    log.error("process %d: %s%s", self.host.me, divergence, advice)
                else:
                    log.info("process %d: its group has no differing replicas any more", self.host.me)
            if divergence and self.status.has_diverged() and self._on_diverged is not None:
                self._on_diverged(divergence)
                return

    def _handle_rpc(self, connection: Connection, payload: Any) -> None:
        self.rpc.accept(connection, payload)

    def _follow_topology(self, known: Topology, topology: Topology) -> list[Effect]:
        record_audit("members changed", configuration=topology.configuration, members=topology.describe())
        return self.follower.follow(known, topology)

    def _retire(self, configuration: int, now: int) -> None:
        self.follower.retire(configuration, now)
