"""PrimCast while nothing fails: proposals, acknowledgements, clocks, delivery (002, algorithms 1 and 2).

The sets of the paper are specifications. Here M is the open messages (`Item`) and, per group, how far each member has
acknowledged its group's log (`View`); T is `_log`; D is `_delivered`. An acknowledgement is cumulative, so a timestamp
of a remote group is decided when a majority acknowledged, in one epoch, more of the log than the place of the proposal.
"""

from abc import abstractmethod
from collections import deque
from collections.abc import Mapping
from heapq import heappop, heappush, heapreplace
from typing import Final

from amcast.kernel.bundle import bundle_headers, is_bundle
from amcast.kernel.effects import Deliver
from amcast.kernel.ids import GroupId, MessageId, ProcessId
from amcast.kernel.message import Message
from amcast.kernel.topology import Topology
from amcast.parts.consensus.quorum import MEMBERS
from amcast.parts.groups.leader_group import LeaderGroupMember
from amcast.parts.ordering.clocks import QuorumClock, hybrid, logical
from amcast.protocols.primcast.messages import Ack, DeliveredMessage, PrimCastConfig, Propose
from amcast.protocols.primcast.progress import GroupProgress, Item, Proposal, Word

NOTHING: Final[Mapping[GroupId, int]] = {}
"""No timestamp is known."""


class Order(LeaderGroupMember[Item]):
    """The failure-free part of a member, whose leader is called primary."""

    # fmt: off
    __slots__ = (
        "_afar", "_base", "_clocks", "_decided", "_due", "_elsewhere", "_established", "_finals", "_floor", "_fresh",
        "_leader_clock", "_length", "_log", "_moved", "_past", "_published", "_queue", "_recorded", "_said", "_served",
        "_stamping", "_stream", "_turns", "_undurable", "_unproposed", "_view", "_views", "_word",
    )
    # fmt: on

    fast_body = Ack

    def __init__(self, me: ProcessId, topology: Topology, config: PrimCastConfig) -> None:
        super().__init__(me, topology, config, "primary")
        self._stamping = hybrid if config.hybrid else logical
        self._recorded = config.records
        """What must survive is on a disk before it is told to anybody."""
        self._view = GroupProgress(self.home, topology)
        self._views: dict[GroupId, GroupProgress] = {}
        """Other groups, as soon as they are heard of."""
        self._afar: dict[ProcessId, tuple[GroupProgress, int]] = {}
        """Their members, as soon as they speak: the view, and the place in it."""

        self._turns = 0
        """How often the primary of another group was seen to change."""

        self._established = True
        """A majority is known to hold the log of `_epoch`: no earlier epoch can come to incarnation again."""

        self._log: dict[int, Item] = {}
        """My group's timestamps by place, rising; from `_base` to below `_length`."""
        self._base = 0
        self._floor = 0
        """Everything below `_base` is among the group's first `_floor` deliveries."""
        self._length = 0
        self._decided = 0
        """Below this place I took note that my group's timestamps are decided."""
        self._stream: deque[Proposal] = deque()
        """My primary's next proposals, the first of which waits for its message: the primary is heard in order."""
        self._said = (0, 0)
        """My primary's last word: length and clock. The clock counts once my log is as long."""

        self._published = 0
        """What my fellows know of my clock."""
        self._leader_clock = 0
        """My primary will not propose at or below it anything that I do not hold."""
        self._clocks = QuorumClock(len(self._members))
        """Fellows' clocks, as told in epochs up to mine."""

        self._unproposed: dict[MessageId, Item] = {}
        """Open, the message is here, and it has no place in the log."""
        self._queue: list[tuple[int, MessageId]] = []
        """Heap over the open items that have a place: a lower bound of each one's rank."""
        self._finals = 0
        """How many open items have a final timestamp: without any, nothing can be delivered."""
        self._served = 0
        """How many clients' messages are delivered: `position` counts a bundle once, `_delivered` has it and its parts.
        """
        self._past: dict[MessageId, DeliveredMessage] = {}
        """The last deliveries, in order, for fellows that lag."""

        self._fresh: list[Item] = []
        """Appended to the log in this step: to be proposed or acknowledged at its end."""
        self._due = False
        """My fellows must hear my clock."""
        self._undurable: list[tuple[DeliveredMessage, int]] = []
        """Deliveries that no record tells yet, each with its place in my log (-1: none)."""
        self._word: list[Word] = []
        """Bundles that I delivered as a primary and have not told my fellows of."""
        self._moved = True
        """Since I last looked, a fellow acknowledged more of the log, or the log reached what one had acknowledged."""
        self._elsewhere: dict[tuple[GroupId, ...], tuple[GroupId, ...]] = {}
        """By destinations, those that are not my group."""

    def stored_message(self, message: MessageId) -> Message | None:
        item = self._pending.get(message)
        if item is not None:
            return item.message
        past = self._past.get(message)
        return None if past is None else past.message

    def _item(self, id: MessageId) -> Item:
        item = self._pending.get(id)
        if item is None:
            item = self._pending[id] = Item(id)
        return item

    def _other(self, group: GroupId) -> GroupProgress:
        view = self._views.get(group)
        if view is None:
            view = self._views[group] = GroupProgress(group, self.topology)
        return view

    def _met(self, sender: ProcessId) -> tuple[GroupProgress, int]:
        """A member of another group speaks for the first time."""
        group = self.topology.group_of(sender)
        assert group is not None
        view = self._other(group)
        self._afar[sender] = met = (view, view.places[sender])
        return met

    # Messages and proposals

    def on_request(self, message: Message) -> None:
        id = message.id
        item = self._pending.get(id)
        if item is None:
            if id in self._delivered:
                return
            item = self._pending[id] = Item(id)
        assert self.home in message.destinations, f"process {self.me} is no destination of message {id}"
        if item.message is None:
            item.message = message
            if item.index < 0:
                self._unproposed[id] = item
                if self._role == "primary":
                    self._propose()  # at once: another group's proposal, next in this burst, would raise mine above it
            if item.decided:
                self._commit(item)
            if self._stream and self._stream[0][1] == id:
                self._drain()

    def _propose(self) -> None:
        """Give every message without a place the next one. A primary that has not delivered everything below its
        log's base could take a delivered message for a new one, and waits."""
        if self._role != "primary" or self._promised != self._epoch or self.position < self._floor:
            return
        for item in list(self._unproposed.values()):
            self._append(item, self._stamping(self._clock, self.now))

    def _append(self, item: Item, timestamp: int) -> None:
        """The next place of the log. Only what is here can be accepted: a majority that acknowledged a message whose
        text died with its sender could never deliver it."""
        assert item.message is not None
        self._place_in_log(item, timestamp)
        self._fresh.append(item)

    def _place_in_log(self, item: Item, timestamp: int) -> None:
        item.index = place = self._length
        item.timestamp = timestamp
        self._log[place] = item
        self._length = place + 1
        if max(self._view.lengths) > place:
            self._moved = True
        if timestamp > self._clock:
            self._clock = timestamp
        if item.delivered_at < 0:
            id = item.id
            self._unproposed.pop(id, None)
            if item.decided:
                known = item.decided.get(self.home)
                assert known is None or known == timestamp, (
                    f"process {self.me}: message {id} has timestamp {timestamp} after {known} was decided"
                )
            if timestamp > item.bound:
                item.bound = timestamp
            heappush(self._queue, (item.bound, id))

    def _hear_proposals(self, sender: ProcessId, body: Propose) -> None:
        ack = body.ack
        epoch = ack.epoch
        if sender in self._places:
            if epoch < self._promised:
                self._refuse(sender, epoch)
            if epoch == self._epoch and self._active():
                self._follow(body.proposals)
                if body.word:
                    self._hear_word(body.word)
            self.fast_receive(sender, ack)
            return
        view = (self._afar.get(sender) or self._met(sender))[0]
        if epoch > view.epoch:
            view.epoch = epoch
            view.waiting = []
            self._turns += 1
            self._welcome(sender, body.proposals)
        if epoch == view.epoch:
            for proposal in body.proposals:
                id = proposal[1]
                item = self._pending.get(id)
                if item is None:
                    if id in self._delivered:
                        continue
                    item = self._pending[id] = Item(id)
                heappush(view.waiting, proposal)
                self._hear_time(item, view.group, proposal[2])
        self._hear_other(sender, ack)

    def _follow(self, proposals: tuple[Proposal, ...]) -> None:
        """My primary's proposals, in order; what repeats or leaves a gap is dropped, and asked for in time."""
        for proposal in proposals:
            if proposal[0] == self._length + len(self._stream):
                self._stream.append(proposal)
        self._drain()

    def _drain(self) -> None:
        stream = self._stream
        while stream:
            _, id, timestamp = stream[0]
            item = self._pending.get(id)
            if item is None and id in self._delivered:
                if id not in self._past:
                    self._lagging = True  # only my primary still has the message
                    break
                item = self._buried(self._past[id].message)
            elif item is None or item.message is None:
                self._item(id).heard.add(self.home)
                self.note("early", id)
                break
            stream.popleft()
            self._append(item, timestamp)
        length, clock = self._said
        if length <= self._length and clock > self._leader_clock:
            self._leader_clock = clock

    def _buried(self, message: Message) -> Item:
        """A place of the log whose message is delivered already."""
        item = Item(message.id)
        item.message = message
        item.delivered_at = max(0, self.position - 1)
        return item

    # Clocks and acknowledgements

    def _hear_time(self, item: Item, group: GroupId, timestamp: int) -> None:
        """A remote timestamp raises my clock. My fellows hear of it with my acknowledgement of the same message, or
        now if that is gone already."""
        item.heard.add(group)
        if timestamp > item.highest:
            item.highest = timestamp
        if timestamp > self._clock:
            self._clock = timestamp
        if item.index >= 0 and timestamp > self._published:
            self._due = True

    def fast_receive(self, sender: ProcessId, body: Ack) -> None:
        """An acknowledgement. Everybody hears one from everybody for every message: here every look counts, and helpers
        are called only where something changes."""
        place = self._places.get(sender)
        if place is None:
            self._hear_other(sender, body)
            return
        if body.memory_losses != self._memory_losses:
            self._hear_memory_losses(body.memory_losses)
        self._positions[place] = body.position
        if sender == self.me and body.position > self._delivered_until:
            self._delivered_until = body.position
        epoch = body.epoch
        clock = body.clock
        if epoch != self._epoch:
            if epoch > self._epoch:
                self._hear_later(place, body)
            else:
                self._clocks.hear(place, clock)
            return
        clocks = self._clocks.values
        if clock > clocks[place]:
            clocks[place] = clock
        view = self._view
        length = body.length
        if length > view.lengths[place] or epoch != view.epochs[place]:
            view.epochs[place] = epoch
            view.lengths[place] = length
            self._moved = True
        if place == epoch % MEMBERS:
            self._hear_primary(length, clock)
        if not self._established and view.present(epoch):
            self._established = True
            self._establish()

    def _hear_primary(self, length: int, clock: int) -> None:
        said = self._said
        if length >= said[0] and clock >= said[1]:
            self._said = (length, clock)
            if length <= self._length and clock > self._leader_clock:
                self._leader_clock = clock

    @abstractmethod
    def _hear_later(self, place: int, ack: Ack) -> None:
        """A fellow speaks in an epoch that I have not reached (`primcast_epochs`)."""

    @abstractmethod
    def _hear_word(self, word: tuple[Word, ...]) -> None:
        """My primary has delivered something (`primcast_telling`)."""

    @abstractmethod
    def _welcome(self, primary: ProcessId, proposals: tuple[Proposal, ...]) -> None:
        """Another group has a new primary, which proposes something (`primcast_telling`)."""

    @abstractmethod
    def _establish(self) -> None:
        """A majority holds my epoch (`primcast_epochs`)."""

    def _hear_other(self, sender: ProcessId, ack: Ack) -> None:
        view, place = self._afar.get(sender) or self._met(sender)
        epoch, length, at = ack.epoch, ack.length, view.epochs[place]
        if epoch == at:
            if length > view.lengths[place]:
                view.lengths[place] = length
        elif epoch > at:
            view.epochs[place] = epoch
            view.lengths[place] = length
        waiting = view.waiting
        if waiting and length > waiting[0][0] and epoch == view.epoch:
            agreed = view.agreed(epoch)
            while waiting and waiting[0][0] < agreed:
                _, id, timestamp = heappop(waiting)
                item = self._pending.get(id)
                if item is not None:
                    self._decide(item, view.group, timestamp)
        mark = (ack.time, ack.tie)
        if mark > view.marks[place]:
            view.marks[place] = mark
            owed = self._obligations.owed.get(view.group)
            if owed and owed[0] <= mark:
                self._obligations.resolve(view.group, view.mark())

    # Deciding and delivering

    def _decide(self, item: Item, group: GroupId, timestamp: int) -> None:
        known = item.decided.get(group)
        if known is not None:
            assert known == timestamp, (
                f"process {self.me}: group {group} decided {timestamp} for message {item.id} after {known}"
            )
            return
        item.decided[group] = timestamp
        if timestamp > item.bound:
            item.bound = timestamp
        self._commit(item)

    def _commit(self, item: Item) -> None:
        message = item.message
        if message is not None and len(item.decided) == len(message.destinations) and item.final < 0:
            item.final = item.bound
            item.committed_ns = self.now
            self.end_blocking(message)
            self._committed.add(item.id)
            self._finals += 1

    def _decide_own(self) -> None:
        """Note what a majority of my group has acknowledged."""
        self._moved = False
        agreed = self._view.agreed(self._epoch)
        decided = self._decided
        while decided < agreed and decided < self._length:
            item = self._log[decided]
            if item.delivered_at < 0:
                self._decide(item, self.home, item.timestamp)
            decided += 1
        self._decided = decided

    def _limit(self) -> int:
        """No message that I do not hold will be stamped at or below it: not by my primary, whose own word is needed,
        and not by the primary of a later epoch, who must hear one of any majority."""
        return self._clocks.reached(self._leader_clock)

    def _deliver_ready(self) -> None:
        queue = self._queue
        if not queue or not self._established or self._promised != self._epoch or self.position < self._floor:
            return
        limit = -1
        while queue:
            bound, id = queue[0]
            item = self._pending.get(id)
            if item is None:
                heappop(queue)  # a fellow told me that it is delivered
            elif item.bound > bound:
                heapreplace(queue, (item.bound, id))
            elif item.final < 0:
                break
            else:
                if limit < 0:
                    limit = self._limit()
                if item.final > limit:
                    break
                heappop(queue)
                assert item.message is not None
                if id not in self._committed:
                    self.note("waited", id)
                self._hand_over(item.message, item.timestamp, item.final, item.committed_ns, item.decided)

    def _hand_over(
        self,
        message: Message,
        timestamp: int,
        final: int,
        committed_ns: int | None,
        decided: Mapping[GroupId, int] = NOTHING,
    ) -> None:
        """Deliver, and remember what others may have to be told."""
        id = message.id
        served = self._served
        count = -1
        repeats: tuple[int, ...] = ()
        if is_bundle(id):
            labels = bundle_headers(message)
            repeats = self._delivered.add_all(labels)
            count = len(labels) - len(repeats)
        past = DeliveredMessage(message, timestamp, final, served, repeats)
        index = -1
        item = self._pending.pop(id, None)
        if item is not None:
            item.delivered_at = self.position
            index = item.index
            self._finals -= item.final >= 0
        if index < 0:
            self._unproposed.pop(id, None)
        self._past[id] = past
        self._delivered.add(id)
        self._last_delivered_rank = (final, id)
        owed = self._elsewhere.get(message.destinations)
        if owed is None:
            owed = tuple([group for group in message.destinations if group != self.home])
            self._elsewhere[message.destinations] = owed
        self._obligations.add(id, timestamp, final, owed)
        self._undurable.append((past, index))
        if final > self._clock:
            self._clock = final
        if final > self._published:
            self._due = True
        sure = owed
        for group in owed:
            if decided.get(group) != final:
                sure = tuple([other for other in owed if decided.get(other) == final])
                break
        if count >= 0 and self._role == "primary":
            self._word.append((self.position, id, final))
        self._emit(past, count, committed_ns, sure)
        self._served = served + (1 if count < 0 else count)
        self.position += 1

    def _emit(
        self,
        past: DeliveredMessage,
        count: int,
        committed_ns: int | None,
        sure: tuple[GroupId, ...] = (),
    ) -> None:
        """The effect: of a bundle, what was not delivered before, and how much that is. A group whose own timestamp is
        the final one stamps whatever comes later above it: whoever knows that this is decided is sure of the group."""
        message, repeats = past.message, past.repeats
        if repeats:
            self.note("repeated", message.id, float(len(repeats)))
        foretold = past.timestamp == past.final
        self._outbox.append(
            Deliver(message, past.place, past.final, message.id, committed_ns, count, repeats, sure, foretold)
        )
        self.note_convoy(message, committed_ns)
