"""The monitor of closings: what a node states to be closed is in a consistent cut of everything that was delivered.

A message is closed when every message that precedes it, in any group or by a chain of such steps, has been multicast;
in real-time order a client is answered only then (`parts/ordering/consistent_cut.py`). A process may conclude that from
a consistent cut of what it knows: prefixes of the groups' orders in which each message is in the prefix of each of its
destinations. The monitor knows what anybody has delivered.

*Theorem.* Whatever a process states to be closed is in the greatest consistent cut of what anybody has delivered so
far. *Proof*: the process knows prefixes of the same orders, and consistent cuts of shorter prefixes are consistent cuts
of longer ones. The union of two consistent cuts is one, so the greatest cut contains all of them; and it grows, because
nothing is ever taken from an order. QED. It does not hold where groups may be lost: a process does not wait for those.
Nor for a protocol that has real-time order by itself, such as MultiPaxos: it answers for messages whose places in all
groups are decided, before other groups have delivered them.
"""

from collections.abc import Callable

from amcast.kernel.effects import Deliver
from amcast.kernel.ids import GroupId, MessageId, ProcessId
from amcast.kernel.message import Message

Report = Callable[[ProcessId, str, str], None]
"""Takes the process, the rule that it broke, and how."""


class ClosingMonitor:
    """The orders of all groups, as far as anybody has delivered, and their greatest consistent cut."""

    def __init__(self, report: Report, find_group: Callable[[ProcessId], GroupId | None]) -> None:
        self._report = report
        self._find_group = find_group
        self._orders: dict[GroupId, list[Message]] = {}
        self._places: dict[tuple[GroupId, MessageId], int] = {}
        self._cut: dict[GroupId, int] = {}
        """By group: how many messages of its order were in the greatest consistent cut when that was last found."""

    def hear_delivery(self, process: ProcessId, effect: Deliver) -> None:
        group = self._find_group(process)
        if group is None:
            return
        order = self._orders.setdefault(group, [])
        if effect.position == len(order):  # the first member of the group that delivers it
            order.append(effect.message)
            self._places.setdefault((group, effect.message.id), effect.position)

    def hear_closing(self, process: ProcessId, position: int) -> None:
        """A process states that everything before a position of its group's order is closed."""
        group = self._find_group(process)
        assert group is not None, f"process {process} is in no group and closes position {position}"
        if self._is_cut_at(group, position):
            return
        at = self._cut.get(group, 0)
        order = self._orders.get(group, [])
        blocked = f"message {order[at].id}" if at < len(order) else "a message that nobody has delivered"
        sentence = (
            f"states that everything before position {position} of group {group} is closed; {blocked}, at position"
            f" {at}, is in no consistent cut of what was delivered"
        )
        self._report(process, "closed deliveries", sentence)

    def hear_answer(self, message: MessageId, sender: ProcessId) -> None:
        """A sender is answered: its message is closed."""
        places = [(group, place) for (group, id), place in self._places.items() if id == message]
        if any(self._is_cut_at(group, place + 1) for group, place in places):
            return
        sentence = f"is answered for message {message}, which is in no consistent cut of what was delivered"
        self._report(sender, "closed deliveries", sentence)

    def _is_cut_at(self, group: GroupId, position: int) -> bool:
        if position > self._cut.get(group, 0):
            self._find_cut()
        return position <= self._cut.get(group, 0)

    def _find_cut(self) -> None:
        """Shortens the prefixes until each of their messages is in the prefix of each of its destinations. What was in
        an earlier cut stays in it."""
        cut = {group: len(order) for group, order in self._orders.items()}
        has_shrunk = True
        while has_shrunk:
            has_shrunk = False
            for group, order in self._orders.items():
                for place in range(self._cut.get(group, 0), cut[group]):
                    if not self._is_everywhere(order[place], cut):
                        cut[group], has_shrunk = place, True
                        break
        self._cut = cut

    def _is_everywhere(self, message: Message, cut: dict[GroupId, int]) -> bool:
        places = self._places
        return all(places.get((group, message.id), 1 << 62) < cut.get(group, 0) for group in message.destinations)
