"""Partitions: which links of a topology are blocked, drawn at random.

Two sides that do not hear each other are the mildest of them: everybody on one side agrees about who is there. A
partial partition is worse, because processes disagree: a leader that has lost its own group still hears all others, one
process hears two sides that do not hear each other, a link works in one direction only.
"""

from collections.abc import Callable, Iterable
from random import Random
from typing import Final

from amcast.kernel.ids import ProcessId
from amcast.kernel.topology import Topology

Pair = tuple[ProcessId, ProcessId]
"""A source and a target."""

Shape = Callable[[Topology, Random], list[Pair]]


def _cut_sides(topology: Topology, random: Random) -> list[Pair]:
    """Two sides do not hear each other."""
    processes = _shuffle(topology.processes, random)
    size = random.randint(1, max(1, len(processes) // 2))
    return _pair_up(processes[:size], processes[size:])


def _cut_member_from_group(topology: Topology, random: Random) -> list[Pair]:
    """One member loses the others of its group and hears everybody else. The first member often leads."""
    members = topology.members(random.choice(topology.groups))
    member = members[0] if random.random() < 0.5 else random.choice(members)
    return _pair_up((member,), [other for other in members if other != member])


def _cut_member_from_group_and_clients(topology: Topology, random: Random) -> list[Pair]:
    """The same, and no client reaches the member: it keeps company with other groups only."""
    pairs = _cut_member_from_group(topology, random)
    return pairs + _pair_up((pairs[0][0],), topology.clients) if pairs else []


def _cut_member_from_others(topology: Topology, random: Random) -> list[Pair]:
    """One member hears its own group only."""
    members = topology.members(random.choice(topology.groups))
    return _pair_up((random.choice(members),), [other for other in topology.processes if other not in members])


def _cut_bridge(topology: Topology, random: Random) -> list[Pair]:
    """Two sides hear each other through one process only, which hears both."""
    processes = _shuffle(topology.processes, random)[1:]
    size = random.randint(1, max(1, len(processes) // 2))
    return _pair_up(processes[:size], processes[size:])


def _cut_chains(topology: Topology, random: Random) -> list[Pair]:
    """The members of each group form a chain and hear their neighbours, and everybody else."""
    pairs: list[Pair] = []
    for group in topology.groups:
        chain = _shuffle(topology.members(group), random)
        for place, member in enumerate(chain):
            pairs += _pair_up((member,), chain[place + 2 :])
    return pairs


def _cut_pairs(topology: Topology, random: Random) -> list[Pair]:
    """Each pair of processes is cut with the same probability."""
    share = random.choice((0.1, 0.3, 0.6))
    processes = topology.processes
    return [
        (one, other)
        for place, one in enumerate(processes)
        for other in processes[place + 1 :]
        if random.random() < share
    ]


SHAPES: Final[tuple[Shape, ...]] = (
    _cut_sides,
    _cut_member_from_group,
    _cut_member_from_group_and_clients,
    _cut_member_from_others,
    _cut_bridge,
    _cut_chains,
    _cut_pairs,
)
"""Drawn with equal probability."""


def draw_partition(topology: Topology, random: Random) -> tuple[Pair, ...]:
    """Links to block, by source and target: both directions of a shape, one of them, or one drawn for each pair."""
    pairs = random.choice(SHAPES)(topology, random) or _cut_sides(topology, random)  # a group of one has no inner links
    ways = random.choice((1, 2, 3, 3, 0))
    links: list[Pair] = []
    for one, other in pairs:
        chosen = ways or random.choice((1, 2, 3))
        links += [(one, other)] if chosen & 1 else []
        links += [(other, one)] if chosen & 2 else []
    return tuple(links)


def find_cut_members(topology: Topology, links: Iterable[Pair]) -> list[ProcessId]:
    """Members that hear no majority of their group, themselves included, or are not heard by one."""
    blocked = set(links)
    cut = []
    for group in topology.groups:
        members, quorum = topology.members(group), topology.quorum(group)
        for member in members:
            reaching = sum((other, member) not in blocked for other in members)
            reached = sum((member, other) not in blocked for other in members)
            if min(reaching, reached) < quorum:
                cut.append(member)
    return cut


def _shuffle(processes: Iterable[ProcessId], random: Random) -> list[ProcessId]:
    shuffled = list(processes)
    random.shuffle(shuffled)
    return shuffled


def _pair_up(some: Iterable[ProcessId], others: Iterable[ProcessId]) -> list[Pair]:
    others = tuple(others)
    return [(one, other) for one in some for other in others]
