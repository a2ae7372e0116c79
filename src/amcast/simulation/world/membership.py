"""Members of a world: who joins, who leaves, and what a process that takes over a fellow's state has delivered.

A world knows from the start everybody who will ever be there. Who is no member yet, or not any more, is `absent` and
owes nothing. The operator, a client that sends nothing else, asks for changes (`kernel/reconfiguration.py`), one by
one.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from amcast.kernel.ids import GroupId, ProcessId, message_id
from amcast.kernel.reconfiguration import change_topology, make_change_message
from amcast.kernel.topology import Topology

if TYPE_CHECKING:
    from amcast.simulation.world.actions import Change
    from amcast.simulation.world.world import World


def present_topology(world: "World") -> Topology:
    """The topology of those that are members, as far as anybody can say while a change is on its way."""
    if not world.absent:
        return world.topology
    groups = {
        group: [member for member in world.topology.members(group) if member not in world.absent]
        for group in world.topology.groups
    }
    return Topology(groups, world.topology.clients)


def list_planned_topologies(world: "World", changes: "Sequence[Change]") -> tuple[Topology, ...]:
    """The topology of a world that has not begun, and those that planned changes will bring, one after the other."""
    topologies = [present_topology(world)]
    for one in changes:
        topologies.append(change_topology(topologies[-1], one.group, one.add, one.remove))
    return tuple(topologies)


def list_topologies_in_force(world: "World", topologies: tuple[Topology, ...]) -> tuple[Topology, ...]:
    """Those whose quorums somebody may need, now or later: a number is over when majorities of the next have begun it,
    because then everybody has a fellow who can tell where that one begins."""
    begun = 0
    for number, topology in enumerate(topologies):
        if all(
            sum(world.configurations.get(member, 0) >= number for member in topology.members(group))
            >= topology.quorum(group)
            for group in topology.groups
        ):
            begun = number
    return topologies[begun:]


def can_change(world: "World", add: ProcessId | None) -> bool:
    """The operator is up, and knows that all that it asked for before was done."""
    operator = world.operator
    if operator not in world.processes or operator in world.paused:
        return False
    if world.processes[operator].topology.configuration != world.changes:
        return False
    return add is None or add in world.absent


def request_change(world: "World", group: GroupId, add: ProcessId | None, remove: ProcessId | None) -> None:
    """The operator multicasts the next topology; who is to be a member boots and waits to be told."""
    assert world.operator is not None
    topology = change_topology(world.processes[world.operator].topology, group, add, remove)
    if add is not None:
        add_member(world, add)
        world.boot(add)
        world.complete_writes(add)
    message = make_change_message(message_id(world.operator, world.changes), world.operator, topology)
    world.changes += 1
    world.submit(world.operator, message)
    if remove is not None:
        world.leaving.add(remove)


def are_changes_done(world: "World") -> bool:
    """Nobody that is up is about to leave."""
    return not any(process in world.processes for process in world.leaving)


def add_member(world: "World", process: ProcessId) -> None:
    """It will be a member: what its group has not delivered, all of it, it must deliver or be told of, too."""
    world.absent.discard(process)
    group = world.topology.group_of(process)
    for message, missing in world.undelivered.items():
        if group in world.undelivered_messages[message].destinations:
            missing.add(process)


def remove_member(world: "World", process: ProcessId) -> None:
    """It is no member any more, and nobody needs it."""
    world.absent.add(process)
    world.leaving.discard(process)
    for message in sorted(world.undelivered):
        world.record_delivered(process, message)
    world.crash(process)


def install_snapshot(world: "World", process: ProcessId, position: int) -> None:
    """A snapshot of a fellow member counts as having delivered its prefix."""
    group = world.topology.group_of(process)
    if group is None or position <= world.positions[process]:
        return
    fellows = world.topology.members(group)
    longest = max(fellows, key=lambda fellow: len(world.history[fellow]))
    prefix = world.history[longest][world.positions[process] : position]
    if world.keeps_history and len(world.history[longest]) < position:
        world.report_violation(process, f"installed a snapshot of position {position} that no member has reached")
    world.positions[process] = position
    if world.keeps_history:
        world.history[process].extend(prefix)
    for message in prefix:
        world.record_delivered(process, message)
