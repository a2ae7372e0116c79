"""A replica whose application has another state than those of its group, and what must become of it.

All members of a group have delivered the same, and take the states of their applications at that position. That of one
process differs, as after a flip in its memory. It must find out by comparison (`parts/node/replica_comparison.py`) and
stop for good; the others, a majority, must know which one is wrong, and go on.
"""

from typing import Final

from amcast.kernel.events import StateTaken
from amcast.kernel.ids import ProcessId
from amcast.simulation.world.world import POSITIONS_PER_STATE, World

LEAST_MEMBERS: Final = 3
"""In a smaller group nobody can tell who is wrong."""


def _find_members(world: World, process: ProcessId) -> tuple[ProcessId, ...]:
    group = world.topology.group_of(process)
    return () if group is None else world.topology.members(group)


def can_differ(world: World, process: ProcessId) -> bool:
    """Whether all members of the group of a process take part, agree, and have delivered the same, at a position where
    they have not taken their states yet."""
    members = _find_members(world, process)
    if len(members) < LEAST_MEMBERS or process not in world.folders or world.changes or world.differing:
        return False
    if any(member not in world.processes or member in world.paused for member in members):
        return False
    statuses = [world.processes[member].status() for member in members]
    is_sound = all((one.get("admission"), one.get("comparison")) == ("admitted", "equal") for one in statuses)
    positions = {world.positions[member] for member in members}
    return is_sound and len(positions) == 1 and positions.pop() % POSITIONS_PER_STATE > 0


def take_differing_states(world: World, process: ProcessId) -> None:
    """All members of a group take their states."""
    world.differing.add(process)
    for member in _find_members(world, process):
        world.step(member, (StateTaken(world.positions[member], int(member == process)),))


def is_refused(world: World, process: ProcessId) -> bool:
    """Whether a process has stopped, and the others of its group, as far as they run, know that it is wrong."""
    others = [one for one in _find_members(world, process) if one != process and one in world.processes]
    stopped = process not in world.processes or world.processes[process].status().get("admission") == "refused"
    return stopped and all(world.processes[one].status().get("comparison") == "majority" for one in others)


def judge_refusal(world: World, process: ProcessId) -> None:
    """Reports a process that takes part in spite of its state, or one that others do not know of."""
    if not is_refused(world, process):
        sentence = "has another state than its group; it has not stopped, or not all others know that it is wrong"
        world.report_violation(process, sentence)
