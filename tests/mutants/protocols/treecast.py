"""TreeCast with what the thesis leaves unsaid left out. Searches must find every one of them."""

from dataclasses import dataclass, replace
from typing import Final

from amcast.kernel.ids import MessageId
from amcast.kernel.message import Body, Message
from amcast.kernel.spec import Links, Spec
from amcast.protocols.treecast.messages import Confirm, Forward
from amcast.protocols.treecast.process import SPEC, TreeCast


class CopiesMultiply(TreeCast):
    """Every request is ordered and forwarded, whether it was before or not."""

    def on_request(self, message: Message) -> None:
        if self.tree.lca(message.destinations) == self.home:
            self._order(message)

    def _confirm(self, message: MessageId) -> None:
        if message in self._waiting:
            super()._confirm(message)

    def _hear_confirm(self, message: MessageId, child: int) -> None:
        if message in self._waiting:
            super()._hear_confirm(message, child)


class OwnOrder(TreeCast):
    """A child orders what its parent sends in pairs, the later one first."""

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


class Impatient(TreeCast):
    """The root's children deliver what they hear from clients at once, and their parent's order does not bind them."""

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
    everybody: bool = False
    """Clients tell all destinations."""

    @property
    def name(self) -> str:
        return self.process.__name__ if self.links == "fifo" else "ReorderingLinks"

    def spec(self) -> Spec:
        assert SPEC.alone is not None
        spec = replace(SPEC, process=self.process, claims=replace(SPEC.alone, links=self.links), alone=None)
        if self.everybody:
            return replace(
                spec, make_contacts=None, contacts=lambda topology, message: topology.processes_of(message.destinations)
            )
        return spec


MUTANTS: Final = (
    Mutant(TreeCast, links="reordering"),
    Mutant(CopiesMultiply, nodes=True),
    Mutant(OwnOrder),
    Mutant(Impatient, everybody=True),
)
