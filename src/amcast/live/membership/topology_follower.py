"""Follows the members of the groups as they change (`parts/membership/reconfigurable.py`).

The ordered changes determine the topology: a process holds the current one, with the name and address of every member
that a change added. There is no event for it: a host compares `process.topology` with the last one after every step,
and so cannot miss a change. When the topology changes, the host of a replica or a client opens links to new members,
accepts their certificates and, after a while, drops members that left.

A replica stores the topology in its data folder (`members`), so that it finds its peers again whichever cluster.toml it
is started with: the changes take precedence over an older file about the members, the file about the addresses of those
that it names. A replica that lost contact with its group requests the topology from every replica that it knows: it may
have been replaced meanwhile, or all the others may have moved.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any, Final

import msgspec

from amcast.kernel.effects import Effect, Send
from amcast.kernel.errors import Error, UsageError
from amcast.kernel.ids import ProcessId
from amcast.kernel.reconfiguration import decode_topology
from amcast.kernel.topology import Topology
from amcast.live.config.cluster import Cluster, parse_address
from amcast.live.host.host import Host
from amcast.live.host.recent_deliveries import RecentDeliveries
from amcast.live.membership.catch_up import catch_up
from amcast.live.membership.state_survey import StateSurvey
from amcast.live.rpc.client import RpcClient
from amcast.live.storage.atomic_files import read_checked, write_checked
from amcast.live.wire.peers import Address

log = logging.getLogger("amcast.live")

REMOVAL_S: Final = 60.0
"""For this long a member that left may return to receive what it missed; afterwards it is an unknown peer."""
CHECK_S: Final = 2.0
"""Interval between checks for a lost quorum; it doubles while the quorum is missing."""
FILE: Final = "members"


class RemovedFromGroupError(Error):
    """This node was removed from its group."""


# Stored members


class Roster(msgspec.Struct):
    """The members as stored in a replica's data folder, over all its incarnations."""

    first: dict[str, Any]
    """The topology in which the process began: the first records of its log refer to it."""
    now: dict[str, Any]
    """The newest topology that the process knows."""
    retired: int | None = None
    """The configuration that removed the process."""

    @classmethod
    def read(cls, folder: Path) -> "Roster | None":
        return read_checked(folder / FILE, cls, "the members that this node stored")

    def write(self, folder: Path) -> None:
        write_checked(folder / FILE, msgspec.json.encode(self))


def load_known_members(cluster: Cluster, node: str) -> Cluster:
    """The cluster with the topology that this node stored, if that is newer than the file."""
    me = cluster.process_of(node)
    roster = Roster.read(cluster.data_folder(me))
    if roster is None:
        return cluster
    now = Topology.from_dict(roster.now, str(cluster.data_folder(me) / FILE))
    if roster.retired is not None or (cluster.durability == "memory" and now.group_of(me) is None):
        removed_by = now.configuration if roster.retired is None else roster.retired
        raise RemovedFromGroupError(
            f"{node} was removed from its group by configuration {removed_by}; there is nothing to run"
        )
    if now.configuration <= cluster.topology.configuration or now.group_of(me) is None:
        return cluster
    log.info(
        "%s describes configuration %d; this node continues with configuration %d, which it stored",
        cluster.file,
        cluster.topology.configuration,
        now.configuration,
    )
    return cluster.with_topology(now)


def load_roster(cluster: Cluster, me: ProcessId, has_records: bool) -> tuple[Roster, Topology]:
    """The stored roster of this node, and the topology that its process begins with. Writes the roster if there is
    none."""
    folder = cluster.data_folder(me)
    roster = Roster.read(folder)
    configured = cluster.topology
    if roster is None:
        roster = Roster(configured.describe(), configured.describe())
        roster.write(folder)
        return roster, configured
    first = Topology.from_dict(roster.first, str(folder / FILE))
    # Only records refer to an earlier topology.
    return roster, first if has_records and first.configuration < configured.configuration else configured


# The running process


class TopologyFollower:
    """Updates links, permissions and the stored roster when the topology of a process changes."""

    def __init__(
        self,
        host: Host,
        *,
        roster: Roster | None = None,
        folder: Path | None = None,
        on_changed: Callable[[Topology], object] | None = None,
        on_retired: Callable[[], object] | None = None,
    ) -> None:
        """`roster` is written to `folder` whenever the members change; `on_changed` is called with a new topology;
        `on_retired` when the process was removed from its group and no other process needs it any more."""
        self._host = host
        self._roster = roster
        self._folder = folder or Path()
        self._on_changed = on_changed
        self._on_retired = on_retired
        self._rpc: RpcClient | None = None
        """The RPC client of a replica, once it has started."""

    def topology_to_send(self) -> Topology | None:
        """The topology for processes that request it; None while this process itself waits for it."""
        process = self._host.process
        return None if int(process.status().get("configuration", 0)) < 0 else process.topology

    def other_members(self) -> list[ProcessId]:
        """The other current members of this process's group."""
        host = self._host
        assert host.home is not None
        return [member for member in host.topology.members(host.home) if member != host.me]

    def follow(self, known: Topology, topology: Topology) -> list[Effect]:
        """Adopts a new topology before anything is sent to its members. Returns the sends that inform connected
        clients, which the process itself does not know."""
        host = self._host
        security = host.network.wiring.security
        if security is not None:
            security.permissions.follow_topology(topology)
        self._add_servers(topology)
        loop = asyncio.get_running_loop()
        for peer in known.servers:
            if topology.group_of(peer) is None and peer != host.me:
                loop.call_later(REMOVAL_S, self._remove_server, peer)
        if topology.group_of(host.me) is None and host.home is not None:
            loop.call_later(REMOVAL_S, lambda: self.retire(topology.configuration, time.time_ns()))
        log.info("process %d is in configuration %d: %s", host.me, topology.configuration, describe_topology(topology))
        self._write_roster()
        if self._rpc is not None:
            self._rpc.follow_topology(topology)
        if self._on_changed is not None:
            self._on_changed(topology)
        notice = host.process.client_notice()
        clients = tuple(sorted(peer for peer in host.network.links if peer not in host.servers))
        return [] if notice is None or not clients else [Send(clients, notice)]

    def retire(self, configuration: int, now: int) -> None:
        """Retires a process that a configuration removed and that no other process needs any more."""
        if self._host.retire(now):
            log.info(
                "process %d was removed from its group by configuration %d, and leaves", self._host.me, configuration
            )
            self._write_roster(configuration)
            if self._on_retired is not None:
                self._on_retired()

    def _write_roster(self, retired: int | None = None) -> None:
        if self._roster is not None:
            self._roster.now = self._host.topology.describe()
            self._roster.retired = retired
            self._roster.write(self._folder)

    def _add_servers(self, topology: Topology) -> None:
        network = self._host.network
        for peer, address in addresses_of(topology, topology.servers):
            if peer not in network.addresses and peer != network.me:
                network.add_server(peer, address)

    def _remove_server(self, peer: ProcessId) -> None:
        if self._host.topology.group_of(peer) is None:
            self._host.network.remove_server(peer)

    async def run(
        self,
        rpc: RpcClient,
        survey: StateSurvey,
        recent: RecentDeliveries,
        caught_up: asyncio.Event,
        wait_for_application: Callable[[int], Awaitable[None]] | None = None,
    ) -> None:
        """Runs beside the protocol: determines when the replica, and the application on it, has caught up, whether its
        group still has its state, and whether the replica lost contact with its group."""
        host = self._host
        self._rpc = rpc
        joins = host.incarnation > 0 or host.topology.configuration > 0
        catch_up_task = asyncio.get_running_loop().create_task(
            catch_up(recent, caught_up, rpc, host.me, self.other_members, joins, wait_for_application)
        )
        waited, wait = 0.0, CHECK_S
        try:
            while True:
                await asyncio.sleep(CHECK_S)
                await survey.survey(rpc, self.other_members())
                waited += CHECK_S
                if not self._lacks_quorum():
                    waited, wait = 0.0, CHECK_S
                elif waited >= wait:
                    await self._query_topology(rpc)
                    waited, wait = 0.0, min(2 * wait, REMOVAL_S)
        finally:
            catch_up_task.cancel()

    def _lacks_quorum(self) -> bool:
        """Whether this replica reaches less than a quorum of its group, which may have moved elsewhere."""
        host = self._host
        assert host.home is not None
        if host.is_leaving or host.topology.group_of(host.me) is None:
            return False
        up = sum(one == host.me or host.network.is_connected(one) for one in host.topology.members(host.home))
        return up < host.topology.quorum(host.home)

    async def _query_topology(self, rpc: RpcClient) -> None:
        host = self._host
        newest = await rpc.fetch_topology([peer for peer in host.network.addresses if peer != host.me])
        if newest is None:
            return
        rpc.follow_topology(newest)
        if newest.group_of(host.me) is None and newest.configuration > host.topology.configuration:
            self.retire(newest.configuration, time.time_ns())
            return
        host.servers.update(newest.servers)
        self._add_servers(newest)


def addresses_of(topology: Topology, processes: Iterable[ProcessId]) -> list[tuple[ProcessId, Address]]:
    """The addresses of processes that changes added. An invalid address is logged and left out."""
    addresses = []
    for process in processes:
        name, address = topology.endpoints.get(process, ("", ""))
        if address:
            try:
                addresses.append((process, parse_address(address, name)))
            except UsageError as error:
                log.error("process %d cannot be reached: %s", process, error)
    return addresses


def describe_topology(topology: Topology) -> str:
    """Describes the members, for logs."""
    groups = (f"{topology.names.get(g, g)} = {list(topology.members(g))}" for g in topology.groups)
    return ", ".join(groups)


async def refresh_cluster(cluster: Cluster, rpc: RpcClient) -> Cluster | None:
    """The cluster with the newest topology that its nodes know; None if no answer is as new as the file."""
    known = -1
    while True:
        newest = await rpc.fetch_topology(cluster.addresses)
        if newest is None or newest.configuration < cluster.topology.configuration:
            return None
        if newest.configuration == known:
            return cluster
        known = newest.configuration
        rpc.follow_topology(newest)
        # For the same configuration the ordered changes know more: a file does not contain removed members.
        cluster = cluster.with_topology(newest)


def parse_topology(data: bytes) -> Topology | None:
    """Decodes a topology from a peer; None if it is invalid."""
    try:
        return decode_topology(data)
    except UsageError:
        return None
