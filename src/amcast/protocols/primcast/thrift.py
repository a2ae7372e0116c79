"""Which members of a group receive a small bundle at once: a majority, and the others when that does not answer.

    gateway and primary of g    voter of g   spare of g     primary of h    voter of h   spare of h
      |--bundle, Propose---------->|                             |              |
      |--bundle, Propose---------------------------------------->|              |
      |                            |                             |--bundle, Propose->|
      |<--Ack----------------------|--Ack----------------------->|              |
      |<--Propose------------------------------------------------|<--Ack--------|
      |<--Ack-------------------------------------------------------------------|
      |--bundles, Proposes together-------------->|------------------------------------------>|   later

A message needs a majority of each group. Waking up a process costs more than ordering a small bundle there, so only as
many followers as make a majority with the primary are sent it at once: the **voters**. The other members, the
**spares**, get their copies with the next frame that is urgent for them (delivery notices, for example).

Voters are the followers that have acknowledged most: one that stopped is replaced by whoever overtakes it. Nothing
depends on this choice but time. A gateway or primary that waits for a small bundle for longer than HURRY_NS sends it to
every member, which also releases what was deferred before it; so it does at once when a process is down.

A large bundle is sent to everybody as it comes: its bytes cost more than the wake-up, and would travel twice.
"""

from collections.abc import Iterable
from typing import Final

from amcast.kernel.bundle import gateway_process, is_bundle
from amcast.kernel.config import MILLISECOND
from amcast.kernel.ids import ProcessId
from amcast.kernel.message import Message
from amcast.protocols.primcast.messages import ThriftState
from amcast.protocols.primcast.progress import GroupProgress, PendingMulticast

HURRY_TIMER: Final = "hurry"
HURRY_NS: Final = 10 * MILLISECOND
"""A bundle that waits for one to two such periods is sent to every member."""
PATIENCE: Final = 2


class Thrift:
    """Chooses the voters of the own group, and knows whether messages wait for them."""

    __slots__ = ("_members", "_order", "_small_bytes", "down", "is_timer_armed", "is_timer_due")

    def __init__(self, me: ProcessId, members: tuple[ProcessId, ...], small_bytes: int) -> None:
        self._small_bytes = small_bytes
        place = members.index(me)
        self._members = members
        self._order = [*range(place + 1, len(members)), *range(place)]
        """The places of the other members, the preferred voters first."""
        self.down: set[ProcessId] = set()
        """Processes at whose address nobody answered, and to which no link was made since."""
        self.is_timer_armed = False
        self.is_timer_due = False
        """HURRY_TIMER must be set at the end of this step."""

    def is_small(self, message: Message) -> bool:
        """Whether a message is a small bundle."""
        return is_bundle(message.id) and len(message.payload) <= self._small_bytes

    def voters(self, progress: GroupProgress, epoch: int) -> list[ProcessId]:
        """The followers that make a majority with this primary: those that have acknowledged most of its log."""
        count = progress.quorum - 1
        lengths = [length if at == epoch else -1 for at, length in zip(progress.epochs, progress.lengths, strict=True)]
        chosen = sorted(self._order, key=lambda place: (self._members[place] in self.down, -lengths[place]))
        return [self._members[place] for place in chosen[:count]]

    def spares(self, progress: GroupProgress, epoch: int, gateways: set[ProcessId]) -> tuple[ProcessId, ...]:
        """The other followers, without gateways, which wait for deliveries."""
        voters = self.voters(progress, epoch)
        return tuple(
            [
                member
                for place in self._order
                if (member := self._members[place]) not in voters and member not in gateways
            ]
        )

    def start_waiting(self, pending: PendingMulticast) -> None:
        """Waits for a message that only a majority was sent."""
        pending.patience = PATIENCE
        self.is_timer_due = not self.is_timer_armed

    def record_down(self, peer: ProcessId) -> bool:
        """Records that a process is down; False if that is known."""
        is_new = peer not in self.down
        self.down.add(peer)
        return is_new

    def snapshot(self) -> ThriftState:
        return ThriftState(tuple(sorted(self.down)), self.is_timer_armed, self.is_timer_due)

    def restore(self, state: ThriftState) -> None:
        self.down = set(state.down)
        self.is_timer_armed, self.is_timer_due = state.is_timer_armed, state.is_timer_due


def gateway_of(message: Message) -> ProcessId:
    """The process that waits for the delivery of a message: the gateway that made a bundle, else the sender."""
    return gateway_process(message.sender) if is_bundle(message.id) else message.sender


def take_overdue(pending: Iterable[PendingMulticast]) -> tuple[list[PendingMulticast], bool]:
    """The timer expired: returns the messages that have waited for long enough, and whether others still wait."""
    overdue: list[PendingMulticast] = []
    waits = False
    for one in pending:
        if one.patience > 0:
            one.patience -= 1
            if one.patience:
                waits = True
            else:
                overdue.append(one)
    return overdue, waits
