"""Nodes that keep back what can wait (`Send.later`), as live hosts do: so followers hear late who acknowledged what."""

from collections.abc import Sequence
from typing import Final

from amcast.kernel.effects import Effect, Send, SetTimer
from amcast.kernel.events import Event, LinkReset, Started, Timer
from amcast.kernel.ids import ProcessId
from amcast.parts.node.node import Node
from amcast.protocols.primcast.process import PrimCast
from amcast.protocols.primcast.progress import Word

PATIENCE: Final = "patience"
PATIENCE_NS: Final = 1_000_000_000


class Patient(Node):
    """What can wait goes with what follows it to the same process, or when patience ends."""

    suspect_after_ns = PATIENCE_NS

    def step(self, events: Sequence[Event], now: int) -> list[Effect]:
        if any(isinstance(event, Started) for event in events):
            self.kept: dict[ProcessId, list[Send]] = {}
        for event in events:
            if isinstance(event, LinkReset):
                self.kept.pop(event.peer, None)  # the link begins anew
        enough = Timer(PATIENCE) in events
        effects = super().step([event for event in events if event != Timer(PATIENCE)], now)
        told: list[Effect] = []
        if enough:
            for target in sorted(self.kept):
                told += self.kept.pop(target)
        waited = bool(self.kept)
        for effect in effects:
            told += self.parted(effect) if isinstance(effect, Send) else [effect]
        if self.kept and not (waited and not enough):
            told.append(SetTimer(PATIENCE, self.suspect_after_ns, self.suspect_after_ns))
        return told

    def parted(self, send: Send) -> list[Effect]:
        """What goes now, in order; the rest is kept."""
        told: list[Effect] = []
        hurried = tuple(target for target in send.targets if target not in send.deferrable)
        for target in hurried:
            told += self.kept.pop(target, ())
        if hurried:
            told.append(Send(hurried, send.body, send.about))
        for target in send.deferrable:
            self.kept.setdefault(target, []).append(Send((target,), send.body, send.about))
        return told


class Talkative(PrimCast):
    """A primary that keeps no word back: it is told with the next proposal, or as soon as time passes."""

    def _timely_word(self) -> tuple[Word, ...]:
        return self._whole_word()

    def _lateness_ns(self) -> int:
        return 0
