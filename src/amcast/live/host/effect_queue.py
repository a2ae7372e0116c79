"""The effect queue: executes effects in order, with the disk as a barrier among them.

`Persist` starts to write a record and does not wait. Effects that must not happen before the record is durable (`Send`,
`Deliver`, `Resolve`, `Close` and the installation of a snapshot) are held until the store has it; timers and notes are
not. A record that must wait for the deliveries before it (`Persist.after_deliveries`) is held as well, and all later
records behind it.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from amcast.kernel.effects import Close, Deliver, Effect, Note, Persist, ReadReady, Resolve, Send, SendEach
from amcast.kernel.message import Record
from amcast.live.storage.store import Store

MAX_HELD: Final = 20_000
"""With more held effects, the host reads nothing new until the disk has caught up."""

_BARRED: Final = frozenset({Send, SendEach, Deliver, Resolve, Close, ReadReady})


class EffectQueue:
    """Executes the effects of one process and holds those that wait for its store."""

    __slots__ = (
        "_before_log_truncation", "_encode_record", "_handlers", "_has_held_record", "_held", "_on_full",
        "_read_clock", "_send", "_store", "appended", "durable",
    )  # fmt: skip

    def __init__(
        self,
        store: Store,
        encode_record: Callable[[Record], bytes],
        send: Callable[[Send], None],
        handlers: Mapping[type, Callable[[Any], None]],
        *,
        read_clock: Callable[[], int],
        on_full: Callable[[bool], None],
        before_log_truncation: Callable[[], None] | None = None,
    ) -> None:
        """`handlers` execute the effects of each kind but `Send` and `Persist`; `read_clock` is called when held
        effects are released, because they happen then; `on_full` when too many are held, and when not any more;
        `before_log_truncation` before a record that makes earlier deliveries impossible to repeat."""
        self._store = store
        self._encode_record = encode_record
        self._send = send
        self._handlers = handlers
        self._read_clock = read_clock
        self._on_full = on_full
        self._before_log_truncation = before_log_truncation
        self._held: deque[tuple[int, Effect]] = deque()
        """Each with the ticket of the record that it waits for."""
        self._has_held_record = False
        """A record is held for the deliveries before it, and so are all later records."""
        self.appended = 0
        """Ticket of the last record appended to the store; later effects wait until it is durable."""
        self.durable = 0
        """Ticket of the last record that is durable."""

    @property
    def held_count(self) -> int:
        """How many effects wait for the store."""
        return len(self._held)

    def execute(self, effects: Iterable[Effect]) -> None:
        """Executes effects in their order, or holds them until the record before them is durable."""
        is_barred = self.appended > self.durable
        for effect in effects:
            kind = type(effect)
            if kind is Send:
                if is_barred:
                    self._hold(effect)
                else:
                    self._send(effect)  # type: ignore[arg-type]
            elif is_barred and (kind in _BARRED or skips_deliveries(effect)):
                self._hold(effect)
            elif kind is Persist:
                if is_barred and (self._has_held_record or effect.after_deliveries):  # type: ignore[attr-defined]
                    self._has_held_record = True
                    self._hold(effect)
                else:
                    self._persist(effect)  # type: ignore[arg-type]
                    is_barred = self.appended > self.durable
            else:
                self._handlers[kind](effect)

    def commit(self) -> bool:
        """Makes appended records durable, or starts to, and releases effects; False if nothing became durable."""
        return self.appended > self.durable and self.release(self._store.commit())

    def release(self, ticket: int) -> bool:
        """Executes the effects that waited for records up to this ticket; False if no more records are durable."""
        if ticket <= self.durable:
            return False
        self.durable = ticket
        held = self._held
        was_full = len(held) >= MAX_HELD
        self._read_clock()
        while held and held[0][0] <= ticket:
            effect = held.popleft()[1]
            if type(effect) is Persist:
                behind = [effect, *(one for _, one in held)]
                held.clear()
                self._has_held_record = False
                self.execute(behind)
            elif type(effect) is Send:
                self._send(effect)
            else:
                self._handlers[type(effect)](effect)
        if was_full and len(held) < MAX_HELD:
            self._on_full(False)
        return True

    def _hold(self, effect: Effect) -> None:
        self._held.append((self.appended, effect))
        if len(self._held) == MAX_HELD:
            self._on_full(True)

    def _persist(self, effect: Persist) -> None:
        if (effect.replaces or effect.after_deliveries) and self._before_log_truncation is not None:
            # Deliveries that the log forgets cannot be repeated: the trace must have them.
            self._before_log_truncation()
        if not self._store.keeps:
            return
        ticket = self._store.append(self._encode_record(effect.record), effect.replaces)
        if ticket:
            self.appended = ticket


def skips_deliveries(effect: Effect) -> bool:
    """Whether a note says that no delivery before a position will come: a snapshot replaced them, or they left an
    earlier incarnation."""
    return type(effect) is Note and effect.name in ("installed", "resumed")
