"""cluster.toml: the nodes of a cluster, their addresses, and the protocol and settings that they run with.

    name = "shop"
    protocol = "primcast"
    order = "acyclic"                        # or "real-time": what receipts promise, see docs/real-time.md
    partitioner = "hash"                     # or MODULE:FUNCTION: which group owns a key of a service
    durability = "fsync"                     # fsync, os or memory
    data = "data"                            # one folder per node in it; relative to this file
    audit = "audit"                          # one audit log per node in it; without it they are in the nodes' logs

    [groups.orders]
    replicas = ["127.0.0.1:7001", "127.0.0.1:7002", "127.0.0.1:7003"]

    [groups.stock]
    replicas = [{ address = "10.0.0.4:7001", region = "eu" }, "10.0.0.5:7001", "10.0.0.6:7001"]

    [security]                               # see live/security/permissions.py; mode "tls" is the default
    mode = "plain"                           # not encrypted, on loopback only

    [clients.till]                           # with TLS: a client that may connect, and its groups
    groups = ["orders", "stock"]             # or "all"

    [emulation]                              # see live/wire/emulated_line.py: distances on one machine
    [options]                                # options of the protocol
    [limits]                                 # see live/limits.py
    [trace]
    mode = "full"                            # off, sampled (some deliveries), deliveries (no packets) or full
    folder = "runs/shop"

Groups and processes are numbered 0, 1, 2 ... in the order of the file, or as it says (`id` of a group, `process` of a
replica). The node `orders/1` is the first replica of orders. All nodes and clients must have the same file, except for
addresses and folders; once a cluster has started, its groups stay, and its replicas are changed by `amcast change`, not
by editing (`live/membership/data_folder.py` enforces it).
A replica's table may also contain `listen` (the address to listen on, if others reach it under another one) and `http`
(the address for health, readiness and metrics).

When the replicas of a group change at run time (`amcast change`), places shift but names must not. The file that it
writes contains the `process` and `name` of each replica, and in `[members]` the number of the `configuration` and the
first process id that was never used (`next_process`).
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
from amcast.services.declaration import Description
from amcast.services.partitioner import apply_partitioner

TraceMode = Literal["off", "sampled", "deliveries", "full"]
Order = Literal["acyclic", "real-time"]
"""What receipts promise: a place in an order without cycles, or also that nothing multicast later comes before."""


class ReplicaTable(Config, frozen=True):
    """One replica in `[groups.NAME]`."""

    address: str
    listen: str = ""
    http: str = ""
    region: str = ""
    process: ProcessId | None = None
    name: str = ""
    """GROUP/NUMBER; by default its place in the file, counted from 1."""


class MembersTable(Config, frozen=True):
    """`[members]` of a cluster.toml, which `amcast change` writes."""

    change: bool = True
    """Allows changes of replicas while the cluster runs, if the protocol supports them."""
    configuration: int = 0
    """Number of changes that led to this membership."""
    next_process: ProcessId | None = None
    """The lowest process id that was never used; given together with `configuration`."""


class GroupTable(Config, frozen=True):
    """`[groups.NAME]` of a cluster.toml."""

    replicas: list[str | ReplicaTable]
    id: GroupId | None = None


class TraceTable(Config, frozen=True):
    """`[trace]` of a cluster.toml."""

    mode: TraceMode = "off"
    folder: str = "trace"
    run: str = ""
    """The name of the run; by default that of the folder."""
    every: int = 100
    """Mode "sampled": one message in this many is recorded; every process records the same ones."""

    def __post_init__(self) -> None:
        if self.every < 1:
            raise ValueError(f"every = {self.every}; expected 1 or more")


class ClusterTable(Config, frozen=True):
    """A whole cluster.toml, before names and addresses are checked."""

    name: str
    groups: dict[str, GroupTable]
    protocol: str = "primcast"
    order: Order | None = None
    """None: acyclic, or real-time where nodes run a service."""
    partitioner: str = "hash"
    """Places the keys of services: "hash", or a function, MODULE:FUNCTION (`services/partitioner.py`)."""
    durability: Durability = "fsync"
    data: str = "data"
    options: dict[str, Any] = msgspec.field(default_factory=dict)
    limits: Limits = Limits()
    trace: TraceTable = TraceTable()
    security: SecurityTable = SecurityTable()
    emulation: EmulationTable = EmulationTable()
    clients: dict[str, ClientTable] = msgspec.field(default_factory=dict)
    members: MembersTable = MembersTable()
    audit: str = ""
    """The folder of the nodes' audit logs, relative to the file; empty: audit lines go to each node's log."""
    wire: tuple[int, int] = VERSIONS
    """The oldest and the newest wire version that may be used."""
    logs: Format = "text"
    """"text", or "json": one object per line."""


@dataclass(frozen=True)
class Placement:
    """The nodes of a cluster.toml with their addresses."""

    topology: Topology
    names: dict[str, ProcessId]
    addresses: dict[ProcessId, Address]
    listen_addresses: dict[ProcessId, Address]
    http_addresses: dict[ProcessId, Address]


@dataclass(frozen=True)
class Cluster:
    """The validated content of a cluster.toml."""

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
    """Node name -> process, in the order of the file."""
    addresses: Mapping[ProcessId, Address]
    listen_addresses: Mapping[ProcessId, Address]
    """Where nodes listen; `addresses` is where others reach them."""
    http_addresses: Mapping[ProcessId, Address]
    """The HTTP addresses of the nodes that have one."""
    emulation: EmulationTable
    security: SecurityTable
    clients: Mapping[str, ClientIdentity]
    wire: Versions
    logs: Format

    order: Order = "acyclic"
    chooses_order: bool = True
    """Whether the file names the order; else nodes that run a service choose real-time."""
    allows_changes: bool = True
    """Replicas may be changed while the cluster runs."""
    trace_every: int = 1
    """The deliveries of one message in this many are recorded."""
    partitioner: str = "hash"
    """Places the keys of services."""
    audit: Path | None = None
    """The folder of the audit logs; None: audit lines go to each node's log."""

    def for_service(self) -> "Cluster":
        """The cluster as nodes see it that run a service: in real-time order, unless the file names an order."""
        return self if self.chooses_order else replace(self, order="real-time")

    def describe_service(self, description: Description) -> Description:
        """A service as this cluster places its keys."""
        names = self.topology.names_of(self.topology.groups)
        return apply_partitioner(description, self.partitioner, names)

    def permissions(self) -> Permissions:
        """The permissions of all nodes and clients."""
        permissions = Permissions(self.name, self.nodes(), self.clients)
        permissions.follow_topology(self.topology)
        return permissions

    def node_transport(self, name: str) -> TransportOptions:
        """Transport options of a node."""
        me = self.process_of(name)
        network = self._emulated_network(self.topology.region(me), me)
        return replace(self._transport(Subject(self.name, "node", name), network), order=self.order)

    def client_transport(self, name: str | None = None, region: str | None = None) -> TransportOptions:
        """Transport options of a client. With TLS a client has a name, which may be omitted where there is only one."""
        network = self._emulated_network(self.emulation.client_region if region is None else region, -1)
        if self.security.mode == "plain":
            return TransportOptions(versions=self.wire, lines=network)
        if name is None and len(self.clients) == 1:
            name = next(iter(self.clients))
        if name is None:
            raise UsageError(
                f"{self.file} has several clients, and none is named; expected one of: {', '.join(self.clients)}"
                if self.clients
                else f"{self.file} names no client, and security.mode is {self.security.mode!r}; expected a table"
                " [clients.NAME] with its groups"
            )
        if name not in self.clients:
            raise UsageError(
                f"client {name!r} does not exist in {self.file}; expected one of: {', '.join(self.clients)}"
            )
        return self._transport(Subject(self.name, "client", name), network)

    def _emulated_network(self, region: str, salt: int) -> EmulatedNetwork | None:
        """The emulated network as seen from a region."""
        matrix = self.emulation.matrix_ns
        if not matrix:
            return None
        if region not in matrix:
            raise UsageError(
                f"{self.file}: region {region!r} is not in emulation.matrix_ns; expected one of {list(matrix)}"
            )
        return EmulatedNetwork(self.emulation, region, salt)

    def _transport(self, me: Subject, network: EmulatedNetwork | None) -> TransportOptions:
        if self.security.mode == "plain":
            return TransportOptions(versions=self.wire, lines=network)
        base = self.file.parent
        table = self.security
        revocations = base / table.revocations if table.revocations else None
        security = Security(base / table.authority, base / table.certificates, me, self.permissions(), revocations)
        return TransportOptions(security, self.wire, network)

    def process_of(self, name: str) -> ProcessId:
        """The process of the node with a name such as "orders/1"."""
        if name not in self.names:
            raise UsageError(f"node {name!r} does not exist in {self.file}; expected one of: {', '.join(self.names)}")
        return self.names[name]

    def data_folder(self, process: ProcessId) -> Path:
        """The folder of a node's log and membership files."""
        return self.data / f"process-{process:05d}"

    def name_of(self, process: ProcessId) -> str:
        """The name of a process's node."""
        return next(name for name, known in self.nodes().items() if known == process)

    def nodes(self) -> dict[str, ProcessId]:
        """Node name -> process, in the order of the file."""
        return dict(self.names)

    def members_by_group(self) -> dict[str, list[str]]:
        """The names of the nodes of each group."""
        names = {process: name for name, process in self.names.items()}
        topology = self.topology
        return {topology.names[g]: [names[m] for m in topology.members(g) if m in names] for g in topology.groups}

    def with_topology(self, topology: Topology) -> "Cluster":
        """The same cluster with another topology. The addresses of nodes in this file take precedence, because an
        operator may have moved them; the topology supplies those of the others."""
        names = {name: process for name, process in self.names.items() if process in topology.servers}
        addresses = {process: self.addresses[process] for process in names.values()}
        for process, (name, place) in topology.endpoints.items():
            if process in topology.servers and process not in addresses:
                names[name] = process
                addresses[process] = parse_address(place, f"the address of {name}")
        listens = {process: self.listen_addresses.get(process, address) for process, address in addresses.items()}
        return replace(self, topology=topology, names=names, addresses=addresses, listen_addresses=listens)

    def group_id(self, name: str) -> GroupId:
        """The group with a name."""
        for group, known in self.topology.names.items():
            if known == name:
                return group
        raise UsageError(
            f"group {name!r} does not exist in {self.file}; expected one of: {', '.join(self.topology.names.values())}"
        )


def read_cluster(file: Path | str) -> Cluster:
    """Reads and validates a cluster.toml; an error names the file, the field and what was expected."""
    file = Path(file)
    try:
        values = tomllib.loads(file.read_text())
    except OSError as error:
        raise UsageError(f"{file}: {error.strerror}; expected a cluster.toml, `amcast init` writes one") from None
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
        table.logs, table.order or "acyclic", table.order is not None, table.members.change,
        trace_every=table.trace.every if table.trace.mode == "sampled" else 1,
        partitioner=table.partitioner, audit=base / table.audit if table.audit else None,
    )  # fmt: skip


def _check_wire(wire: Versions) -> None:
    oldest, newest = VERSIONS
    if not oldest <= wire[0] <= wire[1] <= newest:
        raise UsageError(f"wire = {list(wire)}; expected [oldest, newest] between {oldest} and {newest}")


def _parse_groups(groups: Mapping[str, GroupTable], changed: MembersTable) -> Placement:
    """Assigns process ids, names and addresses to the replicas of all groups."""
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
            raise UsageError(f"groups.{name}.id = {group}; {names[group]} has this id already")
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
    """The first process id that a new replica may have; before any change, all nodes must compute the same one."""
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
    """Parses HOST:PORT."""
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
    """Formats plain data as TOML, as far as a cluster.toml needs it: values first, then tables."""
    network: list[str] = []
    tables: list[tuple[str, Mapping[str, Any]]] = [("", values)]
    while tables:
        name, table = tables.pop(0)
        if name:
            network.append(f"\n[{name}]")
        for field, content in table.items():
            if isinstance(content, Mapping):
                tables.append((f"{name}.{format_key(field)}" if name else format_key(field), content))
            else:
                network.append(f"{format_key(field)} = {format_value(content)}")
    return "\n".join(network) + "\n"


def format_key(name: str) -> str:
    """Formats a key as TOML."""
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else json.dumps(name)


def format_value(value: Any) -> str:
    """Formats a value as TOML: JSON syntax for strings, numbers, booleans and lists of these; lists may also hold flat
    tables."""
    if isinstance(value, list) and any(isinstance(one, Mapping) for one in value):
        return f"[{', '.join(format_value(one) for one in value)}]"
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{format_key(name)} = {json.dumps(inner)}" for name, inner in value.items()) + " }"
    return json.dumps(value)
