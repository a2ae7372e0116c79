"""Who tells a sender that its message is delivered, and when.

    sender      leader     member
      |--Request->|           |
      |        deliver     deliver     every member may answer, one of a group must
      |<--Reply---|           |        the leader does (or all do: `NodeConfig.replies`); the others keep it in mind
      |           x        leads now
      |<--Reply---------------|        whoever takes the lead answers for what its predecessor may not have answered
      |--Request------------->|
      |<--Reply---------------|        asked again, whoever delivered it says so again

A bundle is answered to the gateway that made it, and the gateway answers its clients (`parts/node/gateway.py`): one
that delivers its own bundle needs no answer from its group. An answer is lost now and then, so a sender asks again
until it has one of each destination (`parts/client/session.py`); the message itself is ordered and delivered once.
"""

from operator import attrgetter
from typing import Final

from amcast.kernel.bundle import gateway_process, is_bundle
from amcast.kernel.effects import Deliver, Effect, Send
from amcast.kernel.events import Event, Receive
from amcast.kernel.ids import GroupId, MessageId, ProcessId
from amcast.kernel.message import Message, Reply
from amcast.kernel.process import Process
from amcast.parts.client.messages import LeaderHint
from amcast.parts.client.session import Contact
from amcast.parts.node.gateway import Gateway
from amcast.parts.node.messages import NodeConfig
from amcast.parts.node.pending_replies import PendingReplies
from amcast.parts.ordering.delivered_set import DeliveredSet

_id: Final = attrgetter("id")
FEW: Final = 4
"""Messages in a bundle that all members of a group answer for. A follower may deliver one delay before its leader, and
so few messages have nobody to share that delay with; where there are more, fewer answers are worth more."""


class Answering(Process):
    """The half of a node that answers senders; what the parts of a node do, the other half knows."""

    __slots__ = ("_aside", "_asked", "_leaders", "_unsaid", "config", "delivered", "gateway", "home", "protocol")

    def __init__(self, protocol: Process, config: NodeConfig, contact: Contact | None) -> None:
        super().__init__(protocol.me, protocol.topology)
        assert self.group is not None, f"process {self.me} is a client; nodes are servers"
        self.home: GroupId = self.group
        self.protocol = protocol
        self.config = config
        self.delivered = DeliveredSet()
        """What was delivered here in this incarnation; the protocol knows about earlier ones."""
        self._asked: dict[MessageId, tuple[Message, set[GroupId]]] = {}
        """Messages that this very node multicast, and the groups that have not answered."""
        self._leaders: dict[GroupId, ProcessId] = {g: self.topology.members(g)[0] for g in self.topology.groups}
        self.gateway: Gateway | None = None
        if config.gateway is not None:
            assert contact is not None, "a gateway must know the protocol's contacts"
            self.gateway = Gateway(self.me, self.topology, contact, config.gateway)
        self._unsaid = PendingReplies()
        self._aside: list[Event] = []
        """What the gateway's session must hear of in this step."""

    @property
    def is_leader(self) -> bool:
        return self._leaders[self.home] == self.me

    def has_delivered(self, message: MessageId) -> bool:
        return message in self.delivered or self.protocol.has_delivered(message)

    # When it is delivered here

    def _answering(self, effects: list[Effect]) -> list[Effect]:
        """Put a Reply behind every Deliver."""
        answers = self.config.replies == "all" or self._leaders[self.home] == self.me
        told: list[Effect] = []
        for effect in effects:
            told.append(effect)
            if type(effect) is not Deliver:
                continue
            message = effect.message
            if effect.message_count >= 0:
                self._answer_bundle(effect, answers, told)
            else:
                self.delivered.add(message.id)
                if answers:
                    told.append(Send((message.sender,), Reply(message.id, self.home), message.id))
                else:
                    self._unsaid.keep(message.sender, message.id)
        return told

    def _answer_bundle(self, effect: Deliver, leads: bool, told: list[Effect]) -> None:
        """Its gateway is told, by the leader or by all, unless it is in this group: it delivers, too, and may be sure
        of other groups then. Those whose answer it need not wait for let it ride on something else."""
        bundle = effect.message
        gateway = gateway_process(bundle.sender)
        if gateway == self.me:
            for group in (self.home, *effect.ordered_elsewhere):
                self._aside.append(Receive(self.me, Reply(bundle.id, group)))
        elif self.topology.group_of(gateway) != self.home:
            foretold = effect.ordered_here
            if leads or (not foretold and effect.message_count <= FEW):
                later = (gateway,) if foretold else ()
                told.append(Send((gateway,), Reply(bundle.id, self.home), bundle.id, later))
            else:
                self._unsaid.keep(gateway, bundle.id)

    # When its leader died, and when a sender asks again

    def _answer_unsaid(self) -> None:
        for asker, message in self._unsaid.take():
            self.send(asker, Reply(message, self.home), message)

    def _was_delivered(self, sender: ProcessId, message: Message) -> bool:
        """Answer a sender that asks again."""
        if message.id in self.delivered or self.protocol.has_delivered(message.id):
            asker = gateway_process(message.sender) if is_bundle(message.id) else message.sender
            self.send(asker, Reply(message.id, self.home), message.id)
            news = self.protocol.reply_extra(message)
            if news is not None:
                self.send(asker, news)
            return True
        if self.gateway is None and sender == message.sender:
            leader = self._leaders[self.home]
            if leader not in (self.me, self.topology.members(self.home)[0]):
                self.send(sender, LeaderHint(self.home, leader), message.id)
        return False

    def _take_asked(self, asked: list[Message]) -> None:
        """Clients ask their gateway. Those that ask for what is delivered are told so."""
        gateway = self.gateway
        assert gateway is not None
        if not self.protocol.has_delivered_any(list(map(_id, asked))):
            gateway.take_all(asked)
        else:
            for message in asked:
                if self.protocol.has_delivered(message.id):
                    self.send(message.sender, Reply(message.id, self.home), message.id)
                else:
                    gateway.take(message)
        asked.clear()

    # This node is a sender, too

    def _answered(self, message: MessageId, group: GroupId) -> None:
        """A group answered a message that this very node multicast."""
        asked = self._asked.get(message)
        if asked is not None:
            asked[1].discard(group)
            if not asked[1]:
                del self._asked[message]
                self.resolve(message)
