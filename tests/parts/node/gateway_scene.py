"""Helpers of the tests of gateways: messages, a bare gateway, and the bundles among its effects."""

from collections.abc import Iterable

from amcast.kernel.effects import Effect, Send
from amcast.kernel.events import Event, Receive
from amcast.kernel.ids import GroupId, message_id
from amcast.kernel.message import Body, Message, Reply, Request
from amcast.kernel.topology import Topology
from amcast.parts.node.gateway import Gateway
from amcast.parts.node.messages import GatewayConfig

TOPOLOGY = Topology.grid(2, 3, 4)
BOTH = (0, 1)
LEADERS = {0: 0, 1: 3}


def make_message(client: int, sequence: int, destinations: tuple[int, ...] = BOTH, size: int = 1) -> Message:
    return Message(message_id(client, sequence), client, destinations, bytes(size))


def make_gateway(topology: Topology = TOPOLOGY, **options: int) -> Gateway:
    """The gateway of process 0."""
    return Gateway(0, topology, lambda top, message: top.processes_of(message.destinations), GatewayConfig(**options))


def sends_in(effects: list[Effect]) -> list[tuple[tuple[int, ...], Body]]:
    return [(effect.targets, effect.body) for effect in effects if isinstance(effect, Send)]


def bundles_in(effects: list[Effect]) -> list[Message]:
    return [body.message for _, body in sends_in(effects) if isinstance(body, Request)]


def replies_to(
    bundle: Message, groups: Iterable[GroupId] = BOTH, leaders: dict[GroupId, int] | None = None
) -> list[Event]:
    """A Reply of the leader of each group."""
    return [Receive((leaders or {0: 0, 1: 3})[group], Reply(bundle.id, group)) for group in groups]
