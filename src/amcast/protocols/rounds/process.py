"""Rounds: what A_ng and A_dt share. Groups order their own messages, and swap bundles of them now and then.

Source: paper 001, algorithm A_ng (section 4), kappa and eta (section 5).

A group's log is an endless sequence of instances, numbered 1, 2, 3 ...; each decides a set of messages, maybe none.
Local messages are delivered with their instance. Global ones are collected: instances ((r-1)eta, r*eta] make up the
group's bundle of round r. A round's global messages, which are those of all groups' bundles, are delivered at every
destination right after its instance r*eta + kappa, in the order of their ids. So all destinations place a global
message between the same rounds, and all members of a group between the same local messages:

    instance   1    2    3    4    5    6    7 ...     eta = 2, kappa = 3
    bundle     `--1--'   `--2--'   `--3--'
    deliver                         1         2        locals of instance 5, then round 1, then locals of instance 6

The wait for a round's bundles stops the instances behind it and nothing else; kappa instances fit between.

When an instance is proposed (the paper: at once, for ever): a leader proposes when messages wait, when a known round
with messages needs instances in order to be delivered, or after `idle_ns` without either, so that other groups never
wait for a group that has nothing to say; at most every `pace_ns`. A group that hears of a round which it has not
reached catches up at once, with empty instances. Nothing is proposed behind a round that is not delivered: this is
what keeps groups within kappa/eta + 1 rounds of each other, and memory small.

What is delivered follows from the log and the bundles alone. So a member that restarts plays both again; a member that
cannot get old bundles any more takes over the state of a fellow that is further.
"""

from abc import abstractmethod
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from amcast.kernel.diagnostics import Phase, ProcessStatus
from amcast.kernel.effects import About
from amcast.kernel.ids import GroupId, MessageId, ProcessId
from amcast.kernel.message import Body, Message, Record, Request, State
from amcast.kernel.process import Process
from amcast.kernel.topology import Topology
from amcast.parts.consensus import paxos
from amcast.parts.consensus.log import Decided
from amcast.parts.consensus.messages import CheckpointReady, Entry, Value
from amcast.parts.consensus.paxos import Paxos
from amcast.parts.ordering.delivered_set import DeliveredSet
from amcast.protocols.rounds.messages import Messages, RoundsConfig, RoundsCore, RoundsState

ROUND: Final = "round"
RETRY: Final = "retry"
AT_ONCE: Final = 64
"""How many messages are forwarded, or bundles told again, at a time."""


class RoundGroup(Process):
    """A member of a group. Subclasses say how bundles get from group to group."""

    def __init__(self, me: ProcessId, topology: Topology, config: RoundsConfig) -> None:
        super().__init__(me, topology)
        assert self.group is not None, f"process {me} is in no group"
        self.home: GroupId = self.group
        self._config = config
        self._fellows = tuple(member for member in topology.members(self.home) if member != me)
        self._others = tuple(group for group in topology.groups if group != self.home)
        self._paxos = Paxos(self, topology.members(self.home), config)
        self._instance = 0
        """How many instances of the log were applied."""
        self._round = 0
        """How many rounds were delivered; never more than the applied instances allow."""
        self._open: list[Message] = []
        """Global messages of the bundle that is being filled."""
        self._own: dict[int, Messages] = {}
        """Bundles of my group that somebody may still need."""
        self._ordered = DeliveredSet()
        """What the log has."""
        self._delivered = DeliveredSet()
        self._queue: deque[tuple[Value, int]] = deque()
        """Decided and since when, not applied; the first is number `_instance` of the log, counted from 0."""
        self._waiting: dict[MessageId, Message] = {}
        """What clients asked for and the log does not have."""
        self._old: set[MessageId] = set()
        """Those that waited already when the timer was set."""
        self._fresh: dict[MessageId, None] = {}
        """Those that I have not proposed, in the order in which they came."""
        self._held: dict[MessageId, int] = {}
        """Fresh ones that could not be proposed because of a round, and since when."""
        self._led = 0
        """The ballot for which I took over."""
        self._tick = False
        """The round's timer ran out in this step."""
        self._last_ns = 0
        """When I proposed last."""
        self._armed = ""
        """What the round's timer waits for: "pace", "idle" or nothing."""
        self._stuck = (0, 0)
        """The round that was due and incomplete when the retry timer last ran out, and how often in a row."""
        self._retrying = False

    # What protocols say

    @abstractmethod
    def _contents(self, round: int) -> Iterable[Message] | None:
        """The messages of all bundles of a round; None while some are missing."""

    @abstractmethod
    def _close(self, round: int, messages: Messages) -> None:
        """My group's bundle of a round is known."""

    @abstractmethod
    def _ahead(self) -> int:
        """The latest round that another group is known to have reached."""

    @abstractmethod
    def _lively(self) -> int:
        """The latest round that is known to have messages for my group; 0 if none is."""

    @abstractmethod
    def _ask(self, round: int, times: int) -> None:
        """A round has been due and incomplete for long, and this is not the first time that we ask."""

    @abstractmethod
    def _lacking(self, round: int) -> tuple[GroupId, ...]:
        """Groups whose bundle of a round is missing here."""

    @abstractmethod
    def _round_of(self, message: MessageId) -> int:
        """The round of a bundle that has a message; 0 if none has that is here."""

    def _past(self, round: int) -> None:
        """A round was delivered."""

    def _take_over(self) -> None:
        """I lead now."""

    def _accepts(self, message: Message) -> bool:
        """Whether my group orders this message for its sender."""
        return self.group == self.topology.group_of(contact(self.topology, message)[0])

    def _admits(self, message: Message) -> bool:
        """Whether a message that the log has is new to it."""
        return self._ordered.add(message.id)

    # Events

    def contacts(self, message: Message) -> tuple[ProcessId, ...]:
        return contact(self.topology, message)

    def has_delivered(self, message: MessageId) -> bool:
        return message in self._delivered

    def delivered_set(self, until: MessageId) -> tuple[State, ...]:
        return self._delivered.snapshot()

    def on_start(self, records: Sequence[Record], incarnation: int) -> None:
        self._apply(self._paxos.begin(records, incarnation))

    def on_request(self, message: Message) -> None:
        id = message.id
        if id not in self._waiting and id not in self._ordered and self._accepts(message):
            self._await(message)

    def _await(self, message: Message) -> None:
        self._waiting[message.id] = message
        self._fresh[message.id] = None

    def on_receive(self, sender: ProcessId, body: Body) -> None:
        self._apply(self._paxos.receive(sender, body))
        if type(body) is CheckpointReady:
            self._kept()

    def _kept(self) -> None:
        """What I am is durable."""

    def on_leader(self, group: GroupId, leader: ProcessId) -> None:
        if group == self.home and leader in self._paxos.members:
            self._paxos.handle_leader(leader)

    def on_link_reset(self, peer: ProcessId, incarnation: int) -> None:
        self._paxos.handle_link_reset(peer)

    def on_timer(self, name: str) -> None:
        if name == paxos.TIMER:
            self._paxos.handle_timeout()
        elif name == ROUND:
            self._armed = ""
            self._tick = True
        else:
            self._retrying = False
            self._forward()
            due = self._due()
            self._stuck = (due, self._stuck[1] + 1 if due == self._stuck[0] else 0)
            if due and self._stuck[1]:
                self.note("asked", value=float(due))
                self._ask(due, self._stuck[1])

    def on_step_end(self) -> None:
        if self._paxos.can_propose():
            self._drive()
        elif self._armed:
            self._armed = ""
            self.cancel_timer(ROUND)
        self._tick = False
        self._paxos.flush()
        if self._settled() and self._paxos.needs_checkpoint():
            self._paxos.checkpoint(msgspec.msgpack.encode(self._core()))
        waits = bool(self._waiting) or self._due() > 0
        if waits != self._retrying:
            self._retrying = waits
            if waits:
                self.set_timer(RETRY, self._config.retry_ns)
            else:
                self.cancel_timer(RETRY)

    def _forward(self) -> None:
        leader = self._paxos.suggested_leader
        if leader != self.me:
            for id in [id for id in self._waiting if id in self._old][:AT_ONCE]:
                self.send(leader, Request(self._waiting[id]), id)
        self._old = set(self._waiting)

    # Proposing

    def _drive(self) -> None:
        """Propose what there is a reason for, and see to it that the next instance comes in time."""
        if self._led != self._paxos.ballot:
            self._led = self._paxos.ballot
            self._fresh = dict.fromkeys(self._waiting)
            self._held = {}
            self._take_over()
        self._last_ns = min(self._last_ns, self.now)
        while self._may_propose():
            behind = self._paxos.next_instance < self._ahead() * self._config.eta
            if behind:
                self.note("hurried")
            elif not self._tick and not (self._reason() and self.now - self._last_ns >= self._config.pace_ns):
                break
            self._tick = False
            self._propose()
        self._arm()

    def _may_propose(self) -> bool:
        """Every round that is delivered before the next instance was delivered here."""
        return self._paxos.next_instance < (self._round + 1) * self._config.eta + self._config.kappa

    def _reason(self) -> bool:
        if self._fresh:
            return True
        eta, kappa = self._config.eta, self._config.kappa
        lively = self._instance // eta + 1 if self._open else self._lively()
        return lively > 0 and self._paxos.next_instance < lively * eta + kappa

    def _propose(self) -> None:
        value = tuple(Entry(0, id, timestamp=self._kept_back(id), message=self._waiting[id]) for id in self._fresh)
        self._fresh = {}
        self._last_ns = self.now
        self._armed = ""
        self._paxos.propose(value)

    def _kept_back(self, id: MessageId) -> int:
        """For how long rounds with messages for us kept this one from being proposed; its entry tells all members."""
        return max(0, self.last_global_ns - self._held.pop(id, self.now))

    def _arm(self) -> None:
        if not self._may_propose():
            for id in self._fresh:
                self._held.setdefault(id, self.now)
            if self._armed:
                self._armed = ""
                self.cancel_timer(ROUND)
        elif self._reason():
            if self._armed != "pace":
                self._armed = "pace"
                left = max(0, self._last_ns + self._config.pace_ns - self.now)
                self.set_timer(ROUND, (left, left))
        elif not self._armed:
            self._armed = "idle"
            self.set_timer(ROUND, self._config.idle_ns)

    # The log and the rounds

    def _apply(self, decided: Decided) -> None:
        for instance, value in decided:
            if type(value) is bytes:
                self._install(value)
            elif instance >= self._instance + len(self._queue):
                self._queue.append((value, self.now))  # type: ignore[arg-type]
        self._advance()

    def _due(self) -> int:
        """The round that must be delivered before anything else; 0 if none must."""
        next = self._round + 1
        return next if next * self._config.eta + self._config.kappa <= self._instance else 0

    def _settled(self) -> bool:
        """Everything decided is applied: my state is the state at the log's end."""
        return not self._queue and not self._due() and self._instance == self._paxos.log.decided_until

    def _advance(self) -> None:
        while True:
            due = self._due()
            if due:
                contents = self._contents(due)
                if contents is None:
                    return
                self._deliver_round(due, contents)
            elif self._queue:
                self._order(self._queue.popleft())
            else:
                return

    def _order(self, decided: tuple[Value, int]) -> None:
        """The next instance of the log."""
        local: list[tuple[Message, int]] = []
        for entry in decided[0]:
            message = entry.message
            assert message is not None
            self._have_it(message.id)
            if not self._admits(message):
                self.note("repeated", message.id)
            elif len(message.destinations) == 1:
                local.append((message, entry.timestamp))
            else:
                self._open.append(message)
        self._instance += 1
        self._hand_up(local, 2 * self._instance, decided[1])
        if self._instance % self._config.eta == 0:
            bundle, self._open = tuple(self._open), []
            self._close(self._instance // self._config.eta, bundle)

    def _have_it(self, id: MessageId) -> None:
        """The log has a message that may have waited for that."""
        if self._waiting.pop(id, None) is not None:
            self._fresh.pop(id, None)
            self._held.pop(id, None)

    def _deliver_round(self, round: int, contents: Iterable[Message]) -> None:
        self._round = round
        mine = [(message, 0) for message in contents if self.home in message.destinations]
        self._hand_up(mine, 2 * (round * self._config.eta + self._config.kappa) + 1)
        self._past(round)

    def _hand_up(self, messages: list[tuple[Message, int]], rank: int, committed_ns: int | None = None) -> None:
        """Even ranks are instances, odd ones the rounds behind them. With each message how long it was kept back."""
        for message, held_ns in sorted(messages, key=lambda pair: pair[0].id):
            if self._delivered.add(message.id):
                self.deliver(message, rank, message.id, committed_ns, held_ns)
            else:
                self.note("doubled", message.id)

    # For operators

    def status(self) -> ProcessStatus:
        return {
            "position": self.position,
            "role": self._paxos.role,
            "pending": len(self._waiting) + sum(len(value) for value, _ in self._queue) + len(self._open),
            "round": self._round,
            "instance": self._instance,
            "joined": int(self._paxos.has_joined()),
        }

    def explain(self, message: MessageId) -> list[Phase]:
        if message in self._delivered:
            return [Phase("delivered", True, f"process {self.me} has delivered it")]
        if message in self._waiting:
            text = Phase("text", True, f"the message is here, for groups {list(self._waiting[message].destinations)}")
            return [text, Phase("ordered", False, f"the log of group {self.home} does not have it", self._fellows)]
        if any(entry.id == message for value, _ in self._queue for entry in value):
            ordered = Phase("ordered", True, f"the log of group {self.home} has it, behind round {self._round + 1}")
            return [ordered, self._told_round(self._round + 1)]
        if any(open.id == message for open in self._open):
            said = f"it is for the bundle of round {self._instance // self._config.eta + 1}, which is not full"
            return [Phase("bundled", False, said, self._fellows)]
        round = self._round_of(message)
        if not round:
            return [Phase("text", False, f"process {self.me} does not know of it")]
        return [Phase("bundled", True, f"it is in a bundle of round {round}"), self._told_round(round)]

    def _told_round(self, last: int) -> Phase:
        """What the rounds wait for up to one."""
        for round in range(self._round + 1, last + 1):
            groups = self._lacking(round)
            if groups:
                said = f"bundles of round {round} are missing, of groups {list(groups)}"
                return Phase("swapped", False, said, self.topology.processes_of(groups))
        after = last * self._config.eta + self._config.kappa
        said = f"it is delivered after instance {after}; the log of group {self.home} is at {self._instance}"
        return Phase("reached", False, said, self._fellows)

    # Snapshots

    def _core(self) -> RoundsCore:
        return RoundsCore(
            self.position,
            self._instance,
            self._round,
            tuple(self._open),
            tuple(sorted(self._own.items())),
            self._ordered.snapshot(),
            self._delivered.snapshot(),
        )

    def _become(self, core: RoundsCore) -> None:
        self._instance = core.instance
        self._round = core.round
        self._open = list(core.open)
        self._own = dict(core.own)
        self._ordered.restore(core.ordered)
        self._delivered.restore(core.delivered)

    def _kept_round(self) -> int:
        """The last round that is delivered in the state with which my log begins: I would come back there."""
        return max(0, self._paxos.log.checkpoint_end - self._config.kappa) // self._config.eta

    def _install(self, state: bytes) -> None:
        """Go on from a fellow's state (or from my own of an earlier incarnation), if it is further."""
        core = msgspec.msgpack.decode(state, type=RoundsCore)
        if core.instance <= self._instance and core.round <= self._round:
            return
        for _ in range(min(len(self._queue), core.instance - self._instance)):
            self._queue.popleft()
        self._become(core)
        for id in [id for id in self._waiting if id in self._ordered]:
            self._have_it(id)
        self.install_position(core.position)

    def _base(self) -> RoundsState:
        return RoundsState(
            self._core(),
            self._paxos.snapshot(),
            tuple(self._queue),
            tuple(self._waiting.values()),
            tuple(sorted(self._old)),
            tuple(self._fresh),
            tuple(sorted(self._held.items())),
            self._led,
            self._last_ns,
            self._armed,
            self._stuck,
            self._retrying,
        )

    def _rebase(self, state: RoundsState) -> None:
        self._become(state.core)
        self.position = state.core.position
        self._paxos.restore(state.paxos)
        self._queue = deque(state.queue)
        self._waiting = {message.id: message for message in state.waiting}
        self._old = set(state.old)
        self._fresh = dict.fromkeys(state.fresh)
        self._held = dict(state.held)
        self._led = state.led
        self._last_ns = state.last_ns
        self._armed = state.armed
        self._stuck = state.stuck
        self._retrying = state.retrying


def about(messages: Iterable[Message]) -> About:
    """The ids of some messages."""
    ids = tuple(message.id for message in messages)
    return ids[0] if len(ids) == 1 else ids or None


def contact(topology: Topology, message: Message) -> tuple[ProcessId, ...]:
    """The members of one destination: the sender's own group, or one in the sender's region, or the first."""
    destinations = message.destinations
    home = topology.group_of(message.sender)
    if home in destinations and home is not None:
        return topology.members(home)
    region = topology.region(message.sender)
    for group in destinations:
        if topology.region(topology.members(group)[0]) == region:
            return topology.members(group)
    return topology.members(destinations[0])
