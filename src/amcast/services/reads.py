"""Reads from the state of one replica, without ordering a message.

    linearizable   ask a majority how far the group is (`parts/node/read_index.py`); execute up to there; read; wait
                   until what was read is closed
    group          execute at least what this session has seen; read
    stale          as linearizable without the last step; if that was done less than `max_age_ns` ago, read at once

**Linearizable reads are in the order of all calls.** Whatever was answered before the read began, and everything that
precedes it in any group, is closed, so the group has delivered its part of it: the majority knows that, and the replica
executes it before it reads. Whatever the read has seen, and what precedes that, is closed when the caller gets the
value: nothing that is called afterwards comes before it, in any group. So the read has a place in the order of
commands, behind what it has seen, that agrees with real time. (With `order = "acyclic"` nothing is known to be closed,
and this holds among calls to the one group.)

**Stale reads** contain everything that was answered more than `max_age_ns` before they were executed: the last
majority was asked later than that. Only time that passed at this replica counts, no clock of another one.

Commands that wait at a `yield` have not changed the state, so a read between their parts sees none of them.
"""

from typing import Final

from amcast.services.declaration import SECOND_NS
from amcast.services.executor import Executor
from amcast.services.messages import Query, ReadAnswer, Result

UNREADABLE: Final = "its protocol states nothing about what it has accepted, so that reads must be ordered"
"""The refusal of a replica that cannot ask its majority."""
PATIENCE_NS: Final = 2_000_000_000
"""After so long a read is refused: its caller may order it, or ask another replica."""


class PendingRead:
    """A read that is not answered."""

    __slots__ = ("answer", "closing", "confirmed_ns", "is_asking", "needed", "query", "since_ns")

    def __init__(self, query: Query, since_ns: int) -> None:
        self.query = query
        self.since_ns = since_ns
        self.is_asking = False
        """A majority is being asked."""
        self.needed: int | None = query.position if query.consistency == "group" else None
        """The position up to which commands must be executed; None while that is not known."""
        self.confirmed_ns = -1
        """When the majority was asked that said so."""
        self.answer: ReadAnswer | None = None
        self.closing = 0
        """The answer may be given when everything before this position is closed."""


class ReadQueue:
    """The reads of one replica. Its driver asks majorities (`take_unconfirmed`, `confirm`) and calls `advance` whenever
    something was executed, confirmed or closed."""

    def __init__(self, executor: Executor, patience_ns: int = PATIENCE_NS) -> None:
        self._executor = executor
        self._patience_ns = patience_ns
        self._reads: list[PendingRead] = []
        self._fresh_ns: int | None = None
        """The state contains everything that was answered before this time; None: nothing is known."""

    def __len__(self) -> int:
        return len(self._reads)

    def add(self, query: Query, now_ns: int) -> PendingRead:
        """Begins a read."""
        read = PendingRead(query, now_ns)
        self._reads.append(read)
        return read

    def discard(self, read: PendingRead) -> None:
        """Ends a read that nobody waits for any more."""
        if read in self._reads:
            self._reads.remove(read)

    def take_unconfirmed(self) -> list[PendingRead]:
        """The reads for which a majority must be asked, and was not."""
        taken = [read for read in self._reads if read.needed is None and not read.is_asking]
        for read in taken:
            read.is_asking = True
        return taken

    def confirm(self, reads: list[PendingRead], begun_ns: int, position: int) -> None:
        """A majority that was asked at a time says that the group is at a position."""
        for read in reads:
            read.needed, read.confirmed_ns = position, begun_ns

    def advance(self, position: int, closed: int | None, now_ns: int) -> list[PendingRead]:
        """The reads that are answered now. The replica has executed, or holds in its queue, everything before a
        position; everything before `closed` is closed, if that is known."""
        unfinished = self._executor.first_unfinished
        reached = position if unfinished is None else min(position, unfinished)
        answered: list[PendingRead] = []
        waiting: list[PendingRead] = []
        for read in self._reads:
            if read.answer is None:
                self._execute(read, reached, closed, now_ns)
            elif now_ns - read.since_ns > self._patience_ns:
                read.answer = ReadAnswer(read.query.number, None, "what was read is not closed")
            is_closed = closed is None or read.closing <= closed
            is_answered = read.answer is not None and (is_closed or read.answer.refusal != "")
            (answered if is_answered else waiting).append(read)
        self._reads = waiting
        return answered

    def _execute(self, read: PendingRead, reached: int, closed: int | None, now_ns: int) -> None:
        query = read.query
        if query.consistency == "stale" and read.needed is None and self._age(now_ns) <= query.max_age_ns:
            read.needed = 0
        if read.needed is None or read.needed > reached:
            if now_ns - read.since_ns > self._patience_ns:
                read.answer = ReadAnswer(query.number, None, self._describe_delay(read, now_ns))
            return
        if read.confirmed_ns >= 0:
            self._fresh_ns = max(self._fresh_ns or 0, read.confirmed_ns)
        if query.consistency == "stale" and self._age(now_ns) > query.max_age_ns:
            read.answer = ReadAnswer(query.number, None, self._describe_delay(read, now_ns))
            return
        outcome = self._executor.read(query)
        end = self._executor.finished_until
        read.answer = ReadAnswer(query.number, Result(query.number, outcome, end, 0))
        if query.consistency == "linearizable" and closed is not None:
            read.closing = end

    def _age(self, now_ns: int) -> float:
        return float("inf") if self._fresh_ns is None else now_ns - self._fresh_ns

    def _describe_delay(self, read: PendingRead, now_ns: int) -> str:
        query, waited = read.query, (now_ns - read.since_ns) / SECOND_NS
        if query.consistency == "group":
            return f"it has not executed what this session has seen (position {query.position}) after {waited:.1f} s"
        why = "no majority of its group answers" if read.needed is None else "it has not executed what its group has"
        if query.consistency == "linearizable":
            return f"{why} after {waited:.1f} s"
        age = self._age(now_ns)
        known = "of unknown age" if self._fresh_ns is None else f"up to {age / SECOND_NS:.1f} s old"
        return f"its state is {known}, and {why}; expected at most {query.max_age_ns / SECOND_NS:g} s (max_age_s)"
