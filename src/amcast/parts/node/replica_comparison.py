"""Comparison of replicas: with their heartbeats, members of a group tell each other digests of what they delivered.

All members of a group deliver the same messages at the same positions. Nothing in a protocol notices when one of them
does not, be it for a bug, for bad memory or for an edited log: each goes on, and answers, for ever. So each member
keeps a chain of checksums over its deliveries (`parts/ordering/delivery_chain.py`) and compares it with those of the
others:

    member A: heartbeat, its chain is d at position x
    member B: has passed x, and remembers its own chain there: compares at once
              has not reached x yet: compares when it delivers up to x

A heartbeat also carries the findings of its sender, from which all decide who is right
(`parts/node/comparison_results.py`).

The chain is part of what a member recovers. Behind every checkpoint stands a record with the chain at that place
(`ChainRecord`), and the deliveries that a restart repeats from there continue it. A member that installs the state of
others in the place of deliveries does not know the chain: it is compared with nobody, until it has taken over the chain
of the others at a position that it has delivered itself. It takes over a chain on which all members agree that it
receives heartbeats from; where they differ, it takes no side. Where nobody knows the chain, a new one begins, with
another origin; chains of different origins are not compared, and the one with the lower origin is taken over.

An application may give digests of its state at certain positions; these are compared in the same way, without a chain.

Limits. Members that are compared for the first time after a member took over the chain of one of them count on that
one's side. A divergence between members that never hear of each other is not found.
"""

from bisect import bisect_left
from collections import deque
from typing import Final

from amcast.kernel.effects import Deliver
from amcast.kernel.ids import ProcessId
from amcast.parts.node.comparison_results import ComparisonResults, Outcome
from amcast.parts.node.messages import ChainRecord, ComparisonReport, ComparisonState, Difference
from amcast.parts.ordering.delivery_chain import DeliveryChain, begin_chain
from amcast.parts.ordering.messages import ChainPoint

MAX_POINTS: Final = 1024
"""Places of the own chain that are remembered, for members that are behind."""
MAX_UNCHAINED: Final = 256
MAX_UNCHAINED_BYTES: Final = 4 << 20
"""Deliveries, and their bytes, that are kept while the chain before them is unknown."""
MAX_STATES: Final = 16
REPEAT_HEARTBEATS: Final = 5
"""An unchanged report goes with every so many-th heartbeat: for members that have restarted since."""
OFFER_HEARTBEATS: Final = REPEAT_HEARTBEATS + 1
"""So many heartbeats a member waits for the chains of all others before it takes over one."""
ORIGIN_HEARTBEATS: Final = 25
"""After so many heartbeats without any chain to take over, a member begins a new one."""
_NONE: Final = 1 << 62
"""A position that is never reached."""


class ReplicaComparison:
    """The chain of one member, and its comparisons with the others."""

    __slots__ = (
        "_chain",
        "_claimed_states",
        "_claims",
        "_deliveries",
        "_incarnations",
        "_is_anchored",
        "_me",
        "_members",
        "_next",
        "_own_states",
        "_points",
        "_reported",
        "_skipped",
        "_states",
        "_unchained",
        "_unchained_bytes",
        "_waits",
        "_wanted",
        "outcome",
        "since",
    )

    def __init__(self, me: ProcessId, members: tuple[ProcessId, ...]) -> None:
        self._me = me
        self._members = members
        self._chain = DeliveryChain(begin_chain(0))
        self._next = 0
        """The position of the next delivery that is not in the chain."""
        self._is_anchored = True
        """The chain is known up to the last delivery."""
        self.since = 0
        """The position from which on this member has computed the chain itself, in this incarnation or earlier ones."""
        self._points = deque([(0, self._chain.digest, self._chain.allowance)], MAX_POINTS)
        """The latest places of the chain, in order: position, digest, allowance."""
        self._unchained: deque[Deliver] = deque()
        """Without a chain: the latest deliveries, up to the next position without a gap."""
        self._unchained_bytes = 0
        self._claims: dict[ProcessId, ChainPoint] = {}
        """By member: a place of its chain that is not compared yet, because this member has not reached it."""
        self._wanted = _NONE
        """The lowest position of a claim that is not reached."""
        self._waits = 0
        """Own heartbeats since the chain was lost."""
        self._reported: ComparisonReport | None = None
        """The report that was sent last."""
        self._skipped = 0
        """Own heartbeats since then."""
        self._incarnations: dict[ProcessId, int] = {}
        self._deliveries = ComparisonResults("deliveries", me, members)
        self._own_states: deque[tuple[int, int]] = deque(maxlen=MAX_STATES)
        """Positions and digests of the application's state."""
        self._claimed_states: dict[ProcessId, tuple[int, int]] = {}
        self._states = ComparisonResults("the application's state", me, members)
        self.outcome: Outcome = "equal"

    @property
    def is_sound(self) -> bool:
        """Whether this member may take new messages."""
        return self.outcome in ("equal", "majority")

    # Deliveries

    def start(self, record: ChainRecord | None) -> None:
        """Continues the chain of an earlier incarnation; without a record of it, the chain begins at position 0."""
        if record is not None:
            self._adopt(DeliveryChain(record.point), record.since)

    def record(self, delivery: Deliver) -> None:
        """Adds a delivery to the chain."""
        position, count = delivery.position, delivery.message_count
        if position != self._next:
            self._record_elsewhere(delivery)
            return
        end = position + (1 if count < 0 else count)
        if not self._is_anchored:
            self._keep_unchained(delivery)
        elif position < self._wanted < end:
            for part in delivery.expand():
                self.record(part)
            return
        elif end > position:
            chain = self._chain
            chain.extend(delivery)
            self._points.append((end, chain.digest, chain.allowance))
        self._next = end
        if end >= self._wanted:
            self._compare_claims()
            self._decide()

    def _record_elsewhere(self, delivery: Deliver) -> None:
        """Records a delivery that is repeated, in part or as a whole, or one behind a gap."""
        if delivery.position > self._next:
            self.skip_to(delivery.position)
            self.record(delivery)
        elif delivery.position + delivery.message_count > self._next:
            for part in delivery.expand():
                if part.position == self._next:
                    self.record(part)

    def skip_to(self, position: int) -> None:
        """The state of another member takes the place of the deliveries up to a position: the chain is lost."""
        if position > self._next:
            self._next = position
            self._lose_chain()

    def _lose_chain(self) -> None:
        self._is_anchored = False
        self._chain = DeliveryChain(begin_chain(0))
        self._unchained.clear()
        self._unchained_bytes = self._waits = 0
        self._points.clear()
        self._deliveries.forget_own()
        self._decide()

    def _keep_unchained(self, delivery: Deliver) -> None:
        kept = self._unchained
        kept.append(delivery)
        self._unchained_bytes += len(delivery.message.payload)
        while len(kept) > MAX_UNCHAINED or self._unchained_bytes > MAX_UNCHAINED_BYTES:
            self._unchained_bytes -= len(kept.popleft().message.payload)

    def make_record(self) -> ChainRecord | None:
        """The chain at its end, to be persisted; None if it is unknown."""
        return ChainRecord(self._chain.point, self.since) if self._is_anchored else None

    def record_state(self, position: int, digest: int) -> None:
        """Adds the digest of the application's state at a position."""
        self._own_states.append((position, digest))
        self._compare_states()
        self._decide()

    # Heartbeats

    def make_report(self) -> ComparisonReport | None:
        """What the next heartbeat of this member carries; None if the others have it from an earlier one."""
        if not self._is_anchored:
            self._waits += 1
            self._take_over_chain()
            if not self._is_anchored and self._waits >= ORIGIN_HEARTBEATS and not self._claims:
                self._adopt(DeliveryChain(begin_chain(self._next)), self._next)
        report = ComparisonReport(
            self._chain.point if self._is_anchored else None,
            self._deliveries.find_own(),
            self._own_states[-1] if self._own_states else None,
            self._states.find_own(),
        )
        self._skipped += 1
        if report == self._reported and self._skipped < REPEAT_HEARTBEATS:
            return None
        self._reported, self._skipped = report, 0
        return report

    def repeat_report(self) -> None:
        """Sends the report with the next heartbeat in any case: others may not have received the last one."""
        self._reported = None

    def receive(self, sender: ProcessId, incarnation: int, report: ComparisonReport) -> None:
        """Compares this member with another one that sent a heartbeat."""
        if sender not in self._members or incarnation < self._incarnations.get(sender, incarnation):
            return
        if incarnation > self._incarnations.get(sender, -1):
            self._incarnations[sender] = incarnation
            self._forget(sender)
        self._deliveries.receive(sender, report.deliveries)
        self._states.receive(sender, report.states)
        if report.point is not None:
            self._add_claim(sender, report.point)
            self._compare_claims()
        if report.state is not None:
            known = self._claimed_states.get(sender)
            if known is None or (self._own_states and known[0] <= self._own_states[-1][0]):
                self._claimed_states[sender] = report.state
            self._compare_states()
        self._decide()

    def follow_members(self, members: tuple[ProcessId, ...]) -> None:
        """Follows a reconfiguration."""
        for gone in [member for member in self._members if member not in members]:
            self._forget(gone)
            self._incarnations.pop(gone, None)
        self._members = members
        self._deliveries.follow_members(members)
        self._states.follow_members(members)
        self._decide()

    def _forget(self, member: ProcessId) -> None:
        self._deliveries.forget(member)
        self._states.forget(member)
        self._claims.pop(member, None)
        self._claimed_states.pop(member, None)

    def _decide(self) -> None:
        outcomes = self._deliveries.decide(), self._states.decide()
        self.outcome = next(outcome for outcome in ("minority", "split", "majority", "equal") if outcome in outcomes)

    # Comparing

    def _add_claim(self, sender: ProcessId, point: ChainPoint) -> None:
        """Keeps the place of another member's chain. One that is not reached yet stays until it is: under load, a
        member that is behind would otherwise never reach the latest."""
        known = self._claims.get(sender)
        if known is None or known.position <= self._next or point.origin < known.origin:
            self._claims[sender] = point

    def _compare_claims(self) -> None:
        """Compares the chain with all claims that are reached."""
        self._wanted = _NONE
        if not self._is_anchored:
            self._take_over_chain()
            return
        for member, claim in sorted(self._claims.items()):
            if claim.origin < self._chain.origin:
                self._lose_chain()
                return
            if claim.position > self._next:
                self._wanted = min(self._wanted, claim.position)
                continue
            del self._claims[member]
            own = self._find_point(claim.position) if claim.origin == self._chain.origin else None
            if own == claim:
                self._deliveries.add_equal(member, claim.position)
            elif own is not None:
                self._deliveries.add_difference(Difference(member, claim.position, own.digest, claim.digest))

    def _find_point(self, position: int) -> ChainPoint | None:
        index = bisect_left(self._points, (position,))
        if index < len(self._points) and self._points[index][0] == position:
            return ChainPoint(self._chain.origin, *self._points[index])
        return None

    def _compare_states(self) -> None:
        own = dict(self._own_states)
        for member, (position, digest) in sorted(self._claimed_states.items()):
            if position in own:
                del self._claimed_states[member]
                if own[position] == digest:
                    self._states.add_equal(member, position)
                else:
                    self._states.add_difference(Difference(member, position, own[position], digest))

    # Taking over a chain

    def _take_over_chain(self) -> None:
        """Takes over the chain of the others, if all of them that are known agree on it; those are waited for that have
        not told theirs yet, but not for ever."""
        first = self._unchained[0].position if self._unchained else self._next
        for member in [member for member, claim in self._claims.items() if claim.position < first]:
            del self._claims[member]
        origin = min((claim.origin for claim in self._claims.values()), default=0)
        offers = {
            member: claim
            for member, claim in sorted(self._claims.items())
            if claim.origin == origin and first <= claim.position <= self._next
        }
        if not offers or (len(offers) < len(self._members) - 1 and self._waits < OFFER_HEARTBEATS):
            return
        first_offer = min(offers.values(), key=_position)
        chain = DeliveryChain(first_offer)
        points = [first_offer]
        for delivery in self._unchained:
            for part in delivery.expand():
                if part.position == chain.position:
                    chain.extend(part)
                    points.append(chain.point)
        if all(claim in points for claim in offers.values()):
            self._adopt(chain, first_offer.position)
            self._points.clear()
            self._points.extend((point.position, point.digest, point.allowance) for point in points)
            self._compare_claims()

    def _adopt(self, chain: DeliveryChain, since: int) -> None:
        self._chain = chain
        self._next = chain.position
        self._is_anchored = True
        self.since = since
        self._points.clear()
        self._points.append((chain.position, chain.digest, chain.allowance))
        self._unchained.clear()
        self._unchained_bytes = 0

    # Diagnostics

    def describe(self) -> str:
        """Which members differ, for operators; empty as long as no difference is known."""
        sentences = [*self._deliveries.describe_differences(), *self._states.describe_differences()]
        if not sentences:
            return ""
        end = {
            "minority": "; a majority contradicts this replica, which has stopped",
            "split": "; no new messages are taken",
        }.get(self.outcome, "")
        return f"replicas differ: {'. '.join(sentences)}{end}"

    def describe_compared(self) -> str:
        """How far the replicas are known to be equal, for operators."""
        if not self._is_anchored:
            return "not compared: this replica got a state from others, and does not know the chain of deliveries yet"
        return f"from position {self.since}: {self._deliveries.describe_compared()}"

    # Snapshots

    def snapshot(self) -> ComparisonState:
        return ComparisonState(
            ChainPoint(self._chain.origin, self._next, self._chain.digest, self._chain.allowance),
            self._is_anchored,
            self.since,
            tuple(self._points),
            tuple(self._unchained),
            tuple(sorted(self._claims.items())),
            self._waits,
            tuple(sorted(self._incarnations.items())),
            self._deliveries.snapshot(),
            tuple(self._own_states),
            tuple(sorted(self._claimed_states.items())),
            self._states.snapshot(),
            self._reported,
            self._skipped,
        )

    def restore(self, state: ComparisonState) -> None:
        self._chain = DeliveryChain(state.point)
        self._next = state.point.position
        self._is_anchored = state.is_anchored
        self.since = state.since
        self._points = deque(state.points, MAX_POINTS)
        self._unchained = deque(state.unchained)
        self._unchained_bytes = sum(len(delivery.message.payload) for delivery in state.unchained)
        self._claims = dict(state.claims)
        self._waits = state.waits
        self._incarnations = dict(state.incarnations)
        self._members = state.deliveries.members
        self._deliveries.restore(state.deliveries)
        self._own_states = deque(state.own_states, MAX_STATES)
        self._claimed_states = dict(state.claimed_states)
        self._states.restore(state.states)
        self._reported, self._skipped = state.reported, state.skipped
        reached = [claim.position for claim in self._claims.values() if claim.position > self._next]
        self._wanted = min(reached, default=_NONE) if self._is_anchored else _NONE
        self._decide()


def _position(point: ChainPoint) -> int:
    return point.position
