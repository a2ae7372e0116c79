"""What clients and servers of a session say and know.

What the simplest client knows.
"""

from typing import Final

from amcast.kernel.config import Config
from amcast.kernel.ids import GroupId, ProcessId
from amcast.kernel.message import Body, Message, State

MILLISECOND: Final = 1_000_000

WINDOW: Final = 1024
"""How far a client's sequence numbers may run ahead of its oldest unanswered message."""


class SessionConfig(Config, frozen=True):
    retry_ns: tuple[int, int] = (1000 * MILLISECOND, 2000 * MILLISECOND)
    """How long a client waits for answers before it asks again, and everybody."""
    gateways: bool = False
    """Ask a gateway (`parts/node/gateway.py`) instead of the protocol's contacts; another one if it does not answer."""

    def __post_init__(self) -> None:
        low, high = self.retry_ns
        if not 0 < low <= high:
            raise ValueError(f"retry_ns = {list(self.retry_ns)}; expected a range above 0, lower end first")


class Hint(Body, frozen=True):
    """A server tells a client whom to ask in its group next time."""

    group: GroupId
    leader: ProcessId


class Absent(Body, frozen=True):
    """A server tells a client which groups are out of the view, and are not waited for; a later epoch says better."""

    epoch: int
    groups: tuple[GroupId, ...]


class DeliveredRange(State, frozen=True):
    """A sender's messages that were seen: the newest sequence number, and as bits how far before it each is."""

    sender: ProcessId
    newest: int
    bits: bytes


class ClientSessionState(State, frozen=True):
    waiting: tuple[tuple[Message, tuple[GroupId, ...], int], ...]
    held: tuple[Message, ...]
    leaders: tuple[tuple[GroupId, ProcessId], ...]
    armed: bool
    turn: int = 0
    view: tuple[int, tuple[GroupId, ...]] = (0, ())
    topology: bytes = b""
    """Empty while it is the first one."""
    left: tuple[Message, ...] = ()


class OneShotState(State, frozen=True):
    """Nothing."""
