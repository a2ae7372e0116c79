"""cluster.toml: who is there, where, and what they run.

    name = "shop"
    protocol = "primcast"
    durability = "fsync"                     # fsync, os or memory
    data = "data"                            # one folder per node in it; relative to this file

    [groups.orders]
    replicas = ["127.0.0.1:7001", "127.0.0.1:7002", "127.0.0.1:7003"]

    [groups.stock]
    replicas = [{ address = "10.0.0.4:7001", region = "eu" }, "10.0.0.5:7001", "10.0.0.6:7001"]

    [security]                               # see live/security/permissions.py; mode "tls" is the default
    mode = "plain"                           # in the clear, on loopback only

    [clients.till]                           # with TLS: who may connect, and address what
    groups = ["orders", "stock"]             # or "all"

    [emulation]                              # see live/wire/emulated_line.py: distances on one machine
    [options]                                # of the protocol
    [limits]                                 # see live/limits.py
    [trace]
    mode = "full"                            # off, sampled (some deliveries), deliveries (no packets) or full
    folder = "runs/shop"

Groups are numbered 0, 1, 2 ... and processes likewise, in the order of the file, or as it says (`id` of a group,
`process` of a replica). The node `orders/1` is the first replica of orders. All nodes and clients must have the same
file, addresses and folders apart; when a cluster has begun, its groups stay, and replicas are changed by `amcast
change`, not by editing (`live/membership/data_folder.py` sees to that).
A replica's table may also say `listen` (where it listens, if that is not where others reach it) and `http` (where it
answers health, readiness and metrics).

When a group's replicas change at run time (`amcast change`), places shift and names must not. The file that it writes
says each replica's `process` and `name`, and in `[members]` which topology it tells (`number`) and the first process
number that was never used (`next`).
"""

import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import msgspec

from amcast.kernel.config import Config, parse_config
from amcast.kernel.errors import UsageError
from amcast.kernel.ids import GroupId, ProcessId
from amcast.kernel.topology import Topology
from amcast.live.limits import Limits
from amcast.live.log_output import Format
from amcast.live.security.permissions import (
    ClientIdentity,
    ClientTable,
    Permissions,
    SecurityTable,
    Subject,
    check_exposure,
    parse_clients,
)
from amcast.live.security.tls import Security
from amcast.live.storage.store import Durability
from amcast.live.wire.emulated_line import EmulatedNetwork, EmulationTable
from amcast.live.wire.network import Address
from amcast.live.wire.transport import VERSIONS, TransportOptions, Versions

TraceMode = Literal["off", "sampled", "deliveries", "full"]


class ReplicaTable(Config, frozen=True):
    address: str
    listen: str = ""
    http: str = ""
    region: str = ""
    process: ProcessId | None = None
    name: str = ""
    """GROUP/NUMBER; by default its place in the file, counted from 1."""


class MembersTable(Config, frozen=True):
    """`[members]` of a cluster.toml: what `amcast change` writes, and whether it may."""

    change: bool = True
    """Groups' replicas may be changed while the cluster runs, if the protocol claims that it can."""
    configuration: int = 0
    """How many changes have made this topology."""
    next_process: ProcessId | None = None
    """The lowest process number that was never used; given with `number`."""


class GroupTable(Config, frozen=True):
    replicas: list[str | ReplicaTable]
    id: GroupId | None = None


class TraceTable(Config, frozen=True):
    mode: TraceMode = "off"
    folder: str = "trace"
    run: str = ""
    """The run's name; that of the folder if empty."""
    every: int = 100
    """Sampled: one message in so many; every process records the deliveries of the same ones."""

    def __post_init__(self) -> None:
        if self.every < 1:
            raise ValueError(f"every = {self.every}; expected 1 or more")


class ClusterTable(Config, frozen=True):
    name: str
    groups: dict[str, GroupTable]
    protocol: str = "primcast"
    durability: Durability = "fsync"
    data: str = "data"
    options: dict[str, Any] = msgspec.field(default_factory=dict)
    limits: Limits = Limits()
    trace: TraceTable = TraceTable()
    security: SecurityTable = SecurityTable()
    emulation: EmulationTable = EmulationTable()
    clients: dict[str, ClientTable] = msgspec.field(default_factory=dict)
    members: MembersTable = MembersTable()
    wire: tuple[int, int] = VERSIONS
    """The wire versions that may be spoken, oldest and newest."""
    logs: Format = "text"
    """"json": one object per line."""


@dataclass(frozen=True)
class Placement:
    """Where everybody is."""

    topology: Topology
    names: dict[str, ProcessId]
    addresses: dict[ProcessId, Address]
    listen_addresses: dict[ProcessId, Address]
    http_addresses: dict[ProcessId, Address]


@dataclass(frozen=True)
class Cluster:
    """A checked configuration."""

    file: Path
    name: str
    protocol: str
    options: Mapping[str, Any]
    durability: Durability
    data: Path
    limits: Limits
    trace_mode: TraceMode
    trace_folder: Path
    run: str
    topology: Topology
    names: Mapping[str, ProcessId]
    """The nodes, in the order of the file."""
    addresses: Mapping[ProcessId, Address]
    listen_addresses: Mapping[ProcessId, Address]
    """Where nodes listen; `addresses` is where others find them."""
    http_addresses: Mapping[ProcessId, Address]
    """Where nodes answer over HTTP, those that do."""
    emulation: EmulationTable
    security: SecurityTable
    clients: Mapping[str, ClientIdentity]
    wire: Versions
    logs: Format

    allows_changes: bool = True
    """Groups' replicas may be changed while it runs."""
    trace_every: int = 1
    """One message in so many has its deliveries recorded."""

    def permissions(self) -> Permissions:
        rights = Permissions(self.name, self.nodes(), self.clients)
        rights.follow_topology(self.topology)
        return rights

    def node_transport(self, name: str) -> TransportOptions:
        """How the node of this name talks."""
        me = self.process_of(name)
        return self._transport(Subject(self.name, "node", name), self._emulated_network(self.topology.region(me), me))

    def client_transport(self, name: str | None = None, region: str | None = None) -> TransportOptions:
        """How a client talks; with TLS it has a name, which may be left out where there is only one."""
        lines = self._emulated_network(self.emulation.client_region if region is None else region, -1)
        if self.security.mode == "plain":
            return TransportOptions(versions=self.wire, lines=lines)
        if name is None and len(self.clients) == 1:
            name = next(iter(self.clients))
        if name is None or name not in self.clients:
            raise UsageError(
                f"client {name!r} does not exist in {self.file}; expected one of: {', '.join(self.clients)}"
            )
        return self._transport(Subject(self.name, "client", name), lines)

    def _emulated_network(self, region: str, salt: int) -> EmulatedNetwork | None:
        """The emulated lines from a region; a mistake names it."""
        matrix = self.emulation.matrix_ns
        if not matrix:
            return None
        if region not in matrix:
            raise UsageError(
                f"{self.file}: region {region!r} is not in emulation.matrix_ns; expected one of {list(matrix)}"
            )
        return EmulatedNetwork(self.emulation, region, salt)

    def _transport(self, me: Subject, lines: EmulatedNetwork | None) -> TransportOptions:
        if self.security.mode == "plain":
            return TransportOptions(versions=self.wire, lines=lines)
        base = self.file.parent
        security = Security(base / self.security.authority, base / self.security.certificates, me, self.permissions())
        return TransportOptions(security, self.wire, lines)

    def process_of(self, name: str) -> ProcessId:
        """The process called "orders/1"."""
        if name not in self.names:
            raise UsageError(f"node {name!r} does not exist in {self.file}; expected one of: {', '.join(self.names)}")
        return self.names[name]

    def data_folder(self, process: ProcessId) -> Path:
        """Where a node keeps what it must not forget."""
        return self.data / f"process-{process:05d}"

    def name_of(self, process: ProcessId) -> str:
        """The node that a process is."""
        return next(name for name, known in self.nodes().items() if known == process)

    def nodes(self) -> dict[str, ProcessId]:
        """Every node's name and process, in the order of the file."""
        return dict(self.names)

    def members_by_group(self) -> dict[str, list[str]]:
        """The nodes of each group, by name."""
        named = {process: name for name, process in self.names.items()}
        topology = self.topology
        return {topology.names[g]: [named[m] for m in topology.members(g) if m in named] for g in topology.groups}

    def with_topology(self, topology: Topology) -> "Cluster":
        """The same cluster after changes of its members. For addresses this file has the last word about those whom it
        names, because an operator may have moved them; the changes tell about the others."""
        names = {name: process for name, process in self.names.items() if process in topology.servers}
        addresses = {process: self.addresses[process] for process in names.values()}
        for process, (name, place) in topology.endpoints.items():
            if process in topology.servers and process not in addresses:
                names[name] = process
                addresses[process] = parse_address(place, f"the place of {name}")
        listens = {process: self.listen_addresses.get(process, address) for process, address in addresses.items()}
        return replace(self, topology=topology, names=names, addresses=addresses, listen_addresses=listens)

    def group_id(self, name: str) -> GroupId:
        for group, known in self.topology.names.items():
            if known == name:
                return group
        raise UsageError(
            f"group {name!r} does not exist in {self.file}; expected one of: {', '.join(self.topology.names.values())}"
        )


def read_cluster(file: Path | str) -> Cluster:
    """Read and check a cluster.toml; a mistake names the file, the field and what was expected."""
    file = Path(file)
    try:
        values = tomllib.loads(file.read_text())
    except OSError as error:
        raise UsageError(f"{file}: {error.strerror}; expected a cluster's configuration") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{file}: {error}; expected TOML") from None
    table = parse_config(ClusterTable, values, str(file))
    if not table.name:
        raise UsageError(f"{file}: name is empty; expected the cluster's name")
    try:
        places = _parse_groups(table.groups, table.members)
        hosts = [host for host, _ in (*places.addresses.values(), *places.listen_addresses.values())]
        check_exposure(table.security, table.clients, hosts, [host for host, _ in places.http_addresses.values()])
        names = {name: group for group, name in places.topology.names.items()}
        clients = parse_clients(table.clients, names)
        _check_wire(table.wire)
    except UsageError as error:
        raise UsageError(f"{file}: {error}") from None
    base = file.parent
    folder = base / table.trace.folder
    return Cluster(
        file, table.name, table.protocol, table.options, table.durability, base / table.data, table.limits,
        table.trace.mode, folder, table.trace.run or folder.name, places.topology, places.names, places.addresses,
        places.listen_addresses, places.http_addresses, table.emulation, table.security, clients, table.wire,
        table.logs, table.members.change, trace_every=table.trace.every if table.trace.mode == "sampled" else 1,
    )  # fmt: skip


def _check_wire(wire: Versions) -> None:
    oldest, newest = VERSIONS
    if not oldest <= wire[0] <= wire[1] <= newest:
        raise UsageError(f"wire = {list(wire)}; expected [oldest, newest] between {oldest} and {newest}")


def _parse_groups(groups: Mapping[str, GroupTable], changed: MembersTable) -> Placement:
    members: dict[GroupId, list[ProcessId]] = {}
    names: dict[GroupId, str] = {}
    regions: dict[ProcessId, str] = {}
    addresses: dict[ProcessId, Address] = {}
    listen_addresses: dict[ProcessId, Address] = {}
    http_addresses: dict[ProcessId, Address] = {}
    nodes: dict[str, ProcessId] = {}
    next_process = 0
    for place, (name, table) in enumerate(groups.items()):
        if not name or "/" in name:
            raise UsageError(f"groups: the name {name!r}; expected one without '/'")
        group = place if table.id is None else table.id
        if group in members:
            raise UsageError(f"groups.{name}.id = {group}; {names[group]} has this number already")
        names[group] = name
        members[group] = []
        where = f"groups.{name}.replicas"
        for rank, one in enumerate(table.replicas, 1):
            replica = one if isinstance(one, ReplicaTable) else ReplicaTable(address=one)
            if changed.configuration and (replica.process is None or not replica.name):
                raise UsageError(
                    f"{where}[{rank - 1}] lacks `process` or `name`, with members.configuration ="
                    f" {changed.configuration}; expected both for every replica, because places shift with changes"
                )
            process = next_process if replica.process is None else replica.process
            next_process = process + 1
            members[group].append(process)
            if replica.region:
                regions[process] = replica.region
            _register_name(nodes, replica.name or f"{name}/{rank}", name, process)
            addresses[process] = _parse_free_address(replica.address, where, addresses)
            listen_addresses[process] = (
                _parse_free_address(replica.listen, where, {}) if replica.listen else addresses[process]
            )
            if replica.http:
                http_addresses[process] = _parse_free_address(replica.http, where, {})
    unused = _first_unused_process(changed, max(addresses, default=-1) + 1)
    topology = Topology(members, regions=regions, names=names, configuration=changed.configuration, next_process=unused)
    return Placement(topology, nodes, addresses, listen_addresses, http_addresses)


def _register_name(nodes: dict[str, ProcessId], node: str, group: str, process: ProcessId) -> None:
    home, _, number = node.rpartition("/")
    if home != group or not re.fullmatch(r"[1-9][0-9]*", number):
        raise UsageError(f"groups.{group}.replicas: the name {node!r}; expected {group}/NUMBER, from {group}/1 on")
    if node in nodes:
        raise UsageError(f"groups.{group}.replicas: the name {node} appears twice; expected one for each replica")
    nodes[node] = process


def _first_unused_process(changed: MembersTable, least: ProcessId) -> ProcessId:
    """The first number that a new process may have; before any change, everybody must find the same one."""
    if changed.configuration < 0:
        raise UsageError(f"members.configuration = {changed.configuration}; expected 0 or more")
    if (changed.next_process is None) != (changed.configuration == 0):
        raise UsageError(
            f"members.configuration = {changed.configuration} with members.next_process ="
            f" {changed.next_process}; expected both, as `amcast change` writes them, or none"
        )
    if changed.next_process is not None and changed.next_process < least:
        raise UsageError(
            f"members.next_process = {changed.next_process}; expected {least} or more, a process that was never used"
        )
    return least if changed.next_process is None else changed.next_process


def parse_address(text: str, where: str) -> Address:
    """HOST:PORT, or a sentence about it."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit() or not 1 <= int(port) <= 65535:
        raise UsageError(f"{where}: the address {text!r}; expected host:port with a port from 1 to 65535")
    return host.strip("[]"), int(port)


def _parse_free_address(text: str, where: str, taken: Mapping[ProcessId, Address]) -> Address:
    address = parse_address(text, where)
    if address in taken.values():
        raise UsageError(f"{where}: the address {text} appears twice")
    return address


def format_toml(values: Mapping[str, Any]) -> str:
    """Plain data as TOML, as far as a cluster.toml needs it: values first, then tables."""
    lines: list[str] = []
    left: list[tuple[str, Mapping[str, Any]]] = [("", values)]
    while left:
        name, table = left.pop(0)
        if name:
            lines.append(f"\n[{name}]")
        for field, said in table.items():
            if isinstance(said, Mapping):
                left.append((f"{name}.{format_key(field)}" if name else format_key(field), said))
            else:
                lines.append(f"{format_key(field)} = {format_value(said)}")
    return "\n".join(lines) + "\n"


def format_key(name: str) -> str:
    """A key, as TOML wants it."""
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else json.dumps(name)


def format_value(said: Any) -> str:
    """What JSON says of strings, numbers, truth and lists of these, TOML says too; lists may also hold flat tables."""
    if isinstance(said, list) and any(isinstance(one, Mapping) for one in said):
        return f"[{', '.join(format_value(one) for one in said)}]"
    if isinstance(said, Mapping):
        return "{ " + ", ".join(f"{format_key(name)} = {json.dumps(inner)}" for name, inner in said.items()) + " }"
    return json.dumps(said)
