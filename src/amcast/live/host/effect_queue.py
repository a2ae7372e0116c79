"""Effects happen in their order, and the disk is a barrier among them.

`Persist` begins to write a record and goes on. What must not happen before it is durable (`Send`, `Deliver`, `Resolve`
and a snapshot's taking over) is held until the disk has it; timers and notes are not. A record that must wait for the
deliveries before it (`Persist.after_deliveries`) is held as well, and all later records behind it.
"""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Final

from amcast.kernel.effects import Deliver, Effect, Note, Persist, Resolve, Send, SendEach
from amcast.live.storage.store import Store

MOST_HELD: Final = 20_000
"""Effects that wait for the disk; with more, the host reads nothing new until the disk has caught up."""

_BARRED: Final = frozenset({Send, SendEach, Deliver, Resolve})


class EffectQueue(ABC):
    """The half of a host that lets effects happen; how each does, the other half knows."""

    __slots__ = ("_durable", "_held", "_perform", "_queued", "_store", "_ticket")

    def __init__(self, store: Store) -> None:
        self._store = store
        self._perform: dict[type, Callable[[Any], None]] = {}
        """What each kind of effect does."""
        self._held: deque[tuple[int, Effect]] = deque()
        self._queued = False
        """A record waits among them for the deliveries before it, and all later records behind it."""
        self._ticket = 0
        """Of the last record appended; what comes after it waits until it is durable."""
        self._durable = 0

    @abstractmethod
    def _send(self, effect: Send) -> None:
        """Most effects are of this kind."""

    @abstractmethod
    def _persist(self, effect: Persist) -> None:
        """Begin to write a record."""

    @abstractmethod
    def _crowded(self, full: bool) -> None:
        """Too much is held, or not any more."""

    @abstractmethod
    def _read_clock(self) -> int:
        """Note the time: held effects happen now."""

    def _execute(self, effects: Iterable[Effect]) -> None:
        """Let effects happen in their order, or wait for the record before them."""
        barred = self._ticket > self._durable
        for effect in effects:
            kind = type(effect)
            if kind is Send:
                if barred:
                    self._hold(effect)
                else:
                    self._send(effect)  # type: ignore[arg-type]
            elif barred and (kind in _BARRED or installs(effect)):
                self._hold(effect)
            elif kind is Persist:
                if barred and (self._queued or effect.after_deliveries):  # type: ignore[attr-defined]
                    self._queued = True
                    self._hold(effect)
                else:
                    self._persist(effect)  # type: ignore[arg-type]
                    barred = self._ticket > self._durable
            else:
                self._perform[kind](effect)

    def _hold(self, effect: Effect) -> None:
        self._held.append((self._ticket, effect))
        if len(self._held) == MOST_HELD:
            self._crowded(True)

    def _catch_up(self) -> bool:
        """Let go of what has become durable meanwhile; False if nothing has."""
        return self._ticket > self._durable and self._release(self._store.commit())

    def _release(self, ticket: int) -> bool:
        """The disk has everything up to this ticket: let go of what waited for it; False if that changes nothing."""
        if ticket <= self._durable:
            return False
        self._durable = ticket
        held = self._held
        was_full = len(held) >= MOST_HELD
        self._read_clock()
        while held and held[0][0] <= ticket:
            effect = held.popleft()[1]
            if type(effect) is Persist:
                behind = [effect, *(one for _, one in held)]
                held.clear()
                self._queued = False
                self._execute(behind)
            else:
                self._perform[type(effect)](effect)
        if was_full and len(held) < MOST_HELD:
            self._crowded(False)
        return True


def installs(effect: Effect) -> bool:
    """A snapshot took the place of the deliveries before the position that this note tells."""
    return type(effect) is Note and effect.name == "installed"
