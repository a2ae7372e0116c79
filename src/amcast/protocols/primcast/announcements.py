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

So followers hear late who acknowledged what. But they hear what their primary has delivered, and that is enough for
them to deliver it: soon after a message that nothing follows, and else with a proposal now and then, for many messages
at once, which costs each of them little; a gateway among them, as soon as its clients would wait for it. They must hear
the rest for the day on which their primary dies, and a new primary hears at once what was kept back from it.
"""

from typing import Final

from amcast.kernel.bundle import gateway_process, is_bundle
from amcast.kernel.effects import About, Send
from amcast.kernel.ids import MESSAGES_PER_SENDER, GroupId, MessageId, ProcessId
from amcast.kernel.message import Body, Message
from amcast.kernel.topology import Topology
from amcast.parts.client.messages import MILLISECOND
from amcast.parts.consensus.quorum import place_of
from amcast.protocols.primcast.messages import Ack, PrimCastConfig, Propose
from amcast.protocols.primcast.primcast_order import Order
from amcast.protocols.primcast.progress import Item, Proposal, Word, about

WORD: Final = "word"
WORD_NS: Final = 10 * MILLISECOND
"""After so long a primary tells its fellows what it has delivered."""
STREAM_NS: Final = 50 * MILLISECOND
"""Where one proposal follows another within this time, after so long only."""
MANY_WORDS: Final = 32
"""Deliveries that are told with the next proposal in any case."""
MOST_WORDS: Final = 256
"""Deliveries told at once; who misses one hears from everybody what it needs to know."""
MOST_TOLD: Final = 1024
"""Who is so far behind hears from everybody what it needs to know."""
MOST_REMEMBERED: Final = 256
"""Answers to the questions who can wait, and who are the others."""


class Telling(Order):
    """The end of a member's step."""

    __slots__ = ("_looked", "_others", "_patient", "_proposed_ns", "_streams", "_told", "_word_due", "_word_ns")

    def __init__(self, me: ProcessId, topology: Topology, config: PrimCastConfig) -> None:
        super().__init__(me, topology, config)
        self._patient: dict[tuple[tuple[GroupId, ...], ProcessId, int, int, bool], tuple[ProcessId, ...]] = {}
        """Who can wait, by destinations, sender, epochs, and whether my own group can."""
        self._others: dict[tuple[ProcessId, ...], tuple[ProcessId, ...]] = {}
        """Some processes without me, where my own word needs no link."""
        self._looked = 0
        """So many of my words were looked at: after each step, all."""
        self._told: dict[int, tuple[MessageId, int]] = {}
        """What my primary has delivered and I have not, by position: the bundle, and its final timestamp."""
        self._word_due = False
        """The timer WORD runs."""
        self._word_ns = -1
        """Since when there is something to tell; -1: there is nothing."""
        self._proposed_ns = -STREAM_NS
        """When I last proposed something."""
        self._streams = False
        """That was soon after the time before."""

    def _ack(self) -> Ack:
        time, tie = self._last_delivered_rank
        return Ack(self._epoch, self._length, self._clock, self.position, time, tie, self._memory_losses)

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
        word: tuple[Word, ...] = ()
        if fresh and self._role == "primary":
            word = self._timely_word()
        if len(fresh) == 1:
            item = fresh[0]
            message = item.message
            assert message is not None
            targets = self.topology.processes_of(message.destinations)
            self._say(targets, self._said_of(fresh, word), item.id, self._patient_with(item, message))
        elif fresh:
            for group, items in [(self.home, fresh), *self._by_group(fresh)]:
                patient = self._patient_in(group, items)
                said = self._said_of(items, word if group == self.home else ())
                self._say(self.topology.members(group), said, about(items), patient)
        else:
            self.note("bump")
            self._say(self._members, self._ack(), None, ())
        if not self._recorded:
            self.fast_receive(self.me, self._ack())

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

    def _said_of(self, items: list[Item], word: tuple[Word, ...] = ()) -> Body:
        ack = self._ack()
        if self._role != "primary":
            return ack
        return Propose(tuple([(item.index, item.id, item.timestamp) for item in items]), ack, word)

    # What I have delivered

    def _timely_word(self) -> tuple[Word, ...]:
        """I propose something: what is told with it?"""
        self._streams = self.now - self._proposed_ns < STREAM_NS
        self._proposed_ns = self.now
        if len(self._word) >= MANY_WORDS or (self._word and self.now - self._word_ns >= STREAM_NS // 2):
            return self._whole_word()
        return ()

    def _whole_word(self) -> tuple[Word, ...]:
        word = tuple(self._word[-MOST_WORDS:])
        self._word = []
        self._looked = 0
        self._word_ns = -1
        return word

    def _tell_askers(self) -> None:
        """I have delivered what a fellow, a gateway, asked for. It hears at once of that, but maybe not of what comes
        before, for which others asked: its clients would wait for my word."""
        word = self._word
        for place in range(self._looked, len(word)):
            asker = _asker_of(word[place])
            if asker != self.me and asker in self._places and any(_asker_of(one) != asker for one in word[:place]):
                self._write((asker,), Propose((), self._ack(), tuple(word[: place + 1])))
        self._looked = len(word)

    def _promise_word(self) -> None:
        """There is something to tell."""
        if self._role != "primary" or not self._other_members:
            self._whole_word()
            return
        if self._word_ns < 0:
            self._word_ns = self.now
        if not self._word_due:
            self._word_due = True
            after_ns = max(self._word_ns + self._lateness_ns() - self.now, 0)
            self.set_timer(WORD, (after_ns, after_ns))

    def _lateness_ns(self) -> int:
        return STREAM_NS if self._streams else WORD_NS

    def on_timer(self, name: str) -> None:
        if name != WORD:
            super().on_timer(name)
            return
        self._word_due = False
        late = bool(self._word) and self.now - self._word_ns >= self._lateness_ns()
        if late and self._role == "primary" and self._active():
            self._write(self._other_members, Propose((), self._ack(), self._whole_word()))

    def _hear_word(self, word: tuple[Word, ...]) -> None:
        """My primary has delivered these."""
        told = self._told
        for position in [position for position in told if position < self.position]:
            del told[position]
        for position, id, final in word:
            if self.position <= position < self.position + MOST_TOLD:
                told[position] = (id, final)
        self._take_word()

    def _take_word(self) -> None:
        """What my primary has delivered I may deliver at the same positions, without knowing who acknowledged it: a
        group has one order. The text must be here, at the place in the log of which this epoch's primary speaks: I wait
        for it. Where I asked, my clients hang on what I know of other groups: then I wait until I know it."""
        told = self._told
        while self._established and self.position >= self._floor and self.position in told:
            id, final = told[self.position]
            item = self._pending.get(id)
            if item is None or item.message is None or item.index < 0:
                break
            committed_ns = item.committed_ns
            if item.final < 0:
                if gateway_process(item.message.sender) == self.me:
                    break
                committed_ns = self.now
                self.end_blocking(item.message)
            assert item.final in (-1, final), f"process {self.me}: message {id} has rank {item.final}, and {final} too"
            del told[self.position]
            self._hand_over(item.message, item.timestamp, final, committed_ns, item.decided)

    def _welcome(self, primary: ProcessId, proposals: tuple[Proposal, ...]) -> None:
        """It must not wait for what was kept back from a follower: that comes along with this."""
        if self._active():
            self._write((primary,), self._ack(), tuple([id for _, id, _ in proposals]))

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


def _asker_of(word: Word) -> ProcessId:
    return gateway_process(word[1] // MESSAGES_PER_SENDER)


def _asker(message: Message) -> ProcessId:
    return gateway_process(message.sender) if is_bundle(message.id) else message.sender
