"""Settings, bodies and states of clients, and the bodies that servers send to them."""

from amcast.kernel.config import MILLISECOND, Config
from amcast.kernel.ids import GroupId, MessageId, ProcessId
from amcast.kernel.message import Body, Message, State


class SessionConfig(Config, frozen=True):
    """Settings of a client that retries."""

    retry_ns: tuple[int, int] = (1000 * MILLISECOND, 2000 * MILLISECOND)
    """How long a client waits for replies before it sends a request again, to all members."""
    gateways: bool = False
    """Send to a gateway (`parts/node/gateway.py`) instead of the protocol's contacts; after a timeout to another one.
    """
    silence_ns: int = 250 * MILLISECOND
    """How long a gateway may answer nothing before the client turns to another one; longer where answers take long."""

    region: str = ""
    """Where the client is: it prefers gateways there. Without it, the region that the topology names."""

    def __post_init__(self) -> None:
        low, high = self.retry_ns
        if not 0 < low <= high:
            raise ValueError(f"retry_ns = {list(self.retry_ns)}; expected a range above 0, lower end first")
        if self.silence_ns < 1:
            raise ValueError(f"silence_ns = {self.silence_ns}; expected 1 or more")


class LeaderHint(Body, frozen=True):
    """From a server: the leader of its group, the target of later requests."""

    group: GroupId
    leader: ProcessId


class AbsentGroups(Body, frozen=True):
    """From a server: the lost groups, for which a client need not wait; a later epoch is more recent."""

    epoch: int
    groups: tuple[GroupId, ...]


class Done(Body, frozen=True):
    """From a gateway: every destination group has replied for these messages, or need not."""

    messages: tuple[MessageId, ...]


class Farewell(Body, frozen=True):
    """From a server that stops: members need not wait for its heartbeats to fail, clients choose another gateway."""

    incarnation: int


class ConfigurationStarted(Body, frozen=True):
    """From a process that has entered this configuration; clients learn the members from it."""

    configuration: int
    topology: bytes


class ClientSessionState(State, frozen=True):
    """The fields of `ClientSession`."""

    pending: tuple[tuple[Message, tuple[GroupId, ...], int, int], ...]
    blocked: tuple[Message, ...]
    leaders: tuple[tuple[GroupId, ProcessId], ...]
    timer_set: bool
    gateway_index: int = 0
    absent: tuple[int, tuple[GroupId, ...]] = (0, ())
    topology: bytes = b""
    """Empty in configuration 0."""
    unacknowledged_lost: tuple[Message, ...] = ()
    answered_ns: tuple[tuple[ProcessId, int], ...] = ()
    answer_ns: int = 0
    moves: int = 0
    silence_timer_set: bool = False


class OneShotState(State, frozen=True):
    """Empty: the client has no state."""
