"""The simplest client: it hands each message to the protocol's contacts once and trusts its links."""

from collections.abc import Callable

from amcast.kernel.ids import ProcessId
from amcast.kernel.message import Body, Message, Request, State
from amcast.kernel.process import Process
from amcast.kernel.topology import Topology
from amcast.parts.client.messages import OneShotState


class OneShotClient(Process):
    """For protocols whose processes never crash; `parts/client/session.py` has the client that retries."""

    def __init__(
        self,
        me: ProcessId,
        topology: Topology,
        contact: Callable[[Topology, Message], tuple[ProcessId, ...]],
    ) -> None:
        super().__init__(me, topology)
        self._contact = contact

    def on_submit(self, message: Message) -> None:
        self.send_all(self._contact(self.topology, message), Request(message), message.id)

    def on_request(self, message: Message) -> None:
        raise AssertionError(f"process {self.me} is a client and no contact of message {message.id}")

    def on_receive(self, sender: ProcessId, body: Body) -> None:
        """Bare protocols reply nothing; what others tell a client is not for this one."""

    def snapshot(self) -> OneShotState:
        return OneShotState()

    def restore(self, state: State) -> None:
        assert isinstance(state, OneShotState)
