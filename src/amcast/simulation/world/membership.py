"""Changes of members in a world.

A world knows from the start every process that will ever exist. A process that is not a member yet, or not any more, is
`absent`: no delivery is expected of it. The operator, a client that sends nothing else, requests changes
(`kernel/reconfiguration.py`) one by one.
"""

from collections.abc import Collection, Sequence

from amcast.kernel.ids import GroupId, ProcessId, message_id
from amcast.kernel.reconfiguration import change_topology, make_change_message
from amcast.kernel.topology import Topology
from amcast.simulation.world.actions import Change
from amcast.simulation.world.world import World


def present_topology(world: World) -> Topology:
    """The topology without absent processes. While a change is under way it is one of the two that anybody can see."""
    if not world.absent:
        return world.topology
    groups = {
        group: [member for member in world.topology.members(group) if member not in world.absent]
        for group in world.topology.groups
    }
    return Topology(groups, world.topology.clients)


def list_planned_topologies(world: World, changes: Sequence[Change]) -> tuple[Topology, ...]:
    """The topology at the start of a world, and those after each planned change, in order."""
    topologies = [present_topology(world)]
    for one in changes:
        topologies.append(change_topology(topologies[-1], one.group, one.add, one.remove))
    return tuple(topologies)


def list_topologies_in_force(
    world: World, topologies: tuple[Topology, ...], dead: Collection[ProcessId]
) -> tuple[Topology, ...]:
    """The topologies whose quorums may still be needed. A configuration is over when all members of the next one but
    those that crashed for good have started it: one that has not asks, when it starts again, the members that it knows.
    """
    oldest = 0
    for configuration, topology in enumerate(topologies):
        if all(
            world.configurations.get(server, 0) >= configuration for server in topology.servers if server not in dead
        ):
            oldest = configuration
    return topologies[oldest:]


def can_change(world: World, change: Change) -> bool:
    """Whether the operator is up, has learnt that all its earlier changes are done, and removes nobody without whom
    fewer than a majority would take part (`amcast change` asks for that, too)."""
    operator = world.operator
    if operator not in world.processes or operator in world.paused:
        return False
    topology = world.processes[operator].topology
    if topology.configuration != world.changes:
        return False
    if change.remove is None:
        return change.add is None or change.add in world.absent
    members = [member for member in topology.members(change.group) if member != change.remove]
    return sum(_takes_part(world, member) for member in members) > len(members) // 2


def _takes_part(world: World, process: ProcessId) -> bool:
    """Whether a process is up and has its group's state."""
    if process not in world.processes:
        return False
    status = world.processes[process].status()
    is_admitted = status.get("admission", "admitted") == "admitted"
    return is_admitted and status.get("joined", 1) != 0 and int(status.get("configuration", 0)) >= 0


def request_change(world: World, group: GroupId, add: ProcessId | None, remove: ProcessId | None) -> None:
    """The operator multicasts the next topology. A process that joins boots, and waits to be told its configuration."""
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


def are_changes_done(world: World) -> bool:
    """Whether every process that was removed has stopped."""
    return not any(process in world.processes for process in world.leaving)


def add_member(world: World, process: ProcessId) -> None:
    """Makes a process a member: it must deliver, or learn by a snapshot, every message that its group has not
    delivered."""
    world.absent.discard(process)
    group = world.topology.group_of(process)
    for message, missing in world.undelivered.items():
        if group in world.undelivered_messages[message].destinations:
            missing.add(process)
