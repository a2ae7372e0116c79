"""Faults: their effects on a world, and profiles that draw them at random within the claims of a protocol.

A run has a fault phase and then heals. The fault injector never exceeds what the protocol claims to survive, so after
healing every due delivery is demanded.
"""

from collections.abc import Callable, Sequence
from random import Random
from typing import Final, Protocol

from amcast.kernel.errors import UsageError
from amcast.kernel.ids import GroupId, ProcessId
from amcast.kernel.spec import FAULTS, Claims, Links
from amcast.kernel.topology import Topology
from amcast.simulation.inputs.disk_faults import RATE, draw_disk_fault, draw_torn
from amcast.simulation.inputs.partitions import draw_partition, find_cut_members
from amcast.simulation.world.actions import (
    BeginRead,
    Block,
    Change,
    Collect,
    Crash,
    Differ,
    DiskFault,
    ExpectRefusal,
    Fault,
    Heal,
    Leave,
    Lossy,
    Pause,
    Recover,
    Renew,
    Restore,
    Resume,
    Skew,
    Slow,
    Suggest,
    Suspicion,
    Unreachable,
)
from amcast.simulation.world.differences import can_differ, judge_refusal, take_differing_states
from amcast.simulation.world.log_disk import MAX_FAILING, LogDisk
from amcast.simulation.world.membership import (
    can_change,
    list_topologies_in_force,
    present_topology,
    request_change,
)
from amcast.simulation.world.world import World

READMITTED_RATE: Final = 0.75
"""The share of faults that restart a process which was readmitted and has not started from its new disk: most runs
have few faults left by then."""


COPY_RATE: Final = 0.4
"""The share of restarts before which an operator copies the data folder, if the faults of the run put copies back."""

DRAWS: Final = 4
"""How often a fault is drawn if it does not fit."""


class FaultTarget(Protocol):
    """The part of a scheduler that faults act on."""

    slow: dict[ProcessId, int]

    def resume(self, process: ProcessId) -> None:
        """Handles the inputs that waited for a paused process."""

    def heal_links(self) -> None:
        """Releases the packets of links that are no longer blocked."""

    def set_loss(self, loss: float) -> None:
        """Sets the share of packets that links lose."""


def perform_fault(world: World, scheduler: FaultTarget, fault: Fault) -> bool:
    """Performs a fault if it applies to the state of the world; returns whether it did."""
    if not _is_applicable(world, fault):
        return False
    _note_fault(world, fault)
    match fault:
        case Crash(process, kept, torn):
            world.crash(process, kept, torn)
        case DiskFault(process, kind, draw):
            return world.disks[process].damage(kind, draw)
        case Recover(process, amnesia, emptied, rolled_back):
            world.recover(process, amnesia, emptied, rolled_back)
        case Pause(process):
            world.paused.add(process)
        case Resume(process):
            world.paused.discard(process)
            scheduler.resume(process)
        case Slow(process, extra_ns):
            if extra_ns:
                scheduler.slow[process] = extra_ns
            else:
                scheduler.slow.pop(process, None)
        case Block(pairs):
            world.blocked.update(pairs)
        case Heal(links):
            world.blocked.difference_update(links or tuple(world.blocked))
            scheduler.heal_links()
        case Lossy(loss):
            scheduler.set_loss(loss)
        case Renew(one, other):
            world.reset_link(one, other)
        case Suggest(process, group, leader):
            world.suggest(process, group, leader)
        case Suspicion(process, group, up):
            world.suspect(process, group, up)
        case Unreachable(process, peer):
            world.report_unreachable(process, peer)
        case Leave(process):
            world.say_farewell(process)
        case Collect(process, on):
            (world.collecting.add if on else world.collecting.discard)(process)
        case Restore(process):
            world.restore_from_snapshot(process)
        case BeginRead(process):
            world.begin_read(process)
        case Differ(process):
            take_differing_states(world, process)
        case ExpectRefusal(process):
            judge_refusal(world, process)
        case Skew(process, offset_ns, drift):
            world.skews[process] = (offset_ns, drift)
        case Change(group, add, remove):
            request_change(world, group, add, remove)
    return True


def _note_fault(world: World, fault: Fault) -> None:
    """Notes a fault in the trace, so that recovery can be measured. Oracles and faults without effect are not noted."""
    if world.recorder is None:
        return
    match fault:
        case Suggest() | Suspicion() | Unreachable() | Collect() | Restore() | BeginRead() | ExpectRefusal():
            return
        case Slow(_, 0) | Lossy(0.0):
            return
        case Heal():
            if not world.blocked:
                return
            process = world.topology.processes[0]
        case Lossy():
            process = world.topology.processes[0]
        case Block(pairs):
            process = pairs[0][0] if pairs else world.topology.processes[0]
        case Renew(one):
            process = one
        case Change():
            process = world.topology.processes[0] if world.operator is None else world.operator
        case _:
            process = fault.process
    world.recorder.record_note(process, world.now, f"fault-{type(fault).__name__.lower()}")


def _is_applicable(world: World, fault: Fault) -> bool:
    """Whether a fault applies: only a running process can crash, no paused process hears an oracle, and so on."""
    match fault:
        case Crash(process) | Restore(process):
            return process in world.processes
        case Recover(process, _, emptied, rolled_back):
            has_folder = process in world.folders and not (rolled_back and world.storage)
            is_possible = has_folder or not (emptied or rolled_back)
            return process in world.down and world.disks[process].can_start and is_possible
        case DiskFault(process):
            return world.storage > 0 and world.topology.group_of(process) is not None
        case Pause(process):
            return process in world.processes and process not in world.paused
        case Resume(process):
            return process in world.paused or process in world.down
        case Suggest(process) | Suspicion(process) | Unreachable(process):
            return process in world.processes and process not in world.paused
        case Leave(process):
            return world.node_bodies.farewell is not None and process in world.processes and process not in world.paused
        case Collect(process):
            return world.topology.group_of(process) is not None
        case BeginRead(process):
            return process in world.processes and process not in world.paused and world.processes[process].is_readable
        case Differ(process):
            return can_differ(world, process)
        case ExpectRefusal(process):
            return process in world.differing
        case Change():
            return can_change(world, fault)
        case Renew(one, other):
            return one != other and one in world.processes and other in world.processes
        case _:
            return True


def count_noticeable_records(world: World, process: ProcessId) -> int:
    """How many of the last records an older copy of a folder must lack so that so many members remember more than it
    has that one of them is in every majority; 0 if it has not as many records."""
    group = world.topology.group_of(process)
    assert group is not None, f"process {process} is in no group"
    members = present_topology(world).members(group)
    needed = len(members) - len(members) // 2
    counts = sorted(
        (known.records for member in members for known in world.folders[member].peers if known.process == process),
        reverse=True,
    )
    disk = world.disks[process]
    if len(counts) < needed or counts[needed - 1] <= 0:
        return 0
    depth = disk.count - counts[needed - 1] + 1
    return depth if depth <= len(disk.records) else 0


def is_copy_noticeable(world: World, process: ProcessId) -> bool:
    """Whether so many members remember more records of a folder than its operator's copy has, or a later start, that
    one of them is in every majority. A later incarnation is not enough: the copy counts its starts, too, and may be
    started, and crash, more than once before anybody is asked."""
    group, disk = world.topology.group_of(process), world.disks[process]
    assert group is not None, f"process {process} is in no group"
    if type(disk) is not LogDisk or not disk.has_identity or disk.copied_state is None:
        return False
    members = present_topology(world).members(group)
    known = [one for member in members for one in world.folders[member].peers if one.process == process]
    copied = disk.copied_state
    starts = {start for _, start in copied.starts}
    more = sum(one.records > disk.copied or (one.folder == copied.folder and one.start not in starts) for one in known)
    return more >= len(members) - len(members) // 2


def parse_profile(name: str, claims: Claims, protocol: str) -> frozenset[str]:
    """Parses a profile: "none", one kind, several joined by "+", or "all" kinds that the protocol claims."""
    if name == "none":
        return frozenset()
    if name == "all":
        return frozenset(claims.faults)
    kinds = frozenset(name.split("+"))
    for kind in sorted(kinds):
        if kind not in FAULTS:
            known = ", ".join(FAULTS)
            raise UsageError(f"faults = {name!r}: no kind {kind!r}; expected none, all, or kinds joined by +: {known}")
        if kind not in claims.faults:
            claimed = ", ".join(k for k in FAULTS if k in claims.faults) or "none"
            raise UsageError(f"faults = {name!r}: {protocol} does not claim to survive {kind!r}; it claims {claimed}")
    return kinds


class FaultInjector:
    """Draws faults of some kinds, never beyond the claims of the protocol, and the actions that heal them."""

    def __init__(
        self,
        kinds: frozenset[str],
        claims: Claims,
        random: Random,
        scale_ns: int,
        topologies: tuple[Topology, ...] = (),
        links: Links = "raw",
    ) -> None:
        """`links`: those of the run. Where no packet can be lost, no loss is drawn."""
        self._kinds = [kind for kind in FAULTS if kind in kinds and (kind != "loss" or links == "raw")]
        self._claims = claims
        self._random = random
        self._scale_ns = scale_ns
        """About one message delay: the unit of durations and skews."""
        self._topologies = topologies
        """All topologies of the run, where members change (`simulation/world/membership.py`)."""
        self._crashed_for_good: set[ProcessId] = set()
        """Processes that crashed for good."""
        self._lost_disks: dict[ProcessId, int] = {}
        """Processes that lost their records, and in which incarnation: they count for no quorum until their group has
        readmitted them without records."""
        self._rolled_back: set[ProcessId] = set()
        """Those of them whose group has to notice it: its other members must remember."""
        self._emptied: dict[ProcessId, int] = {}
        """The incarnations in which processes last lost the whole disk."""
        self._readmitted: dict[ProcessId, int] = {}
        """Processes that lost their disk and have, on the new one, the records with which their group readmitted them,
        and the incarnations that were readmitted. They may crash again, and count again for quorums."""
        self._farewells: dict[ProcessId, int] = {}
        """The incarnations in which processes said farewell."""
        self._emptied_folders: set[ProcessId] = set()
        """Processes that were started with an emptied folder: their group refuses them until they are replaced."""

    def draw(self, world: World) -> tuple[Fault, ...]:
        """Draws a fault and the actions that end it (performed some time later); nothing if no fault fits."""
        for _ in range(DRAWS if self._kinds else 0):
            drawn = self._draw_once(world)
            if drawn:
                return drawn
        return ()

    def _draw_once(self, world: World) -> tuple[Fault, ...]:
        self._find_readmitted(world)
        fresh = self._list_not_restarted(world)
        if fresh and self._random.random() < READMITTED_RATE:
            process = self._random.choice(fresh)
            return self._restart(world, process) if "recovery" in self._kinds else self._say_farewell(world, process)
        if world.storage and "recovery" in self._kinds and self._random.random() < RATE:
            return self._disk_fault(world)
        kind = self._random.choice(self._kinds)
        draws: dict[str, Callable[[World], tuple[Fault, ...]]] = {
            "pause": self._pause,
            "slow": self._slow,
            "partition": self._partition,
            "loss": lambda world: (Lossy(self._random.choice((0.1, 0.3, 0.6))), Lossy(0.0)),
            "skew": self._skew,
            "leaders": self._leaders,
            "suspects": self._suspects,
            "unreachable": self._unreachable,
            "links": self._links,
            "crash": lambda world: self._hit(world, self._crash_for_good),
            "leave": lambda world: self._hit(world, self._say_farewell),
            "recovery": lambda world: self._hit(world, self._restart),
            "amnesia": lambda world: self._hit(world, self._forget),
            "emptied": lambda world: self._hit(world, self._empty_folder),
            "rollback": lambda world: self._hit(world, self._roll_back_folder),
        }
        return draws[kind](world)

    def _hit(self, world: World, draw: Callable[[World, ProcessId], tuple[Fault, ...]]) -> tuple[Fault, ...]:
        """A fault of a chosen server; nothing if there is none."""
        process = self._choose_victim(world)
        return () if process is None else draw(world, process)

    def draw_crash(self, world: World, process: ProcessId) -> tuple[Fault, ...]:
        """Draws how a process crashes at this moment, and the actions that end it; nothing if it may not."""
        kinds = [kind for kind in ("crash", "recovery", "recovery", "amnesia") if kind in self._kinds]
        is_server = process in world.processes and world.topology.group_of(process) is not None
        if not kinds or not is_server or self._has_left(world, process):
            return ()
        self._find_readmitted(world)
        draws = {"crash": self._crash_for_good, "recovery": self._restart, "amnesia": self._forget}
        return draws[self._random.choice(kinds)](world, process)

    def draw_restart(self, world: World, process: ProcessId) -> tuple[Fault, ...]:
        """A process crashes and starts again with its records; nothing if it would have none, or leaves already."""
        if self._has_left(world, process) or not world.disks[process].records:
            return ()
        return self._restart(world, process)

    def draw_memory_loss(self, world: World, process: ProcessId) -> tuple[Fault, ...]:
        """A process loses its records in one of the ways of this run; nothing if it may not."""
        self._find_readmitted(world)
        if self._has_left(world, process) or process in self._lost_disks:
            return ()
        draws = {"amnesia": self._forget, "emptied": self._empty_folder, "rollback": self._roll_back_folder}
        kinds = [kind for kind in draws if kind in self._kinds]
        self._random.shuffle(kinds)
        return next((faults for kind in kinds if (faults := draws[kind](world, process))), ())

    def may_forget(self, world: World, process: ProcessId) -> bool:
        """Whether a process may lose its memory now, on top of what others have lost."""
        if self._has_left(world, process) or process in self._lost_disks:
            return False
        return self._is_tolerated(world, (process,))

    def is_readmitted(self, process: ProcessId) -> bool:
        """Whether a process lost its disk once, and was readmitted with a new one."""
        return process in self._readmitted

    def has_memory(self, world: World, process: ProcessId) -> bool:
        """Whether a process has its records, or was readmitted without them."""
        self._find_readmitted(world)
        return process not in self._lost_disks

    def _find_readmitted(self, world: World) -> None:
        """Finds the processes whose group has readmitted them, and whose disk says so."""
        for process, incarnation in sorted(self._lost_disks.items()):
            disk = world.disks[process]
            if process not in world.processes or world.memory_losses.get(process, -1) <= incarnation:
                continue
            if self._is_emptied(world, process) or disk.busy or not disk.records:
                continue
            status = world.processes[process].status()
            if status.get("joined", 0) and status.get("admission", "admitted") == "admitted":
                del self._lost_disks[process]
                self._rolled_back.discard(process)
                self._readmitted[process] = world.incarnations[process]

    def _list_not_restarted(self, world: World) -> list[ProcessId]:
        """Readmitted processes that have not started from their new disk, if the faults of this run restart any."""
        if not {"recovery", "leave"} & set(self._kinds):
            return []
        return [
            process
            for process, incarnation in sorted(self._readmitted.items())
            if process in world.processes
            and world.incarnations[process] == incarnation
            and not self._has_left(world, process)
        ]

    def _is_emptied(self, world: World, process: ProcessId) -> bool:
        """Whether a process must start with an empty disk: it has lost its disk and not started again since, or its
        folder was emptied, and its group refuses it until it is replaced."""
        return process in self._emptied_folders or self._emptied.get(process) == world.incarnations[process]

    def _has_left(self, world: World, process: ProcessId) -> bool:
        """Whether a process has said farewell and not started again since: nobody trusts it."""
        return self._farewells.get(process) == world.incarnations[process]

    def list_healing(self, world: World) -> list[Fault]:
        """The actions that bring the system to the state that the claims presume."""
        healing: list[Fault] = [Heal(), Lossy(0.0)]
        healing += [
            DiskFault(process, "space") for process in world.topology.servers if world.disks[process].is_failing
        ]
        healing += [Resume(process) for process in sorted(world.paused)]
        healing += [Slow(process, 0) for process in world.topology.processes if "slow" in self._kinds]
        healing += [Crash(process) for process in sorted(self._crashed_for_good) if process in world.processes]
        back = sorted(
            process for process in world.down if process not in self._crashed_for_good and process not in world.absent
        )
        healing += [Recover(process, self._is_emptied(world, process)) for process in back]
        for process in sorted(self._emptied_folders - set(back)):
            if process in world.processes:
                healing += [Crash(process), Recover(process, True)]
        for process in sorted(self._farewells):
            if process in world.processes and self._has_left(world, process) and process not in self._emptied_folders:
                healing += [Crash(process, self._draw_kept(world, process)), Recover(process)]
        return healing

    def list_stable_leaders(self, world: World) -> list[Fault]:
        """Suggestions of one running leader per group to every process, as an oracle makes in the end."""
        suggestions: list[Fault] = []
        for group in world.topology.groups:
            members = [member for member in world.topology.members(group) if member in world.processes]
            if members:
                suggestions += [Suggest(process, group, members[0]) for process in sorted(world.processes)]
        return suggestions

    def list_true_suspicions(self, world: World) -> list[Fault]:
        """Reports of the true state of every group to every process: wrong suspicions end."""
        suggestions: list[Fault] = []
        for group in world.topology.groups:
            up = any(member in world.processes for member in world.topology.members(group))
            suggestions += [Suspicion(process, group, up) for process in sorted(world.processes)]
        return suggestions

    def _up(self, world: World) -> list[ProcessId]:
        return [process for process in world.topology.servers if process in world.processes]

    def _pause(self, world: World) -> tuple[Fault, ...]:
        awake = [process for process in sorted(world.processes) if process not in world.paused]
        if not awake:
            return ()
        process = self._random.choice(awake)
        return (Pause(process), Resume(process))

    def _slow(self, world: World) -> tuple[Fault, ...]:
        process = self._random.choice(world.topology.processes)
        return (Slow(process, self._random.randint(1, 3) * self._scale_ns), Slow(process, 0))

    def _partition(self, world: World) -> tuple[Fault, ...]:
        """Blocks links until they heal, or several times. A group whose member lost its majority may be told of another
        leader: the member's own oracle goes on to suggest it."""
        links = draw_partition(world.topology, self._random)
        suggestions: list[Fault] = []
        if "leaders" in self._kinds and self._random.random() < 0.7:
            suggestions = self._replace_leaders(world.topology, find_cut_members(world.topology, links))
        flaps: list[Fault] = [Block(links), Heal(links)] * self._random.choice((0, 0, 0, 2))
        return (Block(links), *suggestions, Heal(links), *flaps)

    def _replace_leaders(self, topology: Topology, cut: Sequence[ProcessId]) -> list[Fault]:
        """Suggestions of one leader to all members that are not cut off, in each group that has some that are."""
        suggestions: list[Fault] = []
        for group in topology.groups:
            connected = [member for member in topology.members(group) if member not in cut]
            if connected and len(connected) < len(topology.members(group)):
                leader = self._random.choice(connected)
                suggestions += [Suggest(member, group, leader) for member in connected]
        return suggestions

    def _skew(self, world: World) -> tuple[Fault, ...]:
        process = self._random.choice(world.topology.processes)
        offset = self._random.choice((-5000, -100, -3, 3, 100, 5000)) * self._scale_ns
        return (Skew(process, offset, self._random.choice((0.0, 0.0, -0.01, 0.01))),)

    def _leaders(self, world: World) -> tuple[Fault, ...]:
        group = self._random.choice(world.topology.groups)
        if len(world.topology.members(group)) > 2 and self._random.random() < 0.3:
            return self._duel(world.topology.members(group), group)
        leader = self._random.choice(world.topology.members(group))
        listeners = [process for process in sorted(world.processes) if process not in world.paused]
        if listeners and self._random.random() < 0.7:
            return (Suggest(self._random.choice(listeners), group, leader),)
        return tuple(Suggest(process, group, leader) for process in world.topology.members(group))

    def _duel(self, members: Sequence[ProcessId], group: GroupId) -> tuple[Fault, ...]:
        """Two members are told in turns that they lead, while a third one hears nobody in the group for some time: what
        it promised and voted for before is old when it is heard again."""
        one, other, third = self._random.sample(list(members), 3)
        turns = [Suggest(rival, group, rival) for rival in (one, other, one, other)]
        if "partition" not in self._kinds:
            return tuple(turns)
        pairs = [(third, member) for member in members if member != third]
        links = tuple(pairs + [(member, third) for member in members if member != third])
        return (Block(links), *turns[:2], Heal(links), *turns[2:])

    def _suspects(self, world: World) -> tuple[Fault, ...]:
        group = self._random.choice(world.topology.groups)
        process = self._random.choice(self._up(world) or list(world.topology.servers))
        return (Suspicion(process, group, False), Suspicion(process, group, True))

    def _links(self, world: World) -> tuple[Fault, ...]:
        one, other = self._random.sample(world.topology.processes, 2)
        return (Renew(one, other),)

    def _unreachable(self, world: World) -> tuple[Fault, ...]:
        """A process is told that nobody is at another's address: the truth, if a process is down."""
        process = self._random.choice(self._up(world) or list(world.topology.servers))
        group = world.topology.group_of(process)
        peers = [peer for peer in world.topology.processes if peer != process]
        near = [peer for peer in peers if world.topology.group_of(peer) == group]
        down = [peer for peer in peers if peer in world.down]
        chosen = self._random.choice([kind for kind in (peers, near, near, down) if kind] or [[]])
        return (Unreachable(process, self._random.choice(chosen)),) if chosen else ()

    def _say_farewell(self, world: World, process: ProcessId) -> tuple[Fault, ...]:
        """A process says farewell, stops soon after and starts again."""
        if process in self._emptied_folders or process in world.paused:
            return ()
        if world.node_bodies.farewell is None or not world.disks[process].records:
            return ()
        self._farewells[process] = world.incarnations[process]
        return (Leave(process), Crash(process, self._draw_kept(world, process)), Recover(process))

    def _crash_for_good(self, world: World, process: ProcessId) -> tuple[Fault, ...]:
        crashed = self._choose_crashes(world, process)
        self._crashed_for_good.update(crashed)
        return tuple(Crash(one, self._draw_kept(world, one)) for one in crashed)

    def _choose_crashes(self, world: World, process: ProcessId) -> tuple[ProcessId, ...]:
        """The processes that crash for good: one or, where the claims allow it, its whole group."""
        group = world.topology.group_of(process)
        members = () if group is None else world.topology.members(group)
        alone = self._is_tolerated(world, (process,))
        if self._is_tolerated(world, members) and (not alone or self._random.random() < 0.5):
            return (process, *(member for member in members if member != process and member in world.processes))
        return (process,) if alone else ()

    def _is_tolerated(self, world: World, crashed: Sequence[ProcessId]) -> bool:
        """Whether these may crash for good, too: in every topology whose quorums are still needed or to come."""
        if any(self._is_in_group_of(world, process, crashed) for process in self._rolled_back):
            return False
        lost = frozenset(self._crashed_for_good.union(self._lost_disks, crashed))
        return all(
            self._claims.tolerates(topology, lost)
            for topology in list_topologies_in_force(
                world, self._topologies or (world.topology,), self._crashed_for_good
            )
        )

    def _has_constant_group(self, world: World, process: ProcessId) -> bool:
        """Whether the group of a process has the same members throughout. An older copy names the members of its time,
        and an operator who puts it back gives the node its present ones; nobody does that here."""
        group = world.topology.group_of(process)
        assert group is not None, f"process {process} is in no group"
        return len({topology.members(group) for topology in self._topologies}) <= 1

    def _is_in_group_of(self, world: World, process: ProcessId, others: Sequence[ProcessId]) -> bool:
        group = world.topology.group_of(process)
        return any(world.topology.group_of(other) == group for other in others if other != process)

    def _restart(self, world: World, process: ProcessId) -> tuple[Fault, ...]:
        if not world.disks[process].records:
            return self._forget(world, process)  # it would start with an empty disk
        crash = Crash(process, self._draw_kept(world, process), draw_torn(world, self._random))
        recover = Recover(process, process in self._emptied_folders)
        if "rollback" in self._kinds and world.storage and self._random.random() < COPY_RATE:
            return (DiskFault(process, "copy"), crash, recover)  # the copy lacks no record, and the next start
        return (crash, recover)

    def _disk_fault(self, world: World) -> tuple[Fault, ...]:
        process = self._choose_victim(world)
        busy = [one for one in self._up(world) if world.disks[one].busy]
        if busy and self._random.random() < 0.7:
            process = self._random.choice(busy)
        if process is None or process in self._lost_disks or not world.disks[process].records:
            return ()
        return draw_disk_fault(world, process, self._random, lambda process: self._may_lose(world, process))

    def _may_lose(self, world: World, process: ProcessId) -> bool:
        """Whether a process may lose its records; then it counts as one that has."""
        if "amnesia" not in self._kinds or not self._is_tolerated(world, (process,)):
            return False
        self._lose(world, process)
        return True

    def _lose(self, world: World, process: ProcessId) -> None:
        """Counts a process as one that has lost its records."""
        self._lost_disks[process] = world.incarnations[process]
        self._readmitted.pop(process, None)
        self._emptied.pop(process, None)

    def _forget(self, world: World, process: ProcessId) -> tuple[Fault, ...]:
        if "amnesia" not in self._claims.faults or not self._is_tolerated(world, (process,)):
            return ()
        self._lose(world, process)
        self._emptied[process] = world.incarnations[process]
        return (Crash(process), Recover(process, True))

    def _empty_folder(self, world: World, process: ProcessId) -> tuple[Fault, ...]:
        """A node starts with a folder that was emptied; an operator replaces it later."""
        if process not in world.folders or not self._has_constant_group(world, process):
            return ()
        if not self._is_tolerated(world, (process,)):
            return ()
        self._lose(world, process)
        self._emptied_folders.add(process)
        return (Crash(process), Recover(process, emptied=True), Crash(process), Recover(process, True))

    def _roll_back_folder(self, world: World, process: ProcessId) -> tuple[Fault, ...]:
        """A node starts with an older copy of its folder: the given one, or another of which others remember more."""
        others = [other for other in self._up(world) if other != process]
        self._random.shuffle(others)
        for victim in (process, *others):
            faults = self._roll_back(world, victim)
            if faults:
                self._lose(world, victim)
                self._rolled_back.add(victim)
                return faults
        return ()

    def _roll_back(self, world: World, process: ProcessId) -> tuple[Fault, ...]:
        """How a node's folder is rolled back; nothing if it may not be, or if too few members could notice it."""
        if process not in world.folders or process in self._lost_disks or self._has_left(world, process):
            return ()
        if not self._has_constant_group(world, process) or not self._is_tolerated(world, (process,)):
            return ()
        if any(self._is_in_group_of(world, process, (other,)) for other in self._lost_disks):
            return ()  # what others remember may be lost, too
        if not world.storage:
            depth = count_noticeable_records(world, process)
            return (Crash(process), Recover(process, rolled_back=depth)) if depth else ()
        if not is_copy_noticeable(world, process):
            return ()
        return (DiskFault(process, "old", self._random.randrange(MAX_FAILING)), Crash(process), Recover(process))

    def _choose_victim(self, world: World) -> ProcessId | None:
        """A server that is up; often one that a crash may hurt: one with records that are not durable, or a leader."""
        up = [process for process in self._up(world) if not self._has_left(world, process)]
        if not up:
            return None
        busy = [process for process in up if world.disks[process].busy]
        leading = [process for process in up if world.processes[process].is_leader]
        preferred = self._random.choice((up, up, busy, leading)) or up
        return self._random.choice(preferred)

    def _draw_kept(self, world: World, process: ProcessId) -> int:
        return self._random.randint(0, len(world.disks[process].waiting))
