"""What a node knows and can be told."""

from typing import Literal

from msgspec import field

from amcast.kernel.config import Config
from amcast.kernel.ids import GroupId, MessageId, ProcessId
from amcast.kernel.message import Message, State
from amcast.parts.bodies.gateway import GatewayConfig, GatewayState
from amcast.parts.bodies.omega import OmegaConfig, OmegaState
from amcast.parts.bodies.session import Known


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
    delivered: tuple[Known, ...]
    asked: tuple[tuple[Message, tuple[GroupId, ...]], ...]
    leaders: tuple[tuple[GroupId, ProcessId], ...]
    gateway: GatewayState | None = None
    unsaid: tuple[tuple[tuple[ProcessId, MessageId], ...], tuple[tuple[ProcessId, MessageId], ...]] = ((), ())
