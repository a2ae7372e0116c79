"""Mutants of TreeCast: each lacks something that the thesis does not mention. Searches must find every one."""

from dataclasses import dataclass, replace
from typing import Final

from amcast.kernel.ids import MessageId
from amcast.kernel.message import Body, Message
from amcast.kernel.spec import Links, Spec
from amcast.protocols.treecast.messages import Confirm, Forward
from amcast.protocols.treecast.process import SPEC, TreeCast


class CopiesMultiply(TreeCast):
    """Every request is ordered and forwarded, repeated ones too."""

    def on_request(self, message: Message) -> None:
        if self.tree.lca(message.destinations) == self.home:
            self._order(message)

    def _try_confirm(self, message: MessageId) -> None:
        if message in self._waiting:
            super()._try_confirm(message)

    def _handle_confirm(self, message: MessageId, child: int) -> None:
        if message in self._waiting:
            super()._handle_confirm(message, child)


class OwnOrder(TreeCast):
    """A child swaps each pair of messages from its parent."""

    def on_receive(self, sender: int, body: Body) -> None:
        if isinstance(body, Forward) and self._held is None:
            self._held = (sender, body)
            self.send(self.me, Confirm(-1))
            return
        if isinstance(body, Confirm) and body.message == -1:
            held, self._held = self._held, None
            if held is not None:
                super().on_receive(*held)
            return
        super().on_receive(sender, body)

    _held: tuple[int, Forward] | None = None


class ParentIgnored(TreeCast):
    """Destinations deliver clients' requests at once, without the order of their parent."""

    def contacts(self, message: Message) -> tuple[int, ...]:
        return self.topology.processes_of(message.destinations)

    def on_request(self, message: Message) -> None:
        self.deliver(message)


@dataclass(frozen=True)
class Mutant:
    process: type[TreeCast]
    status: str = "violated"
    links: Links = "fifo"
    nodes: bool = False
    contacts_all: bool = False
    """Clients send requests to all destinations."""

    @property
    def name(self) -> str:
        return self.process.__name__ if self.links == "fifo" else "ReorderingLinks"

    def spec(self) -> Spec:
        assert SPEC.unreplicated is not None
        spec = replace(
            SPEC, process=self.process, claims=replace(SPEC.unreplicated, links=self.links), unreplicated=None
        )
        if self.contacts_all:
            return replace(
                spec, make_contacts=None, contacts=lambda topology, message: topology.processes_of(message.destinations)
            )
        return spec


MUTANTS: Final = (
    Mutant(TreeCast, links="reordering"),
    Mutant(CopiesMultiply, nodes=True),
    Mutant(OwnOrder),
    Mutant(ParentIgnored, contacts_all=True),
)
