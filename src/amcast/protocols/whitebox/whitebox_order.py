"""White-Box while nothing fails: leaders stamp, members accept, leaders commit and deliver (002, section 4.2)."""

from abc import abstractmethod
from heapq import heappop, heappush, heapreplace

from amcast.kernel.effects import About
from amcast.kernel.ids import GroupId, MessageId, ProcessId
from amcast.kernel.message import Body, Message
from amcast.kernel.topology import Topology
from amcast.parts.consensus.quorum import place_of
from amcast.parts.groups.leader_group import LeaderGroupMember, PendingMessage, find_new_losses
from amcast.parts.groups.messages import Entry
from amcast.parts.ordering.obligations import Rank
from amcast.protocols.whitebox.messages import (
    Accept,
    AcceptAck,
    Decided,
    DeliveredMessage,
    Delivery,
    WhiteBoxConfig,
)


class Item(PendingMessage):
    """A message that is not delivered here, and what is known of it."""

    __slots__ = (
        "accepts",
        "committed_ns",
        "final",
        "id",
        "local",
        "message",
        "ordered",
        "proposed",
        "tallies",
    )

    def __init__(self, message: Message) -> None:
        self.id = message.id
        self.message = message
        self.local = 0
        """My group's timestamp as I accepted it: must survive; 0 if I did not."""
        self.proposed = 0
        """My own timestamp for it, if I lead; 0 before I gave one in this ballot."""
        self.accepts: dict[GroupId, tuple[int, int]] = {}
        """Ballot and timestamp of each group's leader."""
        self.tallies: dict[tuple[int, ...], dict[GroupId, int]] = {}
        """Who accepted it (bits by place), by the ballots under which they did."""
        self.final = -1
        self.committed_ns = -1
        self.ordered = False
        """I, leading, have told my group to deliver it."""
        self.is_overdue = False

    def ballots(self) -> tuple[int, ...]:
        """The leaders' ballots; only when every group's leader was heard."""
        return tuple(self.accepts[group][0] for group in self.message.destinations)


def about(ids: list[MessageId]) -> About:
    return ids[0] if len(ids) == 1 else tuple(ids)


class Order(LeaderGroupMember[Item]):
    """The failure-free part of a member."""

    def __init__(self, me: ProcessId, topology: Topology, config: WhiteBoxConfig) -> None:
        super().__init__(me, topology, config, "leader")
        self._queue: list[Rank] = []
        """A leader's heap over what it stamped: a lower bound of each one's rank."""
        self._next = 0
        """The position of the next delivery that I, leading, order."""

        self._past: dict[MessageId, DeliveredMessage] = {}
        """The last deliveries, in order, for fellows that lag."""
        self._stable: dict[GroupId, Rank] = {}
        """Up to where a majority of another group has delivered."""
        self._marks: list[Rank] = [(0, 0)] * len(self._members)
        """Up to where each fellow has told me, its leader, that it delivered."""
        self._far_memory_losses: dict[GroupId, tuple[int, ...]] = {}
        """In which incarnation members of other groups lost their memory."""

        self._stamped: list[Item] = []
        self._accepted: list[Item] = []
        self._ordered: list[tuple[MessageId, int]] = []
        """Of this step, to be told together at its end."""
        self._undurable: list[DeliveredMessage] = []
        """Deliveries that no record tells yet."""

    def contacts(self, message: Message) -> tuple[ProcessId, ...]:
        return contact(self.topology, message)

    def _leading(self) -> bool:
        return self._role == "leader" and self._promised == self._epoch

    def _item(self, message: Message) -> Item:
        item = self._pending.get(message.id)
        if item is None:
            item = self._pending[message.id] = Item(message)
        return item

    # Stamping

    def on_request(self, message: Message) -> None:
        """A client's message, for the leader; who does not lead, and had not heard of it, passes it on."""
        new = message.id not in self._pending
        if self._take_up(message) and new and not self._leading() and self._leader_of(self._promised) != self.me:
            self.note("forwarded", message.id)
            self._send_after_persist((self._leader_of(self._promised),), self._retry(message), message.id)

    @abstractmethod
    def _retry(self, message: Message) -> Body:
        """What a follower hands to its leader (`whitebox_repair`)."""

    def _take_up(self, message: Message) -> bool:
        """Stamp a message, or repeat the stamp; False if it is delivered."""
        if message.id in self._delivered:
            return False
        assert self.home in message.destinations, f"process {self.me} is no destination of message {message.id}"
        item = self._item(message)
        if self._leading():
            if item.proposed:
                self._stamped.append(item)
            else:
                self._stamp(item)
        return True

    def _stamp(self, item: Item) -> None:
        self._clock += 1
        item.proposed = self._clock
        heappush(self._queue, (self._clock, item.id))
        self._stamped.append(item)

    # Accepting

    def _hear_accept(self, sender: ProcessId, body: Accept) -> None:
        group = self.topology.group_of(sender)
        assert group is not None
        if group == self.home:
            self._merge_memory_losses(body.memory_losses)
            if body.ballot < self._promised:
                self._reject_stale_leader(sender, body.ballot)
            if body.ballot > self._epoch:
                self._is_lagging = True
            if body.ballot != self._epoch or not self._is_active():
                return
        else:
            self._hear_far_memory_losses(group, body.memory_losses)
            self._hear_stable(group, (body.time, body.tie))
        for entry in body.entries:
            self._hear_stamp(sender, group, body.ballot, entry)

    def _hear_stamp(self, sender: ProcessId, group: GroupId, ballot: int, entry: Entry) -> None:
        id = entry.message.id
        if id in self._delivered:
            final = self._final(id)
            if final is not None:
                self._send_after_persist((sender,), Decided(id, final), id)
            return
        item = self._item(entry.message)
        known = item.accepts.get(group)
        if known is not None and known[0] > ballot:
            return
        item.accepts[group] = (ballot, entry.timestamp)
        if not item.proposed and self._leading():
            self._stamp(item)  # its client told the others, and not me
        self._consider(item)

    def _final(self, id: MessageId) -> int | None:
        final = self._obligations.answer(id)
        if final is None and id in self._past:
            final = self._past[id].final
        return final

    def _consider(self, item: Item) -> None:
        """Accept what every leader has stamped: from now on my clock is past all its timestamps."""
        accepts = item.accepts
        if not self._is_active() or len(accepts) < len(item.message.destinations):
            return
        if accepts[self.home][0] != self._epoch:
            return
        item.local = accepts[self.home][1]
        self._clock = max(self._clock, max(timestamp for _, timestamp in accepts.values()))
        self._accepted.append(item)
        self._count(item)

    # Committing

    def _hear_acks(self, sender: ProcessId, body: AcceptAck) -> None:
        group = self.topology.group_of(sender)
        assert group is not None
        if group == self.home:
            self._merge_memory_losses(body.memory_losses)
            place = self._places[sender]
            self._positions[place] = body.position
            self._marks[place] = (body.time, body.tie)
        else:
            self._hear_far_memory_losses(group, body.memory_losses)
        bit = 1 << self.topology.members(group).index(sender)
        for id, ballots in body.acks:
            item = self._pending.get(id)
            if item is not None:
                tally = item.tallies.setdefault(ballots, {})
                tally[group] = tally.get(group, 0) | bit
                self._count(item)

    def _count(self, item: Item) -> None:
        """Commit what a majority of every destination accepted under the very ballots that I heard."""
        destinations = item.message.destinations
        if item.final >= 0 or not self._leading() or len(item.accepts) < len(destinations):
            return
        if item.accepts[self.home][0] != self._epoch:
            return
        tally = item.tallies.get(item.ballots())
        if tally is None:
            return
        for group in destinations:
            if tally.get(group, 0).bit_count() < self.topology.quorum(group):
                return
        self._commit(item, max(timestamp for _, timestamp in item.accepts.values()))

    def _commit(self, item: Item, final: int) -> None:
        assert item.final in (-1, final), f"process {self.me}: message {item.id} commits at {final} and {item.final}"
        item.final = final
        item.committed_ns = self.now
        self.end_blocking(item.message)
        self._committed.add(item.id)

    def _hear_decided(self, body: Decided) -> None:
        item = self._pending.get(body.id)
        if item is not None and item.final < 0:
            self._clock = max(self._clock, body.final)
            self._commit(item, body.final)

    def _order(self) -> None:
        """A leader delivers what is committed, once nothing that it stamped can come before."""
        queue = self._queue
        while queue:
            bound, id = queue[0]
            item = self._pending.get(id)
            if item is None or item.ordered:
                heappop(queue)
            elif item.final < 0:
                break
            elif item.final > bound:
                heapreplace(queue, (item.final, id))
            else:
                heappop(queue)
                item.ordered = True
                self._ordered.append((id, item.final))
                if id not in self._committed:
                    self.note("waited", id)

    # Delivering

    def _hear_delivery(self, body: Delivery) -> None:
        if body.ballot > self._epoch:
            self._is_lagging = True
        if body.ballot != self._epoch or not self._is_active():
            return
        for position, (id, final) in enumerate(body.deliveries, body.first):
            if position < self.position:
                continue
            item = self._pending.get(id)
            if position > self.position or item is None:
                self._is_lagging = True
                break
            if item.committed_ns >= 0:
                self._hand_over(DeliveredMessage(item.message, final), item.committed_ns)
            else:
                waited = body.waits[position - body.first] if body.waits else 0
                self._hand_over(DeliveredMessage(item.message, final), None, waited)

    def _behind(self, id: MessageId) -> int:
        """How long a local message waited for global ones."""
        item = self._pending.get(id)
        if item is None or len(item.message.destinations) > 1:
            return 0
        return max(0, self.last_global_ns - item.committed_ns)

    def _hand_over(self, past: DeliveredMessage, committed_ns: int | None, held_ns: int = 0) -> None:
        message = past.message
        id = message.id
        self._pending.pop(id, None)
        self._past[id] = past
        assert self._last_delivered_rank < (past.final, id), (
            f"process {self.me}: {id} at {past.final} after {self._last_delivered_rank}"
        )
        self._delivered.add(id)
        self._last_delivered_rank = (past.final, id)
        self._owe(id, past.final, tuple(group for group in message.destinations if group != self.home))
        self._undurable.append(past)
        self._clock = max(self._clock, past.final)
        self.deliver(message, past.final, id, committed_ns, held_ns)
        while len(self._past) > self._config.keep and self._history_start < self._delivered_until:
            del self._past[next(iter(self._past))]
            self._history_start += 1

    def _owe(self, id: MessageId, final: int, groups: tuple[GroupId, ...]) -> None:
        missing = tuple(group for group in groups if self._stable.get(group, (0, 0)) < (final, id))
        self._obligations.add(id, final, final, missing)

    def _hear_stable(self, group: GroupId, mark: Rank) -> None:
        """A majority of another group delivered up to here: its members can now help each other."""
        if mark > self._stable.get(group, (0, 0)):
            self._stable[group] = mark
            self._obligations.resolve(group, mark)

    def _hear_far_memory_losses(self, group: GroupId, memory_losses: tuple[int, ...]) -> None:
        """The same as `_merge_memory_losses`, of another group."""
        known = self._far_memory_losses.get(group)
        if memory_losses != known:
            if known is None:
                known = (0,) * len(memory_losses)
            self._far_memory_losses[group] = tuple(map(max, known, memory_losses))
            for place in find_new_losses(known, memory_losses):
                self._discount(group, place)

    def _discard_votes(self, place: int) -> None:
        self._discount(self.home, place)

    def _discount(self, group: GroupId, place: int) -> None:
        """Count no acceptance of this member that came before."""
        for item in self._pending.values():
            for tally in item.tallies.values():
                tally[group] = tally.get(group, 0) & ~(1 << place)

    # Telling

    def _tell(self) -> None:
        """Stamps by destinations, acceptances by the leaders they go to, deliveries to my group."""
        for destinations, items in self._by_destinations(self._stamped):
            targets = self.topology.processes_of(destinations)
            self.send_all(targets, self._accept(items), about([item.id for item in items]))
        acks: dict[tuple[ProcessId, ...], list[Item]] = {}
        for item in dict.fromkeys(self._accepted):
            acks.setdefault(self._leaders(item), []).append(item)
        for leaders, items in acks.items():
            said = tuple((item.id, item.ballots()) for item in items)
            body = AcceptAck(said, self.position, *self._last_delivered_rank, self._memory_losses)
            self.send_all(leaders, body, about([item.id for item in items]))
        if self._ordered:
            # Fellows may have told me of deliveries that an earlier leader ordered.
            self._next = max(self._next, self.position)
            ids = [id for id, _ in self._ordered]
            waits = tuple([self._behind(id) for id in ids])
            delivery = Delivery(self._epoch, self._next, tuple(self._ordered), waits if any(waits) else ())
            self.send_all(self._members, delivery, about(ids))
            self._next += len(self._ordered)
        self._stamped, self._accepted, self._ordered = [], [], []

    def _accept(self, items: list[Item]) -> Accept:
        entries = tuple(Entry(item.message, item.proposed) for item in items)
        stable = sorted(self._marks)[len(self._marks) - self._quorum]
        return Accept(self._epoch, entries, *stable, self._memory_losses)

    def _by_destinations(self, items: list[Item]) -> list[tuple[tuple[GroupId, ...], list[Item]]]:
        sets: dict[tuple[GroupId, ...], list[Item]] = {}
        for item in dict.fromkeys(items):
            sets.setdefault(item.message.destinations, []).append(item)
        return list(sets.items())

    def _leaders(self, item: Item) -> tuple[ProcessId, ...]:
        return tuple(
            self.topology.members(group)[place_of(item.accepts[group][0])] for group in item.message.destinations
        )


def contact(topology: Topology, message: Message) -> tuple[ProcessId, ...]:
    """The destinations' leaders, as far as anybody can know without asking: their first members."""
    return tuple(topology.members(group)[0] for group in message.destinations)
