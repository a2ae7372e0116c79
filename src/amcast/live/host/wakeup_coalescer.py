"""Coalesces wake-ups of a saturated replica: after a busy tick it sleeps, and handles all arrivals in one tick.

With small messages the largest cost of a replica is waking up: a turn of the event loop, a read for each peer, a step,
a write to each peer, and a processor whose caches have lost this process. Under load the requests of clients to a
gateway, and the acknowledgements of all members to a leader, arrive within a millisecond of each other. A replica that
waits that long wakes up once for all of them, and the bundles of gateways grow. A follower hears one peer, which waits
for it, so it never sleeps.

The sleep grows with the number of messages last delivered, up to `limits.coalesce_us`. Few messages are worth no sleep:
a lone one waits for nothing. The sleep blocks the event loop on purpose, so that nothing is read meanwhile; a replica
inside a user's program therefore never sleeps.
"""

import time
from collections.abc import Callable
from typing import Final

from amcast.kernel.effects import Deliver
from amcast.live.client_batch import batch_size

PER_MESSAGE_US: Final = 10
"""Sleep for each message that the last deliveries brought."""
MIN_SLEEP_US: Final = 200
"""A shorter sleep is not worth its system call."""
REST_US: Final = 300
"""The longest rest of a gateway whose messages wait for their pace: its bundles in flight may be answered meanwhile."""
ACTIVE_NS: Final = 150_000_000
"""How long after the last delivery, or the last request, the replica counts as busy, or as an active gateway."""
SMALL_BUNDLE: Final = 8


class WakeupCoalescer:
    """Decides whether, and for how long, a host sleeps at the end of a tick."""

    def __init__(
        self, limit_us: int, is_leader: Callable[[], bool], sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self.is_busy = False
        """The last deliveries were many, and recent."""
        self._limit_us = limit_us
        self.is_allowed = limit_us > 0
        """The host owns its operating-system process, which may block."""
        self._is_leader = is_leader
        self._sleep = sleep
        self._delivered = 0
        self._sleep_s = 0.0
        self._busy_until_ns = 0
        self._gateway_until_ns = 0

    def record_delivery(self, delivery: Deliver) -> None:
        """Counts delivered messages. A small bundle is opened, because each of its messages may be a client batch."""
        if delivery.message_count > SMALL_BUNDLE:
            self._delivered += delivery.message_count
        else:
            for message in delivery.messages():
                self._delivered += batch_size(message.payload)

    def record_request(self, now: int) -> None:
        """Marks the replica as a gateway with active clients for the next ACTIVE_NS."""
        self._gateway_until_ns = now + ACTIVE_NS

    def rest(self, until_ns: int, now: int) -> bool:
        """Sleeps, but not beyond a time before which nobody gains anything by being read. Returns whether it has come;
        if it is further away, the replica wakes up in between for others."""
        wait_us = (until_ns - now) / 1000
        self._sleep(min(max(wait_us, 0), REST_US, self._limit_us) / 1e6)
        return wait_us <= REST_US

    def end_tick(self, now: int) -> None:
        """Sleeps if the last ticks delivered enough to pay for it and the replica is a leader or an active gateway."""
        if self._delivered:
            worth_us = self._delivered * PER_MESSAGE_US
            self._delivered = 0
            self.is_busy = worth_us >= MIN_SLEEP_US
            self._sleep_s = min(worth_us, self._limit_us) / 1e6
            self._busy_until_ns = now + ACTIVE_NS
        elif now > self._busy_until_ns:
            self.is_busy = False
        if self.is_busy and self._sleep_s and (now < self._gateway_until_ns or self._is_leader()):
            self._sleep(self._sleep_s)
