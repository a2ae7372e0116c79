"""BaseCast and FastCast as the papers print them where that goes wrong, and A_ge* and Paxos without a virtue.

Each mutant changes one thing. `test_stamped.py` lets the fuzzer find what goes wrong, and shows that the product
survives the same seeds.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from amcast.kernel.ids import GroupId, MessageId, ProcessId
from amcast.kernel.spec import Spec
from amcast.kernel.topology import Topology
from amcast.parts.consensus.messages import Entry
from amcast.parts.consensus.paxos import Paxos
from amcast.parts.groups.messages import SOFT
from amcast.parts.groups.timestamped import TimestampPending
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
    """The papers' delivery condition over B, by a walk: what is final is delivered once it is below every tuple of
    every other message."""

    def _tuples(self: Any, id: MessageId, entry: TimestampPending) -> list[int]:
        """The timestamps that B has for a message."""
        return [entry.final or entry.own]

    def _below(self, mine: tuple[int, MessageId], other: tuple[int, MessageId]) -> bool:
        return mine < other

    def _deliver_ready(self: Any) -> None:
        delivered = True
        while delivered:
            delivered = False
            waiting = [(id, e) for id, e in self._pending.items() if not e.delivered]
            final = sorted((e.final, id) for id, e in waiting if e.final)
            for timestamp, id in final:
                others = [(x, other) for other, e in waiting if other != id for x in self._tuples(other, e)]
                if all(self._below((timestamp, id), rank) for rank in others):
                    self._hand_over(id, self._pending[id])
                    delivered = True
                    break

    def _hand_over(self: Any, id: MessageId, entry: TimestampPending) -> None:
        self._queue.drop(id)
        entry.delivered = True
        if entry.settled:
            del self._pending[id]
        self.deliver(entry.message, entry.final, id, entry.committed_ns)


class EqualTimestampsBlock(PrintedBuffer, BaseCast):
    """003 line 36, 004 line 34: `ts < x` compares timestamps alone."""

    def _below(self, mine: tuple[int, MessageId], other: tuple[int, MessageId]) -> bool:
        return mine[0] < other[0]


class ClockStaysBehind(BaseCast):
    """004 algorithm 1: SYNC-HARD does not raise the clock."""

    def _raise_clock(self, timestamp: int) -> None:
        """Nothing."""

    def _reached(self) -> int:
        return UNBOUNDED


class OwnStampNotInBuffer(PrintedBuffer, FastCast):
    """003 lines 30-33: a global message enters B only with SYNC tuples, not with its group's own timestamp."""

    def _tuples(self, id: MessageId, entry: TimestampPending) -> list[int]:
        if entry.final:
            return [entry.final]
        return [*entry.soft.values(), *entry.synced.values()]


class LateGuessStays(PrintedBuffer, FastCast):
    """003 lines 34-36: a SYNC-SOFT that is ordered after its message is final enters B, and nothing takes it out."""

    def __init__(self, me: ProcessId, topology: Topology, config: Any) -> None:
        super().__init__(me, topology, config)
        self._stale: list[tuple[int, MessageId]] = []

    def _hear_soft(self, id: MessageId, group: GroupId, timestamp: int) -> None:
        entry = self._pending.get(id)
        if (entry.final > 0 if entry is not None else id in self._seen) and self._paxos.can_propose():
            self._paxos.propose((Entry(SOFT, id, group, timestamp),))
        else:
            super()._hear_soft(id, group, timestamp)

    def _order(self, entry: Entry) -> None:
        pending = self._pending.get(entry.id)
        if entry.kind == SOFT and (pending is None or pending.final):
            self._raise_clock(entry.timestamp)
            self._stale.append((entry.timestamp, entry.id))
        else:
            super()._order(entry)

    def _below(self, mine: tuple[int, MessageId], other: tuple[int, MessageId]) -> bool:
        return mine < other and all(mine < rank for rank in self._stale if rank[1] != mine[1])

    def _deliver_ready(self) -> None:
        open_ids = [id for id, entry in self._pending.items() if entry.final and not entry.delivered]
        if self._stale and any((self._pending[id].final, id) > rank for id in open_ids for rank in self._stale):
            return
        super()._deliver_ready()


class StarSkipsStage(AGe):
    """A_ge* that lets a message skip s2 in the group with the highest timestamp, which 001 section 5 forbids."""

    def _all_heard(self, id: MessageId, entry: TimestampPending) -> None:
        if entry.own == max(entry.heard.values()):
            self._finish(id, entry, entry.own)


class ForgetfulVoter(Paxos):
    """Votes right after losing its memory."""

    def _join(self) -> None:
        """Nothing: straight on as a follower."""


def over(kind: type[Paxos]) -> Callable[[ProcessId, Topology, Any], MultiPaxos]:
    """MultiPaxos over another Paxos."""

    def make(me: ProcessId, topology: Topology, config: Any) -> MultiPaxos:
        made = MultiPaxos(me, topology, config)
        made._paxos = kind(made, made._members, config, made._audience())
        return made

    return make


@dataclass(frozen=True)
class Mutant:
    """A change, where it shows, and how."""

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
    """So many are enough to find it."""

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
    Mutant("the own stamp is not in B", OwnStampNotInBuffer, fastcast.SPEC, "violated"),
    Mutant("a late guess stays in B", LateGuessStays, fastcast.SPEC, "stuck", faults="leaders"),
    Mutant("A_ge* skips s2", StarSkipsStage, genuine.STAR, "violated"),
    Mutant(
        "votes without memory", over(ForgetfulVoter), multipaxos.SPEC, "violated",
        faults="leaders+recovery+amnesia", groups=1, messages=10, destinations=(1, 1), seeds=600,
    ),
)  # fmt: skip
