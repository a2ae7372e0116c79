"""What clients and servers of a session say and know.

What the simplest client knows.
"""

from amcast.kernel.config import Config
from amcast.kernel.ids import GroupId, MessageId, ProcessId
from amcast.kernel.message import Body, Message, State
from amcast.kernel.units import MILLISECOND


class SessionConfig(Config, frozen=True):
    retry_ns: tuple[int, int] = (1000 * MILLISECOND, 2000 * MILLISECOND)
    """How long a client waits for answers before it asks again, and everybody."""
    gateways: bool = False
    """Ask a gateway (`parts/node/gateway.py`) instead of the protocol's contacts; another one if it does not answer."""

    def __post_init__(self) -> None:
        low, high = self.retry_ns
        if not 0 < low <= high:
            raise ValueError(f"retry_ns = {list(self.retry_ns)}; expected a range above 0, lower end first")


class LeaderHint(Body, frozen=True):
    """A server tells a client whom to ask in its group next time."""

    group: GroupId
    leader: ProcessId


class AbsentGroups(Body, frozen=True):
    """A server tells a client which groups are out of the view, and are not waited for; a later epoch says better."""

    epoch: int
    groups: tuple[GroupId, ...]


class Done(Body, frozen=True):
    """A gateway tells a client that every destination group has answered for these messages, or need not."""

    messages: tuple[MessageId, ...]


class Farewell(Body, frozen=True):
    """I leave now, in good order: do not wait for my silence. Clients ask somebody else."""

    incarnation: int


class ConfigurationStarted(Body, frozen=True):
    """A process, which has passed into this number, tells everybody; clients learn whom to ask."""

    configuration: int
    topology: bytes


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
