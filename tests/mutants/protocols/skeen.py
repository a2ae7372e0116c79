"""Mutants of Skeen's protocol: each has one planted mistake, which searches must find."""

from dataclasses import replace
from typing import Final

from amcast.kernel.ids import GroupId, MessageId
from amcast.kernel.message import Message
from amcast.kernel.spec import Spec
from amcast.protocols.skeen.process import SPEC, Skeen


class LocalTimestamp(Skeen):
    """Delivers in the order of its own timestamps and ignores the other proposals."""

    def _handle_propose(self, message: MessageId, group: GroupId, timestamp: int) -> None:
        entry = self._pending.get(message)
        known = entry is not None and entry.message is not None
        super()._handle_propose(message, group, entry.proposed if known and entry is not None else 0)


class NoTieBreak(Skeen):
    """Among equal timestamps, delivers the message that was committed first."""

    def _deliver_ready(self, committed: MessageId) -> None:
        entry = self._pending[committed]
        if all(bound >= entry.highest for bound, message in self._queue if message != committed):
            self._queue = sorted(item for item in self._queue if item[1] != committed)
            del self._pending[committed]
            assert entry.message is not None
            self.deliver(entry.message, entry.highest, committed, entry.committed_ns)
            committed = -1
        super()._deliver_ready(committed)


class LastProposalIgnored(Skeen):
    """Does not wait for the last proposal."""

    def _handle_propose(self, message: MessageId, group: GroupId, timestamp: int) -> None:
        entry = self._pending.get(message)
        if entry is not None and entry.message is not None:
            missing = set(entry.message.destinations) - entry.proposers - {group}
            if len(missing) == 1:
                entry.proposers |= missing
        super()._handle_propose(message, group, timestamp)


class NotBlocked(Skeen):
    """Delivers a committed message although a pending one may still get a lower timestamp."""

    def _deliver_ready(self, committed: MessageId) -> None:
        entry = self._pending.pop(committed)
        self._queue = sorted(item for item in self._queue if item[1] != committed)
        assert entry.message is not None
        self.deliver(entry.message, entry.highest, committed, entry.committed_ns)


class ClockNotRaised(Skeen):
    """Does not raise its clock to the timestamps that it commits: later messages may be ordered before."""

    def _handle_propose(self, message: MessageId, group: GroupId, timestamp: int) -> None:
        clock = self._clock
        super()._handle_propose(message, group, timestamp)
        self._clock = clock


class EarlyProposalsDropped(Skeen):
    """Drops proposals that arrive before their message: some messages are never delivered."""

    def _handle_propose(self, message: MessageId, group: GroupId, timestamp: int) -> None:
        entry = self._pending.get(message)
        if entry is not None and entry.message is not None:
            super()._handle_propose(message, group, timestamp)
        else:
            self.note("early", message)


class Twice(Skeen):
    """Delivers a message twice if another one is pending."""

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
    """A specification for groups of one process."""
    summary = (process.__doc__ or "").strip()
    return replace(
        SPEC, name=f"skeen-{name}", summary=summary, process=process, claims=SPEC.unreplicated or SPEC.claims
    )


SKEEN_MUTANTS: Final[dict[str, Spec]] = {
    spec.name: spec
    for spec in (
        _mutant("local-timestamp", LocalTimestamp),
        _mutant("no-tie-break", NoTieBreak),
        _mutant("last-proposal-ignored", LastProposalIgnored),
        _mutant("not-blocked", NotBlocked),
        _mutant("clock-not-raised", ClockNotRaised),
        _mutant("early-proposals-dropped", EarlyProposalsDropped),
        _mutant("twice", Twice),
    )
}
"""By name. "skeen-early-proposals-dropped" violates liveness, the others safety."""
