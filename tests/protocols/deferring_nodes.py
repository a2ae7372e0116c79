"""Nodes that defer what is not urgent (`Send.deferrable`), as live hosts do: followers learn late who acknowledged."""

from collections.abc import Sequence
from typing import Final

from amcast.kernel.effects import Effect, Send, SetTimer
from amcast.kernel.events import Event, LinkReset, Started, Timer
from amcast.kernel.ids import ProcessId
from amcast.kernel.topology import Topology
from amcast.parts.node.node import Node
from amcast.protocols.primcast.delivery_notices import DeliveryNotices
from amcast.protocols.primcast.messages import DeliveryNotice, PrimCastConfig
from amcast.protocols.primcast.process import PrimCast

DEFER_TIMER: Final = "defer"
DEFER_NS: Final = 1_000_000_000


class DeferringNode(Node):
    """Sends what is deferrable with the next urgent body to the same process, or after `DEFER_NS`."""

    def step(self, events: Sequence[Event], now: int) -> list[Effect]:
        if any(isinstance(event, Started) for event in events):
            self.deferred: dict[ProcessId, list[Send]] = {}
        for event in events:
            if isinstance(event, LinkReset):
                self.deferred.pop(event.peer, None)
        expired = Timer(DEFER_TIMER) in events
        effects = super().step([event for event in events if event != Timer(DEFER_TIMER)], now)
        executed: list[Effect] = []
        if expired:
            for target in sorted(self.deferred):
                executed += self.deferred.pop(target)
        timer_armed = bool(self.deferred)
        for effect in effects:
            executed += self.defer(effect) if isinstance(effect, Send) else [effect]
        if self.deferred and not (timer_armed and not expired):
            executed.append(SetTimer(DEFER_TIMER, DEFER_NS, DEFER_NS))
        return executed

    def defer(self, send: Send) -> list[Effect]:
        """Defers what a send allows; returns what must leave now, in order."""
        urgent = tuple(target for target in send.targets if target not in send.deferrable)
        executed: list[Effect] = []
        for target in urgent:
            executed += self.deferred.pop(target, ())
        if urgent:
            executed.append(Send(urgent, send.body, send.about))
        for target in send.deferrable:
            self.deferred.setdefault(target, []).append(Send((target,), send.body, send.about))
        return executed


class EagerNotices(DeliveryNotices):
    """Every proposal carries all notices, and the rest is sent as soon as time passes."""

    def take_with_proposal(self, now: int) -> tuple[DeliveryNotice, ...]:
        return self.take_all()

    def max_wait_ns(self) -> int:
        return 0


class EagerPrimCast(PrimCast):
    """A primary that delays no delivery notice."""

    def __init__(self, me: ProcessId, topology: Topology, config: PrimCastConfig) -> None:
        super().__init__(me, topology, config)
        self._notices = EagerNotices()
