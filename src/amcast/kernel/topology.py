"""Who is there: groups, their members, clients and regions; frozen and numbered.

A process holds the current topology as state. A change of a group's members is a new topology with the next number,
which reaches processes as an ordered record; the members of earlier numbers stay answerable, because quorums of an
old number may still be counted.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from amcast.kernel.errors import UsageError
from amcast.kernel.ids import MAX_SENDER, GroupId, ProcessId

MAX_GROUPS = 4096
MAX_REPLICAS = 31
MAX_REMEMBERED = 4096
MAX_LEFT = 64
"""Members that left and are remembered by name."""

Endpoint = tuple[str, str]
"""A process that a change added, or removed: its name, and its address; no address if it has left. Pure rooms carry it
and do not look at it."""


class Topology:
    """Immutable by convention: nothing below changes a field after construction."""

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
        """Where to find those whom a configuration of number 0 cannot know."""
        self.next_process = next_process
        """The lowest number that no process ever had; 0 where nobody counts."""
        self._history: dict[tuple[GroupId, int], tuple[ProcessId, ...]] = dict(history or {})
        for group, members in self._members.items():
            self._history[(group, configuration)] = members
        self._group_of: dict[ProcessId, GroupId] = {}
        self._addressed: dict[tuple[GroupId, ...], tuple[ProcessId, ...]] = {}
        """Answers that were given before: the same destinations come again and again."""
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
        seen: set[ProcessId] = set()
        for client in self.clients:
            if client in self._group_of:
                raise UsageError(f"topology.clients: process {client} is a member of group {self._group_of[client]}")
            if not 0 <= client <= MAX_SENDER:
                raise UsageError(f"topology.clients: process {client}; expected 0 to {MAX_SENDER}")
            if client in seen:
                raise UsageError(f"topology.clients: process {client} appears twice")
            seen.add(client)
        for process in self.regions:
            if process not in self._group_of and process not in seen:
                raise UsageError(f"topology.regions: process {process} is in no group and no client")
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
        """`groups` groups of `replicas` processes numbered 0, 1, 2 ... group by group, then the clients."""
        if not 1 <= groups <= MAX_GROUPS:
            raise UsageError(f"groups = {groups}; expected 1 to {MAX_GROUPS}")
        if not 1 <= replicas <= MAX_REPLICAS:
            raise UsageError(f"replicas = {replicas}; expected 1 to {MAX_REPLICAS}")
        if clients < 0:
            raise UsageError(f"clients = {clients}; expected 0 or more")
        first = groups * replicas
        return cls(
            {g: tuple(range(g * replicas, (g + 1) * replicas)) for g in range(groups)},
            range(first, first + clients),
        )

    def members(self, group: GroupId, configuration: int | None = None) -> tuple[ProcessId, ...]:
        """The members of a group, now or under an earlier number."""
        if configuration is None:
            return self._members[group]
        return self._history[(group, configuration)]

    def quorum(self, group: GroupId, configuration: int | None = None) -> int:
        """The size of a majority."""
        return len(self.members(group, configuration)) // 2 + 1

    def faults_tolerated(self, group: GroupId, configuration: int | None = None) -> int:
        """How many members may crash while a majority remains."""
        return (len(self.members(group, configuration)) - 1) // 2

    def group_of(self, process: ProcessId) -> GroupId | None:
        """The group of a process; None for a client or a stranger."""
        return self._group_of.get(process)

    def processes_of(self, destinations: tuple[GroupId, ...]) -> tuple[ProcessId, ...]:
        """All members of some groups, in the groups' order."""
        known = self._addressed.get(destinations)
        if known is None:
            known = tuple(member for group in destinations for member in self._members[group])
            if len(self._addressed) < MAX_REMEMBERED:
                self._addressed[destinations] = known
        return known

    def region(self, process: ProcessId) -> str:
        """Where a process is; "" when nobody said."""
        return self.regions.get(process, "")

    def check_destinations(self, destinations: Iterable[GroupId]) -> tuple[GroupId, ...]:
        """Destinations as a message carries them: sorted, distinct, existing; anything else is the caller's mistake."""
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
        """The next topology, in which one group has other members; the last `keep` numbers stay answerable. `place`
        and `region` are those of the member that comes; of one that goes only the name counts."""
        if group not in self._members:
            raise UsageError(f"topology: group {group} does not exist; expected one of {list(self.groups)}")
        configuration = self.configuration + 1
        old = {key: value for key, value in self._history.items() if key[1] > configuration - keep}
        regions = {p: r for p, r in self.regions.items() if p not in self._members[group] or p in members}
        endpoints = dict(self.endpoints)
        next_process = self.next_process
        for process in sorted(set(members) ^ set(self._members[group])):
            comes = process in members
            if comes and region:
                regions[process] = region
            if endpoint[0]:
                endpoints[process] = endpoint if comes else (endpoint[0], "")
            if comes and next_process:
                next_process = max(next_process, process + 1)
        left = [process for process, (_, address) in sorted(endpoints.items()) if not address]
        for process in left[:-MAX_LEFT]:
            del endpoints[process]
        groups = {**self._members, group: tuple(members)}
        return Topology(groups, self.clients, regions, self.names, configuration, old, endpoints, next_process)

    def with_clients(self, clients: Sequence[ProcessId]) -> "Topology":
        """The same with other clients."""
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
        """As plain data, for run.json; `Topology.from_dict` reads it back."""
        told: dict[str, object] = {
            "configuration": self.configuration,
            "groups": [{"id": g, "name": self.names.get(g, ""), "members": list(m)} for g, m in self._members.items()],
            "clients": list(self.clients),
            "regions": [[process, region] for process, region in self.regions.items()],
        }
        if self.endpoints:
            told["endpoints"] = [[process, name, address] for process, (name, address) in self.endpoints.items()]
        if self.next_process:
            told["next_process"] = self.next_process
        return told

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], where: str = "topology") -> "Topology":
        """What `describe` said; a mistake names the place."""
        try:
            groups = {group["id"]: tuple(group["members"]) for group in data["groups"]}
            names = {group["id"]: group["name"] for group in data["groups"] if group.get("name")}
            clients = tuple(data.get("clients", ()))
            regions = dict(data.get("regions", ()))
            configuration = data.get("configuration", 0)
            endpoints = {process: (name, address) for process, name, address in data.get("endpoints", ())}
            next_process = data.get("next_process", 0)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            told = f"{type(error).__name__} {error}"
            raise UsageError(f"{where}: {told}; expected what `Topology.describe` writes") from None
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
