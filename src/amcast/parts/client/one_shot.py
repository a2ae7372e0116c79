"""The simplest client: it sends each message to the protocol's contacts once and relies on its links."""

from amcast.kernel.ids import ProcessId
from amcast.kernel.message import Body, Message, Request, State
from amcast.kernel.process import Process
from amcast.kernel.spec import Contacts
from amcast.kernel.topology import Topology
from amcast.parts.client.messages import OneShotState


class OneShotClient(Process):
    """A client for protocols whose processes never crash; `parts/client/session.py` has the client that retries."""

    def __init__(self, me: ProcessId, topology: Topology, contacts: Contacts) -> None:
        super().__init__(me, topology)
        self._protocol_contacts = contacts

    def on_submit(self, message: Message) -> None:
        self.send_all(self._protocol_contacts(self.topology, message), Request(message), message.id)

    def on_request(self, message: Message) -> None:
        raise AssertionError(f"process {self.me} is a client and no contact of message {message.id}")

    def on_receive(self, sender: ProcessId, body: Body) -> None:
        """Ignores replies: this client does not wait for them."""

    def snapshot(self) -> OneShotState:
        return OneShotState()

    def restore(self, state: State) -> None:
        assert isinstance(state, OneShotState)
