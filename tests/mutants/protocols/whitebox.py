"""Mutants of White-Box: each has one planted mistake, which the checks must catch."""

from typing import Any

from amcast.protocols.whitebox.messages import Decided, NewLeaderAck
from amcast.protocols.whitebox.pending_multicast import PendingMulticast
from amcast.protocols.whitebox.process import SPEC, WhiteBox
from tests.mutants.protocols.primcast import WITHOUT_NODES, Mutant
from tests.protocols.whitebox import test_process as scenes


class FirstAckOnly(WhiteBox):
    """A new leader takes over the state of one promise instead of merging a majority's."""

    def _choose_state(self, promises: list[NewLeaderAck]) -> None:
        super()._choose_state(promises[:1])


class PatchedClock(WhiteBox):
    """A new leader adds a constant to its own clock instead of taking the highest clock of a majority."""

    def _choose_state(self, promises: list[NewLeaderAck]) -> None:
        own = self._clock
        super()._choose_state([_replace_clock(promise, own + 1) for promise in promises])


def _replace_clock(promise: NewLeaderAck, clock: int) -> NewLeaderAck:
    return NewLeaderAck(
        promise.ballot,
        promise.current,
        clock,
        promise.position,
        promise.entries,
        promise.history,
        promise.memory_losses,
    )


class StaleClock(WhiteBox):
    """A member that accepts a message does not raise its clock to the other groups' timestamps."""

    def _try_accept(self, pending: PendingMulticast) -> None:
        clock = self._clock
        super()._try_accept(pending)
        self._clock = clock


class NoBlocking(WhiteBox):
    """A leader delivers committed messages even if it proposed lower timestamps for others."""

    def _order_committed(self) -> None:
        queue = self._queue
        self._queue = sorted((i.final, i.id) for _, id in queue if (i := self._pending.get(id)) and i.final >= 0)
        super()._order_committed()
        self._queue = [(rank, id) for rank, id in queue if id in self._pending and not self._pending[id].is_ordered]


class NewTimestamps(WhiteBox):
    """A new leader gives accepted messages new timestamps."""

    def _become_leader(self) -> None:
        for pending in self._pending.values():
            pending.accepted = 0
        super()._become_leader()


class IgnoredPositions(WhiteBox):
    """A follower delivers what its leader orders next without comparing positions."""

    def _handle_delivery(self, body: Any) -> None:
        super()._handle_delivery(type(body)(body.ballot, self.position, body.deliveries))


class NoRecords(WhiteBox):
    """Bodies are sent without persisting what they depend on."""

    def _persist_changes(self) -> None:
        self._undurable = []


class NoAdmission(WhiteBox):
    """A member that lost its memory votes at once."""

    def _start_joining(self) -> None:
        self._is_lagging = True


class TrustedDecision(WhiteBox):
    """A leader commits on the word of another group, without a majority of its own group in its ballot."""

    def _handle_decided(self, body: Decided) -> None:
        super()._handle_decided(body)
        pending = self._pending.get(body.id)
        if pending is not None and self._is_leading() and not pending.is_committed:
            self._commit(pending, body.final)


class IgnoredDecision(WhiteBox):
    """A leader ignores the word of another group."""

    def _handle_decided(self, body: Decided) -> None:
        pass


MUTANTS = [
    Mutant("first ack only", FirstAckOnly, "merge of one promise", "leaders", WITHOUT_NODES, range(40), SPEC),
    Mutant("patched clock", PatchedClock, "clock by a constant", spec=SPEC, scene=scenes.candidate_with_stale_clock),
    Mutant("stale clock", StaleClock, "no clock update", spec=SPEC, scene=scenes.candidate_with_stale_clock),
    Mutant("no blocking", NoBlocking, "no blocking", "none", WITHOUT_NODES, range(40), SPEC),
    Mutant("new timestamps", NewTimestamps, "no re-accept", "leaders", WITHOUT_NODES, range(40), SPEC),
    Mutant("ignored positions", IgnoredPositions, "positions ignored", "links", {}, range(60), SPEC),
    Mutant("no records", NoRecords, "no record before a reply", "recovery", {}, range(40), SPEC),
    Mutant("no admission", NoAdmission, "no re-admission", "amnesia", {}, range(100), SPEC),
    Mutant(
        "trusted decision",
        TrustedDecision,
        "commit without home",
        spec=SPEC,
        scene=scenes.deposed_leader_learns_a_decision,
    ),
    Mutant("ignored decision", IgnoredDecision, "no commit", spec=SPEC, scene=scenes.decision_learnt_by_a_successor),
]
