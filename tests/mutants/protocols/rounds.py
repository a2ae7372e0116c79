"""Mutants of A_ng and A_dt: each has one planted mistake, which searches must find."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Final

from amcast.kernel.ids import GroupId, ProcessId
from amcast.kernel.message import Message
from amcast.kernel.spec import Spec
from amcast.kernel.topology import Topology
from amcast.parts.broadcast.generic import GenericBroadcast
from amcast.parts.broadcast.messages import CLOSE, TOP, Tops
from amcast.parts.consensus.messages import Value
from amcast.protocols.rounds import a_dt, a_ng
from amcast.protocols.rounds.a_dt import ADt
from amcast.protocols.rounds.a_ng import ANg
from amcast.protocols.rounds.messages import ADtConfig


class EmptyBatchesSkipped(ANg):
    """Does not send empty batches: the others wait forever."""

    def _send_batch(self, target: ProcessId, group: GroupId, round: int) -> None:
        if any(group in message.destinations for message in self._own_batches[round]):
            super()._send_batch(target, group, round)


class OneGroupMissing(ANg):
    """Delivers a round although the batch of one group is missing."""

    def _collect_round(self, round: int) -> Iterable[Message] | None:
        batches = self._batches.get(round, {})
        if len(batches) + 1 < len(self._other_groups):
            return None
        return [
            *self._own_batches.get(round, ()),
            *(message for group in sorted(batches) for message in batches[group]),
        ]


class AsSoonAsComplete(ANg):
    """Delivers a round when its batches have arrived, not after the instance on which the group agreed."""

    def _advance(self) -> None:
        super()._advance()
        while self._round + 1 in self._own_batches and (contents := self._collect_round(self._round + 1)) is not None:
            self._deliver_round(self._round + 1, contents)


class OwnFirst(ANg):
    """Delivers its own group's messages of a round before those of other groups."""

    def _deliver_round(self, round: int, contents: Iterable[Message]) -> None:
        own = {message.id for message in self._own_batches.get(round, ())}
        mine = [message for message in contents if self.home in message.destinations]
        self._round = round
        rank = 2 * (round * self._config.eta + self._config.kappa) + 1
        self._deliver_sorted([(message, 0) for message in mine if message.id in own], rank)
        self._deliver_sorted([(message, 0) for message in mine if message.id not in own], rank)
        self._on_round_delivered(round)


class OrderedTwice(ANg):
    """Ignores that a message is in the log already, and that it was delivered."""

    def _is_new_in_log(self, message: Message) -> bool:
        return True

    def _deliver_sorted(self, messages: list[tuple[Message, int]], rank: int, committed_ns: int | None = None) -> None:
        for message, held_ns in sorted(messages, key=lambda pair: pair[0].id):
            self._delivered.add(message.id)
            self.deliver(message, rank, message.id, committed_ns, held_ns)


class NeverResends(ANg):
    """A new leader sends no batch again, and missing batches are not requested."""

    def _on_leading(self) -> None:
        pass

    def _resend_batches(self, group: GroupId, target: ProcessId) -> None:
        pass

    def _request_batches(self, round: int, times: int) -> None:
        pass


class DropsAtOnce(ANg):
    """Drops an own batch when its round is delivered here, though other groups may need it."""

    def _on_round_delivered(self, round: int) -> None:
        super()._on_round_delivered(round)
        self._own_batches.pop(round, None)

    def _handle_batch_request(self, sender: ProcessId, round: int) -> None:
        if self.topology.group_of(sender) != self.home:
            super()._handle_batch_request(sender, round)


class AnyRoundOrder(ANg):
    """Proposes behind a round that is not delivered, and applies instances without waiting for it."""

    def _may_propose(self) -> bool:
        return self._paxos.next_instance < self._instance + 8

    def _advance(self) -> None:
        due = self._due_round()
        if due and (contents := self._collect_round(due)) is not None:
            self._deliver_round(due, contents)
        while self._queue:
            self._apply_instance(self._queue.popleft())


class _Unchecked(GenericBroadcast):
    """Does not assert that a decision agrees with its deliveries: the checks of the trace must find that."""

    def _end_epoch(self, decision: Value) -> tuple[tuple[int, GroupId], ...]:
        for entry in decision:
            if entry.kind == TOP:
                self.delivered[entry.group] = entry.timestamp
        return super()._end_epoch(decision)


class _AcknowledgesWhileFrozen(_Unchecked):
    """Acknowledges items after its report on the epoch: changes do not conflict with items."""

    def _acknowledge(self) -> None:
        is_frozen, self.is_frozen = self.is_frozen, False
        super()._acknowledge()
        self.is_frozen = is_frozen


class _QuorumOfTwo(_Unchecked):
    """Delivers what a single other process acknowledged."""

    def __init__(self, owner: Any, retry_ns: tuple[int, int]) -> None:
        super().__init__(owner, retry_ns)
        self.quorum = min(2, self.quorum)


class _MinimumOfReports(_Unchecked):
    """A decision omits what some report does not hold."""

    def _find_ends(self, reports: list[tuple[Tops, Tops]]) -> Tops | None:
        enough = len(reports) >= self.quorum
        return tuple(map(min, zip(*(tops for tops, _ in reports), strict=True))) if enough else None


class _TwoThirds(GenericBroadcast):
    """Waits for more than two thirds of all processes, which may have crashed."""

    def __init__(self, owner: Any, retry_ns: tuple[int, int]) -> None:
        super().__init__(owner, retry_ns)
        count = len(self.members)
        self.quorum = count - (count - 1) // 3


class _ReopensTooEarly(GenericBroadcast):
    """A reopened stream continues where it was closed, in rounds that others have completed without it."""

    def _end_epoch(self, decision: Value) -> tuple[tuple[int, GroupId], ...]:
        before = dict(self.base)
        done = super()._end_epoch(decision)
        for kind, stream in done:
            if kind != CLOSE:
                self.base[stream] = self.delivered[stream] = before[stream]
        return done


class _WithGeneric(ADt):
    """A_dt over another generic broadcast."""

    kind: type[GenericBroadcast] = GenericBroadcast

    def __init__(self, me: ProcessId, topology: Topology, config: ADtConfig) -> None:
        super().__init__(me, topology, config)
        self._generic = self.kind(self, config.retry_ns)


class ChangesDoNotConflict(_WithGeneric):
    """A change of the view is ordered against other changes only, not against batches."""

    kind = _AcknowledgesWhileFrozen


class SmallQuorum(_WithGeneric):
    """A batch counts before a quorum holds it."""

    kind = _QuorumOfTwo


class DecisionOmitsItems(_WithGeneric):
    """A delivered item may be missing in the decision that ends an epoch."""

    kind = _MinimumOfReports


class NeedsTwoThirds(_WithGeneric):
    """Stops when a third of all processes is lost."""

    kind = _TwoThirds


class TrustsSilentGroups(ADt):
    """Waits for the leader of a group that has sent nothing for long."""

    def _is_silent(self, group: GroupId) -> bool:
        return False


class SuspectsByOracleOnly(ADt):
    """Suspects a group only if the oracle does."""

    def _retry_limit(self, group: GroupId) -> int:
        return 1 << 30


class ReturnsTooEarly(_WithGeneric):
    """A group returns into rounds that are complete."""

    kind = _ReopensTooEarly


class RemovesAlone(ADt):
    """Does not wait for a group that it suspects, without a change of the view."""

    def _collect_round(self, round: int) -> Iterable[Message] | None:
        trusted = self._generic.open
        self._generic.open = tuple(group for group in trusted if group not in self._suspected)
        contents = super()._collect_round(round)
        self._generic.open = trusted
        return contents


class NeverReorders(ADt):
    """Messages of a batch that did not count are lost."""

    def _reorder(self, message: Message) -> None:
        pass

    def _is_responsible_for(self, message: Message) -> bool:
        return super(ADt, self)._is_responsible_for(message)


class NeverReturns(ADt):
    """A wrongly removed group does not request its return."""

    def _request_reopening(self) -> None:
        pass

    def _is_responsible_for(self, message: Message) -> bool:
        return super(ADt, self)._is_responsible_for(message)


@dataclass(frozen=True)
class Mutant:
    """A wrong protocol, and the runs that show it."""

    name: str
    process: Any
    faults: str
    plan: dict[str, Any] = field(default_factory=dict)
    seeds: range = range(200)

    def spec(self) -> Spec:
        base = a_dt.SPEC if issubclass(self.process, ADt) else a_ng.SPEC
        return replace(base, name=f"{base.name}-{self.name}", process=self.process)


SMALL: Final = {"topology": {"groups": 2, "replicas": 1, "clients": 2}}
"""Enough to show that a mutant blocks, and fast."""
LONE: Final = {"topology": {"groups": 3, "replicas": 1, "clients": 2}}
FIVE: Final = {"topology": {"groups": 5, "replicas": 1, "clients": 3}}
"""Enough processes that two of them are far from a quorum."""

MUTANTS: Final = (
    Mutant("empty-batches-skipped", EmptyBatchesSkipped, "none", SMALL),
    Mutant("one-group-missing", OneGroupMissing, "none"),
    Mutant("as-soon-as-complete", AsSoonAsComplete, "none"),
    Mutant("own-first", OwnFirst, "none"),
    Mutant("ordered-twice", OrderedTwice, "leaders"),
    Mutant("never-resends", NeverResends, "links", SMALL),
    Mutant("drops-at-once", DropsAtOnce, "recovery+links", SMALL, seeds=range(15, 60)),
    Mutant("any-round-order", AnyRoundOrder, "none"),
    Mutant("changes-do-not-conflict", ChangesDoNotConflict, "suspects+partition"),
    Mutant("small-quorum", SmallQuorum, "suspects+partition", FIVE),
    Mutant("decision-omits-items", DecisionOmitsItems, "suspects+partition", seeds=range(112, 160)),
    Mutant("returns-too-early", ReturnsTooEarly, "suspects"),
    Mutant("removes-alone", RemovesAlone, "suspects", LONE, seeds=range(60, 100)),
    Mutant("never-reorders", NeverReorders, "suspects", LONE),
    Mutant("never-returns", NeverReturns, "suspects", LONE),
)

BLOCKING: Final = (NeedsTwoThirds, TrustsSilentGroups, SuspectsByOracleOnly)
"""Mutants that block forever when a whole group is lost and no oracle suspects it."""
