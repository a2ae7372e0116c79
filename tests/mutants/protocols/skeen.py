"""Skeen's protocol with planted bugs, each a mistake that somebody could make. Searches must find every one of them."""

from dataclasses import replace
from typing import Final

from amcast.kernel.ids import GroupId, MessageId
from amcast.kernel.message import Message
from amcast.kernel.spec import Spec
from amcast.protocols.skeen.process import SPEC, Skeen


class LocalTimestamp(Skeen):
    """Delivers in the order of its own timestamps, whatever the others proposed."""

    def _count(self, message: MessageId, group: GroupId, timestamp: int) -> None:
        entry = self._pending.get(message)
        known = entry is not None and entry.message is not None
        super()._count(message, group, entry.proposed if known and entry is not None else 0)


class NoTieBreak(Skeen):
    """Among equal timestamps, delivers what was committed first."""

    def _deliver_ready(self, committed: MessageId) -> None:
        entry = self._pending[committed]
        if all(bound >= entry.highest for bound, message in self._queue if message != committed):
            self._queue = sorted(item for item in self._queue if item[1] != committed)
            del self._pending[committed]
            assert entry.message is not None
            self.deliver(entry.message, entry.highest, committed, entry.committed_ns)
            committed = -1
        super()._deliver_ready(committed)


class Hasty(Skeen):
    """Does not wait for the last proposal."""

    def _count(self, message: MessageId, group: GroupId, timestamp: int) -> None:
        entry = self._pending.get(message)
        if entry is not None and entry.message is not None:
            missing = set(entry.message.destinations) - entry.heard - {group}
            if len(missing) == 1:
                entry.heard |= missing
        super()._count(message, group, timestamp)


class NotBlocked(Skeen):
    """Delivers what is committed even though something older may still get a lower timestamp."""

    def _deliver_ready(self, committed: MessageId) -> None:
        entry = self._pending.pop(committed)
        self._queue = sorted(item for item in self._queue if item[1] != committed)
        assert entry.message is not None
        self.deliver(entry.message, entry.highest, committed, entry.committed_ns)


class ClockNotRaised(Skeen):
    """Forgets to raise its clock to the timestamps that it commits: later messages may be ordered before."""

    def _count(self, message: MessageId, group: GroupId, timestamp: int) -> None:
        clock = self._clock
        super()._count(message, group, timestamp)
        self._clock = clock


class Forgetful(Skeen):
    """Drops proposals that arrive before their message: some messages are never delivered."""

    def _count(self, message: MessageId, group: GroupId, timestamp: int) -> None:
        entry = self._pending.get(message)
        if entry is not None and entry.message is not None:
            super()._count(message, group, timestamp)
        else:
            self.note("early", message)


class Twice(Skeen):
    """Delivers a message twice if another one waits behind it."""

    def deliver(
        self,
        message: Message,
        rank_time: int | None = None,
        rank_tie: int | None = None,
        committed_ns: int | None = None,
    ) -> None:
        super().deliver(message, rank_time, rank_tie, committed_ns)
        if self._queue:
            super().deliver(message, rank_time, rank_tie, committed_ns)


def _mutant(name: str, process: type[Skeen]) -> Spec:
    """Bare, for groups of one process."""
    summary = (process.__doc__ or "").strip()
    return replace(SPEC, name=f"skeen-{name}", summary=summary, process=process, claims=SPEC.alone or SPEC.claims)


SKEEN_MUTANTS: Final[dict[str, Spec]] = {
    spec.name: spec
    for spec in (
        _mutant("local-timestamp", LocalTimestamp),
        _mutant("no-tie-break", NoTieBreak),
        _mutant("hasty", Hasty),
        _mutant("not-blocked", NotBlocked),
        _mutant("clock-not-raised", ClockNotRaised),
        _mutant("forgetful", Forgetful),
        _mutant("twice", Twice),
    )
}
"""By name. "skeen-forgetful" breaks liveness, the others safety."""
