"""How a process goes from number to number of its topology, and finds its way when it is behind, new or forgetful.

Whoever passes a barrier begins the next number's instance, and tells everybody (Turned). Whoever hears of a number that
it has not reached waits for its own instance to get there; if that takes long it asks its fellows (Where), and the
answer (Here) is all that it needs to begin. A process without memory does not know in which numbers it took part. It
asks that first, and begins as one without memory every number that its fellows may have begun before it came back.

`parts/membership/reconfigurable.py` says what numbers are for, and what becomes of bodies, timers, records and
deliveries.
"""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Final

from amcast.kernel.diagnostics import Phase, ProcessStatus
from amcast.kernel.events import Leader, LinkReset, Started, Suspect
from amcast.kernel.ids import GroupId, MessageId, ProcessId
from amcast.kernel.message import Body, Message, State
from amcast.kernel.process import Process
from amcast.kernel.reconfiguration import decode_topology, encode_topology
from amcast.kernel.topology import Topology
from amcast.parts.client.messages import ConfigurationStarted
from amcast.parts.membership.configuration import ConfigurationInstance, ProcessFactory
from amcast.parts.membership.messages import (
    ConfigurationInfo,
    ConfigurationRecord,
    ConfigurationStart,
    FindConfiguration,
    ReconfigurableConfig,
    ReconfigurableState,
    ResendLink,
)

TIMER: Final = "change"
NEXT: Final = -1
"""The number that comes next, whatever it is."""
REPORT: Final = -2
"""Asked for by who lost its memory: fellows say in any case which number they are in."""


class Turning(Process):
    """One server and its instances."""

    def __init__(self, me: ProcessId, topology: Topology, make: ProcessFactory, config: ReconfigurableConfig) -> None:
        super().__init__(me, topology)
        assert self.group is not None, f"process {me} is a client"
        self.home: GroupId = self.group
        self.config = config
        self.is_retired = False
        """I am no member any more, and nobody needs me."""
        self._first = topology
        """What I began with; if I join, of the number that made me a member."""
        self._make = make
        self._instances: list[ConfigurationInstance] = []
        """Oldest first; the last is the current one."""
        self._turned: dict[ProcessId, int] = {}
        """Which number each process is known to have passed into."""
        self._newest: tuple[int, bytes] = (0, b"")
        """The latest number that I heard of, and its topology."""
        self._early: list[tuple[ProcessId, int, Body, int]] = []
        """Bodies of numbers that I have not reached: sender, number, body, barrier."""
        self._lost: dict[ProcessId, int] = {}
        """Whose bodies of which number were too many to be kept."""
        self._leaders: dict[GroupId, ProcessId] = {}
        self.trusts: Callable[[ProcessId], bool] = lambda member: True
        """Whether a fellow is there, as far as the owner's oracle knows."""
        self._suspects: dict[GroupId, bool] = {}
        self._vouched: dict[ProcessId, int] = {}
        """Per client: the first message that was not delivered under earlier numbers."""
        self._incarnation = 0
        """The incarnation that I began without memory; 0 if I have it."""
        self._reported: dict[ProcessId, int] = {}
        """The number that each fellow was in when it first spoke to me in such an incarnation."""
        self._done = 0
        """Instances of numbers below this one are known to be needed by nobody."""
        self._armed = False

    @property
    def configuration(self) -> int:
        """The current number; -1 while I wait to be told."""
        return self._instances[-1].configuration if self._instances else -1

    @property
    def current(self) -> ConfigurationInstance | None:
        return self._instances[-1] if self._instances else None

    def _follow(self, topology: Topology) -> None:
        self.topology = topology
        self.group = topology.group_of(self.me)
        self._newest = max(self._newest, (topology.configuration, encode_topology(topology)))

    @abstractmethod
    def _arrive(self, sender: ProcessId, number: int, body: Body, barrier: int) -> None:
        """A body of an instance comes."""

    def _hold(self, sender: ProcessId, number: int, body: Body, barrier: int) -> None:
        """Too early. What is too much is lost, and asked for again when its number begins."""
        if self._newest[0] < number:
            self._newest = (number, b"")
        if len(self._early) < self.config.max_early_bodies:
            self._early.append((sender, number, body, barrier))
        else:
            self.note("overflow")
            if number != NEXT:  # what a client asks for it asks for again
                self._lost[sender] = max(number, self._lost.get(sender, 0))

    # From number to number

    def _forgotten(self, number: int, topology: Topology) -> int:
        """The incarnation in which a number begins for me without memory of it; 0 if I never took part in it. If I
        did, and it matters, I was in a majority of my group; so many fellows that one of them was in it, too, had
        not begun this number when my incarnation began."""
        if self._incarnation == 0:
            return 0
        members = topology.members(self.home)
        before = sum(self._reported.get(member, number) < number for member in members)
        return 0 if before > len(members) - topology.quorum(self.home) else self._incarnation

    def _enter(self, begin: ConfigurationStart, topology: Topology) -> None:
        """Begin an instance, and say so. Its record comes first: nothing is said in it before that is durable. A later
        incarnation begins where the instance does, and may not reach the end of the one before it again."""
        before = self.current
        incarnation = self._forgotten(begin.configuration, topology)
        self.persist(
            ConfigurationRecord(begin, encode_topology(before.topology) if before is not None else b"", incarnation),
            after_deliveries=True,
        )
        self._follow(topology)
        process = None if self.group is None else self._make(self.me, topology)
        instance = ConfigurationInstance(begin, topology, process, incarnation)
        instance.inbox.append(Started((), incarnation))
        for group, leader in sorted(self._leaders.items()):
            if leader in topology.members(group):
                instance.inbox.append(Leader(group, leader))
        instance.inbox += [Suspect(group, up) for group, up in sorted(self._suspects.items())]
        self._instances.append(instance)
        del self._instances[: -self.config.max_old_instances - 1]
        self._vouched = {}
        self._turned[self.me] = begin.configuration
        self.note("turned", value=float(begin.configuration))
        self._announce()
        self._catch_up(instance)

    def _announce(self) -> None:
        """Tell everybody of old and new which number I am in."""
        if self.configuration > 0:
            everybody = {process for instance in self._instances for process in instance.topology.processes}
            everybody.update(self.topology.processes)
            self.send_all(tuple(sorted(everybody - {self.me})), self.make_announcement())

    def has_old_instances(self) -> bool:
        """Whether an instance of an earlier number still runs."""
        return len(self._instances) > 1

    def make_announcement(self) -> ConfigurationStarted:
        """Which number I am in, for whoever must know."""
        return ConfigurationStarted(self.configuration, encode_topology(self.topology))

    def _catch_up(self, instance: ConfigurationInstance) -> None:
        """What came too early for this instance is in time now."""
        early, self._early = self._early, []
        for sender, number, body, barrier in early:
            self._arrive(sender, instance.configuration if number == NEXT else number, body, barrier)
        for sender in [sender for sender, number in sorted(self._lost.items()) if number <= instance.configuration]:
            del self._lost[sender]
            self.send(sender, ResendLink(instance.configuration))
            instance.inbox.append(LinkReset(sender, 0))

    def _hear_turned(self, sender: ProcessId, number: int, topology: bytes) -> None:
        self._turned[sender] = max(number, self._turned.get(sender, 0))
        if self._incarnation:
            self._reported.setdefault(sender, number)
        if (number, topology) > self._newest:
            self._newest = (number, topology)
        if self.current is None:
            new = decode_topology(topology)
            if new.group_of(sender) == self.home and new.group_of(self.me) is not None:
                self.send(sender, FindConfiguration(self.configuration, self.home))

    def _drop_old(self) -> None:
        """An instance goes when a majority of every group of a later number has begun that. It need not be the next:
        of its members some may have left since, and what they said of it was lost."""
        for later in reversed(self._instances[1:]):
            if later.configuration <= self._done or self._passed(later.configuration - 1, later.topology):
                self._done = max(self._done, later.configuration)
                break
        while len(self._instances) > 1 and self._instances[0].configuration < self._done:
            del self._instances[0]
        if len(self._instances) > 1:
            return
        current = self.current
        if current is not None and current.process is None:
            self._retire(current.configuration)

    def _retire(self, number: int) -> None:
        if not self.is_retired:
            self.is_retired = True
            self.note("retired", value=float(number))

    def _passed(self, old: int, topology: Topology) -> bool:
        """Whether majorities of a later topology are known to be beyond a number. Groups that are lost as a whole do
        not count, for protocols that survive this."""
        for group in topology.groups:
            there = sum(self._turned.get(member, 0) > old for member in topology.members(group))
            if there < topology.quorum(group) and self._suspects.get(group, True):
                return False
        return True

    # Being behind

    def _behind(self) -> bool:
        """There is a number to reach; or I was removed, and do not know yet whether somebody needs me."""
        current = self.current
        if current is None or current.skipped_barrier:
            return not self.is_retired
        if current.process is not None:
            return self._newest[0] > current.configuration
        return len(self._instances) > 1

    def _watch(self) -> None:
        if self._behind() and not self._armed:
            self._armed = True
            self.set_timer(TIMER, self.config.retry_ns)

    def _ask(self, number: int) -> None:
        """Ask everybody who may be a fellow of mine."""
        fellows = set(self.topology.members(self.home))
        if self._newest[1]:
            fellows.update(decode_topology(self._newest[1]).members(self.home))
        fellows.discard(self.me)
        if fellows:
            self.send_all(tuple(sorted(fellows)), FindConfiguration(number, self.home))

    def _answer(self, sender: ProcessId, number: int, group: GroupId) -> None:
        """Fellows that were removed are told, too: they must know that they were. And they are told of every number
        that still runs, not only of the last: their votes may be needed in any in which they are members."""
        current = self.current
        if number == REPORT and current is not None:
            self.send(sender, self.make_announcement())
        if current is None or current.configuration <= max(number, 0):
            return
        if group != self.home:
            self.send(sender, self.make_announcement())
            return
        for instance in self._instances:
            if instance.configuration > max(number, 0):
                self.send(sender, ConfigurationInfo(instance.start, self._done))

    def _hear_told(self, sender: ProcessId, begin: ConfigurationStart, done: int) -> None:
        """A fellow tells where a number begins. What my group delivered before counts as delivered here."""
        self._done = max(self._done, done)
        if begin.configuration <= self.configuration:
            return
        topology = decode_topology(begin.topology)
        current = self.current
        if current is None and topology.group_of(self.me) is None and begin.configuration > self._first.configuration:
            self._retire(
                begin.configuration
            )  # it was removed while it was away, and has no memory that somebody could need
            return
        takes_part = current is not None and current.process is not None
        if topology.group_of(sender) != self.home or not (takes_part or topology.group_of(self.me) is not None):
            return
        if begin.position > self.position:
            self.install_position(begin.position)
        self._enter(begin, topology)

    # For the node and its driver

    def has_delivered(self, message: MessageId) -> bool:
        current = self.current
        return current is not None and current.has_delivered(message)

    def has_delivered_any(self, messages: Sequence[MessageId]) -> bool:
        current = self.current
        return current is not None and current.has_delivered_any(messages)

    def reply_extra(self, message: Message) -> Body | None:
        current = self.current
        return None if current is None or current.process is None else current.process.reply_extra(message)

    def stored_message(self, message: MessageId) -> Message | None:
        for instance in reversed(self._instances):
            if instance.process is not None:
                found = instance.process.stored_message(message)
                if found is not None:
                    return found
        return None

    def status(self) -> ProcessStatus:
        current = self.current
        inner: ProcessStatus = {} if current is None or current.process is None else current.process.status()
        return {
            **inner,
            "position": self.position,
            "configuration": self.configuration,
            "instances": len(self._instances),
        }

    def explain(self, message: MessageId) -> list[Phase]:
        current = self.current
        if current is None:
            said = f"process {self.me} is new, and was not told yet where its group is"
            return [Phase("joining", False, said, self.topology.members(self.home))]
        return [] if current.process is None else current.process.explain(message)

    def contacts(self, message: Message) -> tuple[ProcessId, ...]:
        current = self.current
        return () if current is None or current.process is None else current.process.contacts(message)

    def on_request(self, message: Message) -> None:
        raise AssertionError("events go to instances")

    def on_receive(self, sender: ProcessId, body: Body) -> None:
        raise AssertionError("events go to instances")

    def snapshot(self) -> ReconfigurableState:
        return ReconfigurableState(
            self.position,
            self._incarnation,
            tuple(instance.snapshot() for instance in self._instances),
            tuple(sorted(self._turned.items())),
            tuple(self._early),
            tuple(sorted(self._lost.items())),
            tuple(sorted(self._leaders.items())),
            tuple(sorted(self._suspects.items())),
            self._newest,
            self._armed,
            self.is_retired,
            tuple(sorted(self._vouched.items())),
            tuple(sorted(self._reported.items())),
            self._done,
        )

    def restore(self, state: State) -> None:
        assert isinstance(state, ReconfigurableState)
        self.position = state.position
        self._incarnation = state.incarnation
        self._instances = [ConfigurationInstance.from_state(one, self.me, self._make) for one in state.instances]
        self._turned = dict(state.turned)
        self._early = list(state.early)
        self._lost = dict(state.lost)
        self._leaders = dict(state.leaders)
        self._suspects = dict(state.suspects)
        self._newest = state.newest
        self._armed = state.armed
        self.is_retired = state.retired
        self._vouched = dict(state.vouched)
        self._reported = dict(state.reported)
        self._done = state.done
        if self._instances:
            self.topology = self._instances[-1].topology
            self.group = self.topology.group_of(self.me)
