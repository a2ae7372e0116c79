"""Identities and permissions: the names of nodes and clients, and the groups that each client may address.

A certificate names its owner with one URI in its subjectAltName, never with an address:

    amcast://shop/node/orders/1           the node orders/1 of the cluster shop
    amcast://shop/client/till             the client till

On the wire, processes have numeric ids. A node's id is in cluster.toml. Every named client owns a range of ids, so that
many programs can share one name and the id alone determines the permissions. A peer that claims an id which its
certificate does not own is refused. Permissions are in cluster.toml and not in certificates: an operator changes them
in one place, without new certificates.
"""

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal
from urllib.parse import quote, unquote

from amcast.kernel.config import Config
from amcast.kernel.errors import UsageError
from amcast.kernel.ids import MAX_SENDER, GroupId, ProcessId
from amcast.kernel.topology import Topology
from amcast.live.errors import RefusedError
from amcast.services.messages import Command, Value

Mode = Literal["tls", "plain"]
SCHEME: Final = "amcast://"
FIRST_CLIENT_ID: Final = 1 << 20
"""The lowest process id of a client; lower ids are reserved for processes that cluster.toml names."""
IDS_PER_CLIENT: Final = 1 << 22
"""Process ids that one named client owns."""
MAX_CLIENTS: Final = (MAX_SENDER + 1 - FIRST_CLIENT_ID) // IDS_PER_CLIENT


class SecurityTable(Config, frozen=True):
    """`[security]` of a cluster.toml."""

    mode: Mode = "tls"
    """"plain" neither encrypts nor authenticates: loopback addresses only, unless `plain_beyond_loopback` is set."""
    authority: str = "certs/ca.pem"
    """The certificate of the authority that all sides trust; the path is relative to the file."""
    revocations: str = ""
    """A list of revoked certificates (PEM), signed by the authority; the path is relative to the file. Empty: none."""
    certificates: str = "certs"
    """The folder with the certificates and keys that `amcast certs` writes: node-orders-1.pem, client-till.key ..."""
    plain_beyond_loopback: bool = False
    """Allows mode "plain" on addresses that other machines can reach."""
    http_beyond_loopback: bool = False
    """Allows a node's HTTP address (health, metrics), which is not encrypted, to be reached by other machines."""


class ClientTable(Config, frozen=True):
    """`[clients.NAME]` of a cluster.toml."""

    groups: tuple[str, ...] | str = ()
    """The groups that this client may address, or "all"."""
    operate: bool = False
    """The client may request the status of nodes and the explanation of a message."""
    subscribe: bool = True
    """The client may subscribe to the groups that it may address."""
    change: bool = False
    """The client may change the members of groups (`amcast change`); `groups` must be "all"."""
    calls: tuple[str, ...] | str = "all"
    """The commands and queries of a service that this client may call in its groups, or "all"."""
    exchange: bool = False
    """The client gives the values of a `yield` to other groups: nodes with a service use it, and nobody else may."""
    id: int | None = None
    """Selects the client's range of process ids; by default its place in the file, so add new clients at the end or
    give ids."""


@dataclass(frozen=True)
class Subject:
    """The owner that a certificate names."""

    cluster: str
    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"

    @property
    def uri(self) -> str:
        """The URI in the certificate."""
        return f"{SCHEME}{quote(self.cluster, safe='')}/{self.kind}/{quote(self.name)}"

    @property
    def file_stem(self) -> str:
        """The name of its files without a suffix: node-orders-1, client-till."""
        return f"{self.kind}-{quote(self.name.replace('/', '-'), safe='')}"

    @classmethod
    def parse(cls, uris: list[str]) -> "Subject":
        """Reads the owner from a certificate's URIs; none, several or a malformed one is refused."""
        ours = [uri for uri in uris if uri.startswith(SCHEME)]
        if len(ours) != 1:
            raise RefusedError(
                f"its certificate names {len(ours)} amcast owners; expected 1 ({SCHEME}CLUSTER/KIND/NAME)"
            )
        cluster, _, rest = ours[0].removeprefix(SCHEME).partition("/")
        kind, _, name = rest.partition("/")
        if kind not in ("node", "client") or not cluster or not name:
            raise RefusedError(
                f"its certificate names {ours[0]!r}; expected {SCHEME}CLUSTER/node/NAME or .../client/NAME"
            )
        return cls(unquote(cluster), kind, unquote(name))


@dataclass(frozen=True)
class ClientIdentity:
    """A client that cluster.toml names."""

    name: str
    id: int
    groups: frozenset[GroupId]
    operate: bool
    subscribe: bool
    change: bool = False
    calls: frozenset[str] | None = None
    """None: all."""
    exchange: bool = False

    def check_call(self, name: str) -> None:
        """Refuses a command or query that this client may not call."""
        if self.calls is not None and name not in self.calls:
            raise RefusedError(
                f"client {self.name} may not call {name}; expected one of {sorted(self.calls)}"
                f" (clients.{self.name}.calls)"
            )

    @property
    def first_id(self) -> ProcessId:
        return FIRST_CLIENT_ID + self.id * IDS_PER_CLIENT

    @property
    def last_id(self) -> ProcessId:
        return self.first_id + IDS_PER_CLIENT - 1


class Permissions:
    """The permissions of every name in one cluster.toml."""

    def __init__(self, cluster: str, nodes: Mapping[str, ProcessId], clients: Mapping[str, ClientIdentity]) -> None:
        self.cluster = cluster
        self.nodes = dict(nodes)
        self.clients = dict(clients)
        self.configuration = -1
        """The configuration of the last topology that was followed."""
        self.removed: dict[str, ProcessId] = {}
        """Nodes that were removed: they may connect to learn that, and nothing else."""
        self._clients_by_id = {client.id: client for client in clients.values()}

    def follow_topology(self, topology: Topology) -> None:
        """Adopts the names of a newer topology: adds new nodes, and moves removed ones to `removed`."""
        if topology.configuration <= self.configuration:
            return
        self.configuration = topology.configuration
        for process, (name, address) in topology.endpoints.items():
            (self.nodes if address else self.removed)[name] = process
        for name in [name for name, process in self.nodes.items() if topology.group_of(process) is None]:
            self.removed[name] = self.nodes.pop(name)
        for name in self.nodes:
            self.removed.pop(name, None)

    def replace_clients(self, clients: Mapping[str, ClientIdentity]) -> set[str]:
        """Adopts the clients of a cluster.toml that was read again; returns the names whose rights have changed."""
        names = {*self.clients, *clients}
        changed = {name for name in names if self.clients.get(name) != clients.get(name)}
        self.clients = dict(clients)
        self._clients_by_id = {client.id: client for client in clients.values()}
        return changed

    def check(self, subject: Subject, process: ProcessId) -> None:
        """Refuses a peer that claims a process id which its certificate does not own."""
        client = self.check_known_or_removed(subject)
        if client is None:
            if process != self.nodes.get(subject.name, self.removed.get(subject.name)):
                raise RefusedError(f"it claims to be process {process}, but its certificate names {subject}")
        elif not client.first_id <= process <= client.last_id:
            raise RefusedError(
                f"it claims to be process {process}, but its certificate names {subject},"
                f" which owns {client.first_id} to {client.last_id}"
            )

    def check_known_or_removed(self, subject: Subject) -> "ClientIdentity | None":
        """As `check_known`, but also accepts nodes that were removed."""
        if subject.kind == "node" and subject.name in self.removed:
            self._check_cluster(subject)
            return None
        return self.check_known(subject)

    def check_change(self, process: ProcessId) -> None:
        """Refuses a client that may not change the members of groups."""
        client = self._clients_by_id.get((process - FIRST_CLIENT_ID) // IDS_PER_CLIENT)
        if client is None or not client.change:
            name = self.client_name(process)
            raise RefusedError(f"client {name} may not change groups' members; expected clients.{name}.change = true")

    def check_known(self, subject: Subject) -> "ClientIdentity | None":
        """Refuses a subject that is not in cluster.toml; returns None for a node."""
        self._check_cluster(subject)
        if subject.kind != "node":
            return self._find_client(subject)
        if subject.name in self.removed:
            raise RefusedError(f"its certificate names {subject}, which was removed from cluster {self.cluster!r}")
        if subject.name not in self.nodes:
            raise RefusedError(f"its certificate names {subject}, which is no node of cluster {self.cluster!r}")
        return None

    def check_operator(self, subject: Subject) -> None:
        """Refuses a client without `operate`; nodes may request a status."""
        client = self.check_known(subject)
        if client is not None and not client.operate:
            raise RefusedError(f"{subject} may not request the status; expected clients.{client.name}.operate = true")

    def check_node(self, subject: Subject) -> None:
        """Refuses a subject that is not a node of this cluster."""
        if self.check_known(subject) is not None:
            raise RefusedError(f"{subject} is not a node; only nodes may fetch an application's state")

    def check_subscriber(self, subject: Subject, group: GroupId) -> None:
        """Refuses a client that may not subscribe to a group."""
        client = self.check_known(subject)
        if client is not None and not (client.subscribe and group in client.groups):
            raise RefusedError(
                f"{subject} may not read group {group}; it may read {sorted(client.groups) if client.subscribe else []}"
            )

    def check_caller(self, subject: Subject, group: GroupId) -> None:
        """Refuses a client that may not address a group, and so may not call a service there."""
        client = self.check_known(subject)
        if client is not None and group not in client.groups:
            raise RefusedError(f"{subject} may not call group {group}; it may call {sorted(client.groups)}")

    def check_query(self, subject: Subject, name: str) -> None:
        """Refuses a client that may not call a query."""
        client = self.check_known(subject)
        if client is not None:
            client.check_call(name)

    def check_content(self, process: ProcessId, content: Command | Value) -> None:
        """Refuses what a client may not multicast to a service."""
        client = self._clients_by_id.get((process - FIRST_CLIENT_ID) // IDS_PER_CLIENT)
        if client is None:
            raise RefusedError(f"process {process} is no client of the configuration; expected one that may call")
        if isinstance(content, Command):
            client.check_call(content.name)
        elif not client.exchange:
            raise RefusedError(
                f"client {client.name} may not give values of a service; expected clients.{client.name}.exchange ="
                f" true, for the client of the nodes alone"
            )

    def client_id_range(self, subject: Subject) -> tuple[ProcessId, ProcessId]:
        """The first and last process id that a client owns."""
        client = self.check_known(subject)
        if client is None:
            raise RefusedError(f"{subject} has a process id in cluster.toml already")
        return client.first_id, client.last_id

    def allowed_groups(self, process: ProcessId) -> frozenset[GroupId]:
        """The groups that the client with this process id may address."""
        client = self._clients_by_id.get((process - FIRST_CLIENT_ID) // IDS_PER_CLIENT)
        return client.groups if client is not None else frozenset()

    def client_name(self, process: ProcessId) -> str:
        """The name of the client with this process id, for logs."""
        client = self._clients_by_id.get((process - FIRST_CLIENT_ID) // IDS_PER_CLIENT)
        return client.name if client is not None else f"process {process}"

    def _check_cluster(self, subject: Subject) -> None:
        if subject.cluster != self.cluster:
            raise RefusedError(f"its certificate is for cluster {subject.cluster!r}; this is {self.cluster!r}")

    def _find_client(self, subject: Subject) -> ClientIdentity:
        client = self.clients.get(subject.name)
        if client is None:
            raise RefusedError(f"{subject} is not in the configuration; expected one of {sorted(self.clients)}")
        return client


def parse_clients(tables: Mapping[str, ClientTable], groups: Mapping[str, GroupId]) -> dict[str, ClientIdentity]:
    """Parses the clients of a cluster.toml; an error names the field."""
    clients: dict[str, ClientIdentity] = {}
    names_by_id: dict[int, str] = {}
    for place, (name, table) in enumerate(tables.items()):
        id = place if table.id is None else table.id
        if not name or name != name.strip():
            raise UsageError(f"clients: the name {name!r}; expected one without spaces around it")
        if not 0 <= id < MAX_CLIENTS:
            raise UsageError(f"clients.{name}.id = {id}; expected 0 to {MAX_CLIENTS - 1}")
        if id in names_by_id:
            raise UsageError(f"clients.{name}.id = {id}; {names_by_id[id]} has this id already")
        names_by_id[id] = name
        wanted = tuple(groups) if table.groups == "all" else table.groups
        if isinstance(wanted, str):
            raise UsageError(f'clients.{name}.groups = {wanted!r}; expected "all" or a list of groups')
        for group in wanted:
            if group not in groups:
                raise UsageError(f"clients.{name}.groups: {group!r} does not exist; expected some of {list(groups)}")
        if table.change and set(wanted) != set(groups):
            raise UsageError(
                f'clients.{name}.change = true with groups = {list(wanted)}; expected groups = "all", because a change'
                " of members is a message to all of them"
            )
        addressed = frozenset(groups[group] for group in wanted)
        if isinstance(table.calls, str) and table.calls != "all":
            raise UsageError(
                f'clients.{name}.calls = {table.calls!r}; expected "all" or a list of commands and queries'
            )
        calls = None if isinstance(table.calls, str) else frozenset(table.calls)
        clients[name] = ClientIdentity(
            name, id, addressed, table.operate, table.subscribe, table.change, calls, table.exchange
        )
    return clients


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the host."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_exposure(
    table: SecurityTable, clients: Mapping[str, ClientTable], hosts: list[str], https: list[str]
) -> None:
    """Refuses addresses that would be open to other machines without an explicit setting."""
    if table.mode == "plain":
        for host in hosts:
            if not table.plain_beyond_loopback and not is_loopback(host):
                raise UsageError(
                    f'security.mode = "plain" with the address {host!r}; expected mode "tls", loopback addresses,'
                    " or security.plain_beyond_loopback = true"
                )
        if clients:
            raise UsageError(
                f'clients.{next(iter(clients))} with security.mode = "plain"; expected mode "tls",'
                " because without certificates clients cannot be distinguished"
            )
    for host in https:
        if not table.http_beyond_loopback and not is_loopback(host):
            raise UsageError(
                f"the http address {host!r} can be reached by other machines; expected loopback,"
                " or security.http_beyond_loopback = true"
            )
