"""Reads without ordering: a member learns how far it must deliver before its state contains everything answered so far.

    reader (any member)              other members of its group
      |--AcceptedRequest(round)--------->|
      |<-AcceptedReport(round, ...)------|     delivered up to here; accepted, and not delivered: these messages
      |   a majority has reported: wait until all of that is delivered here
    ReadReady

Source: Ongaro, "Consensus: bridging theory and practice" (2014), section 6.4 (read index); Charapko, Ailijani,
Demirbas, "Linearizable quorum reads in Paxos" (2019).

**Why it is right.** Nobody is answered for a message before some process has delivered it, or knows that it will be;
then a majority of each destination group has accepted it (`Process.accepted`), and keeps it until it is delivered. The
majority that reports after the read began has a member in common with that one, so the message is among what the
reader waits for. No clock and no belief about leaders enters: a leader that was deposed without knowing it gets no
majority, or is told what its successor has made of the group. Members of different configurations do not count for each
other; the change from one to the next is itself a message that a majority has accepted.

**Rounds.** A round serves all reads that came before it began. When a majority has reported, the next one may begin.
What a member has accepted may never be delivered: it may have been accepted by too few, and be lost with its epoch. So
reads that wait for long ask anew: by then nobody names it. The same repairs lost bodies.

**Cost.** 2 (n - 1) bodies in a group of n for a round, no record, nothing for other groups; a round trip to a majority,
and the delivery of what is on its way.
"""

from collections.abc import Callable
from typing import Final, NamedTuple

from amcast.kernel.effects import Effect, ReadReady, Send, SetTimer
from amcast.kernel.ids import MessageId, ProcessId
from amcast.kernel.process import Accepted, Process
from amcast.parts.node.messages import AcceptedReport, AcceptedRequest, ReadIndexState

READ_TIMER: Final = "read"


class ConfirmedReads(NamedTuple):
    """Reads whose round has a majority: they wait for deliveries."""

    reads: tuple[int, ...]
    configuration: int
    position: int
    messages: list[MessageId]
    """The last one is looked at first."""


class ReadIndex:
    """The reads of one node. It sends through its owner's verbs; `finish_step` returns what must come behind the
    deliveries of a step."""

    def __init__(
        self,
        owner: Process,
        retry_ns: tuple[int, int],
        accepted: Callable[[], Accepted | None],
        has_delivered: Callable[[MessageId], bool],
    ) -> None:
        self._owner = owner
        self._retry_ns = retry_ns
        self._accepted = accepted
        self._has_delivered = has_delivered
        self._round = 0
        self._waiting: list[int] = []
        """Reads that came since the round began."""
        self._asking: tuple[int, ...] = ()
        """The reads of the round, until a majority has reported."""
        self._reports: dict[ProcessId, AcceptedReport | Accepted] = {}
        self._confirmed: list[ConfirmedReads] = []
        self._is_timer_set = False

    @property
    def is_active(self) -> bool:
        """Whether there is a read that is not answered."""
        return bool(self._waiting or self._asking or self._confirmed)

    def add(self, number: int) -> None:
        """Begins a read."""
        self._waiting.append(number)

    def handle_request(self, sender: ProcessId, body: AcceptedRequest) -> None:
        """Reports to a reader; says nothing while there is no complete state to speak of."""
        accepted = self._accepted()
        if accepted is not None:
            self._owner.send(
                sender, AcceptedReport(body.round, accepted.configuration, accepted.position, accepted.messages)
            )

    def handle_report(self, sender: ProcessId, body: AcceptedReport) -> None:
        """Counts a report of the current round."""
        if body.round == self._round and self._asking:
            self._reports[sender] = body

    def expire_timer(self) -> None:
        """Asks anew for all reads that still wait."""
        self._is_timer_set = False
        confirmed = [number for one in self._confirmed for number in one.reads]
        self._waiting = [*confirmed, *self._asking, *self._waiting]
        self._asking, self._confirmed = (), []

    def finish_step(self, members: tuple[ProcessId, ...], quorum: int) -> list[Effect]:
        """Begins, confirms and answers what can be, behind the deliveries of a step."""
        own = self._accepted()
        effects: list[Effect] = []
        while own is not None:
            if self._asking:
                self._reports[self._owner.me] = own
                self._confirm(members, quorum, own.configuration)
            if self._asking or not self._waiting:
                break
            effects += self._begin(members)
        if own is not None:
            effects += self._answer(own)
        if self.is_active and not self._is_timer_set:
            self._is_timer_set = True
            effects.append(SetTimer(READ_TIMER, *self._retry_ns))
        return effects

    def _begin(self, members: tuple[ProcessId, ...]) -> list[Effect]:
        self._round += 1
        self._asking, self._waiting, self._reports = tuple(self._waiting), [], {}
        others = tuple(member for member in members if member != self._owner.me)
        return [Send(others, AcceptedRequest(self._round))] if others else []

    def _confirm(self, members: tuple[ProcessId, ...], quorum: int, configuration: int) -> None:
        reports = [
            report
            for member, report in self._reports.items()
            if member in members and report.configuration == configuration
        ]
        if len(reports) < quorum:
            return
        position = max(report.position for report in reports)
        messages = sorted({message for report in reports for message in report.messages})
        self._confirmed.append(ConfirmedReads(self._asking, configuration, position, messages))
        self._asking = ()

    def _answer(self, own: Accepted) -> list[Effect]:
        effects: list[Effect] = []
        for confirmed in list(self._confirmed):
            if confirmed.configuration != own.configuration or own.delivered < confirmed.position:
                continue
            while confirmed.messages and self._has_delivered(confirmed.messages[-1]):
                confirmed.messages.pop()
            if not confirmed.messages:
                self._confirmed.remove(confirmed)
                effects += [ReadReady(number) for number in confirmed.reads]
        return effects

    def snapshot(self) -> ReadIndexState:
        confirmed = [number for one in self._confirmed for number in one.reads]
        return ReadIndexState(self._round, (*confirmed, *self._asking, *self._waiting))

    def restore(self, state: ReadIndexState) -> None:
        self._round, self._waiting = state.round, list(state.waiting)
        self._asking, self._confirmed, self._reports, self._is_timer_set = (), [], {}, False
