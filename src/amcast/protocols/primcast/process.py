"""PrimCast: primaries stamp, everybody acknowledges to everybody, three message delays at every destination.

Source: Pacheco, Coelho, Pedone, "PrimCast: A Latency-Efficient Atomic Multicast" (2023), paper 002.

    client     primary of g   members of g   primary of h   members of h
      |--Request-->|------------>|------------->|------------->|     to every member of every destination
      |            |--Propose--->|------------->|------------->|     clock + 1, to all destinations (h's primary alike)
      |            |             |--Ack-------->|------------->|     from every member to all destinations
      |         deliver       deliver        deliver        deliver

A message's final timestamp is the highest of its groups' timestamps; each is decided when a majority of the group has
acknowledged it in one epoch. A process delivers in the order of (final timestamp, message id), once its primary's
clock and a majority's clocks have passed it. PrimCast-HC: a primary also never proposes below its local time.

Claims: genuine; three delays everywhere; k(n + kn^2) packets for k groups of n, requests and self-sends included, and
BUMPs only where a group's timestamp was below another's; minorities may crash, restart, lose their memory.

Deviations from the paper, each with its reason, are in docs/protocols/primcast.md.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from heapq import heapify, heappop, heappush, heapreplace
from typing import Final

from amcast.kernel.bundle import bundle_headers, bundle_messages, gateway_process, is_bundle
from amcast.kernel.diagnostics import Phase, ProcessStatus
from amcast.kernel.effects import About, Deliver, Note, Send
from amcast.kernel.ids import MESSAGES_PER_SENDER, GroupId, MessageId, ProcessId
from amcast.kernel.message import Body, Message, Record, State
from amcast.kernel.spec import Spec
from amcast.kernel.topology import Topology
from amcast.kernel.units import MILLISECOND
from amcast.parts.consensus.quorum import MEMBERS, place_of, round_of
from amcast.parts.groups.claims import ROBUST
from amcast.parts.groups.leader_group import LeaderGroupMember, select_valid_promises
from amcast.parts.groups.messages import AdmissionVote, Entry, JoinRequest, LeaderGroupState, Nack
from amcast.parts.ordering.clocks import QuorumClock, hybrid, logical
from amcast.parts.ordering.obligations import Obligations
from amcast.protocols.primcast.messages import (
    BODIES,
    RECORDS,
    Ack,
    CatchUp,
    Checkpoint,
    Decided,
    DeliveredMessage,
    DeliveryRecord,
    Install,
    ItemState,
    NewEpoch,
    NewState,
    OwedTimestamp,
    PrimCastConfig,
    PrimCastState,
    Progress,
    Promise,
    Propose,
    Query,
    Start,
    Sync,
    ViewState,
)
from amcast.protocols.primcast.progress import GroupProgress, Item, Proposal, Word, about

NOTHING: Final[Mapping[GroupId, int]] = {}
"""No timestamp is known."""
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


class PrimCast(LeaderGroupMember[Item]):
    """One member of one group, whose leader is called primary."""

    __slots__ = (
        "_afar",
        "_base",
        "_clocks",
        "_decided",
        "_due",
        "_durable_length",
        "_elsewhere",
        "_established",
        "_finals",
        "_floor",
        "_fresh",
        "_later",
        "_leader_clock",
        "_length",
        "_log",
        "_looked",
        "_moved",
        "_others",
        "_past",
        "_patient",
        "_promises",
        "_proposed_ns",
        "_published",
        "_queue",
        "_recorded",
        "_said",
        "_served",
        "_stamping",
        "_state",
        "_stream",
        "_streams",
        "_told",
        "_turns",
        "_undurable",
        "_unproposed",
        "_view",
        "_views",
        "_word",
        "_word_due",
        "_word_ns",
    )

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

        self._promises: dict[int, Promise] = {}
        self._state: NewState | None = None
        """What I, a candidate, chose from the promises and sent."""
        self._later: dict[int, Ack] = {}
        """By place: the last word of fellows in epochs that I have not reached."""

        self._durable_length = 0

    def on_receive(self, sender: ProcessId, body: Body) -> None:
        match body:
            case Propose():
                self._hear_proposals(sender, body)
            case Start(message):
                self.on_request(message)
            case Query():
                self._answer(sender, body)
            case Decided():
                self._hear_decided(body)
            case Sync():
                self._hear_sync(sender, body)
            case CatchUp():
                self._catch_up(body)
            case Install():
                self._install(body)
            case NewEpoch(epoch):
                if self._promise_candidate(sender, epoch):
                    self._send_after_persist((sender,), self._promise())
            case Promise():
                self._hear_promise(sender, body)
            case NewState():
                self._hear_state(sender, body)
            case Nack(ballot):
                self._handle_nack(ballot)
            case JoinRequest():
                if self._handle_join_request(sender, body):
                    self._send_epoch_state(sender)
            case AdmissionVote():
                self._handle_admission_vote(sender, body)
            case Ack():
                self.fast_receive(sender, body)
            case _:
                raise AssertionError(f"PrimCast's processes do not say {body!r}")

    def on_step_end(self) -> None:
        """Propose, deliver, and then speak, once what was changed is on its way to the disk."""
        if self._unproposed:
            self._propose()
        while True:
            if self._moved and self._decided < self._length:
                self._decide_own()
            if self._told and self._is_active():
                self._take_word()
            if self._finals:
                self._deliver_ready()
            if len(self._word) > self._looked and self._role == "primary":
                self._tell_askers()
            if self._committed:
                self._committed.clear()
            if not (self._sends_after_persist or self._fresh or self._due):
                break
            self._trim()
            self._make_durable()
            for targets, body, subject in self._sends_after_persist:
                self.send_all(targets, body, subject)
            self._sends_after_persist = []
            self._tell()
            if self._recorded:
                break  # my own word comes back to me when it is durable
        if self._word:
            self._promise_word()
        if not self._repair_armed:
            self._arm_repair_timer()

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

    def _item(self, id: MessageId) -> Item:
        item = self._pending.get(id)
        if item is None:
            item = self._pending[id] = Item(id)
        return item

    def _hear_proposals(self, sender: ProcessId, body: Propose) -> None:
        ack = body.ack
        epoch = ack.epoch
        if sender in self._places:
            if epoch < self._promised:
                self._reject_stale_leader(sender, epoch)
            if epoch == self._epoch and self._is_active():
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
                    self._is_lagging = True  # only my primary still has the message
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

    def _welcome(self, primary: ProcessId, proposals: tuple[Proposal, ...]) -> None:
        """It must not wait for what was kept back from a follower: that comes along with this."""
        if self._is_active():
            self._send_after_persist((primary,), self._ack(), tuple([id for _, id, _ in proposals]))

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

    # Acknowledgements and deciding

    def fast_receive(self, sender: ProcessId, body: Ack) -> None:
        """An acknowledgement. Everybody hears one from everybody for every message: here every look counts, and helpers
        are called only where something changes."""
        place = self._places.get(sender)
        if place is None:
            self._hear_other(sender, body)
            return
        if body.memory_losses != self._memory_losses:
            self._merge_memory_losses(body.memory_losses)
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

    def _commit(self, item: Item) -> None:
        message = item.message
        if message is not None and len(item.decided) == len(message.destinations) and item.final < 0:
            item.final = item.bound
            item.committed_ns = self.now
            self.end_blocking(message)
            self._committed.add(item.id)
            self._finals += 1

    # Delivering

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

    # The end of a step: proposals and acknowledgements

    def _tell(self) -> None:
        """One acknowledgement (or proposal) per group for all that this step appended; else, if due, the clock."""
        fresh = self._fresh
        due = self._due
        if fresh:
            self._fresh = []
        self._due = False
        if not (fresh or due) or not self._is_active():
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

    def _said_of(self, items: list[Item], word: tuple[Word, ...] = ()) -> Body:
        ack = self._ack()
        if self._role != "primary":
            return ack
        return Propose(tuple([(item.index, item.id, item.timestamp) for item in items]), ack, word)

    def _ack(self) -> Ack:
        time, tie = self._last_delivered_rank
        return Ack(self._epoch, self._length, self._clock, self.position, time, tie, self._memory_losses)

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

    def _by_group(self, items: list[Item]) -> list[tuple[GroupId, list[Item]]]:
        """The other groups that some items are addressed to."""
        groups: dict[GroupId, list[Item]] = {}
        for item in items:
            assert item.message is not None
            for group in item.message.destinations:
                if group != self.home:
                    groups.setdefault(group, []).append(item)
        return sorted(groups.items())

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

    # Delivery notices

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
                self._send_after_persist((asker,), Propose((), self._ack(), tuple(word[: place + 1])))
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
        if late and self._role == "primary" and self._is_active():
            self._send_after_persist(self._other_members, Propose((), self._ack(), self._whole_word()))

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

    # Epoch changes

    def _campaign(self) -> None:
        self._promises = {}
        self._state = None
        super()._campaign()

    def _send_candidacy(self, members: tuple[ProcessId, ...]) -> None:
        self._send_after_persist(members, self._state or NewEpoch(self._promised))

    def _promise(self) -> Promise:
        return Promise(
            self._promised,
            self._epoch,
            self._clock,
            self._base,
            self._floor,
            self._entries(self._base),
            self._memory_losses,
        )

    def _hear_promise(self, sender: ProcessId, body: Promise) -> None:
        if self._role != "candidate" or body.epoch != self._promised or self._state is not None:
            return
        self._merge_memory_losses(body.memory_losses)
        self._promises[self._places[sender]] = body
        valid = select_valid_promises(self._promises, self._memory_losses)
        if len(valid) < self._quorum:
            return
        longest = max(valid, key=lambda promise: (promise.current, promise.base + len(promise.entries)))
        clock = max(promise.clock for promise in valid)
        self._state = NewState(self._promised, clock, longest.base, longest.floor, longest.entries, self._memory_losses)
        self._send_after_persist(self._members, self._state)

    def _hear_state(self, sender: ProcessId, body: NewState) -> None:
        assert sender == self._leader_of(body.epoch), f"process {sender} sent the state of epoch {body.epoch}"
        self._highest_epoch = max(self._highest_epoch, body.epoch)
        if self._role == "joining":
            if self._may_admit(body.epoch, body.memory_losses):
                self._complete_admission()
                self._adopt(body)
        elif body.epoch < self._promised:
            self._send_after_persist((sender,), Nack(self._promised))
        elif body.epoch > self._epoch:
            self._adopt(body)
        elif sender != self.me:
            self._extend(body)

    def _adopt(self, body: NewState) -> None:
        """Hold another log from now on."""
        self._enter_epoch(body.epoch, body.clock, body.memory_losses)
        self._established = False
        self._leader_clock = 0
        self._said = (0, 0)
        self._replace(body)
        self._due = True
        for place, ack in sorted(self._later.items()):
            if ack.epoch <= self._epoch:
                del self._later[place]
                self.fast_receive(self._members[place], ack)
        if self._leader_of(self._epoch) != self.me:
            self._tell_others(self._open(), None)

    def _extend(self, body: NewState) -> None:
        """The same log, of which I missed something."""
        end = body.base + len(body.entries)
        if end > self._length:
            self.note("extended")
            if body.base > self._length:
                self._replace(body)
                self._checkpoint_due = True
                self._due = True
                self._tell_others(self._open(), None)
            else:
                self._stream.clear()
                for entry in body.entries[self._length - body.base :]:
                    self._append(self._held(entry), entry.timestamp)
        if self._said[0] <= self._length and self._said[1] > self._leader_clock:
            self._leader_clock = self._said[1]

    def _replace(self, body: NewState) -> None:
        """Put the log of a state in the place of mine; what it lacks has no timestamp of my group any more."""
        for item in self._pending.values():
            item.index = -1
            item.timestamp = 0
            item.bound = max(item.decided.values(), default=0)
            if item.message is not None:
                self._unproposed[item.id] = item
        self._log = {}
        self._queue = []
        self._stream.clear()
        self._fresh = []
        self._base = self._length = self._decided = body.base
        self._floor = max(self._floor, body.floor)
        for entry in body.entries:
            self._place_in_log(self._held(entry), entry.timestamp)
        for item in self._pending.values():
            assert item.index >= 0 or self.home not in item.decided or self.position < self._floor, (
                f"process {self.me}: epoch {body.epoch} lost message {item.id}, whose timestamp was decided"
            )

    def _held(self, entry: Entry) -> Item:
        if entry.message.id in self._delivered:
            return self._buried(entry.message)
        item = self._item(entry.message.id)
        item.message = entry.message
        self._commit(item)
        return item

    def _entries(self, first: int) -> tuple[Entry, ...]:
        entries = []
        for index in range(first, self._length):
            item = self._log[index]
            assert item.message is not None
            entries.append(Entry(item.message, item.timestamp))
        return tuple(entries)

    def _open(self) -> list[Item]:
        """What has a place in the log and is not delivered, in the log's order."""
        return [item for index in range(self._base, self._length) if (item := self._log[index]).delivered_at < 0]

    def _tell_others(self, items: list[Item], only: ProcessId | None) -> None:
        """Say again to other groups (or to one process of theirs) how my group's log stands for what is open."""
        for group, mine in self._by_group(items):
            targets = self.topology.members(group)
            if only is None:
                self._send_after_persist(targets, self._said_of(mine), about(mine))
            elif only in targets:
                self._send_after_persist((only,), self._said_of(mine), about(mine))

    def _hear_later(self, place: int, ack: Ack) -> None:
        """A fellow is in an epoch that I have not reached: its state is on its way, or lost."""
        self._observe_epoch(ack.epoch)
        self._later[place] = ack

    def _establish(self) -> None:
        if self._role == "candidate" and self._leader_of(self._epoch) == self.me and self._is_active():
            self._role = "primary"
            self._promises = {}
            self._state = None
            self.note("epoch", value=float(self._epoch))
            for item in self._unproposed.values():
                self.note("reproposed", item.id)
            self._tell_others(self._open(), None)

    # Lost memory

    def _start_joining(self) -> None:
        super()._start_joining()
        self._established = False

    def _discard_votes(self, place: int) -> None:
        self._clocks.forget(place)
        self._later.pop(place, None)

    def _send_epoch_state(self, sender: ProcessId) -> None:
        if self._role == "primary" and self._is_active():
            self._send_after_persist((sender,), self._whole_state())

    def _whole_state(self) -> NewState:
        return NewState(
            self._epoch, self._clock, self._base, self._floor, self._entries(self._base), self._memory_losses
        )

    # Records

    def on_start(self, records: Sequence[Record], incarnation: int) -> None:
        for record in records:
            match record:
                case Checkpoint():
                    self._reopen(record)
                case Progress():
                    self._replay(record)
        super().on_start(records, incarnation)
        if records and incarnation > 0:
            self._durable_length, self._undurable = self._length, []
            self._established = False
            self._due = True
            if self._is_active():
                self._tell_others(self._open(), None)

    def _reopen(self, kept: Checkpoint) -> None:
        self._restore_kept(kept)
        if kept.first > kept.handed:
            self._jumped(kept.past[0].place if kept.past else kept.served)
        for past in kept.past[max(0, kept.handed - kept.first) :]:
            bundle = is_bundle(past.message.id)
            self._emit(past, len(bundle_headers(past.message)) - len(past.repeats) if bundle else -1, None)

    def _restore_kept(self, kept: Checkpoint) -> None:
        """Everything durable, as it was."""
        self._promised = kept.promised
        self._epoch = kept.epoch
        self._clock = kept.clock
        self._memory_losses = kept.memory_losses
        self._delivered.restore(kept.seen)
        self._last_delivered_rank = (kept.time, kept.tie)
        self._delivered_until = kept.handed
        self._history_start = kept.first
        self._past = {past.message.id: past for past in kept.past}
        self._obligations = Obligations()
        for fact in kept.facts:
            self._obligations.add(fact.id, fact.timestamp, fact.final, fact.groups)
        self.position = kept.first + len(kept.past)
        self._served = kept.served
        self._replace(NewState(kept.epoch, kept.clock, kept.base, kept.floor, kept.entries, kept.memory_losses))

    def _replay(self, record: Progress) -> None:
        self._promised = record.promised
        self._clock = max(self._clock, record.clock)
        self._memory_losses = record.memory_losses
        gap = record.first > self._length
        if gap:
            # What lay between was delivered and trimmed before it was durable: its places are taken for good.
            for index in range(self._base, self._length):
                del self._log[index]
            self._base = self._length = self._decided = record.first
        for place, entry in enumerate(record.entries, record.first):
            if place == self._length:
                self._place_in_log(self._held(entry), entry.timestamp)
        for handed in record.delivered:
            message = handed.message or self.stored_message(handed.id)
            assert message is not None, f"process {self.me}: no record has the text of message {handed.id}"
            self._hand_over(message, handed.timestamp, handed.final, None)
        if gap:
            self._floor = max(self._floor, self.position)

    def _build_checkpoint(self) -> Checkpoint:
        return Checkpoint(
            self._promised,
            self._epoch,
            self._clock,
            self._memory_losses,
            self._base,
            self._floor,
            self._entries(self._base),
            self._delivered_until,
            self._history_start,
            tuple(self._past.values()),
            *self._last_delivered_rank,
            self._delivered.snapshot(),
            self._known_facts(),
            self._served,
        )

    def _known_facts(self) -> tuple[OwedTimestamp, ...]:
        return tuple([OwedTimestamp(*debt) for debt in self._obligations.listed()])

    def _make_durable(self) -> None:
        """Before anything is said: promises, clock, accepted entries, deliveries, in one record."""
        if not self._recorded:
            self._undurable = []
            return
        if self._role == "joining":
            return
        if self._checkpoint_due or self._records_since_checkpoint >= self._config.keep:
            self._persist_checkpoint(self._build_checkpoint())
            self._durable_length, self._undurable = self._length, []
        elif (
            self._length > self._durable_length
            or self._clock > self._durable_clock
            or self._undurable
            or self._promised > self._durable_promised
            or self._memory_losses != self._durable_memory_losses
        ):
            self._persist_progress()

    def _persist_progress(self) -> None:
        if not self._recorded:
            return
        first = self._durable_length if self._durable_length > self._base else self._base
        entries = self._entries(first) if first < self._length else ()
        undurable = self._undurable
        delivered = tuple([self._handed_record(past, index, first) for past, index in undurable]) if undurable else ()
        promised, clock, memory_losses = self._promised, self._clock, self._memory_losses
        self.persist(Progress(promised, clock, memory_losses, first, entries, delivered))
        self._records_since_checkpoint += 1
        self._durable_promised, self._durable_clock, self._durable_memory_losses = promised, clock, memory_losses
        self._durable_length = self._length
        if undurable:
            self._undurable = []

    def _handed_record(self, past: DeliveredMessage, index: int, first: int) -> DeliveryRecord:
        """With the text, unless it was an entry of an earlier record or is one of this, which begins at `first`."""
        told = 0 <= index < self._durable_length or index >= first
        return DeliveryRecord(past.message.id, past.timestamp, past.final, None if told else past.message)

    def _trim(self) -> None:
        """Forget what a majority delivered from the log, and what everybody delivered from the past."""
        base, decided = self._base, self._decided
        if base < decided:
            log = self._log
            delivered = sorted(self._positions)[self._view.rank]
            while base < decided and 0 <= (at := log[base].delivered_at) < delivered:
                if at >= self._floor:
                    self._floor = at + 1
                del log[base]
                base += 1
            self._base = base
        past, first = self._past, self._history_start
        if past and first < self._delivered_until:
            keep = self._config.keep
            everybody = min(self._positions)
            while past and first < self._delivered_until and (first < everybody or len(past) > keep):
                del past[next(iter(past))]
                first += 1
            self._history_start = first

    # Repair inside the group

    def on_link_reset(self, peer: ProcessId, incarnation: int) -> None:
        if peer in self._other_members:
            self._resync_member(peer)
        elif self.topology.group_of(peer) is not None and self._is_active():
            self._tell_others(self._open(), peer)
            group = self.topology.group_of(peer)
            for item in [item for item in self._pending.values() if item.message is not None]:
                assert item.message is not None
                if group in item.message.destinations and group not in item.decided:
                    self._send_after_persist((peer,), Query(item.id, item.message), item.id)

    def _sync_request(self, full: bool) -> Sync:
        if self._role == "joining":
            return Sync(-1, 0, self.position, True)
        return Sync(self._epoch, self._length, self.position, full)

    def _hear_sync(self, sender: ProcessId, body: Sync) -> None:
        self._observe_epoch(body.epoch)
        self._reject_stale_leader(sender, body.epoch)
        if self._is_active():
            if self._leader_of(self._epoch) == self.me:
                self._send_log(sender, body)
            self._send_after_persist((sender,), self._ack())
        if body.full and body.position < self.position:
            self._help(sender, body.position)
        elif body.position > self.position:
            self._is_lagging = True

    def _send_log(self, sender: ProcessId, body: Sync) -> None:
        if body.epoch != self._epoch or body.length < self._base:
            self._send_after_persist((sender,), self._whole_state())
        elif body.length < self._length:
            entries = self._entries(body.length)
            self._send_after_persist(
                (sender,), NewState(self._epoch, self._clock, body.length, self._floor, entries, self._memory_losses)
            )

    def _help(self, sender: ProcessId, position: int) -> None:
        """Tell a fellow what it has not delivered. Who does not have that any more gives it the outcome only, if one of
        the two leads: followers are a little behind, each by its own time, and their leader lets them deliver."""
        if position >= self._history_start:
            past = tuple(self._past.values())[position - self._history_start :]
            self._send_after_persist((sender,), CatchUp(position, past))
        elif self._leader_of(self._epoch) in (self.me, sender) or self._leader_of(self._promised) == sender:
            told = Install(
                self.position, *self._last_delivered_rank, self._delivered.snapshot(), self._known_facts(), self._served
            )
            self._send_after_persist((sender,), told)

    def _catch_up(self, body: CatchUp) -> None:
        for past in body.past[max(0, self.position - body.first) :] if body.first <= self.position else ():
            self.note("caught-up", past.message.id)
            self._hand_over(past.message, past.timestamp, past.final, None)

    def _install(self, body: Install) -> None:
        if body.position <= self.position:
            return
        self._adopt_position(body.position, (body.time, body.tie), body.seen)
        self._served = body.served
        self._jumped(body.served)
        for id in [id for id in self._pending if id in self._delivered]:
            item = self._pending.pop(id)
            item.delivered_at = body.position - 1
            self._finals -= item.final >= 0
            self._unproposed.pop(id, None)
        self._past = {}
        self._undurable = []
        for fact in body.facts:
            self._obligations.add(fact.id, fact.timestamp, fact.final, fact.groups)
        self._due = True

    def _jumped(self, served: int) -> None:
        """A snapshot of another member was taken over: what it delivered counts as delivered here."""
        self._outbox.append(Note("installed", None, float(served)))

    def _request_missing(self, helper: ProcessId | None, overdue: list[Item]) -> None:
        if helper is not None:
            self._request_catch_up(helper)
        for item in overdue:
            self._request_message(item)

    def _request_catch_up(self, helper: ProcessId) -> None:
        for fellow in self._other_members:
            full = fellow == helper or fellow == self._leader_of(self._promised)
            if full or self._role != "joining":
                self._send_after_persist((fellow,), self._sync_request(full))

    # Repair between groups

    def _answer(self, sender: ProcessId, body: Query) -> None:
        if body.message is not None:
            self.on_request(body.message)
        answer = self._obligations.answer(body.id)
        item = self._pending.get(body.id)
        if answer is not None:
            self._send_after_persist((sender,), Decided(body.id, self.home, answer), body.id)
        elif item is not None and self.home in item.decided:
            self._send_after_persist((sender,), Decided(body.id, self.home, item.decided[self.home]), body.id)
        if body.message is None:
            message = self.stored_message(body.id)
            if message is not None:
                self._send_after_persist((sender,), Start(message), body.id)

    def _hear_decided(self, body: Decided) -> None:
        if body.id not in self._delivered:
            item = self._item(body.id)
            self._hear_time(item, body.group, body.timestamp)
            self._decide(item, body.group, body.timestamp)

    def _request_message(self, item: Item) -> None:
        self.note("asked", item.id)
        if item.message is None:
            for group in sorted(item.heard):
                others = tuple(member for member in self.topology.members(group) if member != self.me)
                self._send_after_persist(others, Query(item.id, None), item.id)
            return
        if item.index < 0:
            self._send_after_persist(self._other_members, Start(item.message), item.id)
        for group in item.message.destinations:
            if group != self.home and group not in item.decided:
                self._send_after_persist(self.topology.members(group), Query(item.id, item.message), item.id)

    def stored_message(self, message: MessageId) -> Message | None:
        item = self._pending.get(message)
        if item is not None:
            return item.message
        past = self._past.get(message)
        return None if past is None else past.message

    # Operators

    def status(self) -> ProcessStatus:
        delivered = sorted(self._positions)
        return {
            "position": self.position,
            "role": self._role,
            "epoch": round_of(self._epoch),
            "promised": round_of(self._promised),
            "leader": self._leader_of(self._epoch),
            "pending": len(self._pending),
            "log": self._length - self._base,
            "undecided": self._length - self._decided,
            "clock": self._clock,
            "slowest": delivered[0],
            "joined": int(self._role != "joining"),
        }

    def explain(self, message: MessageId) -> list[Phase]:
        if message in self._delivered:
            return [Phase("delivered", True, f"process {self.me} has delivered it")]
        item = self._open_with(message)
        if item is None:
            return [Phase("text", False, f"process {self.me} has never heard of it", ())]
        told: list[Phase] = []
        if item.id != message:
            told.append(Phase("bundle", True, f"it travels in bundle {item.id}"))
        if item.message is None:
            heard = sorted(item.heard)
            told.append(Phase("text", False, f"groups {heard} have stamped it; the message itself has not come"))
            return told
        told.append(Phase("text", True, f"the message is here, for groups {list(item.message.destinations)}"))
        told += self._told_stamps(item)
        if item.final >= 0:
            told += self._told_order(item)
        return told

    def _open_with(self, message: MessageId) -> Item | None:
        """The open item that is this message, or a bundle with it."""
        item = self._pending.get(message)
        if item is not None:
            return item
        for item in self._pending.values():
            text = item.message
            if text is not None and is_bundle(item.id) and any(part.id == message for part in bundle_messages(text)):
                return item
        return None

    def _told_stamps(self, item: Item) -> list[Phase]:
        assert item.message is not None
        groups = item.message.destinations
        stamped = {*item.heard, *item.decided} | ({self.home} if item.index >= 0 else set())
        missing = [group for group in groups if group not in stamped]
        told = [Phase("proposed", True, "every group's primary has stamped it")]
        if missing:
            late = tuple(self._primary_of(group) for group in missing)
            told = [Phase("proposed", False, f"no stamp has come from the primaries of groups {missing}", late)]
        undecided = [group for group in groups if group not in item.decided]
        if not undecided:
            return [*told, Phase("decided", True, f"its final timestamp is {item.final}")]
        lagging = [member for group in undecided if group not in missing for member in self._silent(group, item)]
        said = f"no majority of groups {undecided} has acknowledged its stamp"
        return [*told, Phase("decided", False, said, tuple(lagging))]

    def _primary_of(self, group: GroupId) -> ProcessId:
        """As far as this process knows."""
        if group == self.home:
            return self._leader_of(self._epoch)
        return self.topology.members(group)[place_of(self._other(group).epoch)]

    def _silent(self, group: GroupId, item: Item) -> list[ProcessId]:
        """Members whose acknowledgement of the stamp has not come here."""
        view = self._view if group == self.home else self._other(group)
        epoch = self._epoch if group == self.home else view.epoch
        index = item.index
        if group != self.home:
            index = next((place for place, id, _ in view.waiting if id == item.id), -1)
        if index < 0:
            return []
        return [
            member
            for member, at, length in zip(view.members, view.epochs, view.lengths, strict=True)
            if at != epoch or length <= index
        ]

    def _told_order(self, item: Item) -> list[Phase]:
        """The final timestamp is known; what else stands before the delivery."""
        told: list[Phase] = []
        limit = self._limit()
        behind = tuple(
            member for member, clock in zip(self._members, self._clocks.snapshot(), strict=True) if clock < item.final
        )
        if limit >= item.final:
            told.append(Phase("clocks", True, f"clocks have passed {item.final}"))
        else:
            if self._leader_clock < item.final:
                behind = tuple(dict.fromkeys((self._leader_of(self._epoch), *behind)))
            told.append(Phase("clocks", False, f"clocks have reached {limit}, not {item.final}", behind))
        if not self._established or self._promised != self._epoch:
            told.append(
                Phase("epoch", False, f"epoch {self._promised} is not established; this member delivers nothing before")
            )
        older = [
            other.id
            for other in self._pending.values()
            if other.id != item.id and other.index >= 0 and (other.bound, other.id) < (item.final, item.id)
        ]
        if older:
            some = ", ".join(str(id) for id in sorted(older)[:5])
            told.append(
                Phase("first", False, f"{len(older)} messages may come before it and are not delivered: {some}")
            )
        else:
            told.append(Phase("first", True, "nothing that is known comes before it"))
        return told

    # Snapshots

    def snapshot(self) -> PrimCastState:
        return PrimCastState(
            self._build_checkpoint(),
            self._snapshot_member(),
            self._established,
            self._published,
            self._leader_clock,
            self._said,
            tuple(self._stream),
            tuple(self._log[index].delivered_at for index in range(self._base, self._length)),
            tuple(_item_state(item) for _, item in sorted(self._pending.items())),
            tuple(self._unproposed),
            tuple(_view_state(view) for view in (self._view, *(self._views[g] for g in sorted(self._views)))),
            self._clocks.snapshot(),
            tuple(sorted(self._later.items())),
            tuple(sorted(self._promises.items())),
            self._state,
            self._durable_length,
            self._decided,
            tuple(self._undurable),
            tuple(self._word),
            tuple([(position, *told) for position, told in sorted(self._told.items())]),
            self._word_due,
            self._word_ns,
            self._proposed_ns,
            self._streams,
        )

    def restore(self, state: State) -> None:
        assert isinstance(state, PrimCastState)
        self._pending = {}
        self._unproposed = {}
        self._restore_kept(state.kept)
        self._restore_member(state.member)
        self._established = state.established
        self._published = state.published
        self._leader_clock = state.leader_clock
        self._said = state.said
        self._stream.clear()
        self._stream.extend(state.stream)
        for index, delivered_at in enumerate(state.delivered_at, self._base):
            self._log[index].delivered_at = delivered_at
        for kept in state.items:
            _fill(self._item(kept.id), kept)
        self._finals = sum(item.final >= 0 for item in self._pending.values())
        self._queue = [(item.bound, item.id) for item in self._pending.values() if item.index >= 0]
        heapify(self._queue)
        self._unproposed = {id: self._pending[id] for id in state.unproposed}
        self._view = _view(state.views[0], self.topology)
        self._views = {kept.group: _view(kept, self.topology) for kept in state.views[1:]}
        self._afar = {}
        self._patient = {}
        self._moved = True
        self._clocks.restore(state.clocks)
        self._later = dict(state.later)
        self._promises = dict(state.promises)
        self._state = state.state
        self._durable_length = state.durable_length
        self._decided = state.decided
        self._undurable = list(state.undurable)
        self._word = list(state.word)
        self._told = {position: (id, final) for position, id, final in state.told}
        self._looked = len(state.word)
        self._word_due = state.word_due
        self._word_ns = state.word_ns
        self._proposed_ns = state.proposed_ns
        self._streams = state.streams


def _asker_of(word: Word) -> ProcessId:
    return gateway_process(word[1] // MESSAGES_PER_SENDER)


def _asker(message: Message) -> ProcessId:
    return gateway_process(message.sender) if is_bundle(message.id) else message.sender


def _item_state(item: Item) -> ItemState:
    return ItemState(
        item.id,
        item.message,
        item.index,
        item.timestamp,
        item.highest,
        tuple(sorted(item.decided.items())),
        tuple(sorted(item.heard)),
        item.committed_ns,
        item.is_overdue,
    )


def _fill(item: Item, kept: ItemState) -> None:
    item.message = kept.message
    item.index = kept.index
    item.timestamp = kept.timestamp
    item.highest = kept.highest
    item.decided = dict(kept.decided)
    item.heard = set(kept.heard)
    item.committed_ns = kept.committed_ns
    item.is_overdue = kept.is_overdue
    item.bound = max(item.timestamp if item.index >= 0 else 0, max(item.decided.values(), default=0))
    if item.committed_ns >= 0:
        item.final = item.bound


def _view_state(view: GroupProgress) -> ViewState:
    return ViewState(
        view.group,
        view.epoch,
        tuple(view.epochs),
        tuple(view.lengths),
        tuple(view.marks),
        tuple(sorted(view.waiting)),
    )


def _view(kept: ViewState, topology: Topology) -> GroupProgress:
    view = GroupProgress(kept.group, topology)
    view.epoch = kept.epoch
    view.epochs = list(kept.epochs)
    view.lengths = list(kept.lengths)
    view.marks = list(kept.marks)
    view.waiting = list(kept.waiting)
    return view


def _delays(role: str, destinations: int, replicas: int) -> int | None:
    """Three; fewer only where a follower's own word and its primary's are a majority, or a process is its group."""
    if replicas == 1:
        return 2 if destinations > 1 else 1
    return 2 if role == "member" and destinations == 1 and replicas <= 3 else 3


SPEC = Spec(
    name="primcast",
    summary="primaries stamp, everybody acknowledges to everybody: three delays at every destination",
    source="paper 002: Pacheco, Coelho, Pedone 2023",
    process=PrimCast,
    config=PrimCastConfig,
    bodies=BODIES,
    records=RECORDS,
    states=(PrimCastState, LeaderGroupState, ItemState, ViewState),
    claims=replace(
        ROBUST,
        delays=_delays,
        bound=lambda role, skew: 5,
        packets=lambda destinations, replicas: destinations * (replicas + destinations * replicas * replicas),
    ),
    roles=lambda topology, process: (
        "primary" if process in (topology.members(group)[0] for group in topology.groups) else "member"
    ),
    open_bundle=bundle_messages,
    goals=("waited", "early", "bump", "epoch", "reproposed", "asked", "caught-up", "extended", "nack", "admitted"),
)

HYBRID = replace(
    SPEC,
    name="primcast-hc",
    summary="PrimCast whose primaries stamp with the time of day, against the convoy effect",
    source="paper 002, section 6",
    claims=replace(SPEC.claims, bound=lambda role, skew: min(5, 4 + 2 * skew)),
    options={"hybrid": True},
)
