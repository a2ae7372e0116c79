"""What the leader oracle says and knows.

What gateways say, know and can be told.

What a node knows and can be told.
"""

from typing import Literal

from msgspec import field

from amcast.kernel.config import Config
from amcast.kernel.ids import GroupId, MessageId, ProcessId
from amcast.kernel.message import Body, Message, State
from amcast.kernel.units import MILLISECOND
from amcast.parts.client.messages import ClientSessionState
from amcast.parts.ordering.messages import DeliveredRange


class OmegaConfig(Config, frozen=True):
    heartbeat_ns: int = 200 * MILLISECOND
    """Between two heartbeats."""
    suspect_after_ns: tuple[int, int] = (500 * MILLISECOND, 700 * MILLISECOND)
    """Silence after which a member is suspected; doubled each time a suspicion was wrong."""

    def __post_init__(self) -> None:
        low, high = self.suspect_after_ns
        if not 0 < self.heartbeat_ns < low <= high:
            raise ValueError(
                f"heartbeat_ns = {self.heartbeat_ns}, suspect_after_ns = {list(self.suspect_after_ns)};"
                " expected a beat above 0 and a range of longer patience, lower end first"
            )


class Heartbeat(Body, frozen=True):
    """I am here, in this incarnation, which began at that time on my clock (0 in the first)."""

    incarnation: int
    since_ns: int = 0


class OmegaState(State, frozen=True):
    incarnation: int
    leader: ProcessId
    incarnations: tuple[tuple[ProcessId, int], ...]
    suspected: tuple[ProcessId, ...]
    mistakes: tuple[tuple[ProcessId, int], ...]
    left: tuple[tuple[ProcessId, int], ...] = ()
    since: tuple[tuple[ProcessId, int], ...] = ()
    members: tuple[ProcessId, ...] = ()


class GatewayConfig(Config, frozen=True):
    retry_ns: tuple[int, int] = (1000 * MILLISECOND, 2000 * MILLISECOND)
    """How long a gateway waits for answers before it asks everybody again."""
    bundles: int = 1
    """So many may be on their way to the same destinations; what comes meanwhile gathers for the next."""
    gather_ns: tuple[int, int] = (100 * MILLISECOND, 100 * MILLISECOND)
    """What has gathered for so long does not wait for the bundle before."""
    rest: bool = True
    """Where several clients are at it, wait a little after an answer for those who will ask again."""
    bundle_messages: int = 1024
    """No bundle holds more messages."""
    bundle_bytes: int = 256 * 1024
    """No bundle of several messages holds more payload."""

    def __post_init__(self) -> None:
        low, high = self.retry_ns
        if not 0 < low <= high:
            raise ValueError(f"retry_ns = {list(self.retry_ns)}; expected a range above 0, lower end first")
        for name in ("bundles", "bundle_messages", "bundle_bytes"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} = {getattr(self, name)}; expected 1 or more")
        if not 0 < self.gather_ns[0] <= self.gather_ns[1]:
            raise ValueError(f"gather_ns = {list(self.gather_ns)}; expected a range above 0, lower end first")


class GatherWindowState(State, frozen=True):
    """What a gateway knows of those whom it answered last, for some destinations."""

    groups: tuple[GroupId, ...]
    answered: int
    missing: tuple[ProcessId, ...]
    vain: int
    patient: bool
    hasty: tuple[int, int]
    calm: tuple[int, int]
    phases: int
    bundles: int
    began: tuple[int, int, int]
    doubts: bool
    next: int
    gap: int
    strikes: int


class GatewayState(State, frozen=True):
    number: int
    sequence: int
    open: tuple[tuple[MessageId, tuple[Message, ...]], ...]
    """Bundles without an answer, and what each holds."""
    gathered: tuple[Message, ...]
    armed: bool
    session: ClientSessionState
    left_ns: tuple[tuple[MessageId, int], ...] = ()
    resting: tuple[tuple[GroupId, ...], ...] = ()
    waves: tuple[GatherWindowState, ...] = ()
    waited: tuple[int, int] = (0, 0)
    since: tuple[int, int] = (0, 0)
    gathers_ns: tuple[tuple[tuple[GroupId, ...], int], ...] = ()


class NodeConfig(Config, frozen=True):
    omega: OmegaConfig | None = field(default_factory=OmegaConfig)
    """None: no heartbeats; Leader events come from outside."""
    replies: Literal["leader", "all"] = "leader"
    """Who answers a sender: its group's leader, or every member. Who retries is answered by all, and so is a gateway
    that asked for very few messages."""
    gateway: GatewayConfig | None = None
    """None: clients ask the protocol's contacts. Otherwise every node asks for its clients, in bundles."""


class NodeState(State, frozen=True):
    protocol: State
    omega: OmegaState | None
    delivered: tuple[DeliveredRange, ...]
    asked: tuple[tuple[Message, tuple[GroupId, ...]], ...]
    leaders: tuple[tuple[GroupId, ProcessId], ...]
    gateway: GatewayState | None = None
    unsaid: tuple[tuple[tuple[ProcessId, MessageId], ...], tuple[tuple[ProcessId, MessageId], ...]] = ((), ())
