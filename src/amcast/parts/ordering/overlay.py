"""Overlays: which group may send to which.

    order (complete DAG)                     tree
    0 -> 1 -> 2 -> 3                              0
    \\----\\----\\---^  every group sends           / \\
      to every later one                       1   2      a group sends to its parent and its children
                                              / \\
                                             3   4

In an order the lowest common ancestor (lca) of some groups is the first of them: always a destination itself. In a
tree it is the lowest group from which all of them are reached downwards, and may be none of them.

Overlays come as plain data in a protocol's options and are checked against the topology once, when a process is
built; lookups then use tables.
"""

from collections.abc import Callable, Iterable, Sequence

from amcast.kernel.errors import UsageError
from amcast.kernel.ids import GroupId, ProcessId
from amcast.kernel.message import Message
from amcast.kernel.spec import Contacts
from amcast.kernel.topology import Topology


class Order:
    """A complete directed acyclic graph: groups in a sequence, each with edges to all later ones."""

    def __init__(self, groups: Sequence[GroupId]) -> None:
        self.groups: tuple[GroupId, ...] = tuple(groups)
        self.rank: dict[GroupId, int] = {group: rank for rank, group in enumerate(self.groups)}
        assert len(self.rank) == len(self.groups), f"order {self.groups} names a group twice"

    def lca(self, destinations: Iterable[GroupId]) -> GroupId:
        """The lowest of some groups."""
        return min(destinations, key=self.rank.__getitem__)

    def sorted(self, groups: Iterable[GroupId]) -> tuple[GroupId, ...]:
        """Some groups, lowest first."""
        return tuple(sorted(groups, key=self.rank.__getitem__))

    def ancestors(self, group: GroupId) -> tuple[GroupId, ...]:
        """The groups lower than this one, lowest first."""
        return self.groups[: self.rank[group]]

    def descendants(self, group: GroupId) -> tuple[GroupId, ...]:
        """The groups higher than this one, lowest first."""
        return self.groups[self.rank[group] + 1 :]

    def between(self, low: GroupId, high: GroupId) -> tuple[GroupId, ...]:
        """The groups higher than the one and lower than the other, lowest first."""
        return self.groups[self.rank[low] + 1 : self.rank[high]]

    def reach(self, group: GroupId) -> frozenset[GroupId]:
        """This group and its descendants."""
        return frozenset(self.groups[self.rank[group] :])

    def edges(self) -> tuple[tuple[GroupId, GroupId], ...]:
        """All edges, from the lower to the higher group."""
        return tuple((low, high) for place, low in enumerate(self.groups) for high in self.groups[place + 1 :])


def rank_delays(role: str, destinations: int, replicas: int) -> int | None:
    """Message delays where a lone message reaches its destinations one after the other, in the default order."""
    return destinations if role == "max" else int(role.removeprefix("rank-"))


def rank_role(topology: Topology, process: ProcessId) -> str:
    """The role of a process: its group's rank in the default order."""
    group = topology.group_of(process)
    return "client" if group is None else f"rank-{topology.groups.index(group) + 1}"


class Tree:
    """A rooted tree of groups; children are sorted by id."""

    def __init__(self, root: GroupId, edges: Iterable[tuple[GroupId, GroupId]]) -> None:
        self.root = root
        self._children: dict[GroupId, list[GroupId]] = {root: []}
        for parent, child in edges:
            self._children.setdefault(parent, []).append(child)
            self._children.setdefault(child, [])
        self.parent: dict[GroupId, GroupId | None] = {root: None}
        self.depth: dict[GroupId, int] = {root: 0}
        self.groups: tuple[GroupId, ...] = self._list_groups()
        self._reach: dict[GroupId, frozenset[GroupId]] = {}
        for group in reversed(self.groups):
            below = [self._reach[child] for child in self._children[group]]
            self._reach[group] = frozenset({group}.union(*below))

    def _list_groups(self) -> tuple[GroupId, ...]:
        """Every group once, parents before children."""
        found = [self.root]
        for group in found:
            self._children[group].sort()
            for child in self._children[group]:
                assert child not in self.parent, f"group {child} has two parents or is the root"
                self.parent[child] = group
                self.depth[child] = self.depth[group] + 1
                found.append(child)
        assert len(found) == len(self._children), "some groups are not reached from the root"
        return tuple(found)

    def children(self, group: GroupId) -> tuple[GroupId, ...]:
        return tuple(self._children[group])

    def reach(self, group: GroupId) -> frozenset[GroupId]:
        """This group and all groups below it."""
        return self._reach[group]

    def children_towards(self, group: GroupId, destinations: tuple[GroupId, ...]) -> tuple[GroupId, ...]:
        """The children through which some of the destinations are reached."""
        return tuple(child for child in self._children[group] if not self._reach[child].isdisjoint(destinations))

    def ancestors(self, group: GroupId) -> tuple[GroupId, ...]:
        """The groups from the root down to the parent."""
        path: list[GroupId] = []
        above = self.parent[group]
        while above is not None:
            path.append(above)
            above = self.parent[above]
        return tuple(reversed(path))

    def descendants(self, group: GroupId) -> tuple[GroupId, ...]:
        """All groups below this one, parents before children."""
        return tuple(other for other in self.groups if other != group and other in self._reach[group])

    def lca(self, destinations: Iterable[GroupId]) -> GroupId:
        """The lowest group that reaches all destinations; a single group is its own ancestor."""
        wanted = set(destinations)
        group = next(iter(sorted(wanted)))
        while not wanted <= self._reach[group]:
            above = self.parent[group]
            assert above is not None, f"the root {self.root} does not reach {sorted(wanted)}"
            group = above
        return group

    def edges(self) -> tuple[tuple[GroupId, GroupId], ...]:
        """All edges, from parent to child."""
        return tuple((group, child) for group in self.groups for child in self._children[group])


def parse_order(order: Sequence[GroupId], topology: Topology) -> Order:
    """Checks the option `order` against the topology; the default is the order of group ids."""
    if not order:
        return Order(topology.groups)
    if sorted(order) != list(topology.groups):
        missing = [group for group in topology.groups if group not in order]
        unknown = [group for group in order if group not in topology.groups]
        twice = sorted({group for group in order if list(order).count(group) > 1})
        wrong = "; ".join(
            f"{what} {groups}"
            for what, groups in (("missing:", missing), ("unknown:", unknown), ("twice:", twice))
            if groups
        )
        raise UsageError(f"order = {list(order)}: expected each of {list(topology.groups)} once ({wrong})")
    return Order(order)


def parse_tree(edges: Sequence[tuple[GroupId, GroupId]], topology: Topology) -> Tree:
    """Checks the option `edges` ([parent, child] pairs) against the topology; the default is a binary tree in the order
    of group ids."""
    groups = topology.groups
    if not edges:
        return Tree(groups[0], binary_edges(groups))
    parents: dict[GroupId, GroupId] = {}
    for parent, child in edges:
        for group in (parent, child):
            if group not in groups:
                raise UsageError(f"edges: group {group} of [{parent}, {child}] does not exist; expected {list(groups)}")
        if child in parents:
            raise UsageError(f"edges: group {child} has the parents {parents[child]} and {parent}; expected one")
        parents[child] = parent
    roots = [group for group in groups if group not in parents]
    if len(roots) != 1:
        raise UsageError(f"edges: {len(roots)} groups without a parent ({roots}); expected exactly one root")
    _check_acyclic(parents)
    return Tree(roots[0], [(parent, child) for parent, child in edges])


def contact_lca(overlay: Callable[[Topology], Order | Tree]) -> Contacts:
    """Contacts at the lowest common ancestor of the destinations. The overlay is built once per topology."""
    built: dict[Topology, Order | Tree] = {}

    def contact(topology: Topology, message: Message) -> tuple[ProcessId, ...]:
        known = built.get(topology)
        if known is None:
            built.clear()
            known = built[topology] = overlay(topology)
        return topology.members(known.lca(message.destinations))

    return contact


def _check_acyclic(parents: dict[GroupId, GroupId]) -> None:
    for start in sorted(parents):
        group, steps = start, 0
        while group in parents:
            group, steps = parents[group], steps + 1
            if steps > len(parents):
                raise UsageError(f"edges: group {start} is below itself; expected a tree")


def binary_edges(groups: Sequence[GroupId]) -> tuple[tuple[GroupId, GroupId], ...]:
    """The edges of a binary tree: the n-th group has the 2n-th and the (2n+1)-th below it (C2 of paper 004)."""
    return tuple((groups[(place - 1) // 2], groups[place]) for place in range(1, len(groups)))


def star_edges(groups: Sequence[GroupId]) -> tuple[tuple[GroupId, GroupId], ...]:
    """The edges of a tree of height one: the first group above all others (C1 of paper 004)."""
    return tuple((groups[0], group) for group in groups[1:])
