"""A stage whose nodes are gateways, as in clusters: PrimCast orders bundles there."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from amcast.assembly import Assembly
from amcast.kernel.config import Config
from amcast.kernel.effects import Deliver, Effect, Send
from amcast.kernel.events import Event
from amcast.kernel.ids import ProcessId
from amcast.kernel.process import Process
from amcast.kernel.topology import Topology
from amcast.parts.client.messages import SessionConfig
from amcast.parts.node.messages import GatewayConfig, NodeConfig
from amcast.parts.node.node import Node
from amcast.protocols.catalogue import CATALOGUE
from amcast.protocols.primcast.process import PrimCast
from tests.protocols.stage import Stage


class GatewayStage(Stage):
    """A stage with gateways that records the effects of all PrimCast processes. The gateway of messages to both groups
    is process 3, else the first member of the destination."""

    def __init__(
        self, kind: type[PrimCast] = PrimCast, node: type[Node] = Node, groups: int = 2, **options: Any
    ) -> None:
        recorded: list[tuple[ProcessId, Effect]] = []

        class Recorded(kind):  # type: ignore[misc, valid-type]
            def step(self, events: Sequence[Event], now: int) -> list[Effect]:
                effects: list[Effect] = super().step(events, now)
                recorded.extend((self.me, effect) for effect in effects)
                return effects

        def make(me: ProcessId, topology: Topology, config: Config) -> Process:
            return Recorded(me, topology, config)

        self.effects = recorded
        self.node = node
        super().__init__(replace(CATALOGUE["primcast"], process=make), groups, options=options)

    def assemble(self) -> Assembly:
        node = NodeConfig(omega=None, gateway=GatewayConfig(is_paced=False))
        return Assembly(self.spec, self.config, node, SessionConfig(gateways=True))

    def make(self, process: ProcessId) -> Process:
        if self.node is Node or self.topology.group_of(process) is None:
            return super().make(process)
        protocol = self.spec.process(process, self.topology, self.config)
        assert self.assembly.node is not None
        return self.node(protocol, self.assembly.node, self.spec.contacts)

    def sends_of(self, process: ProcessId, kind: type) -> list[Send]:
        """The sends of one process whose bodies are of a kind."""
        return [e for who, e in self.effects if who == process and isinstance(e, Send) and isinstance(e.body, kind)]

    def deliveries_of(self, process: ProcessId) -> list[Deliver]:
        return [effect for who, effect in self.effects if who == process and isinstance(effect, Deliver)]
