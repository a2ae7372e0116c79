"""A message with a group timestamp, from the log entry to its delivery, and what it waits for.

Operators see these phases at one member; another member may know more:

    text       the message itself has arrived
    ordered    the group's log has given it a timestamp
    stamped    every destination group has sent its timestamp
    final      the final timestamp is known
    first      no undelivered message can come before it
    delivered
"""

from collections.abc import Mapping

from amcast.kernel.diagnostics import Phase
from amcast.kernel.ids import GroupId, MessageId, ProcessId
from amcast.kernel.message import Message
from amcast.kernel.topology import Topology
from amcast.parts.groups.timestamped_messages import TimestampPendingState


class TimestampPending:
    """A message to which the log gave a timestamp, until it is delivered and its final timestamp is in the log."""

    __slots__ = (
        "committed_ns", "confirmed_by", "final", "guesses", "is_delivered", "is_final_logged", "is_overdue", "logged",
        "message", "own", "proposed_ballot", "received",
    )  # fmt: skip

    def __init__(self, message: Message, own: int) -> None:
        self.message = message
        self.own = own
        """The own group's timestamp; the final one is never lower."""
        self.received: dict[GroupId, int] = {}
        """Timestamps that groups have sent. They are decided, but other members may not have received them."""
        self.logged: dict[GroupId, int] = {}
        """Timestamps in the own group's log."""
        self.guesses: dict[GroupId, int] = {}
        """Guessed timestamps in the own group's log."""
        self.final = 0
        """0 while unknown."""
        self.is_final_logged = False
        """Whether the final timestamp follows from the log alone."""
        self.is_delivered = False
        self.confirmed_by: set[GroupId] = set()
        """Groups that had the final timestamp in their log before this group did."""
        self.committed_ns = -1
        self.is_overdue = False
        """Whether the message was pending already when the timer was set."""
        self.proposed_ballot = -1
        """The ballot in which this member, as leader, proposed the received timestamps."""

    def snapshot(self) -> TimestampPendingState:
        return TimestampPendingState(
            self.message,
            self.own,
            tuple(sorted(self.received.items())),
            tuple(sorted(self.logged.items())),
            tuple(sorted(self.guesses.items())),
            self.final,
            self.is_final_logged,
            self.is_delivered,
            tuple(sorted(self.confirmed_by)),
            self.committed_ns,
            self.is_overdue,
            self.proposed_ballot,
        )


def restore_pending(state: TimestampPendingState) -> TimestampPending:
    pending = TimestampPending(state.message, state.own)
    pending.received = dict(state.received)
    pending.logged = dict(state.logged)
    pending.guesses = dict(state.guesses)
    pending.final = state.final
    pending.is_final_logged = state.is_final_logged
    pending.is_delivered = state.is_delivered
    pending.confirmed_by = set(state.confirmed_by)
    pending.committed_ns = state.committed_ns
    pending.is_overdue = state.is_overdue
    pending.proposed_ballot = state.proposed_ballot
    return pending


def explain_text(message: Message) -> Phase:
    return Phase("text", True, f"the message has arrived; its destinations are groups {list(message.destinations)}")


def explain_timestamps(
    pending: TimestampPending, topology: Topology, group: GroupId, other_members: tuple[ProcessId, ...]
) -> list[Phase]:
    """The phases from the group's own timestamp to the final one."""
    ordered = Phase("ordered", True, f"the log of group {group} has given it timestamp {pending.own}")
    missing = [other for other in pending.message.destinations if other not in pending.received]
    if missing and not pending.final:
        late = tuple(member for other in missing for member in topology.members(other))
        return [ordered, Phase("stamped", False, f"no timestamp has arrived from groups {missing}", late)]
    stamped = Phase("stamped", True, "every destination group has sent its timestamp")
    if pending.final:
        return [ordered, stamped, Phase("final", True, f"its final timestamp is {pending.final}")]
    description = f"the log of group {group} does not have every timestamp"
    return [ordered, stamped, Phase("final", False, description, other_members)]


def explain_order(message: MessageId, all_pending: Mapping[MessageId, TimestampPending]) -> Phase:
    """Whether undelivered messages may come before this one."""
    pending = all_pending[message]
    rank = (pending.final or pending.own, message)
    older = sorted(
        id
        for id, other in all_pending.items()
        if id != message and not other.is_delivered and (other.final or other.own, id) < rank
    )
    if not older:
        return Phase("first", True, "no known message comes before it")
    some = ", ".join(str(id) for id in older[:5])
    return Phase("first", False, f"{len(older)} undelivered messages may come before it: {some}")
