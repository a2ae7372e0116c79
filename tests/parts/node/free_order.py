"""Nodes around the most general atomic multicast: any order without cycles, decided as late as possible.

Each group delivers one sequence, and a draw decides which pending message a group orders next. The only condition is
that no cycle arises, now or by what must still be delivered. Every run of every correct protocol is one of these, so a
rule that answers too early in any of them does so here: clients multicast right after an answer, and groups like to
order the newest message first.
"""

from collections import deque
from collections.abc import Callable, Sequence
from random import Random

from amcast.kernel.effects import Close, Deliver, Effect, Persist, Send, SetTimer
from amcast.kernel.events import Event, Leader, LinkReset, Receive, Started, Timer
from amcast.kernel.ids import GroupId, MessageId, ProcessId, message_id
from amcast.kernel.message import Body, Message, Record, Reply, Request, State
from amcast.kernel.process import Process
from amcast.kernel.topology import Topology
from amcast.parts.client.messages import Done
from amcast.parts.node.messages import NodeConfig, RealTimeConfig
from amcast.parts.node.node import Node


class Next(Body, frozen=True):
    """The group delivers this message next."""

    message: Message
    ordered_elsewhere: tuple[GroupId, ...] = ()
    """The other destinations that have ordered it."""


class Transfer(Body, frozen=True):
    """The state of another member."""

    delivered: tuple[MessageId, ...]


class Save(Body, frozen=True):
    """The process makes a checkpoint."""


class DeliveredRecord(Record, frozen=True):
    message: Message


class SavedRecord(Record, frozen=True):
    delivered: tuple[MessageId, ...]


class Puppet(Process):
    """Delivers what it is handed."""

    def __init__(self, me: ProcessId, topology: Topology) -> None:
        super().__init__(me, topology)
        self.ids: list[MessageId] = []

    def on_start(self, records: Sequence[Record], incarnation: int) -> None:
        for record in records:
            if isinstance(record, SavedRecord):
                self.ids = list(record.delivered)
                self.install_position(len(self.ids))
            elif isinstance(record, DeliveredRecord):
                self._deliver_next(record.message)

    def on_request(self, message: Message) -> None:
        """Ignores requests: the scene orders messages."""

    def on_receive(self, sender: ProcessId, body: Body) -> None:
        match body:
            case Next(message, ordered_elsewhere):
                self.persist(DeliveredRecord(message))
                self._deliver_next(message, ordered_elsewhere)
            case Transfer(delivered):
                self.ids = list(delivered)
                self.install_position(len(delivered))
                self.persist(SavedRecord(delivered), replaces=True)
            case Save():
                self.persist(SavedRecord(tuple(self.ids)), replaces=True)
            case _:
                raise AssertionError(f"no body for a puppet: {body!r}")

    def _deliver_next(self, message: Message, ordered_elsewhere: tuple[GroupId, ...] = ()) -> None:
        self.ids.append(message.id)
        is_ahead = self.me != self.topology.members(self.group or 0)[0]
        self._outbox.append(
            Deliver(message, self.position, ordered_elsewhere=ordered_elsewhere, is_ahead=is_ahead),
        )
        self.position += 1

    def has_delivered(self, message: MessageId) -> bool:
        return message in self.ids

    def snapshot(self) -> State:
        raise AssertionError("not used")

    def restore(self, state: State) -> None:
        raise AssertionError("not used")


MakeNode = Callable[[ProcessId, Topology], Node]


def make_node(me: ProcessId, topology: Topology) -> Node:
    real_time = RealTimeConfig(retry_ns=(100, 100), follow_after_ns=0, follow_ns=1000)
    return Node(Puppet(me, topology), NodeConfig(omega=None, real_time=real_time))


class FreeOrder:
    """One run. `answers`, `closings` and `multicasts` have the moment of each."""

    def __init__(
        self, groups: int, replicas: int, seed: int = 0, make: MakeNode = make_node, servers_send: bool = False
    ) -> None:
        self.servers_send = servers_send
        """Whether the first member of the first destination sends a message, not the client."""
        self.random = Random(seed)
        self.topology = Topology.grid(groups, replicas, 1)
        self.client = self.topology.clients[0]
        self.make = make
        self.moment = 0
        self.messages: dict[MessageId, Message] = {}
        self.multicasts: dict[MessageId, int] = {}
        self.answers: dict[MessageId, int] = {}
        self.closings: dict[MessageId, int] = {}
        """When a node first stated that the message is closed."""
        self.closed: dict[ProcessId, int] = {}
        """The position before which everything is closed, as each node last stated."""
        self.orders: dict[GroupId, list[Message]] = {group: [] for group in self.topology.groups}
        self.pending: dict[GroupId, list[Message]] = {group: [] for group in self.topology.groups}
        self.nodes: dict[ProcessId, Node] = {}
        self.records: dict[ProcessId, list[Record]] = {process: [] for process in self.topology.servers}
        self.incarnations = dict.fromkeys(self.topology.servers, 0)
        self.links: dict[tuple[ProcessId, ProcessId], deque[Body]] = {}
        self.timers: set[tuple[ProcessId, str]] = set()
        self.reports = 0
        for process in self.topology.servers:
            self.start(process)

    # What happens

    def start(self, process: ProcessId) -> None:
        self.nodes[process] = self.make(process, self.topology)
        self.closed[process] = 0
        self.step(process, Started(tuple(self.records[process]), self.incarnations[process]))

    def step(self, process: ProcessId, event: Event) -> None:
        self.moment += 1
        self.execute(process, self.nodes[process].step((event,), self.moment))

    def execute(self, process: ProcessId, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Send):
                for target in effect.targets:
                    self.send(process, target, effect.body)
            elif isinstance(effect, SetTimer):
                self.timers.add((process, effect.name))
            elif isinstance(effect, Persist):
                if effect.replaces:
                    self.records[process].clear()
                self.records[process].append(effect.record)
            elif isinstance(effect, Close):
                assert effect.position > self.closed[process], f"process {process} repeats {effect}"
                self.closed[process] = effect.position
                for message in self.orders[self.nodes[process].home][: effect.position]:
                    self.closings.setdefault(message.id, self.moment)
            elif isinstance(effect, Deliver):
                assert self.orders[self.nodes[process].home][effect.position] == effect.message

    def send(self, source: ProcessId, target: ProcessId, body: Body) -> None:
        assert not isinstance(body, Reply), f"{body}: real-time answers are Done"
        if isinstance(body, Done):
            for message in body.messages:
                self.answers.setdefault(message, self.moment)
        if target != self.client:
            self.reports += 1
            self.links.setdefault((source, target), deque()).append(body)

    def multicast(self, *destinations: GroupId) -> Message:
        self.moment += 1
        groups = tuple(sorted(destinations))
        sender = self.topology.members(groups[0])[0] if self.servers_send else self.client
        message = Message(message_id(sender, len(self.messages)), sender, groups)
        self.messages[message.id] = message
        self.multicasts[message.id] = self.moment
        for group in message.destinations:
            self.pending[group].append(message)
        return message

    def order(self, group: GroupId, message: Message) -> bool:
        """A group orders a pending message next, unless a cycle would arise."""
        others = [other for other in self.pending[group] if other is not message]
        if any(self.precedes(other, message) for other in others):
            return False
        self.pending[group].remove(message)
        self.orders[group].append(message)
        return True

    def precedes(self, one: Message, other: Message) -> bool:
        """Whether one message precedes another, by what is ordered and what must still be."""
        seen, waiting = {one.id}, [one]
        while waiting:
            message = waiting.pop()
            for group in message.destinations:
                order = self.orders[group]
                if message not in order:
                    continue
                place = order.index(message)
                for later in order[place + 1 : place + 2] or self.pending[group]:
                    if later.id == other.id:
                        return True
                    if later.id not in seen:
                        seen.add(later.id)
                        waiting.append(later)
        return False

    def deliver(self, process: ProcessId) -> bool:
        """A process delivers the next message of its group, if there is one."""
        node = self.nodes[process]
        place = len(node.protocol.ids)  # type: ignore[attr-defined]
        order = self.orders[node.home]
        if place < len(order):
            message = order[place]
            elsewhere = tuple(g for g in message.destinations if g != node.home and message in self.orders[g])
            self.step(process, Receive(process, Next(message, elsewhere)))
        return place < len(order)

    def deliver_all(self, group: GroupId, *messages: Message) -> None:
        """A group orders messages, and all its members deliver them."""
        for message in messages:
            assert self.order(group, message), f"{message} would close a cycle"
            for process in self.topology.members(group):
                assert self.deliver(process)

    def arrive(self, source: ProcessId, target: ProcessId) -> None:
        link = self.links[(source, target)]
        body = link.popleft()
        if not link:
            del self.links[(source, target)]
        self.step(target, Receive(source, body))

    def arrive_all(self, *closed: tuple[GroupId, GroupId]) -> None:
        """Everything arrives, but for packets between these groups, in this direction."""
        group = self.topology.group_of
        while True:
            open_links = [pair for pair in self.links if (group(pair[0]), group(pair[1])) not in closed]
            if not open_links:
                return
            self.arrive(*open_links[0])

    def retry(self, process: ProcessId, message: Message) -> None:
        self.step(process, Receive(self.client, Request(message)))

    def fire(self, process: ProcessId, name: str) -> None:
        self.timers.discard((process, name))
        self.step(process, Timer(name))

    def restart(self, process: ProcessId, is_forgetting: bool = False) -> None:
        """A process starts again, with its records or by the state of another member that is at least as far."""
        for pair in [pair for pair in self.links if process in pair]:
            del self.links[pair]
        self.timers = {timer for timer in self.timers if timer[0] != process}
        self.incarnations[process] += 1
        if is_forgetting:
            self.records[process].clear()
        self.start(process)
        for other in self.topology.servers:
            if other != process:
                self.step(other, LinkReset(process, self.incarnations[process]))

    def transfer(self, source: ProcessId, target: ProcessId) -> None:
        """A process adopts the state of another member that is ahead of it."""
        ahead = self.nodes[source].protocol.ids  # type: ignore[attr-defined]
        if len(ahead) > len(self.nodes[target].protocol.ids):  # type: ignore[attr-defined]
            self.step(target, Receive(source, Transfer(tuple(ahead))))

    # Random runs

    def run(self, messages: int, faults: bool = True) -> None:
        """A run with this many messages, which ends with every message delivered and answered."""
        random = self.random
        lead = {group: self.topology.members(group)[0] for group in self.topology.groups}
        forgetful = {group: random.choice(self.topology.members(group)) for group in self.topology.groups}
        weights = {pair: random.choice((1.0, 0.3, 0.01)) for pair in self._pairs()}
        fault_rate = random.choice((0.002, 0.01, 0.05)) if faults else 0.0
        answered = 0
        for _ in range(400 * messages):
            if random.random() < fault_rate:
                self._draw_fault(lead, forgetful)
            draw = random.random()
            if len(self.answers) > answered and len(self.messages) < messages:
                answered = len(self.answers)
                self._draw_multicast()
            elif draw < 0.1 and len(self.messages) < messages:
                self._draw_multicast()
            elif draw < 0.3:
                self._draw_order()
            elif draw < 0.5:
                self.deliver(random.choice(self.topology.servers))
            elif draw < 0.93:
                self._draw_arrival(weights)
            elif draw < 0.95 and self.messages:
                message = random.choice(list(self.messages.values()))
                self.retry(random.choice(self.topology.processes_of(message.destinations)), message)
            elif draw < 0.97 and self.timers:
                self.fire(*random.choice(sorted(self.timers)))
            if len(self.answers) == messages:
                break
        self.settle(messages)

    def _pairs(self) -> list[tuple[ProcessId, ProcessId]]:
        return [(one, other) for one in self.topology.servers for other in self.topology.servers]

    def _draw_multicast(self) -> None:
        count = self.random.choice((1, 1, 1, 2, 2, 2, 2, 3))
        self.multicast(*self.random.sample(self.topology.groups, min(count, len(self.topology.groups))))

    def _draw_order(self) -> None:
        group = self.random.choice(self.topology.groups)
        pending = self.pending[group]
        if pending:
            self.order(group, pending[-1] if self.random.random() < 0.5 else self.random.choice(pending))

    def _draw_arrival(self, weights: dict[tuple[ProcessId, ProcessId], float]) -> None:
        links = sorted(self.links)
        if links:
            pair = self.random.choice(links)
            if self.random.random() < weights[pair]:
                self.arrive(*pair)

    def _draw_fault(self, lead: dict[GroupId, ProcessId], forgetful: dict[GroupId, ProcessId]) -> None:
        random = self.random
        process = random.choice(self.topology.servers)
        home = self.nodes[process].home
        members = self.topology.members(home)
        match random.choice(("leader", "link", "restart", "forget", "save", "transfer")):
            case "leader":
                lead[home] = process
                for member in members:
                    self.step(member, Leader(home, process))
            case "link":
                other = random.choice(self.topology.servers)
                if other != process:
                    for pair in ((process, other), (other, process)):
                        self.links.pop(pair, None)
                    self.step(process, LinkReset(other, self.incarnations[other]))
                    self.step(other, LinkReset(process, self.incarnations[process]))
            case "restart":
                self.restart(process)
            case "forget" if len(members) > 1:
                self.restart(forgetful[home], is_forgetting=True)
                self.transfer(random.choice([member for member in members if member != process]), forgetful[home])
            case "save":
                self.step(process, Receive(process, Save()))
            case "transfer":
                self.transfer(random.choice(members), process)

    def settle(self, messages: int, bound: int = 200) -> None:
        """Everything that can happen does, until every message is delivered and answered, and closed everywhere."""
        for _ in range(bound):
            for group in self.topology.groups:
                while self.pending[group]:
                    assert any(self.order(group, message) for message in list(self.pending[group])), "no order is left"
            for process in self.topology.servers:
                while self.deliver(process):
                    pass
            self.arrive_all()
            if len(self.answers) == len(self.messages) and not self.list_open():
                return
            for timer in sorted(self.timers):
                self.fire(*timer)
            for message in self.messages.values():
                if message.id not in self.answers:
                    for process in self.topology.processes_of(message.destinations):
                        self.retry(process, message)
            self.arrive_all()

    # Judging

    def list_unanswered(self) -> list[MessageId]:
        return [message for message in self.messages if message not in self.answers]

    def list_open(self) -> list[ProcessId]:
        """The processes that do not know everything that their group delivered to be closed."""
        return [one for one, node in self.nodes.items() if self.closed[one] < len(self.orders[node.home])]

    def find_violation(self) -> tuple[MessageId, MessageId] | None:
        """A message that was answered, or said to be closed, and one that was multicast later and precedes it."""
        for message in self.messages:
            done = min(self.answers.get(message, self.moment), self.closings.get(message, self.moment))
            for other, multicast in self.multicasts.items():
                if multicast > done and self.precedes(self.messages[other], self.messages[message]):
                    return message, other
        return None
