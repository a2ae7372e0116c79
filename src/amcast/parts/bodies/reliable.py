"""What FIFO reliable multicast says and knows."""

from amcast.kernel.ids import ProcessId
from amcast.kernel.message import Body, Message, State


class Carry(Body, frozen=True):
    """A message of an origin, with its number for each target."""

    origin: ProcessId
    numbers: tuple[tuple[ProcessId, int], ...]
    message: Message


class Got(Body, frozen=True):
    """I have everything of yours below this number."""

    number: int


class Stable(Body, frozen=True):
    """Everything of mine to you below this number has reached all its targets: keep it no longer."""

    number: int


class ReliableState(State, frozen=True):
    sent: tuple[tuple[ProcessId, int], ...]
    unstable: tuple[Carry, ...]
    acknowledged: tuple[tuple[ProcessId, int], ...]
    expected: tuple[tuple[ProcessId, int], ...]
    early: tuple[tuple[ProcessId, tuple[Carry, ...]], ...]
    kept: tuple[tuple[ProcessId, tuple[Carry, ...]], ...]


BODIES: tuple[type[Body], ...] = (Carry, Got, Stable)
