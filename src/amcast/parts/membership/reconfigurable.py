"""Members that change while traffic flows: for each number of the topology an instance of the protocol of its own.

    number k:    ... m1  m2  B | m3          B: a change, an ordinary message to all groups
    number k+1:                | m3 m4 ...   begins where B was delivered; m3 is asked for again

Source: Lamport, Malkhi, Zhou, "Stoppable Paxos" (2008) and "Reconfiguring a state machine" (2010): stop one machine by
a last command, start the next. Here the machine is any protocol of the catalogue and the last command a multicast.

What an instance delivers after the first valid change, its barrier, is discarded. All processes agree what that is,
because the barrier goes to all groups and the instance orders everything (docs/membership.md has the proof). Sessions
ask again for what was not delivered; what was is known under the next number (`Begin.seen`) and never enters it. So
quorums of different numbers never meet.

Bodies, timers and records of number 0 are bare, so that a cluster that never changes pays for nothing; those of later
numbers say which they belong to. A body of a number that is not reached yet waits; an earlier instance goes on until a
majority of every group of the next number has begun that. From then on every fellow that is behind finds one who tells
it where the next number begins (Begin). So does a new member: it begins with the others, not in the middle.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from amcast.kernel.bundle import is_bundle
from amcast.kernel.effects import CancelTimer, Deliver, Effect, Note, Persist, Send, SetTimer
from amcast.kernel.events import Event, Leader, LinkReset, PeerDown, Receive, Started, Submit, Suspect, Timer
from amcast.kernel.ids import GroupId, ProcessId
from amcast.kernel.message import Body, Record, Reply, Request, State
from amcast.kernel.process import Process
from amcast.kernel.reconfiguration import CHANGE_PREFIX, encode_topology, is_change, parse_change
from amcast.kernel.spec import Spec
from amcast.kernel.topology import Topology
from amcast.parts.client.messages import ConfigurationStarted
from amcast.parts.membership.configuration import NUMBER, ConfigurationInstance, ProcessFactory, recover_instances
from amcast.parts.membership.messages import (
    BODIES,
    CheckDelivered,
    ConfigurationBody,
    ConfigurationInfo,
    ConfigurationRecord,
    ConfigurationStart,
    FindConfiguration,
    JoinRecord,
    ReconfigurableConfig,
    ReconfigurableState,
    ResendLink,
    SkippedBarrier,
    configuration_body,
    instance_record,
)
from amcast.parts.membership.turning import REPORT, TIMER
from amcast.parts.membership.vouching import Vouching
from amcast.parts.ordering.delivered_set import DeliveredSet

UNHURRIED: Final = ReconfigurableConfig()


class Reconfigurable(Vouching):
    """One server, whatever the number. A topology of a number above 0 makes one that joins."""

    def __init__(
        self,
        me: ProcessId,
        topology: Topology,
        make: ProcessFactory,
        config: ReconfigurableConfig,
        bodies: tuple[type[Body], ...],
        records: tuple[type[Record], ...] = (),
    ) -> None:
        super().__init__(me, topology, make, config, bodies)
        self._kept = instance_record(records)
        self.membership_bodies: frozenset[type[Body]] = frozenset(
            {self._numbered, ConfigurationStarted, FindConfiguration, ConfigurationInfo, ResendLink}
        )
        """Bodies that concern numbers."""
        self._starting = False
        self._plain: Process | None = None
        """The protocol's process, while number 0 is all there is and nothing of it needs a look."""
        self._place = 0
        """Its position, after its last step."""
        self.is_idle = False
        """In the last brisk step nothing was delivered, for certain, and no state was taken over."""

    # Steps

    def step(self, events: Sequence[Event], now: int) -> list[Effect]:
        self.now = now
        for event in events:
            self._route(event)
        return self._ran()

    def fast_step(self, events: Sequence[Event], now: int) -> list[Effect]:
        """A step without anything that concerns numbers: only bodies of the protocol, and what users multicast.
        While number 0 is all there is, the protocol may have it at once."""
        process = self._plain
        if process is None:
            self.is_idle = False
            return self.step(events, now)
        self.now = now
        effects = process.step(events, now)
        self.is_idle = process.position == self._place
        if self.is_idle:
            return effects
        self._place = process.position
        only = self._instances[0]
        if self._harmless(effects, only):
            return effects
        self._pass(only, effects)
        return self._ran()

    def _ran(self) -> list[Effect]:
        self._run()
        self._plain = None
        if len(self._instances) == 1:
            only = self._instances[0]
            bare = (
                only.configuration == 0
                and only.own_deliveries is None
                and not only.skipped_barrier
                and only.barrier < 0
            )
            if bare and only.process is not None and not only.process.sends_replies:
                self._plain, self._place = only.process, only.process.position
        effects = self._outbox
        self._outbox = []
        return effects

    def _harmless(self, effects: list[Effect], only: ConfigurationInstance) -> bool:
        """Nothing that a number must look at."""
        groups = len(only.topology.groups)
        for effect in effects:
            kind = type(effect)
            if kind is Deliver:
                message = effect.message  # type: ignore[attr-defined]
                # (`in` would raise and forget an error first: it takes bytes for a number.)
                if len(message.destinations) == groups and message.payload.find(CHANGE_PREFIX) >= 0:
                    return False  # perhaps; in a bundle, the change is somewhere inside
                count = effect.message_count  # type: ignore[attr-defined]
                self.position = effect.position + (1 if count < 0 else count)  # type: ignore[attr-defined]
            elif kind is Note and effect.name == "installed":  # type: ignore[attr-defined]
                return False
        return True

    def _run(self) -> None:
        """Let every instance take what came for it; the last of them may begin another."""
        place = 0
        while place < len(self._instances):
            instance = self._instances[place]
            place += 1
            if self._starting and instance.start.position > self.position and place == len(self._instances):
                # The record of the barrier can survive a crash that the deliveries before it did not.
                self.install_position(instance.start.position)
            if instance.inbox and instance.process is not None:
                inbox, instance.inbox = instance.inbox, []
                self._pass(instance, instance.process.step(inbox, self.now))
        if self._starting:
            self._starting = False
            self._announce()
        self._drop_old()
        self._watch()

    # Events

    def _route(self, event: Event) -> None:
        match event:
            case Receive(sender, body):
                self._receive(sender, body)
            case Submit(message):
                self._multicast(message)
            case Timer(name):
                self._tick(name)
            case Leader(group, leader):
                self._leaders[group] = leader
                for instance in self._instances:
                    instance.inbox.append(Leader(group, self._heir(instance, group, leader)))
            case Suspect(group, up):
                self._suspects[group] = up
                for instance in self._instances:
                    instance.inbox.append(event)
            case LinkReset(peer):
                self._meet(peer, event)
            case PeerDown():
                for instance in self._instances:
                    instance.inbox.append(event)
            case Started(records, incarnation):
                self._start(records, incarnation)
            case _:
                raise AssertionError(f"no process knows the event {event!r}")

    def _heir(self, instance: ConfigurationInstance, group: GroupId, leader: ProcessId) -> ProcessId:
        """A new member cannot lead an old instance: there the first does of those that stayed and are trusted."""
        members = instance.topology.members(group)
        if leader in members:
            return leader
        stayed = [member for member in members if member in self.topology.members(group)]
        return next((member for member in stayed if self.trusts(member)), stayed[0] if stayed else leader)

    def _start(self, records: Sequence[Record], incarnation: int) -> None:
        """Go on with what records tell; without any, begin number 0, or ask where the current number begins."""
        self._incarnation = 0
        self._starting = True
        first = self._first
        self._instances = recover_instances(
            records, incarnation, self.me, first, self._make, self.config.max_old_instances
        )
        if self._instances:
            self._follow(self._instances[-1].topology)
            self._turned[self.me] = self.configuration
        elif first.configuration == 0:
            self._incarnation = incarnation
            instance = ConfigurationInstance(
                ConfigurationStart(0, encode_topology(first)), first, self._make(self.me, first), incarnation
            )
            instance.inbox.append(Started((), incarnation))
            self._instances = [instance]
            if incarnation > 0:
                self._ask(REPORT)
        elif incarnation > 0 and not records:
            self._incarnation = incarnation
            self._ask(REPORT)
        else:
            self.persist(JoinRecord())
            self._ask(self.configuration)

    def _meet(self, peer: ProcessId, event: Event) -> None:
        """What it said too early in its last incarnation was not said: it may have forgotten that it did."""
        self._early = [early for early in self._early if early[0] != peer]
        if self.configuration > 0:
            self.send(peer, self.make_announcement())
        for instance in self._instances:
            if peer in instance.topology.processes:
                instance.inbox.append(event)

    def _receive(self, sender: ProcessId, body: Body) -> None:
        match body:
            case ConfigurationBody(number, inner, barrier):
                self._arrive(sender, number, inner, barrier)
            case ConfigurationStarted(number, topology):
                self._hear_turned(sender, number, topology)
            case FindConfiguration(number, group):
                self._answer(sender, number, group)
            case ConfigurationInfo(begin, done):
                self._hear_told(sender, begin, done)
            case ResendLink(number):
                for instance in self._instances:
                    if instance.configuration == number:
                        instance.inbox.append(LinkReset(sender, 0))
            case Request(message):
                self._submit(sender, message)
            case _:
                self._arrive(sender, 0, body, -1)

    def _arrive(self, sender: ProcessId, number: int, body: Body, barrier: int) -> None:
        """A body of an instance: this one's, a later one's, or one that is gone."""
        if number > self.configuration:
            self._hold(sender, number, body, barrier)
            return
        for instance in self._instances:
            if instance.configuration == number:
                break
        else:
            return
        if barrier >= 0 and instance.barrier < 0 and instance.topology.group_of(sender) == self.home:
            instance.barrier = barrier
        kind = type(body)
        if instance is self._instances[-1] and (kind is Request or kind is CheckDelivered):
            self._asked(sender, instance, body)
        elif kind is not CheckDelivered:
            instance.inbox.append(Receive(sender, body))

    def _tick(self, name: str) -> None:
        if name == TIMER:
            self._armed = False
            if self._behind():
                self._ask(REPORT if self._incarnation else self.configuration if self.group is not None else 0)
            return
        number = 0
        if name.startswith(NUMBER):
            digits, _, name = name.removeprefix(NUMBER).partition(":")
            number = int(digits)
        for instance in self._instances:
            if instance.configuration == number:
                instance.inbox.append(Timer(name))

    # What instances ask for

    def _pass(self, instance: ConfigurationInstance, effects: list[Effect]) -> None:
        if instance is self.current and not instance.skipped_barrier and instance.barrier >= 0:
            self._look_ahead(instance, effects)
        for place, effect in enumerate(effects):
            match effect:
                case Send(targets, body, about, later):
                    if type(body) is not Reply:  # the node answers for what is delivered, and for nothing else
                        self._say(instance, targets, body, about, later)
                case Deliver():
                    self._hand(instance, effect, effects[place + 1 :])
                case Persist(record, replaces, ends):
                    self._persist(instance, record, replaces, ends)
                case SetTimer(name, low, high):
                    self._outbox.append(SetTimer(instance.timer_name(name), low, high))
                case CancelTimer(name):
                    self._outbox.append(CancelTimer(instance.timer_name(name)))
                case Note("installed", _, value):
                    if instance is self.current and not instance.skipped_barrier and value is not None:
                        self.install_position(instance.start.position + int(value))
                case _:
                    self._outbox.append(effect)

    def _look_ahead(self, instance: ConfigurationInstance, effects: list[Effect]) -> None:
        """A fellow's state that lies beyond the barrier hides where it was. That must be durable first."""
        for effect in effects:
            if type(effect) is not Note or effect.name != "installed" or effect.value is None:
                continue
            if instance.start.position + int(effect.value) >= instance.barrier:
                instance.skipped_barrier = True
                self.note("overtaken", value=float(instance.configuration))
                self.persist(SkippedBarrier(instance.configuration))
                return

    def _persist(self, instance: ConfigurationInstance, record: Record, replaces: bool, ends: bool) -> None:
        """A record that replaces all others may do so only while there is one instance. Else it replaces those of its
        instance, whose deliveries they will not tell again."""
        alone = len(self._instances) == 1 and not instance.skipped_barrier
        if instance.configuration == 0 and alone:
            self._outbox.append(Persist(record, replaces, ends))
        elif alone and replaces:
            self._outbox.append(Persist(self._kept(instance.configuration, True, record, instance.start), True, ends))
        else:
            self._outbox.append(
                Persist(self._kept(instance.configuration, replaces, record), after_deliveries=replaces or ends)
            )

    # Delivering

    def _hand(self, instance: ConfigurationInstance, effect: Deliver, later: list[Effect]) -> None:
        begin = instance.start
        if instance is not self._instances[-1]:
            # After the barrier; unless a process that starts again repeats what lies before it.
            end = self._instances[self._instances.index(instance) + 1].start.position
            for one in effect.expand() if self._starting else ():
                if begin.position + one.position < end:
                    self._emit(instance, one)
            return
        if instance.skipped_barrier:
            return
        if len(effect.message.destinations) == len(instance.topology.groups):
            for place, part in enumerate(effect.messages()):
                if is_change(part):
                    topology = parse_change(instance.topology, part)
                    if topology is not None:
                        self._turn(instance, effect, place, topology, later)
                        return
                    self.note("stale", part.id)
        self._emit(instance, effect)

    def _emit(self, instance: ConfigurationInstance, effect: Deliver) -> None:
        begin = instance.start
        count = effect.message_count
        position = begin.position + effect.position
        self.position = position + (1 if count < 0 else count)
        if instance.own_deliveries is not None:
            instance.own_deliveries.add(effect.message.id)
            instance.own_deliveries.add_all(effect.messages() if count > 0 else ())
        if begin.configuration == 0:
            self._outbox.append(effect)
            return
        rank = None if effect.rank_time is None else begin.rank + effect.rank_time
        self._outbox.append(
            Deliver(
                effect.message, position, rank, effect.rank_tie, effect.committed_ns, count, effect.duplicate_places,
                effect.ordered_elsewhere, effect.ordered_here,
            )
        )  # fmt: skip

    def _turn(
        self, instance: ConfigurationInstance, effect: Deliver, place: int, topology: Topology, later: list[Effect]
    ) -> None:
        """The barrier, at a place in a delivery: what is before it counts, what is behind it does not."""
        begin = instance.start
        for one in effect.expand()[: place + 1]:
            self._emit(instance, one)
        seen = DeliveredSet()
        seen.restore(begin.delivered)
        process = instance.process
        assert process is not None
        known = (
            process.delivered_set(effect.message.id)
            if instance.own_deliveries is None
            else instance.own_deliveries.snapshot()
        )
        assert known is not None
        seen.merge(known)  # type: ignore[arg-type]
        discarded = [part.id for part in effect.messages()[place + 1 :]]
        if effect.message_count >= 0:
            discarded.append(effect.message.id)
        for other in later:
            if type(other) is Deliver:
                discarded += [other.message.id, *(part.id for part in other.messages())]
        for id in discarded:
            seen.forget(id)
        rank = begin.rank if effect.rank_time is None else begin.rank + effect.rank_time + 1
        position = begin.position + effect.position + place + 1
        self._enter(
            ConfigurationStart(begin.configuration + 1, encode_topology(topology), position, rank, seen.snapshot()),
            topology,
        )

    def restore(self, state: State) -> None:
        super().restore(state)
        self._plain = None

    def tag_bundles(self, effects: list[Effect]) -> list[Effect]:
        """What my gateway asks for: bundles are of one number. Before I am told mine, I ask nobody."""
        number = self.configuration
        if number == 0:
            return effects
        told: list[Effect] = []
        for effect in effects:
            if type(effect) is Send and type(effect.body) is Request and is_bundle(effect.body.message.id):
                if number < 0:
                    continue
                effect = Send(effect.targets, self._numbered(number, effect.body), effect.about)
            told.append(effect)
        return told


def reconfigurable(spec: Spec, change: ReconfigurableConfig = UNHURRIED) -> Spec:
    """The same protocol with members that can change, to be run in nodes."""

    def make(me: ProcessId, topology: Topology, config: Any) -> Process:
        def inner(me: ProcessId, topology: Topology) -> Process:
            return spec.process(me, topology, config)

        return Reconfigurable(me, topology, inner, change, spec.bodies, spec.records)

    return replace(
        spec,
        process=make,
        bodies=(*spec.bodies, *BODIES, configuration_body(spec.bodies)),
        records=(*spec.records, ConfigurationRecord, JoinRecord, SkippedBarrier, instance_record(spec.records)),
        states=(*spec.states, ReconfigurableState),
    )
