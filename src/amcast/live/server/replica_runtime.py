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
from amcast.live.host.recent_deliveries import RecentDeliveries
from amcast.live.limits import Limits
from amcast.live.membership.state_survey import StateSurvey
from amcast.live.membership.topology_follower import Roster, TopologyFollower
from amcast.live.rpc.client import RpcClient
from amcast.live.rpc.server import RpcServer
from amcast.live.server.status import StatusReporter
from amcast.live.wire.connection import Connection
from amcast.live.wire.network import Address
from amcast.live.wire.transport import PLAIN, TransportOptions
from amcast.storage.client_ids import ClientIdAllocator

log = logging.getLogger("amcast.live")

ADMISSION_POLL_S: Final = 0.05
ADMISSION_LOG_S: Final = 1.0
"""Nothing is logged about an admission that is faster."""


class ReplicaRuntime:
    """Owns everything of one replica in one incarnation, from its first connection until it stops."""

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
        take_state: Callable[[int], Awaitable[tuple[int, bytes]]] | None = None,
        on_retired: Callable[[], object] | None = None,
        wiring: TransportOptions = PLAIN,
        **host_options: Any,
    ) -> None:
        """`take_state` returns the application's state after at least a number of deliveries; `roster` is written to
        `folder` whenever the members change; `on_retired` is called when the replica was removed from its group and
        no process needs it any more. Other options are those of `Host`."""
        assert process.group is not None, f"process {process.me} is in no group; expected a replica"
        limits = limits or Limits()
        self.recent = RecentDeliveries(limits.recent_bytes, spec.open_bundle)
        self.admitted = asyncio.Event()
        """The group has admitted this replica's data folder (`parts/node/admission.py`)."""
        self.caught_up = asyncio.Event()
        """This replica has delivered everything that its group had delivered when it started."""
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
            wiring=wiring,
            **host_options,
        )
        self.survey = StateSurvey(self.host, durability)
        self.follower = TopologyFollower(self.host, roster=roster, folder=folder, on_retired=on_retired)
        self.status = StatusReporter(
            self.host,
            self.survey,
            self.recent,
            self.caught_up,
            name,
            cluster,
            protocol or spec.name,
            durability,
            config,
        )
        self.rpc = RpcServer(
            process.me,
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
            take_state=take_state,
            topology=self.follower.topology_to_send,
            holds_state=self.survey.has_state,
            refusal=self.status.admission_reason,
            status=self.status,
        )
        self._attending: list[asyncio.Task[None]] = []

    async def listen(self, address: Address = ("127.0.0.1", 0)) -> Address:
        """Accepts connections; returns the address that peers should dial."""
        return await self.host.listen(address)

    def start(self, addresses: Mapping[ProcessId, Address]) -> None:
        """Starts the host, and the tasks that follow the group beside it."""
        rpc_client = RpcClient(self.host.network.cluster, addresses, self.host.limits, self.host.network.wiring)
        loop = asyncio.get_running_loop()
        self._attending = [
            loop.create_task(self.follower.run(rpc_client, self.survey, self.recent, self.caught_up)),
            loop.create_task(self._log_admission()),
        ]
        self.host.start(addresses)

    async def stop(self) -> None:
        """Stops answering RPCs, then the host."""
        for task in self._attending:
            task.cancel()
        await self.rpc.close()
        await self.host.stop()

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

    def _handle_rpc(self, connection: Connection, payload: Any) -> None:
        self.rpc.accept(connection, payload)

    def _follow_topology(self, known: Topology, topology: Topology) -> list[Effect]:
        record_audit("members changed", configuration=topology.configuration, members=topology.describe())
        return self.follower.follow(known, topology)

    def _retire(self, configuration: int, now: int) -> None:
        self.follower.retire(configuration, now)
