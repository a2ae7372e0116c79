"""Adversaries: courses of faults in one group that independent faults rarely amount to.

    duel      members lead in turns while a minority is cut off, or the leader is heard by some members only: ballots
              with few votes, candidates that were cut off last and know least, a leader that is deposed and goes on
    memory    members lose their records one after the other, each as soon as the one before is readmitted
    power     all members of a group, or all servers, lose their power at once, and start again one by one

Each kind of fault that an adversary uses must be one of the run's kinds.
"""

from collections.abc import Collection
from random import Random
from typing import Final

from amcast.kernel.ids import GroupId, ProcessId
from amcast.kernel.topology import Topology
from amcast.simulation.inputs.faults import FaultInjector
from amcast.simulation.world.actions import Block, Fault, Heal, Suggest
from amcast.simulation.world.world import World

NEEDED: Final = {"duel": frozenset({"leaders"}), "memory": frozenset({"amnesia"}), "power": frozenset({"recovery"})}
"""The kinds of faults without which an adversary can do nothing."""
Course = tuple[Fault, ...]
"""Faults that happen one after the other; the first one now."""


class Adversary:
    """One adversary and its group."""

    def __init__(
        self, name: str, kinds: Collection[str], topology: Topology, injector: FaultInjector, random: Random
    ) -> None:
        self._name = name
        self._cuts = "partition" in kinds
        self._injector = injector
        self._random = random
        self._group = random.choice(topology.groups)
        self._cut: list[ProcessId] = []
        """The members that were cut off last."""

    def draw(self, world: World) -> list[Course]:
        """The courses that begin now; none if nothing fits."""
        members = world.topology.members(self._group)
        match self._name:
            case "duel":
                return [self._duel(self._group, members)]
            case "memory":
                victims = [member for member in members if member in world.processes]
                return [self._injector.draw_memory_loss(world, self._random.choice(victims))] if victims else []
            case _:
                servers = members if self._random.random() < 0.7 else world.topology.servers
                return [self._injector.draw_restart(world, server) for server in servers if server in world.processes]

    def _duel(self, group: GroupId, members: tuple[ProcessId, ...]) -> Course:
        """A member leads the others but for some that are cut off; one that was cut off before, if there is one."""
        random = self._random
        leader = random.choice(self._cut or members)
        others = [member for member in members if member != leader]
        random.shuffle(others)
        # The leader has a majority, or (it is deposed, or about to be) has not.
        self._cut = others[: random.randint(0, len(others))] if self._cuts else []
        listeners = [member for member in members if member not in self._cut]
        if random.random() < 0.5:
            listeners = [leader]
        suggestions: list[Fault] = [Suggest(member, group, leader) for member in listeners]
        if not self._cut:
            return tuple(suggestions)
        links = self._draw_cut(leader, members)
        if random.random() < 0.3:  # heard until it leads
            return (*suggestions, Block(links), Heal(links))
        return (Block(links), *suggestions, Heal(links))

    def _draw_cut(self, leader: ProcessId, members: tuple[ProcessId, ...]) -> tuple[tuple[ProcessId, ProcessId], ...]:
        """The links between those that are cut off and the rest, or what the leader says to them alone."""
        rest = [member for member in members if member not in self._cut]
        if self._random.random() < 0.3:
            return tuple((leader, member) for member in self._cut)
        pairs = [(one, other) for one in self._cut for other in rest]
        return tuple(pairs + [(other, one) for one, other in pairs])
