"""Notices by which a primary lets its followers deliver, and when they are sent.

Followers receive most acknowledgements late (`Send.deferrable`). A primary therefore notifies its group of the bundles
that it has delivered, and a follower delivers them at the same positions, because a group has one delivery order.
Notices are not urgent. A primary sends them

- with a proposal, if `BATCH_NOTICES` have gathered or the oldest is half of `STREAM_NS` old;
- alone, `IDLE_NS` after the oldest, or `STREAM_NS` after it while proposals follow one another;
- at once to a gateway of its group whose own bundle is delivered behind bundles of others: the gateway knows about its
  own, but its clients would wait for the bundles before it.

A lost notice costs time only: a follower that misses one delivers when the acknowledgements arrive.
"""

from collections.abc import Container
from typing import Final

from amcast.kernel.bundle import gateway_process
from amcast.kernel.config import MILLISECOND
from amcast.kernel.ids import MESSAGES_PER_SENDER, MessageId, ProcessId
from amcast.protocols.primcast.messages import DeliveryNotice, DeliveryNoticesState

IDLE_NS: Final = 10 * MILLISECOND
"""How long a notice waits for a proposal while proposals are rare."""
STREAM_NS: Final = 50 * MILLISECOND
"""Proposals closer together than this are a stream. A notice waits at most this long in a stream."""
BATCH_NOTICES: Final = 32
"""With this many notices, the next proposal carries them, whatever their age."""
MAX_NOTICES: Final = 256
"""Most notices in one body; a follower that misses older ones waits for acknowledgements."""
MAX_AHEAD: Final = 1024
"""A follower ignores notices this many positions ahead of its own."""


class DeliveryNotices:
    """The notices that a primary has not sent, and those that a follower has received and not used."""

    __slots__ = (
        "announced",
        "checked",
        "is_streaming",
        "is_timer_armed",
        "oldest_ns",
        "proposed_ns",
        "unannounced",
    )

    def __init__(self) -> None:
        self.unannounced: list[DeliveryNotice] = []
        """Bundles that this primary delivered and has not notified its followers of, in order."""
        self.checked = 0
        """How many of `unannounced` were checked for gateways that wait for them; all, after each step."""
        self.oldest_ns = -1
        """Local time of the first of `unannounced`; -1 if there is none."""
        self.proposed_ns = -STREAM_NS
        """Local time of the last proposal."""
        self.is_streaming = False
        """Whether that proposal came soon after the one before."""
        self.is_timer_armed = False
        self.announced: dict[int, tuple[MessageId, int]] = {}
        """Bundle and final timestamp of what the primary has delivered and this follower has not, by position."""

    # At a primary

    def take_with_proposal(self, now: int) -> tuple[DeliveryNotice, ...]:
        """Records that a proposal is sent now, and takes the notices that travel with it."""
        self.is_streaming = now - self.proposed_ns < STREAM_NS
        self.proposed_ns = now
        if len(self.unannounced) >= BATCH_NOTICES or (self.unannounced and now - self.oldest_ns >= STREAM_NS // 2):
            return self.take_all()
        return ()

    def take_all(self) -> tuple[DeliveryNotice, ...]:
        notices = tuple(self.unannounced[-MAX_NOTICES:])
        self.unannounced = []
        self.checked = 0
        self.oldest_ns = -1
        return notices

    def max_wait_ns(self) -> int:
        """How long a notice waits at most."""
        return STREAM_NS if self.is_streaming else IDLE_NS

    def arm_timer(self, now: int) -> int | None:
        """Notes that there are notices to send. After how long to send them alone; None if the timer runs already."""
        if self.oldest_ns < 0:
            self.oldest_ns = now
        if self.is_timer_armed:
            return None
        self.is_timer_armed = True
        return max(self.oldest_ns + self.max_wait_ns() - now, 0)

    def is_overdue(self, now: int) -> bool:
        return bool(self.unannounced) and now - self.oldest_ns >= self.max_wait_ns()

    def collect_for_gateways(
        self, me: ProcessId, members: Container[ProcessId]
    ) -> list[tuple[ProcessId, tuple[DeliveryNotice, ...]]]:
        """Gateways of the group that wait for deliveries before their own bundle, each with the notices up to it. The
        notices stay unannounced for the other members."""
        notices = self.unannounced
        waiting = []
        for place in range(self.checked, len(notices)):
            gateway = _gateway_of(notices[place])
            if gateway != me and gateway in members and any(_gateway_of(one) != gateway for one in notices[:place]):
                waiting.append((gateway, tuple(notices[: place + 1])))
        self.checked = len(notices)
        return waiting

    # At a follower

    def receive(self, notices: tuple[DeliveryNotice, ...], position: int) -> None:
        """Stores the primary's notices; the follower's next delivery has `position`."""
        announced = self.announced
        for passed in [at for at in announced if at < position]:
            del announced[passed]
        for at, id, final in notices:
            if position <= at < position + MAX_AHEAD:
                announced[at] = (id, final)

    # Snapshots

    def snapshot(self) -> DeliveryNoticesState:
        return DeliveryNoticesState(
            tuple(self.unannounced),
            tuple([(position, *notice) for position, notice in sorted(self.announced.items())]),
            self.is_timer_armed,
            self.oldest_ns,
            self.proposed_ns,
            self.is_streaming,
        )

    def restore(self, state: DeliveryNoticesState) -> None:
        self.unannounced = list(state.unannounced)
        self.checked = len(state.unannounced)
        self.announced = {position: (id, final) for position, id, final in state.announced}
        self.is_timer_armed = state.is_timer_armed
        self.oldest_ns = state.oldest_ns
        self.proposed_ns = state.proposed_ns
        self.is_streaming = state.is_streaming


def _gateway_of(notice: DeliveryNotice) -> ProcessId:
    """The process that made the bundle."""
    return gateway_process(notice[1] // MESSAGES_PER_SENDER)
