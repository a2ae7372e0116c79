"""A rest after a busy tick: what arrives meanwhile is taken at once, in one tick.

Waking up is what a replica pays most for when messages are small: a turn of the event loop, a read for each peer, a
step, a write to each peer, and a processor whose caches have forgotten this process. Under load, what clients say to
a gateway, and all members to a leader, arrives within a millisecond of each other, so whoever waits that long wakes up
once for all of it, and the bundles of gateways grow. To other replicas one peer speaks, whom they must answer at once.

The rest is as long as the last deliveries were many, and never longer than `limits.coalesce_us`. Few messages are worth
no rest at all: a lone one waits for nobody. It blocks the event loop on purpose, so that nothing is read in between; a
replica inside somebody else's program therefore never rests.
"""

import time
from collections.abc import Callable
from typing import Final

from amcast.kernel.effects import Deliver
from amcast.live.client_batch import batch_size

PER_MESSAGE_US: Final = 30
"""So much rest for each message that the last deliveries brought."""
LEAST_US: Final = 200
"""Less than this is not worth a system call."""
CALM_NS: Final = 150_000_000
"""After so long without deliveries nothing is expected any more."""
FEW: Final = 8


class WakeupCoalescer:
    """When one replica rests, and for how long."""

    def __init__(self, most_us: int, sleep: Callable[[float], None] = time.sleep) -> None:
        self.busy = False
        """The last deliveries were many, and not long ago."""
        self._most_us = most_us
        self._sleep = sleep
        self._counted = 0
        self._rest_s = 0.0
        self._until_ns = 0
        self._serves_ns = 0

    def record_delivery(self, effect: Deliver) -> None:
        """Something was delivered. Of many messages, each counts once; few may be clients' batches, which hold more."""
        if effect.message_count > FEW:
            self._counted += effect.message_count
        else:
            for message in effect.messages():
                self._counted += batch_size(message.payload)

    def record_request(self, now: int) -> None:
        """Clients have asked for something."""
        self._serves_ns = now + CALM_NS

    def end_tick(self, now: int, leads: bool = False) -> None:
        """The end of a tick of a replica that leads its group, or does not."""
        if self._counted:
            worth_us = self._counted * PER_MESSAGE_US
            self._counted = 0
            self.busy = worth_us >= LEAST_US
            self._rest_s = min(worth_us, self._most_us) / 1e6
            self._until_ns = now + CALM_NS
        elif now > self._until_ns:
            self.busy = False
        if self.busy and self._rest_s and (leads or now < self._serves_ns):
            self._sleep(self._rest_s)
