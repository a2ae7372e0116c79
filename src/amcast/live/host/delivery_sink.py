"""What becomes of a delivery: it is kept for subscribers, told to the trace, and handed to the application, each once.

A process that replays its log repeats positions. The application and the trace each remember how far they are, in
files of their own, so each skips what it has.
"""

from collections.abc import Callable

from amcast.kernel.effects import Deliver
from amcast.kernel.ids import GroupId, ProcessId
from amcast.live.host.recent_deliveries import RecentDeliveries
from amcast.trace.recorder import Recorder


class DeliverySink:
    """The deliveries of one process in one incarnation."""

    __slots__ = ("_group", "_handed", "_me", "_on_deliver", "_on_fresh", "_recorded", "_recorder", "count", "kept")

    def __init__(
        self,
        me: ProcessId,
        group: GroupId | None,
        on_deliver: Callable[[Deliver], None] | None,
        recorder: Recorder | None,
        handed: int,
        recorded: int,
        kept: RecentDeliveries | None,
        on_fresh: Callable[[Deliver], None],
    ) -> None:
        self.count = 0
        """What was handed to the application in this incarnation."""
        self.kept = kept
        """Deliveries that subscribers may read; clients have none."""
        self._on_fresh = on_fresh
        """Called with every delivery that the application did not have."""
        self._me = me
        self._group = group
        self._on_deliver = on_deliver
        self._recorder = recorder
        self._handed = handed
        """The application has everything before this position."""
        self._recorded = recorded
        """The same for the trace."""

    def take(self, effect: Deliver, now: int) -> None:
        """A message, or what is fresh in a bundle: that goes one by one only to who listens, or where some were handed
        over in an earlier incarnation."""
        count, first, recorder = effect.message_count, effect.position, self._recorder
        if count < 0:
            self._take_one(effect, now)
            return
        if self._on_deliver is not None or first < self._handed or (recorder is not None and first != self._recorded):
            for one in effect.expand():
                self._take_one(one, now)
            return
        end = first + count
        if recorder is not None:
            self._record_all(effect, now, recorder)
            self._recorded = end
        kept = self.kept
        if kept is not None and (effect.duplicate_places or not kept.hold(first, effect.message, count)):
            kept.extend(first, effect.messages())
        self._handed = end
        self.count += count
        self._on_fresh(effect)

    def _take_one(self, effect: Deliver, now: int) -> None:
        position = effect.position
        if self.kept is not None:
            self.kept.add(position, effect.message)
        if self._recorder is not None and position >= self._recorded:
            self._record(effect, now, self._recorder)
        if position < self._handed:
            return
        self._handed = position + 1
        self.count += 1
        self._on_fresh(effect)
        if self._on_deliver is not None:
            self._on_deliver(effect)

    def jump(self, position: int) -> None:
        """A snapshot took the place of the deliveries before this position."""
        self._handed = max(self._handed, position)
        self._recorded = max(self._recorded, position)
        if self.kept is not None:
            self.kept.jump(position)

    def _record_all(self, effect: Deliver, now: int, recorder: Recorder) -> None:
        assert self._group is not None
        every = recorder.sample_every
        for position, part in enumerate(effect.messages(), effect.position):
            if every == 1 or part.id % every == 0:
                recorder.record_delivery(
                    self._me, self._group, position, part, now,
                    effect.rank_time, effect.rank_tie, None, effect.committed_ns,
                )  # fmt: skip

    def _record(self, effect: Deliver, now: int, recorder: Recorder) -> None:
        position, group = effect.position, self._group
        assert group is not None, f"process {self._me} is in no group and delivers message {effect.message.id}"
        if position > self._recorded:
            recorder.record_note(self._me, now, "trace-gap", None, float(self._recorded))
        recorder.record_delivery(
            self._me, group, position, effect.message, now,
            effect.rank_time, effect.rank_tie, None, effect.committed_ns,
        )  # fmt: skip
        self._recorded = position + 1
