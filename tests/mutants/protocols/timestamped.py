"""Mutants of BaseCast, FastCast, A_ge* and Paxos: rules of the papers that are wrong as printed, and omitted rules.

Each mutant changes one rule. `test_timestamped.py` shows that the fuzzer finds the error, and that the product
survives the same seed.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from amcast.kernel.ids import GroupId, MessageId, ProcessId
from amcast.kernel.spec import Spec
from amcast.kernel.topology import Topology
from amcast.parts.consensus.messages import Entry
from amcast.parts.consensus.paxos import Paxos
from amcast.parts.groups.pending_timestamps import TimestampPending
from amcast.parts.groups.timestamped_messages import SOFT
from amcast.protocols.a_ge import process as genuine
from amcast.protocols.a_ge.process import AGe
from amcast.protocols.basecast import process as basecast
from amcast.protocols.basecast.process import BaseCast
from amcast.protocols.fastcast import process as fastcast
from amcast.protocols.fastcast.process import FastCast
from amcast.protocols.multipaxos import process as multipaxos
from amcast.protocols.multipaxos.process import MultiPaxos

UNBOUNDED = 2**60


class PrintedBuffer:
    """The papers' delivery condition, by a search of B: a final message is delivered once it is below every tuple of
    every other message."""

    def _tuples(self: Any, id: MessageId, pending: TimestampPending) -> list[int]:
        """The timestamps that B has for a message."""
        return [pending.final or pending.own]

    def _below(self, mine: tuple[int, MessageId], other: tuple[int, MessageId]) -> bool:
        return mine < other

    def _deliver_ready(self: Any) -> None:
        delivered = True
        while delivered:
            delivered = False
            undelivered = [(id, p) for id, p in self._pending.items() if not p.is_delivered]
            final = sorted((p.final, id) for id, p in undelivered if p.final)
            for timestamp, id in final:
                others = [(x, other) for other, p in undelivered if other != id for x in self._tuples(other, p)]
                if all(self._below((timestamp, id), rank) for rank in others):
                    self._hand_over(id, self._pending[id])
                    delivered = True
                    break

    def _hand_over(self: Any, id: MessageId, pending: TimestampPending) -> None:
        self._queue.drop(id)
        pending.is_delivered = True
        if pending.is_final_logged:
            del self._pending[id]
        self.deliver(pending.message, pending.final, id, pending.committed_ns)


class EqualTimestampsBlock(PrintedBuffer, BaseCast):
    """003 line 36, 004 line 34: `ts < x` compares timestamps alone."""

    def _below(self, mine: tuple[int, MessageId], other: tuple[int, MessageId]) -> bool:
        return mine[0] < other[0]


class ClockStaysBehind(BaseCast):
    """004 algorithm 1: SYNC-HARD does not raise the clock."""

    def _raise_clock(self, timestamp: int) -> None:
        """Leaves the clock as it is."""

    def _delivery_limit(self) -> int:
        return UNBOUNDED


class OwnTimestampNotInBuffer(PrintedBuffer, FastCast):
    """003 lines 30-33: a global message enters B only with SYNC tuples, not with its group's own timestamp."""

    def _tuples(self, id: MessageId, pending: TimestampPending) -> list[int]:
        if pending.final:
            return [pending.final]
        return [*pending.guesses.values(), *pending.logged.values()]


class LateGuessStays(PrintedBuffer, FastCast):
    """003 lines 34-36: a SYNC-SOFT that is ordered after its message is final enters B and is never removed."""

    def __init__(self, me: ProcessId, topology: Topology, config: Any) -> None:
        super().__init__(me, topology, config)
        self._stale: list[tuple[int, MessageId]] = []

    def _handle_guess(self, id: MessageId, group: GroupId, timestamp: int) -> None:
        if self._is_final(id) and self._paxos.can_propose():
            self._paxos.propose((Entry(SOFT, id, group, timestamp),))
        else:
            super()._handle_guess(id, group, timestamp)

    def _apply_entry(self, entry: Entry) -> None:
        pending = self._pending.get(entry.id)
        if entry.kind == SOFT and (pending is None or pending.final):
            self._raise_clock(entry.timestamp)
            self._stale.append((entry.timestamp, entry.id))
        else:
            super()._apply_entry(entry)

    def _below(self, mine: tuple[int, MessageId], other: tuple[int, MessageId]) -> bool:
        return mine < other and all(mine < rank for rank in self._stale if rank[1] != mine[1])

    def _deliver_ready(self) -> None:
        open_ids = [id for id, pending in self._pending.items() if pending.final and not pending.is_delivered]
        if self._stale and any((self._pending[id].final, id) > rank for id in open_ids for rank in self._stale):
            return
        super()._deliver_ready()


class StarSkipsStage(AGe):
    """A_ge* that lets a message skip s2 in the group with the highest timestamp, which 001 section 5 forbids."""

    def _handle_all_timestamps(self, id: MessageId, pending: TimestampPending) -> None:
        if pending.own == max(pending.received.values()):
            self._set_final(id, pending, pending.own)


class ForgetfulVoter(Paxos):
    """Votes right after the loss of its state."""

    def _join(self) -> None:
        """Remains a follower."""


def make_multipaxos(kind: type[Paxos]) -> Callable[[ProcessId, Topology, Any], MultiPaxos]:
    """MultiPaxos over another Paxos."""

    def make(me: ProcessId, topology: Topology, config: Any) -> MultiPaxos:
        made = MultiPaxos(me, topology, config)
        made._paxos = kind(made, made._members, config, made._list_learners())
        return made

    return make


@dataclass(frozen=True)
class Mutant:
    """A changed process, and a plan in which the fuzzer finds the error."""

    name: str
    process: Callable[[ProcessId, Topology, Any], Any]
    product: Spec
    wrong: str
    """The fuzzer's verdict."""
    faults: str = "none"
    groups: int = 3
    replicas: int = 3
    messages: int = 12
    destinations: tuple[int, int] = (1, 3)
    seeds: int = 40
    """The number of seeds that suffice to find the error."""

    def plan(self) -> dict[str, Any]:
        return {
            "protocol": self.product.name,
            "topology": {"groups": self.groups, "replicas": self.replicas, "clients": 3},
            "workload": {"messages": self.messages, "outstanding": 4, "destinations": list(self.destinations)},
            "faults": {"profile": self.faults},
            "nodes": self.faults != "none",
        }

    def spec(self) -> Spec:
        return replace(self.product, process=self.process)


MUTANTS = (
    Mutant("equal timestamps block", EqualTimestampsBlock, basecast.SPEC, "stuck"),
    Mutant(
        "the clock stays behind", ClockStaysBehind, basecast.SPEC, "violated",
        replicas=1, messages=30, destinations=(2, 2), seeds=100,
    ),
    Mutant("the own timestamp is not in B", OwnTimestampNotInBuffer, fastcast.SPEC, "violated"),
    Mutant("a late guess stays in B", LateGuessStays, fastcast.SPEC, "stuck", faults="leaders"),
    Mutant("A_ge* skips s2", StarSkipsStage, genuine.STAR, "violated"),
    Mutant(
        "votes without state", make_multipaxos(ForgetfulVoter), multipaxos.SPEC, "violated",
        faults="leaders+recovery+amnesia", groups=1, messages=10, destinations=(1, 1), seeds=600,
    ),
)  # fmt: skip
