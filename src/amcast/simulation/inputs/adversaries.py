"""Adversaries: courses of faults in one group that independent faults rarely amount to.

    duel      members lead in turns while a minority is cut off, or the leader is heard by some members only: ballots
              with few votes, candidates that were cut off last and know least, a leader that is deposed and goes on;
              or it comes back with what it proposed alone, before its successor has proposed as much
    memory    members lose their records one after the other, each as soon as the one before is readmitted; or one loses
              them that has just answered a candidate, whom the others hear only when they have readmitted it; that has
              stood for ballots of which nobody heard, and stands again; or that is the first one of its group in a new
              configuration, in which it spoke to other groups
    laggard   a member hears one other alone, while its group goes on: it asks for what it lacks, and gets it from there
    power     all members of a group, or all servers, lose their power at once, and start again one by one

Each kind of fault that an adversary uses must be one of the run's kinds. Most courses are faults with some time between
them; a plot waits for what processes do, because what it is after takes as long as it takes.
"""

from collections.abc import Collection, Generator
from random import Random
from typing import Final

from amcast.kernel.ids import GroupId, ProcessId
from amcast.kernel.topology import Topology
from amcast.simulation.inputs.faults import FaultInjector
from amcast.simulation.world.actions import AnyAction, Arrive, Block, Fault, Heal, Suggest
from amcast.simulation.world.world import World

NEEDED: Final = {
    "duel": frozenset({"leaders"}),
    "laggard": frozenset({"partition"}),
    "memory": frozenset({"amnesia"}),
    "power": frozenset({"recovery"}),
}
"""The kinds of faults without which an adversary can do nothing."""
Course = tuple[Fault, ...]
"""Faults that happen one after the other; the first one now."""
Plot = Generator[Course, AnyAction, None]
"""Hears every action of a run, and answers with the courses that begin then."""
QUIET: Final = 12
"""The steps after which a plot expects no further promise of a member."""
PATIENCE: Final = 150
"""The steps for which a plot waits for one thing."""


class Adversary:
    """One adversary and its group."""

    def __init__(
        self, name: str, kinds: Collection[str], topology: Topology, injector: FaultInjector, random: Random
    ) -> None:
        self._name = name
        self._cuts = "partition" in kinds
        self._leads = "leaders" in kinds
        self._forgets = "amnesia" in kinds
        self._watched = 0
        """The last change for which a plot waited: each is waited for once, because no other fault begins meanwhile."""
        self._injector = injector
        self._random = random
        self._group = random.choice(topology.groups)
        self._cut: list[ProcessId] = []
        """The members that were cut off last."""
        self._plot: Plot | None = None
        self.focus: tuple[ProcessId, ...] = ()
        """The processes between which a plot waits for something: packets and disks of others come later. Timers fire
        at the first of them."""

    def draw(self, world: World) -> list[Course]:
        """The courses that begin now; none if nothing fits."""
        if all(_find_promise(world, server) < 0 for server in world.topology.members(self._group)):
            self._group = self._choose_group(world)
        members = world.topology.members(self._group)
        match self._name:
            case _ if course := self._overtake(world):
                return [course]
            case "duel":
                return [self._return_leader(world, members) or self._duel(self._group, members)]
            case "memory":
                return [self._take_memory(world, members)]
            case "laggard":
                return [self._begin_starving(world, members)]
            case _:
                servers = members if self._random.random() < 0.7 else world.topology.servers
                return [self._injector.draw_restart(world, server) for server in servers if server in world.processes]

    def _choose_group(self, world: World) -> GroupId:
        """A group whose members have begun to agree by ballots, if there is one: in some protocols few do."""
        groups = world.topology.groups
        active = [
            group for group in groups if any(_find_promise(world, one) >= 0 for one in world.topology.members(group))
        ]
        return self._random.choice(active or groups)

    @property
    def is_plotting(self) -> bool:
        return self._plot is not None

    def follow(self, action: AnyAction) -> Course:
        """The course that a plot begins after an action."""
        if self._plot is None:
            return ()
        try:
            return self._plot.send(action)
        except StopIteration:
            self._plot, self.focus = None, ()
            return ()

    def _take_memory(self, world: World, members: tuple[ProcessId, ...]) -> Course:
        """A member loses its records, now or by a plot."""
        victims = [
            member for member in members if member in world.processes and self._injector.may_forget(world, member)
        ]
        if not victims or self._plot is not None:
            return ()
        victim = self._random.choice(victims)
        others = [member for member in members if member != victim]
        plots = [self._betray, self._stand_again] if self._cuts and self._leads and len(members) > 2 else []
        if not plots or self._random.random() < 0.3:
            return self._injector.draw_memory_loss(world, victim)
        self._plot = self._random.choice(plots)(world, victim, others)
        return next(self._plot)

    def _betray(self, world: World, victim: ProcessId, others: list[ProcessId]) -> Plot:
        """A member forgets what it said to a candidate that has not heard enough others, and is readmitted by those;
        then they hear the candidate, one of them first."""
        random, group = self._random, self._group
        candidate, *deaf = random.sample(others, len(others))
        links = {member: _isolate(candidate, (candidate, member)) for member in deaf}
        yield (Block(tuple(link for pair in links.values() for link in pair)),)
        for _ in range(random.choice((2, 3, 5))):  # each attempt has a higher ballot
            yield (Suggest(candidate, group, deaf[0]),)
            yield (Suggest(candidate, group, candidate),)
        self.focus = (victim, candidate)
        promised, missing, quiet = _find_promise(world, victim), random.choice((0, 1, 3)), 0
        has_answered = False
        for _ in range(PATIENCE):
            action = yield ()
            quiet += 1
            if type(action) is Arrive and action.target == candidate:
                missing -= sum(source == victim for source, _ in action.packets)
            if _find_promise(world, victim) > promised:
                promised, missing, quiet, has_answered = _find_promise(world, victim), missing + 1, 0, True
            if has_answered and missing <= 0 and quiet > QUIET:
                break
        has_answered = has_answered and victim in world.processes
        loss = self._injector.draw_memory_loss(world, victim) if has_answered else ()
        for fault in loss:
            yield (fault,)
        self.focus = (victim, *deaf)
        for _ in range(4 * PATIENCE if loss else 0):  # to be readmitted takes many packets
            yield ()
            if self._injector.has_memory(world, victim):
                break
        for member in deaf:
            self.focus = (member, candidate)
            yield (Heal(links[member]),)
            for _ in range(random.choice((0, 20, 60))):
                yield ()

    def _stand_again(self, world: World, victim: ProcessId, others: list[ProcessId]) -> Plot:
        """A member stands for ballots while nobody hears it, and forgets them; it stands again once it is readmitted,
        because it is told to lead."""
        random, group = self._random, self._group
        links = _isolate(victim, (victim, *others))
        yield (Block(links),)
        yield (Suggest(victim, group, random.choice(others)),)
        yield (Suggest(victim, group, victim),)
        self.focus = (victim,)
        for _ in range(random.choice((5, 10, 20))):  # until the ballot is durable
            yield ()
        loss = self._injector.draw_memory_loss(world, victim) if victim in world.processes else ()
        yield loss[:1]
        yield (Heal(links),)
        for fault in loss[1:]:
            yield (fault,)
        yield (Suggest(victim, group, random.choice(others)),)
        yield (Suggest(victim, group, victim),)

    def _overtake(self, world: World) -> Course:
        """Begins the plot of a member that is ahead of its group, if a change is under way that no member of some group
        has carried out; nothing otherwise."""
        if self._plot is not None or world.changes <= self._watched or not (self._cuts and self._forgets):
            return ()
        reached = world.configurations
        groups = [
            group
            for group in world.topology.groups
            if all(reached.get(member, 0) < world.changes for member in world.topology.members(group))
        ]
        if not groups or self._random.random() < 0.3:
            return ()
        members = [one for one in world.topology.members(self._random.choice(groups)) if one in world.processes]
        if len(members) < 3:
            return ()
        self._watched = world.changes
        self._plot = self._desert(world, members, world.changes)
        return next(self._plot)

    def _desert(self, world: World, members: list[ProcessId], configuration: int) -> Plot:
        """The first member of a group that starts a configuration is cut off from the others of its group, is heard by
        other groups for some time, and loses its memory; then it comes back through the configuration before."""
        random = self._random
        first: list[ProcessId] = []
        for _ in range(4 * PATIENCE):
            yield ()
            first = [one for one in members if world.configurations.get(one, 0) >= configuration]
            if first:
                break
        if not first:
            return
        victim, group = first[0], world.topology.group_of(first[0])
        outside = [one for one in world.topology.processes if world.topology.group_of(one) != group]
        others = [one for one in members if one != victim]
        cut = _isolate(victim, tuple(members))
        far = tuple(pair for one in others for pair in _isolate(one, (one, *outside)))
        yield (Block(random.choice(((*cut, *far), (*cut, *far), cut, ()))),)
        self.focus = (victim, *outside)
        for _ in range(random.choice((10, 30, 60))):
            yield ()
        self.focus = ()
        loss = self._injector.draw_memory_loss(world, victim) if victim in world.processes else ()
        for fault in loss:
            yield (fault,)
        yield (Heal(cut),)
        self.focus = (victim, *others)
        for _ in range(2 * PATIENCE if loss else 0):
            yield ()
            if self._injector.has_memory(world, victim):
                break
        yield (Heal(far),)

    def _begin_starving(self, world: World, members: tuple[ProcessId, ...]) -> Course:
        """Begins the plot of a member that lags; nothing if another one is on."""
        running = [member for member in members if member in world.processes]
        if self._plot is not None or len(running) < 3:
            return ()
        self._plot = self._starve(world, running)
        return next(self._plot)

    def _starve(self, world: World, members: list[ProcessId]) -> Plot:
        """A member hears nothing of some others of its group until these have delivered something; then it and another
        one, which it hears, are alone for some time."""
        random = self._random
        victim, helper, *rest = random.sample(members, len(members))
        silent = rest if random.random() < 0.5 else rest[:1]
        links = tuple((member, victim) for member in silent)
        yield (Block(links),)
        yield from self._await_delivery(world, (helper, *rest))
        self.focus = (victim, helper)
        for _ in range(random.choice((10, 30, 60))):
            yield ()
        yield (Heal(links),)

    def _return_leader(self, world: World, members: tuple[ProcessId, ...]) -> Course:
        """Begins the plot of a leader that comes back; nothing if there is none, or another plot is on."""
        leaders = [one for one in members if one in world.processes and world.processes[one].is_leader]
        if not (leaders and self._cuts and len(members) > 2) or self._random.random() < 0.5:
            return ()
        self._plot = self._depose(world, self._random.choice(leaders), members)
        return next(self._plot)

    def _depose(self, world: World, old: ProcessId, members: tuple[ProcessId, ...]) -> Plot:
        """A leader hears everybody but its group; another member leads until it has delivered something, and is
        cut off in its turn; the first one leads the rest again."""
        group, random = self._group, self._random
        new, *rest = random.sample([one for one in members if one != old], len(members) - 1)
        cut, cut_later = _isolate(old, members), _isolate(new, members)
        yield (Block(cut),)
        servers = () if random.random() < 0.5 else world.topology.servers
        self.focus = (old, *world.topology.clients, *(server for server in servers if server not in members))
        for _ in range(random.choice((10, 30, 60))):
            yield ()
        for member in (new, *rest):
            yield (Suggest(member, group, new),)
        self.focus = (new, *rest)
        yield from self._await_delivery(world, (new, *rest))
        yield (Block(cut_later),)
        yield (Heal(tuple(link for link in cut if link not in cut_later)),)
        for member in (old, *rest):
            yield (Suggest(member, group, old),)
        self.focus = (old, *rest)
        yield from self._await_delivery(world, (old,))
        yield (Heal((*cut, *cut_later)),)

    def _await_delivery(self, world: World, processes: tuple[ProcessId, ...]) -> Plot:
        """Waits until one of some processes has delivered something."""
        before = sum(world.positions.get(process, 0) for process in processes)
        for _ in range(PATIENCE):
            if sum(world.positions.get(process, 0) for process in processes) > before:
                break
            yield ()

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


def _isolate(member: ProcessId, members: tuple[ProcessId, ...]) -> tuple[tuple[ProcessId, ProcessId], ...]:
    """The links between a member and all others, in both directions."""
    others = [other for other in members if other != member]
    return (*((member, other) for other in others), *((other, member) for other in others))


def _find_promise(world: World, process: ProcessId) -> int:
    """The highest promise that a process has sent, as far as anybody listens."""
    return -1 if world.monitors is None else world.monitors.find_promise(process)
