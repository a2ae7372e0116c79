"""Consistent cuts of the orders of groups: which messages nothing that is multicast later can precede.

Every group g delivers one sequence S_g, the same at all its members. x <* y: x is before y in some sequence, or there
is a chain of such steps (x before a in one group, a before b in another, ...). A message is **closed** when every
message x <* it has been multicast. If m is answered when it is closed, and m' is multicast after that answer, then
m' <* m is impossible: that is real-time order.

A cut takes a prefix of every S_g. It is **consistent** if every message in one of its prefixes is in the prefix of each
of its destinations.

*Theorem.* Every message of a consistent cut is closed. *Proof*: let x be in the cut and y <* x. By induction over the
chain it is enough to look at one step: y is before x in S_k. Then k is a destination of x, so x is in the cut's prefix
of S_k, and so is y, which is before it. What is in a prefix was delivered, so it was multicast. QED

*What a process knows.* Of each group it knows a prefix, in the form: a set of deliveries that are closed, and the
others. Only messages to several groups (global ones) need to be listed: a message to one group is in the cut as soon as
it is in the prefix. Let a statement about S_g be: "the global messages among the deliveries of g from position a up to
b that are not closed are these; everything before c is closed" (c >= a, or what is before a is known already). It stays
true for ever, whoever repeats it, because a delivery is never taken back. Let N_g be the position up to which S_g is
known, and take the greatest M_g <= N_g such that every listed x before M_g is, for each destination k, listed before
M_k, or known to be closed. The prefixes M_g together with all closed messages and what precedes these are a consistent
cut, so everything before M_g is closed: *proof* as above, where a step down from a closed message leads to a message
that has been multicast, by the definition of closed. The greatest M exists, because the union of two such cuts is one.

*A message to all groups is a cut by itself.* If z is addressed to every group, and every group has delivered it, then
the prefixes that end with z are a consistent cut, whatever is in them: *proof*: let y be before z in S_g, and k another
destination of y. z is in S_k; if y were not before it there, z and y would precede each other, and the order has no
cycles. So z closes what is before it even if nobody remembers that.

*One process needs no more than the open messages*: what was found to be closed is dropped everywhere.

*Not enough*, though it looks like it, is that every destination has delivered m: with y before z at B, z before m at A,
and y not yet delivered at C, a message m' that is multicast to C after the answer to m may be ordered before y, and
m' < y < z < m. In the cut, z cannot be taken while y is missing at C. Clocks that have passed m's timestamp in all its
destinations say nothing about C either.
"""

from bisect import insort
from collections import deque
from collections.abc import Collection, Mapping
from operator import attrgetter
from typing import NamedTuple

from msgspec import Struct

from amcast.kernel.ids import GroupId, MessageId
from amcast.kernel.message import State

_position = attrgetter("position")


class OpenMessage(Struct, frozen=True, array_like=True, gc=False):
    """A message to several groups, or a bundle, that is not known to be closed, and its place in one group's order."""

    id: MessageId
    position: int
    """The position of its first delivery in the group."""
    destinations: tuple[GroupId, ...]


class GroupOrderState(State, frozen=True):
    """The snapshot of what is known about one group's order."""

    end: int
    open: tuple[OpenMessage, ...] = ()
    gap: tuple[int, int] | None = None


class GroupOrder:
    """What one process knows about the order of one group: everything before `end` is closed, or in `open`, or in the
    gap."""

    __slots__ = ("end", "gap", "open")

    def __init__(self) -> None:
        self.end = 0
        self.open: dict[MessageId, OpenMessage] = {}
        """By position."""
        self.gap: tuple[int, int] | None = None
        """The first and the last position, exclusive, of deliveries of which nothing is known: the process adopted
        another member's state."""

    @property
    def closed(self) -> int:
        """Every delivery before this position is closed."""
        first = self.end
        for message in self.open.values():
            first = message.position
            break
        return first if self.gap is None else min(first, self.gap[0])

    def append(self, message: OpenMessage, end: int) -> None:
        """Adds the next delivery, which ends before `end`."""
        self.open[message.id] = message
        self.end = end

    def skip(self, end: int) -> None:
        """Skips deliveries up to a position: nothing is known of those from `self.end` on."""
        if end > self.end:
            begin = self.end if self.gap is None else self.gap[0]
            self.open = {id: message for id, message in self.open.items() if message.position < begin}
            self.gap = (begin, end)
            self.end = end

    def learn(self, closed: int, begin: int, end: int, messages: Collection[OpenMessage]) -> bool:
        """Adds a statement: everything before `closed` is closed, and these are all open messages from `begin` up to
        `end`. Returns False if something before `begin` is unknown. The caller removes what is closed."""
        if self.gap is not None:
            self._fill(closed, begin, end, messages)
        if begin > max(self.end, closed):
            return False
        for message in messages:
            if message.position >= self.end:
                self.open[message.id] = message
        self.end = max(self.end, end, closed)
        return True

    def _fill(self, closed: int, begin: int, end: int, messages: Collection[OpenMessage]) -> None:
        """Fills the gap, if a statement covers the rest of it."""
        assert self.gap is not None
        first, last = self.gap
        if closed > first:
            self.gap = None if closed >= last else (closed, last)
            first = closed
        if self.gap is not None and begin <= first and end >= last:
            self.gap = None
            kept = list(self.open.values())
            for message in messages:
                if first <= message.position < last:
                    insort(kept, message, key=_position)
            self.open = {message.id: message for message in kept}

    def remove_before(self, position: int) -> list[OpenMessage]:
        """Removes, and returns, the open messages before a position: they are closed."""
        if self.gap is not None and position > self.gap[0]:
            self.gap = None if position >= self.gap[1] else (position, self.gap[1])
        removed: list[OpenMessage] = []
        for message in self.open.values():
            if message.position >= position:
                break
            removed.append(message)
        for message in removed:
            del self.open[message.id]
        if position > self.end:
            self.end = position
        return removed

    def truncate(self, count: int) -> None:
        """Forgets all open messages but the first ones, and what is behind these."""
        kept = list(self.open.values())
        self.end = kept[count].position
        self.open = {message.id: message for message in kept[:count]}

    def snapshot(self) -> GroupOrderState:
        return GroupOrderState(self.end, tuple(self.open.values()), self.gap)

    def restore(self, state: GroupOrderState) -> None:
        self.end = state.end
        self.open = {message.id: message for message in state.open}
        self.gap = state.gap


class Cut(NamedTuple):
    """The greatest consistent cut of what is known."""

    sizes: dict[GroupId, int]
    """By group: how many of its open messages are in the cut."""
    missing: tuple[tuple[MessageId, GroupId], ...]
    """For each group whose order is not in the cut as a whole: a message, and a destination that is not known to have
    delivered it."""


def find_cut(orders: Mapping[GroupId, GroupOrder], lost: Collection[GroupId] = ()) -> Cut:
    """Finds the greatest consistent cut. Nothing is demanded of groups that are `lost`."""
    sizes: dict[GroupId, int] = {}
    missing: list[tuple[MessageId, GroupId]] = []
    listed: dict[GroupId, list[OpenMessage]] = {}
    shrunk: deque[tuple[GroupId, int]] = deque()
    """Groups whose prefix became shorter, and its size before."""
    for group, order in orders.items():
        messages = listed[group] = list(order.open.values())
        size = sizes[group] = len(messages)
        limit = order.end if order.gap is None else order.gap[0]
        for place, message in enumerate(messages):
            absent = _find_absent(message, group, orders, lost)
            if absent is not None:
                missing.append((message.id, absent))
            if absent is not None or message.position >= limit:
                sizes[group] = place
                shrunk.append((group, size))
                break
    places = {group: {m.id: place for place, m in enumerate(messages)} for group, messages in listed.items()}
    while shrunk:
        group, before = shrunk.popleft()
        if group in lost:
            continue
        for message in listed[group][sizes[group] : before]:
            for other in message.destinations:
                place = places[other].get(message.id, -1) if other in places else -1
                if other != group and 0 <= place < sizes[other]:
                    shrunk.append((other, sizes[other]))
                    sizes[other] = place
    return Cut(sizes, tuple(missing))


def _find_absent(
    message: OpenMessage, group: GroupId, orders: Mapping[GroupId, GroupOrder], lost: Collection[GroupId]
) -> GroupId | None:
    """A destination of an open message of a group that is not known to have delivered it."""
    for other in message.destinations:
        if other != group and other not in lost and (other not in orders or message.id not in orders[other].open):
            return other
    return None
