"""What a PrimCast process says at the end of a step, and who must hear it at once.

One acknowledgement (or proposal) goes out for all that a step appended to the log, to all members of all destinations,
as the paper has it. But only primaries, and whoever asked for the message, have somebody waiting for their delivery:
they must hear of it at once. Other members may deliver some milliseconds later, as followers do in most replicated
systems, so what is said to them may ride on what is said next (`Send.later`): of 36 frames for a lone message to two
groups of three, half have no hurry.

- An acknowledgement is urgent for the primaries of the destinations and for the asker.
- A proposal is urgent for my group, which must acknowledge it, and for primaries and the asker; for members of other
  groups only if it raises their clocks, without which their group cannot pass it. It does not if every other
  destination's proposal is known here and one of them is as high: whoever that one must reach hears it from there.
"""

from amcast.kernel.effects import About, Send
from amcast.kernel.ids import GroupId, ProcessId
from amcast.kernel.message import Body, Message
from amcast.kernel.topology import Topology
from amcast.parts.bundle import is_bundle, process_of
from amcast.parts.quorum import place_of
from amcast.protocols.bodies.primcast import Ack, PrimCastConfig, Propose
from amcast.protocols.primcast_order import Order
from amcast.protocols.primcast_views import Item, about

MOST_REMEMBERED = 256
"""Answers to the questions who can wait, and who are the others."""


class Telling(Order):
    """The end of a member's step."""

    __slots__ = ("_others", "_patient")

    def __init__(self, me: ProcessId, topology: Topology, config: PrimCastConfig) -> None:
        super().__init__(me, topology, config)
        self._patient: dict[tuple[tuple[GroupId, ...], ProcessId, int, int, bool], tuple[ProcessId, ...]] = {}
        """Who can wait, by destinations, sender, epochs, and whether my own group can."""
        self._others: dict[tuple[ProcessId, ...], tuple[ProcessId, ...]] = {}
        """Some processes without me, where my own word needs no link."""

    def _ack(self) -> Ack:
        time, tie = self._mark
        return Ack(self._epoch, self._length, self._clock, self.position, time, tie, self._births)

    def _tell(self) -> None:
        """One acknowledgement (or proposal) per group for all that this step appended; else, if due, the clock."""
        fresh = self._fresh
        due = self._due
        if fresh:
            self._fresh = []
        self._due = False
        if not (fresh or due) or not self._active():
            return
        self._published = self._clock
        if len(fresh) == 1:
            item = fresh[0]
            message = item.message
            assert message is not None
            targets = self.topology.addressed(message.destinations)
            self._say(targets, self._said_of(fresh), item.id, self._patient_with(item, message))
        elif fresh:
            for group, items in [(self.home, fresh), *self._by_group(fresh)]:
                self._say(
                    self.topology.members(group), self._said_of(items), about(items), self._patient_in(group, items)
                )
        else:
            self.note("bump")
            self._say(self._members, self._ack(), None, ())
        if not self._recorded:
            self.on_frequent(self.me, self._ack())

    def _say(self, targets: tuple[ProcessId, ...], body: Body, about: About, later: tuple[ProcessId, ...]) -> None:
        """To all of them; to myself only if my word must wait until it is durable."""
        if not self._recorded:
            others = self._others.get(targets)
            if others is None:
                if len(self._others) >= MOST_REMEMBERED:
                    self._others.clear()
                others = self._others[targets] = tuple([target for target in targets if target != self.me])
            targets = others
        if targets:
            self._outbox.append(Send(targets, body, about, later))

    def _said_of(self, items: list[Item]) -> Body:
        ack = self._ack()
        if self._role != "primary":
            return ack
        return Propose(tuple((item.index, item.id, item.timestamp) for item in items), ack)

    def _by_group(self, items: list[Item]) -> list[tuple[GroupId, list[Item]]]:
        """The other groups that some items are addressed to."""
        groups: dict[GroupId, list[Item]] = {}
        for item in items:
            assert item.message is not None
            for group in item.message.destinations:
                if group != self.home:
                    groups.setdefault(group, []).append(item)
        return sorted(groups.items())

    # Who can wait

    def _patient_with(self, item: Item, message: Message) -> tuple[ProcessId, ...]:
        """Those for whom nothing hangs on what I say of a message."""
        groups = message.destinations
        proposes = self._role == "primary"
        if proposes and (item.highest < item.timestamp or len(item.heard) < len(groups) - 1):
            return ()
        key = (groups, message.sender, self._epoch, self._turns, proposes)
        patient = self._patient.get(key)
        if patient is None:
            if len(self._patient) >= MOST_REMEMBERED:
                self._patient.clear()
            patient = ()
            for group in groups:
                if group != self.home or not proposes:
                    patient += self._followers(group, {_asker(message)})
            self._patient[key] = patient
        return patient

    def _patient_in(self, group: GroupId, items: list[Item]) -> tuple[ProcessId, ...]:
        """The same in one group, for several messages. Proposals: nobody."""
        if self._role == "primary":
            return ()
        return self._followers(group, {_asker(item.message) for item in items if item.message is not None})

    def _followers(self, group: GroupId, askers: set[ProcessId]) -> tuple[ProcessId, ...]:
        """Members that neither lead nor asked."""
        if group == self.home:
            members, epoch = self._members, self._epoch
        else:
            view = self._other(group)
            members, epoch = view.members, view.epoch
        leader = members[place_of(epoch)]
        return tuple(m for m in members if m not in (leader, self.me) and m not in askers)


def _asker(message: Message) -> ProcessId:
    return process_of(message.sender) if is_bundle(message.id) else message.sender
