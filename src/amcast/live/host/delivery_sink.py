"""The delivery sink: passes each delivery to subscribers, trace and application, to each once.

A process that replays its log repeats positions. The application and the trace each know their position, from files of
their own, and skip the deliveries before it.
"""

from collections.abc import Callable

from amcast.kernel.effects import Deliver
from amcast.kernel.ids import GroupId, ProcessId
from amcast.kernel.message import Message
from amcast.kernel.reconfiguration import is_marker
from amcast.live.host.recent_deliveries import RecentDeliveries
from amcast.trace.recorder import Recorder


class DeliverySink:
    """Takes the deliveries of one process in one incarnation."""

    __slots__ = (
        "_delivered_until", "_group", "_me", "_on_deliver", "_on_fresh", "_recent", "_recorded_until", "_recorder",
        "count",
    )  # fmt: skip

    def __init__(
        self,
        me: ProcessId,
        group: GroupId | None,
        *,
        on_deliver: Callable[[Deliver], None] | None = None,
        on_fresh: Callable[[Deliver], None],
        recorder: Recorder | None = None,
        recent: RecentDeliveries | None = None,
        delivered_until: int = 0,
        recorded_until: int = 0,
    ) -> None:
        """`on_fresh` gets every delivery that the application did not have, bundles as one; `on_deliver` gets them one
        by one; `recent` keeps deliveries for subscribers."""
        self.count = 0
        """Messages that the application got in this incarnation."""
        self._me = me
        self._group = group
        self._on_deliver = on_deliver
        self._on_fresh = on_fresh
        self._recorder = recorder
        self._recent = recent
        self._delivered_until = delivered_until
        """The application has every delivery before this position."""
        self._recorded_until = recorded_until
        """The trace has every delivery before this position."""

    def deliver(self, effect: Deliver, now: int) -> None:
        """Takes a message, or a bundle. A bundle goes message by message only if the application listens, or an earlier
        incarnation delivered or recorded a part of it."""
        first = effect.position
        if effect.message_count < 0:
            self._deliver_one(effect, now)
        elif (
            self._on_deliver is not None
            or first < self._delivered_until
            or (self._recorder is not None and first != self._recorded_until)
        ):
            for one in effect.expand():
                self._deliver_one(one, now)
        else:
            self._fast_deliver_bundle(effect, now)

    def _fast_deliver_bundle(self, effect: Deliver, now: int) -> None:
        """Takes a bundle as a whole: the fast twin of `_deliver_one` for each of its messages.

        tests/live/host/test_delivery_sink.py holds them equal.
        """
        count, first, recorder, recent = effect.message_count, effect.position, self._recorder, self._recent
        end = first + count
        if recorder is not None:
            every = recorder.sample_every
            for position, message in enumerate(effect.messages(), first):
                if every == 1 or message.id % every == 0:
                    self._record(effect, position, message, now, recorder)
            self._recorded_until = end
        if recent is not None and (effect.duplicate_places or not recent.add_bundle(first, effect.message, count)):
            recent.add_all(first, effect.messages())
        self._delivered_until = end
        self.count += count
        self._on_fresh(effect)

    def _deliver_one(self, effect: Deliver, now: int) -> None:
        position, recorder = effect.position, self._recorder
        if self._recent is not None:
            self._recent.add(position, effect.message)
        if recorder is not None and position >= self._recorded_until:
            if position > self._recorded_until:
                recorder.record_note(self._me, now, "trace-gap", None, float(self._recorded_until))
            self._record(effect, position, effect.message, now, recorder)
            self._recorded_until = position + 1
        if position < self._delivered_until:
            return
        self._delivered_until = position + 1
        self.count += 1
        self._on_fresh(effect)
        if self._on_deliver is not None:
            self._on_deliver(effect)

    @property
    def delivered_until(self) -> int:
        """Every delivery before this position has come, in this incarnation or an earlier one."""
        return max(self._delivered_until, 0 if self._recent is None else self._recent.next)

    def skip_to(self, position: int) -> None:
        """Records that a snapshot replaced the deliveries before this position."""
        self._delivered_until = max(self._delivered_until, position)
        self._recorded_until = max(self._recorded_until, position)
        if self._recent is not None:
            self._recent.skip_to(position)

    def close_until(self, position: int) -> None:
        """Lets subscribers know that every delivery before a position is closed."""
        if self._recent is not None:
            self._recent.close_until(position)

    def _record(self, effect: Deliver, position: int, message: Message, now: int, recorder: Recorder) -> None:
        assert self._group is not None, f"process {self._me} is in no group and delivers message {message.id}"
        if is_marker(message):
            # Its process may have been killed, and its trace lost, before others delivered it: they record it instead.
            recorder.record_multicast(message, 0)
        recorder.record_delivery(
            self._me, self._group, position, message, now, effect.rank_time, effect.rank_tie, None, effect.committed_ns
        )
