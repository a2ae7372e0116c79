"""Faults of disks, drawn at random, for runs in which records live in the real log (`simulation/world/log_disk.py`).

Torn and short writes, failing syncs and full disks harm nobody who waits for the disk: they are drawn for every
protocol whose processes may restart. Rot and lost writes cost a process its records; they are drawn only where the
protocol survives that, and for as many processes. Copies are taken here and put back by the fault kind `rollback`.
"""

from collections.abc import Callable
from random import Random
from typing import Final

from amcast.kernel.ids import ProcessId
from amcast.simulation.world.actions import Crash, DiskFault, Fault, Recover
from amcast.simulation.world.world import World

SHARE: Final = 0.5
"""How many runs keep records in the real log."""
RATE: Final = 0.35
"""How many faults of such a run are faults of disks."""

MANY: Final = 64
"""More records than wait for a disk at one time."""


def draw_storage(random: Random) -> int:
    """Draws the segment size of a run; 0: records live in a list. Small segments begin and end often."""
    return random.choice((2048, 4096, 16384)) if random.random() < SHARE else 0


def draw_torn(world: World, random: Random) -> int:
    """Draws how a crash tears what is being written; 0: not at all."""
    return random.randint(1, 1 << 20) if world.storage and random.random() < 0.6 else 0


def draw_disk_fault(
    world: World, process: ProcessId, random: Random, lose: Callable[[ProcessId], bool]
) -> tuple[Fault, ...]:
    """Draws a fault of one disk, and the actions that end it. `lose` tells whether the process may lose its records,
    and counts it as one that has."""
    draw = random.randint(0, 1 << 20)
    crash = Crash(process, random.choice((0, 1, MANY)), draw_torn(world, random))
    kind = random.choice(("short", "short", "fail", "cut", "full", "lost", "rot", "rot", "copy"))
    if world.disks[process].busy and random.random() < 0.6:
        kind = "torn"
    if kind in ("lost", "rot") and not lose(process):
        kind = "short"
    match kind:
        case "torn":
            return (Crash(process, random.choice((1, MANY)), 1 + draw), Recover(process))
        case "full":
            return (DiskFault(process, "full"), DiskFault(process, "space"), Recover(process))
        case "cut":
            return (DiskFault(process, "cut", draw), crash, Recover(process))
        case "fail":
            return (DiskFault(process, "fail"), Recover(process))
        case "copy":
            return (DiskFault(process, "copy"),)
        case "lost":
            return (DiskFault(process, "lost", draw), crash, Recover(process))
        case "rot":
            return (DiskFault(process, "rot", draw), crash, Recover(process))
        case _:
            return (DiskFault(process, "short", draw), crash, Recover(process))
