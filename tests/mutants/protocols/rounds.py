"""A_ng and A_dt with one mistake each. Searches must find every one of them."""

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
from amcast.protocols.rounds import a_dt as rounds_dt
from amcast.protocols.rounds import a_ng as rounds_ng
from amcast.protocols.rounds.a_dt import ADt
from amcast.protocols.rounds.a_ng import ANg
from amcast.protocols.rounds.messages import ADtConfig


class EmptyBundlesSkipped(ANg):
    """Does not send a bundle that has nothing in it: the others wait for ever."""

    def _tell(self, target: ProcessId, group: GroupId, round: int) -> None:
        if any(group in message.destinations for message in self._own[round]):
            super()._tell(target, group, round)


class OneGroupMissing(ANg):
    """Delivers a round although one group's bundle has not come."""

    def _contents(self, round: int) -> Iterable[Message] | None:
        bundles = self._bundles.get(round, {})
        if len(bundles) + 1 < len(self._others):
            return None
        return [*self._own.get(round, ()), *(message for group in sorted(bundles) for message in bundles[group])]


class AsSoonAsComplete(ANg):
    """Delivers a round when its bundles are there, not after the instance on which the group agreed."""

    def _advance(self) -> None:
        super()._advance()
        while self._round + 1 in self._own and (contents := self._contents(self._round + 1)) is not None:
            self._deliver_round(self._round + 1, contents)


class OwnFirst(ANg):
    """Delivers its own group's messages of a round before those of others."""

    def _deliver_round(self, round: int, contents: Iterable[Message]) -> None:
        own = {message.id for message in self._own.get(round, ())}
        mine = [message for message in contents if self.home in message.destinations]
        self._round = round
        rank = 2 * (round * self._config.eta + self._config.kappa) + 1
        self._hand_up([(message, 0) for message in mine if message.id in own], rank)
        self._hand_up([(message, 0) for message in mine if message.id not in own], rank)
        self._past(round)


class OrderedTwice(ANg):
    """Forgets what its log had already, and what it delivered."""

    def _admits(self, message: Message) -> bool:
        return True

    def _hand_up(self, messages: list[Message], rank: int) -> None:
        for message in sorted(messages, key=lambda message: message.id):
            self._delivered.add(message.id)
            self.deliver(message, rank, message.id)


class NeverAsks(ANg):
    """A new leader sends nothing again, and whoever lacks a bundle does not ask for it."""

    def _take_over(self) -> None:
        pass

    def _tell_again(self, group: GroupId, target: ProcessId) -> None:
        pass

    def _ask(self, round: int, times: int) -> None:
        pass


class ForgetsAtOnce(ANg):
    """Forgets a bundle of its own when the round is delivered here, whoever may still need it."""

    def _past(self, round: int) -> None:
        super()._past(round)
        self._own.pop(round, None)

    def _answer(self, sender: ProcessId, round: int) -> None:
        if self.topology.group_of(sender) != self.home:
            super()._answer(sender, round)


class AnyRoundOrder(ANg):
    """Proposes behind a round that is not delivered, and does not wait for it when it applies what was decided."""

    def _may_propose(self) -> bool:
        return self._paxos.next_instance < self._instance + 8

    def _advance(self) -> None:
        due = self._due()
        if due and (contents := self._contents(due)) is not None:
            self._deliver_round(due, contents)
        while self._queue:
            self._order(self._queue.popleft())


class _Unchecked(GenericBroadcast):
    """Does not notice that a decision contradicts what it has handed up: the checks of the trace must."""

    def _end_epoch(self, decision: Value) -> tuple[tuple[int, GroupId], ...]:
        for entry in decision:
            if entry.kind == TOP:
                self.delivered[entry.group] = entry.timestamp
        return super()._end_epoch(decision)


class _Loose(_Unchecked):
    """Goes on acknowledging after it said that it would not: changes do not conflict with items."""

    def _acknowledge(self) -> None:
        closing, self.closing = self.closing, False
        super()._acknowledge()
        self.closing = closing


class _OneIsEnough(_Unchecked):
    """Hands up what a single other process acknowledged."""

    def __init__(self, owner: Any, retry_ns: tuple[int, int]) -> None:
        super().__init__(owner, retry_ns)
        self.quorum = min(2, self.quorum)


class _Forgets(_Unchecked):
    """A decision leaves out what not all reports hold."""

    def _ends(self, reports: list[tuple[Tops, Tops]]) -> Tops | None:
        enough = len(reports) >= self.quorum
        return tuple(map(min, zip(*(tops for tops, _ in reports), strict=True))) if enough else None


class _TwoThirds(GenericBroadcast):
    """Waits for more than two thirds of all processes, which may not be there any more."""

    def __init__(self, owner: Any, retry_ns: tuple[int, int]) -> None:
        super().__init__(owner, retry_ns)
        count = len(self.members)
        self.quorum = count - (count - 1) // 3


class _BackTooEarly(GenericBroadcast):
    """A stream that is opened again goes on where it was shut, in rounds that others have completed without it."""

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
    """A change of the view is ordered against other changes only, and not against bundles."""

    kind = _Loose


class TooFewHoldIt(_WithGeneric):
    """A bundle counts before enough processes hold it."""

    kind = _OneIsEnough


class DecisionForgets(_WithGeneric):
    """What somebody delivered may be missing in the decision that ends an epoch."""

    kind = _Forgets


class NeedsTwoThirds(_WithGeneric):
    """Stops when a third of all is lost."""

    kind = _TwoThirds


class TrustsTheSilent(ADt):
    """Waits for the leader of a group that has not said anything for long."""

    def _silent(self, group: GroupId) -> bool:
        return False


class NeverImpatient(ADt):
    """Believes that a group is lost only if an oracle says so."""

    def _patient(self, group: GroupId) -> int:
        return 1 << 30


class BackTooEarly(_WithGeneric):
    """A group comes back into rounds that are over."""

    kind = _BackTooEarly


class RemovesAlone(ADt):
    """Does not wait for a group that it suspects, without asking anybody."""

    def _contents(self, round: int) -> Iterable[Message] | None:
        trusted = self._generic.open
        self._generic.open = tuple(group for group in trusted if group not in self._suspected)
        contents = super()._contents(round)
        self._generic.open = trusted
        return contents


class NotAgain(ADt):
    """Messages of a bundle that did not count are lost."""

    def _redo(self, message: Message) -> None:
        pass

    def _accepts(self, message: Message) -> bool:
        return super(ADt, self)._accepts(message)


class NeverReturns(ADt):
    """A group that was removed by mistake does not ask to come back."""

    def _return(self) -> None:
        pass

    def _accepts(self, message: Message) -> bool:
        return super(ADt, self)._accepts(message)


@dataclass(frozen=True)
class Mutant:
    """A wrong protocol, and where to look for what goes wrong."""

    name: str
    process: Any
    faults: str
    plan: dict[str, Any] = field(default_factory=dict)
    seeds: range = range(200)

    def spec(self) -> Spec:
        base = rounds_dt.SPEC if issubclass(self.process, ADt) else rounds_ng.SPEC
        return replace(base, name=f"{base.name}-{self.name}", process=self.process)


SMALL: Final = {"topology": {"groups": 2, "replicas": 1, "clients": 2}}
"""Enough for what blocks, and quick to be sure of it."""
LONE: Final = {"topology": {"groups": 3, "replicas": 1, "clients": 2}}

MUTANTS: Final = (
    Mutant("empty-bundles-skipped", EmptyBundlesSkipped, "none", SMALL),
    Mutant("one-group-missing", OneGroupMissing, "none"),
    Mutant("as-soon-as-complete", AsSoonAsComplete, "none", seeds=range(20, 60)),
    Mutant("own-first", OwnFirst, "none"),
    Mutant("ordered-twice", OrderedTwice, "leaders"),
    Mutant("never-asks", NeverAsks, "links", SMALL),
    Mutant("forgets-at-once", ForgetsAtOnce, "recovery+links", SMALL, seeds=range(15, 60)),
    Mutant("any-round-order", AnyRoundOrder, "none", seeds=range(20, 60)),
    Mutant("changes-do-not-conflict", ChangesDoNotConflict, "suspects+partition"),
    Mutant("too-few-hold-it", TooFewHoldIt, "crash+suspects+partition", seeds=range(210, 255)),
    Mutant("decision-forgets", DecisionForgets, "suspects+partition", seeds=range(112, 160)),
    Mutant("back-too-early", BackTooEarly, "suspects"),
    Mutant("removes-alone", RemovesAlone, "suspects", LONE, seeds=range(60, 100)),
    Mutant("not-again", NotAgain, "suspects", LONE),
    Mutant("never-returns", NeverReturns, "suspects", LONE),
)

SILENT: Final = (NeedsTwoThirds, TrustsTheSilent, NeverImpatient)
"""They stop for good when a whole group is lost and no oracle says so."""
