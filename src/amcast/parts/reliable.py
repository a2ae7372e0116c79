"""FIFO reliable multicast, non-uniform: if one correct target delivers, all correct targets do, in the sender's order.

Source: Hadzilacos and Toueg, "A modular approach to fault-tolerant broadcasts" (1994); 003 section 2.3.

    origin      target     target
      |--Carry---->|          |
      |--Carry--------------->|
      |<-Got-------|<---------|      merged: one per origin and step
      |--Stable--->|--------->|      what all have need not be kept
      x         --Carry------>|      the origin is suspected: targets relay what may not have reached all

In a run without suspicions a message costs one Carry per target. The origin numbers its messages per target, so that
any process can relay any message and the target still knows its place.

No protocol of this library runs over it: where papers assume reliable multicast, clients that retry (`session`) and
members that forward and ask again give the same, and cost no acknowledgements while nothing fails. It is for processes
that have neither.
"""

from amcast.kernel.ids import ProcessId
from amcast.kernel.message import Body, Message
from amcast.kernel.process import Process
from amcast.parts.bodies.reliable import Carry, Got, ReliableState, Stable


class Reliable:
    """One process' end of all its reliable multicasts, as origin and as target."""

    def __init__(self, owner: Process) -> None:
        self.owner = owner
        self._sent: dict[ProcessId, int] = {}
        """Origin: the next number for each target."""
        self._unstable: list[Carry] = []
        """Origin: what some target has not acknowledged, oldest first."""
        self._acknowledged: dict[ProcessId, int] = {}
        self._expected: dict[ProcessId, int] = {}
        """Target: the next number of each origin."""
        self._early: dict[ProcessId, dict[int, Carry]] = {}
        self._kept: dict[ProcessId, list[Carry]] = {}
        """Target: delivered, but maybe not by all targets."""
        self._news: dict[ProcessId, None] = {}
        """Origins to be told at the end of this step what I have."""

    def multicast(self, targets: tuple[ProcessId, ...], message: Message) -> None:
        """Send to these targets, oneself perhaps among them."""
        numbers = tuple((target, self._sent.get(target, 0)) for target in targets)
        for target, number in numbers:
            self._sent[target] = number + 1
        carry = Carry(self.owner.me, numbers, message)
        self._unstable.append(carry)
        self.owner.send_all(targets, carry, message.id)

    def receive(self, sender: ProcessId, body: Body) -> list[Message]:
        """Handle a body of `BODIES`; what is delivered by it, in order."""
        match body:
            case Carry():
                return self._take(body)
            case Got(number):
                self._acknowledged[sender] = max(number, self._acknowledged.get(sender, 0))
                self._settle()
            case Stable(number):
                kept = self._kept.get(sender, [])
                self._kept[sender] = [carry for carry in kept if self._number(carry) >= number]
            case _:
                raise AssertionError(f"reliable multicast does not say {body!r}")
        return []

    def suspect(self, origin: ProcessId) -> None:
        """An origin may be down: relay what may not have reached everybody."""
        for carry in self._kept.get(origin, []):
            targets = tuple(target for target, _ in carry.numbers if target not in (self.owner.me, origin))
            if targets:
                self.owner.note("relayed", carry.message.id)
                self.owner.send_all(targets, carry, carry.message.id)

    def meet(self, peer: ProcessId) -> None:
        """A link begins anew: say again what the peer did not acknowledge, and what it may not know that I have."""
        known = self._acknowledged.get(peer, 0)
        for carry in self._unstable:
            if any(target == peer and number >= known for target, number in carry.numbers):
                self.owner.send(peer, carry, carry.message.id)
        if peer in self._expected:
            self._news[peer] = None

    def flush(self) -> None:
        """At the end of every step: acknowledge this step's deliveries together."""
        for origin in sorted(self._news):
            self.owner.send(origin, Got(self._expected[origin]))
        self._news = {}

    def _number(self, carry: Carry) -> int:
        return next(number for target, number in carry.numbers if target == self.owner.me)

    def _take(self, carry: Carry) -> list[Message]:
        origin = carry.origin
        expected = self._expected.setdefault(origin, 0)
        number = self._number(carry)
        self._news[origin] = None
        if number < expected:
            return []
        early = self._early.setdefault(origin, {})
        early[number] = carry
        ready = []
        while (following := early.pop(expected, None)) is not None:
            ready.append(following.message)
            self._kept.setdefault(origin, []).append(following)
            expected += 1
        self._expected[origin] = expected
        return ready

    def _settle(self) -> None:
        """Forget what all targets acknowledged, and let them forget it: oldest first, so that numbers are enough."""
        while self._unstable and self._is_stable(self._unstable[0]):
            for target, number in self._unstable.pop(0).numbers:
                self.owner.send(target, Stable(number + 1))

    def _is_stable(self, carry: Carry) -> bool:
        return all(self._acknowledged.get(target, 0) > number for target, number in carry.numbers)

    def snapshot(self) -> ReliableState:
        return ReliableState(
            tuple(sorted(self._sent.items())),
            tuple(self._unstable),
            tuple(sorted(self._acknowledged.items())),
            tuple(sorted(self._expected.items())),
            tuple(
                (origin, tuple(c for _, c in sorted(early.items()))) for origin, early in sorted(self._early.items())
            ),
            tuple((origin, tuple(kept)) for origin, kept in sorted(self._kept.items())),
        )

    def restore(self, state: ReliableState) -> None:
        self._sent = dict(state.sent)
        self._unstable = list(state.unstable)
        self._acknowledged = dict(state.acknowledged)
        self._expected = dict(state.expected)
        self._early = {origin: {self._number(c): c for c in early} for origin, early in state.early}
        self._kept = {origin: list(kept) for origin, kept in state.kept}
