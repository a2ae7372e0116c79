"""Topologies: the groups, their members, clients and regions of one configuration.

A topology is immutable and belongs to one configuration. Each process holds its current topology as state. A
reconfiguration changes the members of one group: the next topology, with the next configuration number, reaches
processes as an ordered message. Members of earlier configurations remain available, because quorums of an earlier
configuration may still be counted.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from amcast.kernel.errors import UsageError
from amcast.kernel.ids import MAX_SENDER, GroupId, ProcessId

MAX_GROUPS = 4096
MAX_REPLICAS = 31
MAX_CLIENTS = 1_000_000
MAX_CACHED_DESTINATIONS = 4096
MAX_REMOVED = 64
"""How many removed members keep their endpoint."""

Endpoint = tuple[str, str]
"""The name and address of a process that a change added; without an address if it was removed. Only live clusters use
it."""


class Topology:
    """The processes of one configuration. Immutable by convention: no method changes a field."""

    def __init__(
        self,
        groups: Mapping[GroupId, Sequence[ProcessId]],
        clients: Iterable[ProcessId] = (),
        regions: Mapping[ProcessId, str] | None = None,
        names: Mapping[GroupId, str] | None = None,
        configuration: int = 0,
        history: Mapping[tuple[GroupId, int], tuple[ProcessId, ...]] | None = None,
        endpoints: Mapping[ProcessId, Endpoint] | None = None,
        next_process: ProcessId = 0,
    ) -> None:
        self.configuration = configuration
        self._members: dict[GroupId, tuple[ProcessId, ...]] = {g: tuple(groups[g]) for g in sorted(groups)}
        self.clients: tuple[ProcessId, ...] = tuple(clients)
        self.regions: dict[ProcessId, str] = dict(sorted((regions or {}).items()))
        self.names: dict[GroupId, str] = dict(sorted((names or {}).items()))
        self.endpoints: dict[ProcessId, Endpoint] = dict(sorted((endpoints or {}).items()))
        """Endpoints of the processes that changes added or removed. They are in the topology because every process that
        follows a reconfiguration receives it anyway; a separate list would need an agreement of its own."""
        self.next_process = next_process
        """The lowest process id that was never used; 0 if ids are not tracked."""
        self._history: dict[tuple[GroupId, int], tuple[ProcessId, ...]] = dict(history or {})
        for group, members in self._members.items():
            self._history[(group, configuration)] = members
        self._group_of: dict[ProcessId, GroupId] = {}
        self._processes_of: dict[tuple[GroupId, ...], tuple[ProcessId, ...]] = {}
        """Cache of `processes_of`."""
        self._names_of: dict[tuple[GroupId, ...], tuple[str, ...]] = {}
        """Cache of `names_of`."""
        self._validate()
        self.groups: tuple[GroupId, ...] = tuple(self._members)
        self.servers: tuple[ProcessId, ...] = tuple(sorted(self._group_of))
        self.processes: tuple[ProcessId, ...] = tuple(sorted((*self._group_of, *self.clients)))

    def _validate(self) -> None:
        if not 1 <= len(self._members) <= MAX_GROUPS:
            raise UsageError(f"topology.groups: {len(self._members)} groups; expected 1 to {MAX_GROUPS}")
        for group, members in self._members.items():
            if group < 0:
                raise UsageError(f"topology.groups: group {group} is negative; expected 0 or more")
            if not 1 <= len(members) <= MAX_REPLICAS:
                raise UsageError(f"topology.groups[{group}]: {len(members)} members; expected 1 to {MAX_REPLICAS}")
            for member in members:
                if not 0 <= member <= MAX_SENDER:
                    raise UsageError(f"topology.groups[{group}]: process {member}; expected 0 to {MAX_SENDER}")
                if member in self._group_of:
                    raise UsageError(
                        f"topology.groups[{group}]: process {member} is a member twice; groups are disjoint"
                    )
                self._group_of[member] = group
        clients: set[ProcessId] = set()
        for client in self.clients:
            if client in self._group_of:
                raise UsageError(f"topology.clients: process {client} is a member of group {self._group_of[client]}")
            if not 0 <= client <= MAX_SENDER:
                raise UsageError(f"topology.clients: process {client}; expected 0 to {MAX_SENDER}")
            if client in clients:
                raise UsageError(f"topology.clients: process {client} appears twice")
            clients.add(client)
        for process in self.regions:
            if process not in self._group_of and process not in clients:
                raise UsageError(f"topology.regions: process {process} is neither a member of a group nor a client")
        for group in self.names:
            if group not in self._members:
                raise UsageError(f"topology.names: group {group} does not exist")
        if self.next_process and self.next_process <= max(self._group_of):
            raise UsageError(
                f"topology.next_process = {self.next_process};"
                f" expected more than {max(self._group_of)}, the highest id in use"
            )

    @classmethod
    def grid(cls, groups: int, replicas: int, clients: int = 0) -> "Topology":
        """A topology of equal groups. Processes are numbered 0, 1, 2 ... group by group, and clients after them."""
        if not 1 <= groups <= MAX_GROUPS:
            raise UsageError(f"groups = {groups}; expected 1 to {MAX_GROUPS}")
        if not 1 <= replicas <= MAX_REPLICAS:
            raise UsageError(f"replicas = {replicas}; expected 1 to {MAX_REPLICAS}")
        if not 0 <= clients <= MAX_CLIENTS:
            raise UsageError(f"clients = {clients}; expected 0 to {MAX_CLIENTS}")
        first = groups * replicas
        return cls(
            {g: tuple(range(g * replicas, (g + 1) * replicas)) for g in range(groups)},
            range(first, first + clients),
        )

    def members(self, group: GroupId, configuration: int | None = None) -> tuple[ProcessId, ...]:
        """The members of a group, in this configuration or an earlier one."""
        if configuration is None:
            return self._members[group]
        return self._history[(group, configuration)]

    def names_of(self, groups: tuple[GroupId, ...]) -> tuple[str, ...]:
        """The names of groups, for users; a group without a name goes by its number."""
        names = self._names_of.get(groups)
        if names is None:
            names = tuple(self.names.get(group, str(group)) for group in groups)
            if len(self._names_of) < MAX_CACHED_DESTINATIONS:
                self._names_of[groups] = names
        return names

    def quorum(self, group: GroupId, configuration: int | None = None) -> int:
        """The size of a majority of a group."""
        return len(self.members(group, configuration)) // 2 + 1

    def faults_tolerated(self, group: GroupId, configuration: int | None = None) -> int:
        """How many members of a group may crash while a majority remains."""
        return (len(self.members(group, configuration)) - 1) // 2

    def group_of(self, process: ProcessId) -> GroupId | None:
        """The group of a process; None for a client or an unknown process."""
        return self._group_of.get(process)

    def processes_of(self, destinations: tuple[GroupId, ...]) -> tuple[ProcessId, ...]:
        """All members of the destination groups, in the order of the groups."""
        processes = self._processes_of.get(destinations)
        if processes is None:
            processes = tuple(member for group in destinations for member in self._members[group])
            if len(self._processes_of) < MAX_CACHED_DESTINATIONS:
                self._processes_of[destinations] = processes
        return processes

    def region(self, process: ProcessId) -> str:
        """The region of a process; "" if none is set."""
        return self.regions.get(process, "")

    def check_destinations(self, destinations: Iterable[GroupId]) -> tuple[GroupId, ...]:
        """The destinations as a message carries them, sorted and distinct. Raises UsageError for unknown groups."""
        wanted = tuple(sorted(set(destinations)))
        if not wanted:
            raise UsageError("destinations: none given; expected at least one group")
        for group in wanted:
            if group not in self._members:
                raise UsageError(f"destinations: group {group} does not exist; expected some of {list(self.groups)}")
        return wanted

    def with_change(
        self,
        group: GroupId,
        members: Sequence[ProcessId],
        keep: int = 8,
        endpoint: Endpoint = ("", ""),
        region: str = "",
    ) -> "Topology":
        """The next topology, in which one group has other members; members of the last `keep` configurations stay
        available. `endpoint` and `region` belong to the added member; of a removed one, only the name is used."""
        if group not in self._members:
            raise UsageError(f"topology: group {group} does not exist; expected one of {list(self.groups)}")
        configuration = self.configuration + 1
        old = {key: value for key, value in self._history.items() if key[1] > configuration - keep}
        regions = {p: r for p, r in self.regions.items() if p not in self._members[group] or p in members}
        endpoints = dict(self.endpoints)
        next_process = self.next_process
        for process in sorted(set(members) ^ set(self._members[group])):
            is_added = process in members
            if is_added and region:
                regions[process] = region
            if endpoint[0]:
                endpoints[process] = endpoint if is_added else (endpoint[0], "")
            if is_added and next_process:
                next_process = max(next_process, process + 1)
        removed = [process for process, (_, address) in sorted(endpoints.items()) if not address]
        for process in removed[:-MAX_REMOVED]:
            del endpoints[process]
        groups = {**self._members, group: tuple(members)}
        return Topology(groups, self.clients, regions, self.names, configuration, old, endpoints, next_process)

    def with_clients(self, clients: Sequence[ProcessId]) -> "Topology":
        """The same configuration with other clients."""
        regions = {p: r for p, r in self.regions.items() if p in self._group_of or p in clients}
        return Topology(
            self._members,
            clients,
            regions,
            self.names,
            self.configuration,
            self._history,
            self.endpoints,
            self.next_process,
        )

    def describe(self) -> dict[str, object]:
        """The topology as plain data, for run.json; `Topology.from_dict` reads it back."""
        data: dict[str, object] = {
            "configuration": self.configuration,
            "groups": [{"id": g, "name": self.names.get(g, ""), "members": list(m)} for g, m in self._members.items()],
            "clients": list(self.clients),
            "regions": [[process, region] for process, region in self.regions.items()],
        }
        if self.endpoints:
            data["endpoints"] = [[process, name, address] for process, (name, address) in self.endpoints.items()]
        if self.next_process:
            data["next_process"] = self.next_process
        return data

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], where: str = "topology") -> "Topology":
        """Reads the output of `describe`. A UsageError names the mistake."""
        try:
            groups = {group["id"]: tuple(group["members"]) for group in data["groups"]}
            names = {group["id"]: group["name"] for group in data["groups"] if group.get("name")}
            clients = tuple(data.get("clients", ()))
            regions = dict(data.get("regions", ()))
            configuration = data.get("configuration", 0)
            endpoints = {process: (name, address) for process, name, address in data.get("endpoints", ())}
            next_process = data.get("next_process", 0)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            problem = f"{type(error).__name__} {error}"
            raise UsageError(f"{where}: {problem}; expected the output of `Topology.describe`") from None
        members = [member for group in groups.values() for member in group]
        for value in (configuration, next_process, *groups, *clients, *regions, *endpoints, *members):
            if type(value) is not int:
                raise UsageError(f"{where}: {value!r}; expected whole numbers for groups and processes")
        for text in (
            *regions.values(),
            *names.values(),
            *(text for endpoint in endpoints.values() for text in endpoint),
        ):
            if type(text) is not str:
                raise UsageError(f"{where}: {text!r}; expected text for names, regions and addresses")
        if len(groups) != len(data["groups"]):
            raise UsageError(f"{where}: a group appears twice")
        try:
            return cls(groups, clients, regions, names, configuration, None, endpoints, next_process)
        except UsageError as error:
            raise UsageError(f"{where}: {error}") from None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Topology) and self.describe() == other.describe()

    def __hash__(self) -> int:
        return hash((self.configuration, tuple(self._members.items()), self.clients))

    def __repr__(self) -> str:
        return f"Topology(configuration={self.configuration}, groups={self._members}, clients={self.clients})"
