"""When a gateway sends the next bundle to some destinations.

    bundle sent --interval--> next --interval--> next          bundles of many clients overlap
    bundle sent -----took-----> answered, all clients have sent again -> next          few clients take turns

Each bundle costs the same, however many messages it holds, so bundles must not follow each other too quickly. They
leave at an interval, and need not wait for each other: a message waits for half an interval on average, and the next
bundle is on its way before the last one is answered. If nothing is in flight and the clients that were answered last
have all sent again, there is nobody to wait for, and the bundle leaves at once; so does a lone message.

The interval follows from how busy the path is. On an idle path it is IDLE_ANSWERS times the time that the fastest
recent answer took, at most MAX_IDLE_INTERVAL_NS. When answers take BUSY_INTERVALS intervals longer than the fastest,
bundles queue somewhere, and the interval grows until they no longer do: larger bundles cost less for each message.

Bundles to far groups do not overlap while messages to the gateway's own group alone are answered, much faster: most
protocols keep a local message waiting behind a global one that has no final timestamp yet. With such bundles one behind
the other no local message would be fast, so the next one leaves MAX_INTERVAL_NS after the answer, unless nobody is
waited for.

    delivered --held--> closed, answered --held--> clients far away --held--> their next messages are here -> next

In the real-time setting every message behind a bundle waits until that is closed, for the delay of a report of the
other group (`parts/node/real_time_order.py`). The fewer bundles, the less often, so the next one also waits until
clients that are as far away as that group can have sent again: two such delays longer.
"""

from collections.abc import Iterable
from typing import Final

from amcast.kernel.config import MILLISECOND
from amcast.kernel.ids import GroupId, ProcessId
from amcast.parts.node.messages import BundlePaceState

IDLE_ANSWERS: Final = 4
"""The interval on an idle path, in answer times."""
MAX_IDLE_INTERVAL_NS: Final = 4 * MILLISECOND
"""The longest interval on an idle path: where answers come from far away, waiting for more messages gains nothing."""
BUSY_INTERVALS: Final = 2
"""An answer that takes this many intervals longer than the fastest shows that bundles queue."""
MAX_INTERVAL_NS: Final = 10 * MILLISECOND
"""The longest interval, however busy the path is."""
FAR_ANSWERS: Final = 4
"""Messages to several groups are far ones if an answer takes more than this many times that of a local message."""
HELD_ANSWERS: Final = 8
"""A bundle is held for long if it is for this part of the time of its answer, and MAX_IDLE_INTERVAL_NS, or more."""
REPORT_ANSWERS: Final = 3
"""The delay of a report is at most this part of the time of an answer: bundle, word of the other group, report. A
bundle that is held for longer waits for an earlier one as well."""
MEMORY_NS: Final = 1000 * MILLISECOND
"""The least answer time is that of the last one to two such periods."""


class BundlePace:
    """The pace of bundles to some destinations."""

    __slots__ = (
        "_held_at_ns", "_least_before_ns", "_least_ns", "_period_ns", "interval_ns", "may_overlap", "missing",
        "report_ns", "sent_ns",
    )  # fmt: skip

    def __init__(self) -> None:
        self.interval_ns = 0
        """The least time between two bundles, unless nobody is waited for."""
        self.may_overlap = True
        """Whether a bundle may leave before the last one is answered."""
        self.sent_ns = 0
        """When the last bundle was sent; if bundles may not overlap, when it was answered."""
        self.missing: set[ProcessId] = set()
        """The clients that were answered last and have not sent again."""
        self._least_ns = 0
        """The least answer time of this period; 0 if there is none."""
        self._least_before_ns = 0
        """That of the period before."""
        self._period_ns = 0
        """When this period began."""
        self.report_ns = 0
        """Real-time order: for how long bundles are held until other groups have reported that they delivered them, on
        average of those that are held for long; 0 if none was lately."""
        self._held_at_ns = 0
        """When a bundle was last held for long."""

    def wait_ns(self, now: int, is_in_flight: bool) -> int:
        """How long the next bundle still has to wait."""
        if not is_in_flight and not self.missing:
            return 0
        return max(0, self.sent_ns + self.interval_ns - now)

    @property
    def least_ns(self) -> int:
        """The time that the fastest recent answer took; 0 if there was none."""
        return min(self._least_ns, self._least_before_ns or self._least_ns)

    def is_used(self, now: int) -> bool:
        """Whether messages to these destinations were answered lately."""
        return now - self._period_ns < 2 * MEMORY_NS

    def record_answer(
        self,
        clients: Iterable[ProcessId],
        now: int,
        took_ns: int,
        local: "BundlePace | None" = None,
        held_ns: int | None = None,
    ) -> None:
        """Records that a bundle of these clients was answered, and how long that took. `local` is the pace of messages
        to the gateway's own group alone, if this bundle had other destinations, too; `held_ns` the part of the time for
        which the gateway had delivered it, in the real-time setting."""
        self.missing = set(clients)
        if now - self._period_ns >= MEMORY_NS:
            self._least_before_ns = self._least_ns if now - self._period_ns < 2 * MEMORY_NS else 0
            self._least_ns, self._period_ns = 0, now
        self._least_ns = min(self._least_ns or took_ns, took_ns)
        least_ns = self.least_ns
        if held_ns is None:
            is_mixed = local is not None and now - local._period_ns < 2 * MEMORY_NS
            self.may_overlap = local is None or not is_mixed or not 0 < FAR_ANSWERS * local.least_ns < least_ns
        else:
            self._record_held(held_ns, took_ns, now)
            self.may_overlap = not self.report_ns
        if not self.may_overlap:
            self.sent_ns, self.interval_ns = now, MAX_INTERVAL_NS + 2 * self.report_ns
            return
        if took_ns - least_ns > BUSY_INTERVALS * self.interval_ns:
            self.interval_ns = min(max(self.interval_ns * 9 // 8, least_ns), MAX_INTERVAL_NS)
        else:
            idle_ns = min(IDLE_ANSWERS * least_ns, MAX_IDLE_INTERVAL_NS)
            self.interval_ns = max(self.interval_ns * 7 // 8, idle_ns)

    def _record_held(self, held_ns: int, took_ns: int, now: int) -> None:
        if held_ns >= max(MAX_IDLE_INTERVAL_NS, took_ns // HELD_ANSWERS):
            self._held_at_ns = now
            report_ns = min(held_ns, took_ns // REPORT_ANSWERS)
            self.report_ns += (report_ns - self.report_ns) // (8 if self.report_ns else 1)
        elif now - self._held_at_ns >= MEMORY_NS:
            self.report_ns = 0

    def snapshot(self, groups: tuple[GroupId, ...]) -> BundlePaceState:
        return BundlePaceState(
            groups, self.interval_ns, self.sent_ns, tuple(sorted(self.missing)), self._least_ns,
            self._least_before_ns, self._period_ns, self.may_overlap, self.report_ns, self._held_at_ns,
        )  # fmt: skip

    @staticmethod
    def from_state(state: BundlePaceState) -> "BundlePace":
        pace = BundlePace()
        pace.interval_ns, pace.sent_ns, pace.missing = state.interval_ns, state.sent_ns, set(state.missing)
        pace._least_ns, pace._least_before_ns = state.least_ns, state.least_before_ns
        pace._period_ns, pace.may_overlap = state.period_ns, state.may_overlap
        pace.report_ns, pace._held_at_ns = state.report_ns, state.held_at_ns
        return pace
