"""A host follows the members of its groups as they change (`parts/membership/reconfigurable.py`).

The ordered changes tell who is there: a process holds the current topology, and in it the name and the address of
everybody whom a change added. When that topology turns, the host of a replica or a client meets the new members (opens
links, believes their certificates) and, after a while, parts from those that left.

A replica keeps what it knows in its data folder (`members`), so that it finds its peers again whichever cluster.toml
it is started with: the changes win over an older file about who is there, the file about the addresses of those whom it
names. One that is out of touch with its group asks every replica that it knows who is there now: it may have been
replaced meanwhile, or all the others may have moved.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

import msgspec

from amcast.kernel.effects import Effect, Send
from amcast.kernel.errors import UsageError
from amcast.kernel.ids import ProcessId
from amcast.kernel.reconfiguration import decode_topology
from amcast.kernel.topology import Topology
from amcast.live.config.cluster import Cluster, parse_address
from amcast.live.host.host import Host
from amcast.live.host.recent_deliveries import RecentDeliveries
from amcast.live.membership.catch_up import catch_up
from amcast.live.membership.state_survey import StateSurvey
from amcast.live.rpc.client import RpcClient
from amcast.live.storage.atomic_files import read_json, write_atomically
from amcast.live.wire.peers import Address

log = logging.getLogger("amcast.live")

REMOVAL_S: Final = 60.0
"""So long a process that left may come back and hear what it missed; then it is a stranger."""
CHECK_S: Final = 2.0
"""How often a replica looks whether it is out of touch; ever less often while it is."""
FILE: Final = "members"


class RemovedFromGroupError(Exception):
    """This node is no member of its group any more."""


# What a replica keeps


class Roster(msgspec.Struct):
    """What a replica's data folder tells about members, over all its incarnations."""

    first: dict[str, Any]
    """The topology in which it began: what the first records of its log are about."""
    now: dict[str, Any]
    """The last one that it heard of."""
    retired: int | None = None
    """The number of the one that it had to leave in."""

    @classmethod
    def read(cls, folder: Path) -> "Roster | None":
        return read_json(folder / FILE, cls, "what this node wrote there about its cluster's members")

    def write(self, folder: Path) -> None:
        write_atomically(folder / FILE, msgspec.json.encode(self))


def load_known_members(cluster: Cluster, node: str) -> Cluster:
    """The cluster as this node last knew it, if that is newer than the file."""
    me = cluster.process_of(node)
    roster = Roster.read(cluster.data_folder(me))
    if roster is None:
        return cluster
    now = Topology.from_dict(roster.now, str(cluster.data_folder(me) / FILE))
    if roster.retired is not None or (cluster.durability == "memory" and now.group_of(me) is None):
        number = now.configuration if roster.retired is None else roster.retired
        raise RemovedFromGroupError(f"{node} was removed from its group by topology {number}; nothing is left to do")
    if now.configuration <= cluster.topology.configuration or now.group_of(me) is None:
        return cluster
    log.info(
        "%s tells topology %d; this node knows %d, and goes on with that",
        cluster.file,
        cluster.topology.configuration,
        now.configuration,
    )
    return cluster.with_topology(now)


def load_roster(cluster: Cluster, me: ProcessId, logged: bool) -> tuple[Roster, Topology]:
    """What this node's folder tells, and the topology that its process begins with; the folder is this process'."""
    folder = cluster.data_folder(me)
    roster = Roster.read(folder)
    told = cluster.topology
    if roster is None:
        roster = Roster(told.describe(), told.describe())
        roster.write(folder)
        return roster, told
    first = Topology.from_dict(roster.first, str(folder / FILE))
    # Without a log there is nothing that an earlier topology would explain.
    return roster, first if logged and first.configuration < told.configuration else told


# While it runs


class TopologyFollower:
    """Keeps what one host knows of its peers in step with the topology of its process."""

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
        `on_retired` when the process was removed from its group and nobody needs it any more."""
        self._host = host
        self._roster = roster
        self._folder = folder or Path()
        self._on_changed = on_changed
        self._on_retired = on_retired
        self._rpc: RpcClient | None = None
        """Of a replica, since it started."""

    def topology_to_send(self) -> Topology | None:
        """Who is there, for whoever asks; None while this process itself waits to be told."""
        process = self._host.process
        return None if int(process.status().get("configuration", 0)) < 0 else process.topology

    def other_members(self) -> list[ProcessId]:
        """The other members of this process' group, now."""
        host = self._host
        assert host.home is not None
        return [member for member in host.topology.members(host.home) if member != host.me]

    def follow(self, known: Topology, topology: Topology) -> list[Effect]:
        """The members have changed. Whom the process now speaks to must be known before anything is sent; what it does
        not say itself, because it does not know who is connected, comes back."""
        host = self._host
        security = host.network.wiring.security
        if security is not None:
            security.permissions.follow_topology(topology)
        self._add_servers(topology)
        loop = asyncio.get_running_loop()
        for peer in known.servers:
            if topology.group_of(peer) is None and peer != host.me:
                loop.call_later(REMOVAL_S, self._part, peer)
        if topology.group_of(host.me) is None and host.home is not None:
            loop.call_later(REMOVAL_S, lambda: self.retire(topology.configuration, time.time_ns()))
        log.info("process %d is in topology %d: %s", host.me, topology.configuration, describe_topology(topology))
        self._write_roster()
        if self._rpc is not None:
            self._rpc.follow_topology(topology)
        if self._on_changed is not None:
            self._on_changed(topology)
        news = host.process.client_notice()
        clients = tuple(sorted(peer for peer in host.network.links if peer not in host.servers))
        return [] if news is None or not clients else [Send(clients, news)]

    def retire(self, number: int, now: int) -> None:
        """The process is no member any more, since this topology, and nobody needs it."""
        if self._host.retire(now):
            log.info("process %d was removed from its group by topology %d, and leaves", self._host.me, number)
            self._write_roster(number)
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

    def _part(self, peer: ProcessId) -> None:
        if self._host.topology.group_of(peer) is None:
            self._host.network.remove_server(peer)

    async def run(
        self, asker: RpcClient, survey: StateSurvey, recent: RecentDeliveries, caught_up: asyncio.Event
    ) -> None:
        """What a replica does beside its protocol: find out when it has caught up, whether its group still holds its
        state, and whether it is_lost touch."""
        host = self._host
        self._rpc = asker
        joins = host.incarnation > 0 or host.topology.configuration > 0
        catching = asyncio.get_running_loop().create_task(
            catch_up(recent, caught_up, asker, host.me, self.other_members, joins)
        )
        waited, wait = 0.0, CHECK_S
        try:
            while True:
                await asyncio.sleep(CHECK_S)
                await survey.survey(asker, self.other_members())
                waited += CHECK_S
                if not self._lacks_quorum():
                    waited, wait = 0.0, CHECK_S
                elif waited >= wait:
                    await self._query_topology(asker)
                    waited, wait = 0.0, min(2 * wait, REMOVAL_S)
        finally:
            catching.cancel()

    def _lacks_quorum(self) -> bool:
        """With so few of its group it can do nothing; perhaps the group is elsewhere."""
        host = self._host
        assert host.home is not None
        if host.is_leaving or host.topology.group_of(host.me) is None:
            return False
        up = sum(one == host.me or host.network.is_connected(one) for one in host.topology.members(host.home))
        return up < host.topology.quorum(host.home)

    async def _query_topology(self, asker: RpcClient) -> None:
        host = self._host
        newest = await asker.fetch_topology([peer for peer in host.network.addresses if peer != host.me])
        if newest is None:
            return
        asker.follow_topology(newest)
        if newest.group_of(host.me) is None and newest.configuration > host.topology.configuration:
            self.retire(newest.configuration, time.time_ns())
            return
        host.servers.update(newest.servers)
        self._add_servers(newest)


def addresses_of(topology: Topology, processes: Iterable[ProcessId]) -> list[tuple[ProcessId, Address]]:
    """Where changes say that some processes are; an address that is none (nobody checked it) is nobody's."""
    found = []
    for process in processes:
        name, address = topology.endpoints.get(process, ("", ""))
        if address:
            try:
                found.append((process, parse_address(address, name)))
            except UsageError as error:
                log.error("process %d cannot be reached: %s", process, error)
    return found


def describe_topology(topology: Topology) -> str:
    """The members, for logs."""
    groups = (f"{topology.names.get(g, g)} = {list(topology.members(g))}" for g in topology.groups)
    return ", ".join(groups)


async def refresh_cluster(cluster: Cluster, asker: RpcClient) -> Cluster | None:
    """The cluster as its nodes know it, from whichever of them answer; None if none knows as much as the file."""
    known = -1
    while True:
        newest = await asker.fetch_topology(cluster.addresses)
        if newest is None or newest.configuration < cluster.topology.configuration:
            return None
        if newest.configuration == known:
            return cluster
        known = newest.configuration
        asker.follow_topology(newest)
        # Of the same number, what was ordered knows more: a file does not tell who left.
        cluster = cluster.with_topology(newest)


def parse_topology(data: bytes) -> Topology | None:
    """What a peer said; None if that is no topology."""
    try:
        return decode_topology(data)
    except UsageError:
        return None
