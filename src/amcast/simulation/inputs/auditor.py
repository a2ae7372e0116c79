"""The auditor: multicasts that follow an answer at once, to a group that has not delivered what precedes it.

Real-time order is violated by a message that was multicast after an answer and precedes what was answered. Independent
draws hardly ever show that: between an answer and the next multicast everything that is on its way arrives. In a run
whose answers promise real-time order an auditor keeps some of the messages for itself, and uses them in two ways:

    following   when a client is answered, or a process states that deliveries are closed, the next step multicasts to
                another group, one that lacks what others have delivered if there is one; then packets among its members
                come first for a while. The links between some pairs of groups are slow, in one direction.
    a chain     over groups A, B, ..., Y, Z: nothing arrives at Z from Y for a while. A message goes to Y and Z, one to
                the two groups before them, and so on, and the last one to A alone. Members of these groups may crash
                meanwhile, with or without their records. When the last message is answered, the next one goes to Z.
                Only then Z hears from Y. If the answer came too early, Z may order the next message first.
"""

from collections.abc import Collection, Generator, Sequence
from random import Random
from typing import Final

from amcast.kernel.ids import GroupId, MessageId, ProcessId
from amcast.kernel.topology import Topology
from amcast.simulation.inputs.faults import FaultInjector
from amcast.simulation.world.actions import Fault
from amcast.simulation.world.world import World

Pair = tuple[ProcessId, ProcessId]
Chain = Generator[tuple[GroupId, ...] | None, MessageId | None, None]
"""Yields the destinations of the next message, or None, once for each step; is sent the message, once it is
multicast."""
PATIENCE: Final = 300
"""The steps for which a chain waits for one answer."""


class Auditor:
    """What one run's auditor does, and which links are slow for it."""

    def __init__(
        self, topology: Topology, messages: int, kinds: Collection[str], injector: FaultInjector, random: Random
    ) -> None:
        self._topology = topology
        self._kinds = kinds
        self._injector = injector
        self._random = random
        self._rate = random.choice((0.0, 0.2, 0.6, 1.0))
        """How often an answer is followed at once."""
        self._lengths = random.choice(((0,), (4, 12), (12, 40)))
        """For how many steps packets of the target group come first."""
        self._slow_share = random.choice((0.0, 0.3, 0.3, 0.6))
        self._chain_rate = random.choice((0.0, 0.02, 0.1, 0.1))
        """How often a chain begins in a step."""
        self._strike_share = random.choice((0.0, 0.5, 1.0))
        """In how many chains members crash."""
        self._slow: dict[tuple[int, int], bool] = {}
        """By source and target (a group, or a client): whether links between them are slow."""
        self.reserved = round(messages * random.choice((0.2, 0.5, 0.8)))
        """How many messages are left to the auditor while there are faults."""
        self.held: frozenset[Pair] = frozenset()
        """Links on which nothing arrives now."""
        self.fault: tuple[Fault, ...] = ()
        """The faults that begin now; the caller takes them."""
        self._stated: dict[GroupId, int] = {}
        self._focus: tuple[ProcessId, ...] = ()
        self._focus_until = 0
        self._chain: Chain | None = None
        self._wish: tuple[GroupId, ...] = ()
        """The destinations of a message that the chain waits to multicast, until a client may."""
        self._wish_until = 0
        self._sent: MessageId | None = None
        """The message that was multicast for the chain in the last step."""
        self._answered: set[MessageId] = set()
        """Of messages of the chain."""

    def is_slow(self, pair: Pair) -> bool:
        """Whether a link is one of those between groups that are slow."""
        if not self._slow_share:
            return False
        source, target = (self._locate(process) for process in pair)
        if source == target:
            return False
        slow = self._slow.get((source, target))
        if slow is None:
            slow = self._slow[source, target] = self._random.random() < self._slow_share
        return slow

    def _locate(self, process: ProcessId) -> int:
        """The group of a process; of a client a number of its own."""
        group = self._topology.group_of(process)
        return -1 - process if group is None else group

    def find_focus(self, world: World) -> tuple[ProcessId, ...]:
        """The processes whose packets come first now; empty: all alike."""
        if self._focus and world.steps >= self._focus_until:
            self._focus = ()
        return self._focus

    def choose(self, world: World, answered: Sequence[MessageId], remaining: int) -> tuple[GroupId, ...]:
        """The destinations of a message that is multicast now; none: nothing is. `answered` are the messages of which
        clients learnt in the last step."""
        closing = [group for group in world.closings if self._stated.get(group) != world.closings[group][-1][0]]
        for group in closing:
            self._stated[group] = world.closings[group][-1][0]
        if self._chain is None and self._random.random() < self._chain_rate:
            self._chain = self._build_chain(world, remaining)
        if self._chain is not None:
            self._answered.update(answered)
            self._continue_chain(self._chain, world)
            if self._chain is not None:
                return self._wish
        if not (closing or answered) or self._random.random() >= self._rate:
            return ()
        others = [group for group in self._topology.groups if group not in closing]
        return (self._random.choice(self._list_late(world, others) or others),) if others else ()

    def _continue_chain(self, chain: Chain, world: World) -> None:
        """Goes on with the chain, unless it waits for a client that may multicast."""
        if self._wish and world.steps < self._wish_until:
            return
        sent, self._sent, self._wish = self._sent, None, ()
        try:
            self._wish = chain.send(sent) or ()  # the first time nothing was sent yet
            self._wish_until = world.steps + PATIENCE
        except StopIteration:
            self._chain, self.held = None, frozenset()

    def record_multicast(self, world: World, message: MessageId, target: GroupId) -> None:
        """Follows a message that was multicast as it had chosen."""
        if self._chain is not None:
            self._sent, self._wish = message, ()
        else:
            self._concentrate(world, target)

    def _concentrate(self, world: World, target: GroupId) -> None:
        """Lets packets among the members of a group, and from clients, come first."""
        length = self._random.choice(self._lengths)
        if length:
            self._focus = (*self._topology.members(target), *self._topology.clients)
            self._focus_until = world.steps + length

    def _list_late(self, world: World, groups: Sequence[GroupId]) -> list[GroupId]:
        """Groups that have not delivered a message which another group has."""
        late: set[GroupId] = set()
        for message in world.undelivered_messages.values():
            missing = world.undelivered[message.id]
            done = {
                group
                for group in message.destinations
                if any(member not in missing for member in self._topology.members(group))
            }
            if done:
                late.update(group for group in message.destinations if group not in done)
        return [group for group in groups if group in late]

    def _build_chain(self, world: World, remaining: int) -> Chain | None:
        """A chain over some groups, if there are messages enough for it."""
        length = min(len(self._topology.groups), self._random.choice((2, 3, 3, 4, 4)))
        if remaining < length + 1:
            return None
        path = self._random.sample(self._topology.groups, length)
        busy = min(remaining - length - 1, self._random.choice((0, 1, 2, 4)))
        return self._stage_chain(world, path, busy)

    def _stage_chain(self, world: World, path: list[GroupId], busy: int) -> Chain:
        """Yields the destinations of messages, and None in the steps without one."""
        random, last = self._random, path[-1]
        sources = self._topology.members(path[-2]) if random.random() < 0.7 else self._topology.servers
        members = self._topology.members(last)
        self.held = frozenset((source, member) for source in sources for member in members if source not in members)
        for _ in range(busy):  # its clock is ahead
            yield from self._send_one(world, (path[-2],), path[-2])
        for place in range(len(path) - 2, -1, -1):
            yield from self._send_one(world, (path[place], path[place + 1]), path[place])
        strike_after = random.randint(0, 60) if random.random() < self._strike_share else -1
        first = yield (path[0],)
        for waited in range(PATIENCE if strike_after < 0 else 2 * PATIENCE):
            if first is not None and self._is_answered(world, first, path[0]):
                break
            is_delivered = first is not None and self._has_delivered(world, first, path[0])
            wish: tuple[GroupId, ...] | None = None
            if strike_after >= 0 and (is_delivered or waited >= PATIENCE // 2):
                strike_after -= 1
                if strike_after < 0:
                    self._strike(world, path)
                    wish = random.choice((None, (path[0], path[1])))
            received = yield wish
            first = first or received
        yield (last,)
        self._concentrate(world, last)
        for _ in range(random.choice((10, 40, 80))):
            yield None

    def _strike(self, world: World, path: list[GroupId]) -> None:
        """Stops a member of the first group, mostly: it starts again with its records, or without them."""
        random, injector = self._random, self._injector
        group = path[0] if random.random() < 0.6 else random.choice(path[:-1])
        draws = [injector.draw_crash, injector.draw_memory_loss]
        if "recovery" in self._kinds:
            draws += [injector.draw_restart] * 2
        self.fault = random.choice(draws)(world, random.choice(self._topology.members(group)))

    def _send_one(self, world: World, destinations: tuple[GroupId, ...], group: GroupId) -> Chain:
        """A message, and some time, mostly until a group has delivered it."""
        message = yield destinations
        for _ in range(self._random.choice((0, PATIENCE, PATIENCE, PATIENCE))):
            received = yield None
            message = message or received
            if message is not None and self._has_delivered(world, message, group):
                return

    def _has_delivered(self, world: World, message: MessageId, group: GroupId) -> bool:
        return any(message in world.history[member] for member in self._topology.members(group))

    def _is_answered(self, world: World, message: MessageId, group: GroupId) -> bool:
        """Whether a message to one group was answered, or is stated to be closed."""
        if message in self._answered:
            return True
        closings = world.closings.get(group)
        if closings is None:
            return False
        until = closings[-1][0]
        return any(message in world.history[member][:until] for member in self._topology.members(group))
