"""cluster.toml: who is there, where, and what they run.

    name = "shop"
    protocol = "primcast"
    durability = "fsync"                     # fsync, os or memory
    data = "data"                            # one folder per node in it; relative to this file

    [groups.orders]
    replicas = ["127.0.0.1:7001", "127.0.0.1:7002", "127.0.0.1:7003"]

    [groups.stock]
    replicas = [{ address = "10.0.0.4:7001", region = "eu" }, "10.0.0.5:7001", "10.0.0.6:7001"]

    [options]                                # of the protocol
    [limits]                                 # see live/limits.py
    [trace]
    mode = "full"                            # off, deliveries (no packets) or full
    folder = "runs/shop"

Groups are numbered 0, 1, 2 ... and processes likewise, in the order of the file: add new groups and replicas behind the
old ones, or give numbers (`id` of a group, `process` of a replica). The node `orders/1` is the first replica of orders.
"""

import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec

from amcast.kernel.config import Config, configured
from amcast.kernel.errors import WrongUse
from amcast.kernel.ids import GroupId, ProcessId
from amcast.kernel.topology import Topology
from amcast.live.limits import Limits
from amcast.live.network import Address
from amcast.live.store import Durability

TraceMode = Literal["off", "deliveries", "full"]


class ReplicaTable(Config, frozen=True):
    address: str
    region: str = ""
    process: ProcessId | None = None


class GroupTable(Config, frozen=True):
    replicas: list[str | ReplicaTable]
    id: GroupId | None = None


class TraceTable(Config, frozen=True):
    mode: TraceMode = "off"
    folder: str = "trace"
    run: str = ""
    """The run's name; that of the folder if empty."""


class ClusterTable(Config, frozen=True):
    name: str
    groups: dict[str, GroupTable]
    protocol: str = "primcast"
    durability: Durability = "fsync"
    data: str = "data"
    options: dict[str, Any] = msgspec.field(default_factory=dict)
    limits: Limits = Limits()
    trace: TraceTable = TraceTable()


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
    trace: TraceMode
    trace_folder: Path
    run: str
    topology: Topology
    addresses: Mapping[ProcessId, Address]

    def node(self, name: str) -> ProcessId:
        """The process called "orders/1"."""
        group, _, place = name.rpartition("/")
        members = self.topology.members(self.group(group)) if group else ()
        if not place.isdigit() or not 1 <= int(place) <= len(members):
            raise WrongUse(f"node {name!r} does not exist in {self.file}; expected one of: {', '.join(self.nodes())}")
        return members[int(place) - 1]

    def nodes(self) -> dict[str, ProcessId]:
        """Every node's name and process, in the order of the file."""
        return {
            f"{self.topology.names[group]}/{place}": member
            for group in self.topology.groups
            for place, member in enumerate(self.topology.members(group), 1)
        }

    def group(self, name: str) -> GroupId:
        for group, known in self.topology.names.items():
            if known == name:
                return group
        raise WrongUse(
            f"group {name!r} does not exist in {self.file}; expected one of: {', '.join(self.topology.names.values())}"
        )


def read_cluster(file: Path | str) -> Cluster:
    """Read and check a cluster.toml; a mistake names the file, the field and what was expected."""
    file = Path(file)
    try:
        values = tomllib.loads(file.read_text())
    except OSError as error:
        raise WrongUse(f"{file}: {error.strerror}; expected a cluster's configuration") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise WrongUse(f"{file}: {error}; expected TOML") from None
    table = configured(ClusterTable, values, str(file))
    if not table.name:
        raise WrongUse(f"{file}: name is empty; expected the cluster's name")
    try:
        topology, addresses = _placed(table.groups)
    except WrongUse as error:
        raise WrongUse(f"{file}: {error}") from None
    base = file.parent
    folder = base / table.trace.folder
    return Cluster(
        file, table.name, table.protocol, table.options, table.durability, base / table.data, table.limits,
        table.trace.mode, folder, table.trace.run or folder.name, topology, addresses,
    )  # fmt: skip


def _placed(groups: Mapping[str, GroupTable]) -> tuple[Topology, dict[ProcessId, Address]]:
    members: dict[GroupId, list[ProcessId]] = {}
    names: dict[GroupId, str] = {}
    regions: dict[ProcessId, str] = {}
    addresses: dict[ProcessId, Address] = {}
    next_process = 0
    for place, (name, table) in enumerate(groups.items()):
        if not name or "/" in name:
            raise WrongUse(f"groups: the name {name!r}; expected one without '/'")
        group = place if table.id is None else table.id
        if group in members:
            raise WrongUse(f"groups.{name}.id = {group}; {names[group]} has this number already")
        names[group] = name
        members[group] = []
        for one in table.replicas:
            replica = one if isinstance(one, ReplicaTable) else ReplicaTable(address=one)
            process = next_process if replica.process is None else replica.process
            next_process = process + 1
            members[group].append(process)
            if replica.region:
                regions[process] = replica.region
            addresses[process] = _address(replica.address, f"groups.{name}.replicas", addresses)
    return Topology(members, regions=regions, names=names), addresses


def _address(text: str, where: str, taken: Mapping[ProcessId, Address]) -> Address:
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit() or not 1 <= int(port) <= 65535:
        raise WrongUse(f"{where}: the address {text!r}; expected host:port with a port from 1 to 65535")
    address = (host.strip("[]"), int(port))
    if address in taken.values():
        raise WrongUse(f"{where}: the address {text} appears twice")
    return address


def written(values: Mapping[str, Any]) -> str:
    """Plain data as TOML, as far as a cluster.toml needs it: values first, then tables."""
    lines: list[str] = []
    left: list[tuple[str, Mapping[str, Any]]] = [("", values)]
    while left:
        name, table = left.pop(0)
        if name:
            lines.append(f"\n[{name}]")
        for key, value in table.items():
            if isinstance(value, Mapping):
                left.append((f"{name}.{key}" if name else key, value))
            else:
                # What JSON says of strings, numbers, truth and lists, TOML says too.
                lines.append(f"{key} = {json.dumps(value)}")
    return "\n".join(lines) + "\n"
