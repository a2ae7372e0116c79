"""Asking for messages while the members of groups change: whether one was delivered under an earlier number.

A message that a client asks for again may have been delivered before its group turned to the present number, and must
not be ordered a second time. A destination knows what it delivered; contacts that are no destination do not, and ask
one before they order it (`Vouch`), unless the client itself has shown that the message is younger than the number.
"""

from amcast.kernel.bundle import gateway_process, is_bundle
from amcast.kernel.effects import About, Send
from amcast.kernel.events import Receive, Submit
from amcast.kernel.ids import ProcessId, sequence_of
from amcast.kernel.message import Body, Message, Reply, Request
from amcast.kernel.topology import Topology
from amcast.parts.membership.configuration import ConfigurationInstance, ProcessFactory
from amcast.parts.membership.messages import CheckDelivered, ReconfigurableConfig, configuration_body
from amcast.parts.membership.turning import NEXT, Turning
from amcast.parts.ordering.messages import WINDOW


class Vouching(Turning):
    """What a server is asked for, and what it says, under its number."""

    def __init__(
        self,
        me: ProcessId,
        topology: Topology,
        make: ProcessFactory,
        config: ReconfigurableConfig,
        bodies: tuple[type[Body], ...],
    ) -> None:
        super().__init__(me, topology, make, config)
        self._numbered = configuration_body(bodies)

    def _multicast(self, message: Message) -> None:
        """My user's message. Under a later number it may be one of an earlier: its contacts look at it."""
        current = self.current
        if current is not None and current.process is not None:
            if current.configuration == 0:
                current.inbox.append(Submit(message))
            else:
                self.send_all(current.process.contacts(message), Request(message), message.id)

    def _submit(self, sender: ProcessId, message: Message) -> None:
        """Somebody asks, who may have asked under an earlier number; it was not delivered here."""
        current = self.current
        if self._behind() and self.home in message.destinations and not is_bundle(message.id):
            self._hold(sender, NEXT, Request(message), -1)
        if current is None:
            return
        asks = Receive(sender, Request(message))
        for old in self._instances[:-1]:
            # Somebody may wait in an old instance for my group's part in a message that is before its barrier there.
            if old.process is None or self.home not in message.destinations or message.id in old.base:
                continue
            if old.configuration == 0 or not is_bundle(message.id):
                old.inbox.append(asks)
        if current.process is None:
            self.send(sender, self.make_announcement())
        elif current.configuration == 0:
            current.inbox.append(asks)
        elif is_bundle(message.id):
            return  # of number 0: its gateway, when it gets here, asks for what was not delivered
        elif self.home in message.destinations or self._fresh(message):
            if not current.has_delivered(message.id):
                current.inbox.append(asks)
        else:
            self._say(current, current.topology.members(message.destinations[0]), CheckDelivered(message), message.id)

    def _fresh(self, message: Message) -> bool:
        """It was first asked for when a message of this number was answered already (see `parts/client/session.py`)."""
        first = self._vouched.get(message.sender)
        return first is not None and sequence_of(message.id) >= first + WINDOW

    def _asked(self, sender: ProcessId, current: ConfigurationInstance, body: Body) -> None:
        """Under my number somebody asks for a message, or whether it may be asked for."""
        message: Message = body.message  # type: ignore[attr-defined]
        if current.has_delivered(message.id):
            asker = gateway_process(message.sender) if is_bundle(message.id) else message.sender
            self.send(asker, Reply(message.id, self.home), message.id)
            news = self.reply_extra(message)
            if news is not None:
                self.send(asker, news)
        elif type(body) is CheckDelivered:
            self._say(current, (sender,), Request(message), message.id)
        elif current.process is not None:
            if self.home not in message.destinations:
                sequence = sequence_of(message.id)
                self._vouched[message.sender] = min(sequence, self._vouched.get(message.sender, sequence))
            current.inbox.append(Receive(sender, body))

    def _say(
        self,
        instance: ConfigurationInstance,
        targets: tuple[ProcessId, ...],
        body: Body,
        about: About,
        later: tuple[ProcessId, ...] = (),
    ) -> None:
        """Servers must know which number a body is of, and whether its sender has passed that number's end."""
        barrier = instance.barrier
        if instance is not self._instances[-1]:
            barrier = self._instances[self._instances.index(instance) + 1].start.position
        if instance.configuration == 0 and barrier < 0:
            self._outbox.append(Send(targets, body, about, later))
            return
        servers = tuple(target for target in targets if instance.topology.group_of(target) is not None)
        if servers:
            envelope = self._numbered(instance.configuration, body, barrier)
            self._outbox.append(Send(servers, envelope, about, later))
        if len(servers) < len(targets):
            others = tuple(target for target in targets if target not in servers)
            self._outbox.append(Send(others, body, about))
