"""Real-time order: answers wait until no message that is multicast later can precede the answered one, in any group.

    group A (destination of m)           group B (destination of m)          group C
      |   the protocol delivers m              |                                |
      |                                        |  the protocol delivers x (to B and C), then m
      |<--OrderReport(x, m)--------------------|---OrderReport(x)-------------->|
      |   m waits: x is not known at C         |                                |  the protocol delivers x
      |                                        |<--OrderReport(x)---------------|
      |<--OrderReport(closed: x)---------------|   x is closed
      |   m is closed: answer                  |

The protocols order messages without cycles, and no more: a message may be delivered, and answered, at one group while
another group still orders later requests before one that precedes it (docs/real-time.md has the story). This part holds
back answers, not deliveries, so that positions, records and state transfer are the same in both settings.
`parts/ordering/consistent_cut.py` defines closed and proves when a message is. What is proved there is used here so:

- Every node knows the order of its own group from its own deliveries. The leader reports it to the destinations of what
  it delivers: every open message up to that one, also those that are not addressed to the receiver, because they may
  be what it waits for. A later report begins where the last one to the same group ended.
- A receiver computes the greatest consistent cut of all that it knows, and answers up to there. If everything open
  before m in each destination is addressed to the receiver's group, too, the first report of each destination is
  enough: one message delay more than the delivery, and none where reports overtake it.
- If something else is open, the receiver lacks the word of a third group. It learns of it when the reporting group
  finds the message closed (and reports that), or from the third group itself, whose leader it asks to report all
  deliveries for a while (`follows`): then knowledge crosses the graph of groups, not the chain of messages, and chains
  do not serialise.
- In some protocols other members deliver one message delay before their leader (`Deliver.is_ahead`). Such a member also
  reports, to the one process that somebody waits for: the gateway of the bundle, in another destination.

A report is a statement that stays true whoever makes it, and when: a delivery is never taken back, and reports leave
behind the records that deliveries depend on. So every loss is repaired by asking again, any member may answer, and
nothing depends on who leads. A restart knows the open messages from its last checkpoint (`RealTimeCheckpoint`) and the
deliveries that it repeats; a process that adopts the state of another member has a gap in what it knows, closes nothing
behind it, and asks. Members, and groups that have heard of the order, fill it. Should every member have lost it, before
one could ask another, the next message that is addressed to all groups closes everything before it; until then the
answers of that group wait. A cluster of one group closes what it delivers, known or not.

**Limits.** A group that is cut off holds the answers of all messages behind those that are addressed to it, local ones
as well; `status` and `explain` say who waits for whom. What a node remembers of its own group is bounded by the windows
of the clients that wait; of other groups by `max_open`. A_dt removes groups that it believes to be lost, and nothing is
demanded of them: if such a group lives, messages to it are not in real-time order while it is out.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Final

from amcast.kernel.diagnostics import Phase, ProcessStatus
from amcast.kernel.effects import Close, Deliver, Effect, Persist, Send
from amcast.kernel.ids import GroupId, MessageId, ProcessId
from amcast.kernel.message import Record
from amcast.kernel.process import Process
from amcast.parts.node.messages import (
    HeldAnswer,
    OrderReport,
    OrderRequest,
    RealTimeCheckpoint,
    RealTimeConfig,
    RealTimeState,
)
from amcast.parts.ordering.consistent_cut import GroupOrder, OpenMessage, find_cut

ORDER_TIMER: Final = "real-time"
MAX_ASKED: Final = 128
"""The most messages in one request: half of them the oldest, half the newest."""
MAX_CLOSED: Final = 4096
"""How many messages are remembered as closed, the latest ones: a report may still list them as open."""


class RealTimeOrder:
    """What one node knows about the orders of all groups, and the answers that it holds back. It acts through its
    owner's verbs, and `finish_step` returns what must leave behind the effects of the protocol."""

    def __init__(
        self,
        owner: Process,
        home: GroupId,
        config: RealTimeConfig,
        checkpoint_type: type[RealTimeCheckpoint],
        has_delivered: Callable[[MessageId], bool],
    ) -> None:
        self.config = config
        self._owner = owner
        self._home = home
        self._checkpoint_type = checkpoint_type
        self._has_delivered = has_delivered
        self._orders: dict[GroupId, GroupOrder] = {group: GroupOrder() for group in owner.topology.groups}
        self._own = self._orders[home]
        self._position = 0
        """Everything that was delivered here is before this position."""
        self._closed: dict[MessageId, None] = {}
        """The messages that were last found to be closed, oldest first. Some may not be delivered here yet."""
        self._held: deque[HeldAnswer] = deque()
        """By position."""
        self._retries: set[tuple[ProcessId, MessageId]] = set()
        """Receiver and message of held answers to retries."""
        self._sent: dict[GroupId, int] = {}
        """By group: up to where its members know the order of the own group from this process."""
        self._context: dict[GroupId, deque[int]] = {}
        """By group: positions of open messages that were reported to it and are not addressed to it."""
        self._followers: dict[GroupId, int] = {}
        """By group that follows the own one: until when, in ns."""
        self._follows: dict[GroupId, int] = {}
        """By group that the own one follows: when it was last asked, in ns."""
        self._is_leading = False
        self._is_timer_set = False
        self._first: tuple[int, int] = (-1, 0)
        """The position of the first delivery that is not closed (-1: none), and since when it is that, in ns."""
        self._asked = -1
        """That position when the timer was set."""
        self._fresh: list[OpenMessage] = []
        """Open messages that were delivered in this step."""
        self._waiting_gateways: set[ProcessId] = set()
        """Who answers clients for messages that this process delivered in this step ahead of its leader."""
        self._has_news = False
        """Something was delivered or learnt in this step."""
        self._must_ask = False
        self._blocked: tuple[tuple[MessageId, GroupId], ...] = ()
        """What was missing when the last cut had nothing for the own group; empty once anything was closed since."""
        self._lost: tuple[GroupId, ...] = ()
        self._has_gap = False
        """The own order had a gap since `_close_known` last looked at other orders."""
        self._stated = 0
        """The driver knows that everything before this position is closed."""
        self._adopts_past = False
        """The records were written without real-time order: what they hold was answered, and counts as closed."""

    @property
    def closed(self) -> int:
        """Every delivery of the own group before this position is closed."""
        return self._own.closed

    # Starting, and records

    def start(self, records: Sequence[Record]) -> None:
        """Begins with what the records say about the order of the own group."""
        envelopes = [record for record in records if isinstance(record, RealTimeCheckpoint)]
        if envelopes:
            self._own.restore(envelopes[-1].order)
            self._position = self._own.end
            self._has_gap = self._own.gap is not None
        self._adopts_past = bool(records) and not envelopes
        self._must_ask = self._has_news = bool(records)

    def wrap(self, effect: Persist) -> Persist:
        """Adds the open messages to a record from which a restart does not repeat earlier deliveries."""
        record = self._checkpoint_type(effect.record, self._own.snapshot())
        return Persist(record, effect.replaces, effect.after_deliveries)

    # Deliveries

    def deliver(self, delivery: Deliver, kind: str, receiver: ProcessId) -> None:
        """Takes the next delivery of the own group, and holds its answer."""
        message, position, count = delivery.message, delivery.position, delivery.message_count
        end = position + (1 if count < 0 else count)
        own = self._own
        if position > own.end:
            own.skip(position)
        if end > own.end:
            if len(message.destinations) == 1:
                own.end = end
            else:
                opened = OpenMessage(message.id, position, message.destinations)
                own.append(opened, end)
                self._fresh.append(opened)
                if delivery.is_ahead:
                    self._waiting_gateways.add(receiver)
                if message.id in self._closed:
                    self._close_before(self._home, position + 1)
        self._has_news = True
        self._position = max(self._position, end)
        self._held.append(HeldAnswer(end, kind, receiver, message.id, message.destinations))  # type: ignore[arg-type]

    def install(self, position: int) -> None:
        """Follows the protocol, which adopted another member's state: nothing is known of what that delivered."""
        self._position = max(self._position, position)
        if position > self._own.end:
            if self._adopts_past:
                self._own.end = position
            else:
                self._own.skip(position)
                self._must_ask = self._has_gap = True
            self._has_news = True

    def hold_retry(self, receiver: ProcessId, message: MessageId, destinations: tuple[GroupId, ...]) -> None:
        """Holds the answer to a request for a message that was delivered before, at an unknown position."""
        if (receiver, message) not in self._retries:
            self._retries.add((receiver, message))
            self._held.append(HeldAnswer(self._position, "retry", receiver, message, destinations))
            self._has_news = True

    def pop_answers(self) -> Iterable[HeldAnswer]:
        """Removes the answers whose messages are closed, in order."""
        closed = self.closed
        while self._held and self._held[0].end <= closed:
            answer = self._held.popleft()
            if answer.kind == "retry":
                self._retries.discard((answer.receiver, answer.message))
            yield answer

    # Bodies and events

    def handle_report(self, sender: ProcessId, body: OrderReport) -> None:
        """Adds a statement about the order of a group."""
        self._has_news = True
        group = body.group
        order = self._orders.get(group)
        if order is None:
            return
        for id in body.closed_messages:
            for place, other in self._orders.items():
                if id in other.open:
                    self._close_before(place, other.open[id].position + 1)
        if not order.learn(body.closed, body.begin, body.end, body.messages):
            self._owner.send(sender, OrderRequest(group))
        self._close_before(group, body.closed)
        for message in body.messages:
            if message.id in order.open and self._is_known_closed(message):
                self._close_before(group, message.position + 1)

    def handle_request(self, sender: ProcessId, body: OrderRequest) -> None:
        """Reports what is known of the order of a group."""
        order = self._orders.get(body.group)
        group = self._owner.topology.group_of(sender)
        if order is None or group is None:
            return
        is_own = body.group == self._home
        closed_messages = tuple(id for id in body.messages if is_own and self._is_closed(id))
        self._owner.send(sender, self._describe(body.group, closed_messages))
        if body.follows and is_own and group != self._home:
            self._followers[group] = self._owner.now + self.config.follow_ns

    def handle_link_reset(self, peer: ProcessId) -> None:
        """Reports again to a peer that may have lost reports."""
        group = self._owner.topology.group_of(peer)
        is_addressed = any(group in message.destinations for message in self._own.open.values())
        if self._is_leading and group != self._home and is_addressed:
            self._owner.send(peer, self._describe(self._home))

    def expire_timer(self) -> None:
        """Asks for what is missing if nothing was closed since the timer was set."""
        self._is_timer_set = False
        self._must_ask = self._must_ask or self._first[0] == self._asked
        self._has_news = True

    def _is_known_closed(self, message: OpenMessage) -> bool:
        """Whether a message that another process takes for open is known to be closed."""
        return message.id in self._closed or (self._home in message.destinations and self._is_closed(message.id))

    def _is_closed(self, message: MessageId) -> bool:
        return self._own.gap is None and message not in self._own.open and self._has_delivered(message)

    def _describe(self, group: GroupId, closed_messages: tuple[MessageId, ...] = ()) -> OrderReport:
        """All that is known of the order of a group, up to its gap."""
        order = self._orders[group]
        closed, end, messages = order.closed, order.end, tuple(order.open.values())
        if order.gap is not None:
            end = order.gap[0]
            messages = tuple(message for message in messages if message.position < end)
        return OrderReport(group, closed, closed, end, messages, closed_messages)

    # Closing

    def _close_before(self, group: GroupId, position: int) -> None:
        """Everything that a group delivered before a position is closed, and with each of these messages everything
        that precedes it in any of its destinations."""
        waiting = [(group, position)]
        while waiting:
            group, position = waiting.pop()
            for message in self._orders[group].remove_before(position):
                self._blocked = ()
                self._closed[message.id] = None
                for other in message.destinations:
                    known = self._orders[other].open.get(message.id)
                    if known is not None:
                        waiting.append((other, known.position + 1))

    def _close_known(self) -> None:
        """Closes messages that other groups were reported to hold open while this process did not know its own order:
        its gap is filled now, and no later report need list them again."""
        had_gap, self._has_gap = self._has_gap, self._own.gap is not None
        if not had_gap or self._has_gap:
            return
        for group, order in self._orders.items():
            known = [
                message for message in order.open.values() if group != self._home and self._is_known_closed(message)
            ]
            if known:
                self._close_before(group, known[-1].position + 1)

    def _advance(self) -> None:
        """Closes what the greatest consistent cut contains."""
        own, orders = self._own, self._orders
        if own.gap is not None and not self._lost:
            self._close_before_barrier()
        while own.open and own.closed == (first := next(iter(own.open.values()))).position:
            others = [orders[group] for group in first.destinations if group != self._home and group not in self._lost]
            if any(first.id not in order.open for order in others):
                return
            if all(next(iter(order.open)) == first.id for order in others):
                self._close_before(self._home, first.position + 1)
                continue
            if self._blocked and not any(
                group in self._lost or id in orders[group].open for id, group in self._blocked
            ):
                return
            cut = find_cut(orders, self._lost)
            if not cut.sizes[self._home]:
                self._blocked = cut.missing
                return
            # All ends before anything is closed: that also removes messages of other groups.
            ends = [
                (group, next(islice(orders[group].open.values(), size - 1, None)).position + 1)
                for group, size in cut.sizes.items()
                if size
            ]
            for group, end in ends:
                self._close_before(group, end)

    def _close_before_barrier(self) -> None:
        """Closes everything before the last message to all groups that all have delivered, known or not; if there is
        only one group, everything, because that group alone can order anything."""
        others = [order for group, order in self._orders.items() if group != self._home]
        if not others:
            self._close_before(self._home, self._own.end)
            return
        for message in reversed(self._own.open.values()):
            if len(message.destinations) > len(others) and all(message.id in order.open for order in others):
                self._close_before(self._home, message.position + 1)
                return

    # The end of a step

    def finish_step(self, leads: bool, lost: tuple[GroupId, ...]) -> list[Effect]:
        """Closes what can be closed, and returns reports, requests, and what is closed now. They must leave behind the
        effects of the protocol's step, whose deliveries they are about."""
        self._adopts_past = False
        if lost != self._lost:
            self._lost, self._has_news, self._blocked = lost, True, ()
        leads = leads and self._own.gap is None
        becomes_leader = leads and not self._is_leading
        self._is_leading = leads
        if not self._has_news and not becomes_leader:
            return []
        self._has_news = False
        self._close_known()
        self._advance()
        effects = self._make_reports(becomes_leader) if leads else self._report_to_gateways()
        closed = self.closed
        if closed > self._stated:
            self._stated = closed
            effects.append(Close(closed))
        self._fresh.clear()
        self._waiting_gateways.clear()
        self._limit_memory()
        self._watch_first()
        if self._must_ask:
            self._must_ask = False
            effects += self._make_requests()
        elif leads and self._blocked:
            effects += self._follow_groups()
        return effects

    def _limit_memory(self) -> None:
        """Forgets the last open messages of other groups, and the oldest closed ones, beyond the limits."""
        for group, order in self._orders.items():
            if len(order.open) > self.config.max_open and group != self._home:
                self._owner.note("overflow")
                order.truncate(self.config.max_open)
        while len(self._closed) > MAX_CLOSED:
            del self._closed[next(iter(self._closed))]

    def _make_reports(self, becomes_leader: bool) -> list[Effect]:
        """Reports to the groups that new deliveries are addressed to, that follow the own group, or that know of a
        message which is closed now and not addressed to them."""
        own = self._own
        targets: set[GroupId] = set()
        if becomes_leader:
            self._sent.clear()
            self._context.clear()
            for message in own.open.values():
                targets.update(message.destinations)
        if self._fresh:
            for message in self._fresh:
                targets.update(message.destinations)
            if self._followers:
                self._followers = {g: until for g, until in self._followers.items() if until > self._owner.now}
                targets.update(self._followers)
        closed = own.closed
        for group, positions in self._context.items():
            if positions and positions[0] < closed:
                targets.add(group)
                while positions and positions[0] < closed:
                    positions.popleft()
        targets.discard(self._home)
        return [self._report_to(group, closed) for group in sorted(targets)]

    def _report_to(self, group: GroupId, closed: int) -> Send:
        own = self._own
        begin = max(self._sent.get(group, 0), closed)
        messages = [message for message in self._fresh if message.position < closed]
        messages += [message for message in own.open.values() if message.position >= begin]
        self._sent[group] = own.end
        context = [m.position for m in messages if m.position >= closed and group not in m.destinations]
        if context:
            self._context.setdefault(group, deque()).extend(context)
        about = tuple(message.id for message in messages if group in message.destinations)
        body = OrderReport(self._home, closed, begin, own.end, tuple(messages))
        return Send(self._owner.topology.members(group), body, about or None)

    def _report_to_gateways(self) -> list[Effect]:
        """Reports to the gateways that wait for what this process delivered ahead of its leader."""
        effects: list[Effect] = []
        for gateway in sorted(self._waiting_gateways):
            group = self._owner.topology.group_of(gateway)
            about = tuple(m.id for m in self._fresh if group in m.destinations)
            if about and group != self._home:
                effects.append(Send((gateway,), self._describe(self._home), about))
        return effects

    def _watch_first(self) -> None:
        """Watches how long the first delivery that is not closed waits."""
        closed = self.closed
        first = closed if closed < self._own.end else -1
        if first != self._first[0]:
            self._first = (first, self._owner.now)
        if first >= 0 and not self._is_timer_set:
            self._is_timer_set = True  # and never cancelled: under load the next message comes long before it runs out
            self._asked = first
            self._owner.set_timer(ORDER_TIMER, self.config.retry_ns)

    def _follow_groups(self) -> list[Effect]:
        """Asks groups that are no destinations, and whose order is missing, to report their deliveries."""
        now = self._owner.now
        if now - self._first[1] < self.config.follow_after_ns:
            return []
        effects: list[Effect] = []
        for id, group in self._blocked:
            is_third = group != self._home and id not in self._own.open
            if is_third and now - self._follows.get(group, -self.config.follow_ns) >= self.config.follow_ns // 2:
                self._follows[group] = now
                effects.append(Send(self._owner.topology.members(group), OrderRequest(group, (id,), follows=True)))
        return effects

    def _make_requests(self) -> list[Effect]:
        """Asks the other members what is closed, and the groups whose word is missing."""
        topology, own = self._owner.topology, self._own
        if not own.open and own.gap is None:
            return []
        effects: list[Effect] = []
        members = tuple(member for member in topology.members(self._home) if member != self._owner.me)
        if own.gap is not None:
            members = tuple(server for server in topology.servers if server != self._owner.me)
        if members:
            effects.append(Send(members, OrderRequest(self._home)))
        for group, ids in sorted(self._list_missing().items()):
            if len(ids) > MAX_ASKED:
                ids = ids[: MAX_ASKED // 2] + ids[-MAX_ASKED // 2 :]
            effects.append(Send(topology.members(group), OrderRequest(group, tuple(ids))))
        return effects

    def _list_missing(self) -> dict[GroupId, list[MessageId]]:
        """By group: messages that it is not known to have delivered, and that open messages wait for."""
        missing: dict[GroupId, list[MessageId]] = {}
        for message in self._own.open.values():
            for group in message.destinations:
                if group != self._home and message.id not in self._orders[group].open:
                    missing.setdefault(group, []).append(message.id)
        for id, group in find_cut(self._orders, self._lost).missing:
            ids = missing.setdefault(group, [])
            if group == self._home:
                del missing[group]
            elif id not in ids:
                ids.append(id)
        return missing

    # Questions

    def status(self) -> ProcessStatus:
        """How far the order is closed and, if something is open, what it waits for."""
        status: ProcessStatus = {"closed": self.closed, "open": len(self._own.open)}
        if self._first[0] >= 0:
            status["closing_since_ns"] = self._first[1]
            status["closing_waits_for"] = self._describe_wait()
        return status

    def _describe_wait(self) -> str:
        topology = self._owner.topology
        if self._own.gap is not None and self.closed == self._own.gap[0]:
            return (
                f"members of group {topology.names_of((self._home,))[0]}: the order before a state transfer is unknown;"
                " a message to all groups closes it"
            )
        names = topology.names_of(tuple(sorted(self._list_missing())))
        if not names:
            return "reports of other groups"
        return f"group {names[0]}" if len(names) == 1 else f"groups {', '.join(names)}"

    def explain(self) -> list[Phase]:
        """What the answers for deliveries wait for."""
        closed = self.closed
        if closed >= self._own.end:
            return [Phase("closed", True, "nothing that is multicast later can precede what is delivered here")]
        missing = self._list_missing()
        waiting = tuple(member for group in sorted(missing) for member in self._owner.topology.members(group))
        description = f"closed up to position {closed}; later answers wait for {self._describe_wait()}"
        return [Phase("closed", False, description, waiting)]

    def snapshot(self) -> RealTimeState:
        return RealTimeState(
            tuple((group, order.snapshot()) for group, order in sorted(self._orders.items())),
            tuple(self._closed),
            tuple(self._held),
            tuple(sorted(self._sent.items())),
            tuple((group, tuple(positions)) for group, positions in sorted(self._context.items()) if positions),
            tuple(sorted(self._followers.items())),
            tuple(sorted(self._follows.items())),
            self._is_leading,
            self._is_timer_set,
            self._first,
            self._asked,
            self._position,
            self._stated,
        )

    def restore(self, state: RealTimeState) -> None:
        for group, order in state.orders:
            self._orders[group].restore(order)
        self._closed = dict.fromkeys(state.closed)
        self._held = deque(state.held)
        self._retries = {(answer.receiver, answer.message) for answer in state.held if answer.kind == "retry"}
        self._sent = dict(state.sent)
        self._context = {group: deque(positions) for group, positions in state.context}
        self._followers = dict(state.followers)
        self._follows = dict(state.follows)
        self._is_leading = state.is_leading
        self._is_timer_set = state.is_timer_set
        self._first = state.first
        self._asked = state.asked
        self._position = state.position
        self._stated = state.stated
        self._fresh = []
        self._waiting_gateways = set()
        self._has_news, self._must_ask, self._blocked, self._lost = False, False, (), ()
        self._has_gap = self._own.gap is not None
