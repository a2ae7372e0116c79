"""Groups whose members change while traffic flows: every configuration runs its own instance of the protocol.

    configuration k:    ... m1  m2  B | m3          B: a change, an ordinary message to all groups
    configuration k+1:                | m3 m4 ...   starts where B was delivered; m3 is requested again

Source: Lamport, Malkhi, Zhou, "Stoppable Paxos" (2008) and "Reconfiguring a state machine" (2010): stop one state
machine with a last command, and start the next one. Here the machine is any protocol of the catalogue, and the last
command is a multicast.

The first valid change that an instance delivers is its barrier; deliveries after it are discarded. All processes agree
on what these are, because the barrier is addressed to all groups and the instance orders everything (docs/membership.md
has the proof). Sessions request again what was not delivered. What was delivered is part of the start of the next
configuration (`ConfigurationStart.delivered`) and never enters it. So quorums of different configurations never meet.

    member that has passed B        member that lags behind, or joins
      |--ConfigurationStarted------------>|    announces its configuration
      |<-FindConfiguration----------------|    if its own instance does not get there in time
      |--ConfigurationInfo--------------->|    the start of each configuration that still runs

A member that installs, within the old instance, a state from beyond B no longer knows what was before it. Members that
have passed B therefore send the start of the next configuration ahead to their group (an offer), and the member starts
that configuration in the same step.

Bodies, timers and records of configuration 0 are bare, so that a cluster that never changes pays for nothing; those of
later configurations carry their configuration. A body of a configuration that is not reached yet is held back. An
earlier instance runs on until a majority of every group of a later configuration has started that one: from then on,
every member that lags behind finds another that knows the start of a later configuration. A new member starts with
the others, at the beginning of a configuration.

A process without memory does not know in which configurations it took part. It starts every configuration as a process
without memory, until its group has delivered a message that is newer than the loss (`memory_doubt.py` has the proof).

A client may request a message that an earlier configuration has delivered, and that must not be ordered again. A
destination knows what its group delivered. A contact outside the destinations asks one of them (CheckDelivered), unless
the sender's sequence numbers show that the message is newer than the configuration.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from amcast.kernel.bundle import gateway_process, is_bundle
from amcast.kernel.diagnostics import Phase, ProcessStatus
from amcast.kernel.effects import About, CancelTimer, Deliver, Effect, Note, Persist, Send, SetTimer
from amcast.kernel.events import Event, Leader, LinkReset, PeerDown, Receive, Started, Submit, Suspect, Timer
from amcast.kernel.ids import GroupId, MessageId, ProcessId
from amcast.kernel.message import Body, Message, Record, Reply, Request, State
from amcast.kernel.process import Accepted, Process
from amcast.kernel.reconfiguration import (
    CHANGE_PREFIX,
    decode_topology,
    encode_topology,
    is_change,
    is_marker,
    parse_change,
)
from amcast.kernel.spec import Spec
from amcast.kernel.topology import Topology
from amcast.parts.client.messages import ConfigurationStarted
from amcast.parts.membership.configuration import (
    TIMER_PREFIX,
    ConfigurationInstance,
    ProcessFactory,
    find_recorded_topology,
    recover_instances,
)
from amcast.parts.membership.early_bodies import NEXT_CONFIGURATION, EarlyBodies
from amcast.parts.membership.memory_doubt import MemoryDoubt
from amcast.parts.membership.messages import (
    MEMBERSHIP_BODIES,
    CheckDelivered,
    ConfigurationBody,
    ConfigurationInfo,
    ConfigurationRecord,
    ConfigurationStart,
    DoubtEnded,
    FindConfiguration,
    JoinRecord,
    ReconfigurableConfig,
    ReconfigurableState,
    ResendLink,
    SkippedBarrier,
    make_body_type,
    make_record_type,
)
from amcast.parts.membership.peer_configurations import PeerConfigurations
from amcast.parts.ordering.delivered_set import DeliveredSet

DEFAULT_CONFIG: Final = ReconfigurableConfig()
RETRY_TIMER: Final = "change"
REPORT: Final = -2
"""The configuration in a FindConfiguration of a process without memory, or that was removed: others always reply with
their own."""


class Reconfigurable(Process):
    """One server across configurations. If its first topology has a configuration above 0, it joins a running group."""

    def __init__(
        self,
        me: ProcessId,
        topology: Topology,
        make_process: ProcessFactory,
        config: ReconfigurableConfig,
        bodies: tuple[type[Body], ...],
        records: tuple[type[Record], ...] = (),
    ) -> None:
        super().__init__(me, topology)
        assert self.group is not None, f"process {me} is a client"
        self.home: GroupId = self.group
        self.config = config
        self.is_retired = False
        """The process was removed from its group, and no other process needs it."""
        self.is_idle = False
        """The last fast step certainly delivered nothing and installed no state."""
        self.suspected_members: set[ProcessId] = set()
        """Members of the group that the leader oracle suspects; the oracle of the owning node keeps it up to date."""
        self._make_process = make_process
        self._body_type = make_body_type(bodies)
        self._record_type = make_record_type(records)
        self.membership_bodies: frozenset[type[Body]] = frozenset({self._body_type, *MEMBERSHIP_BODIES})
        """Types of bodies that `fast_step` does not handle."""
        self._initial_topology = topology
        """The first topology of this process; of a process that joins, that of the change that added it."""
        self._instances: list[ConfigurationInstance] = []
        """Oldest first; the last one is current. Empty while a joining process does not know its configuration."""
        self._peers = PeerConfigurations()
        self._early = EarlyBodies(config.max_early_bodies)
        self._leaders: dict[GroupId, ProcessId] = {}
        """The oracle's latest suggestion for each group."""
        self._groups_up: dict[GroupId, bool] = {}
        """The oracle's latest opinion of each group as a whole."""
        self._incarnation = 0
        self._doubt = MemoryDoubt(me)
        self._offers: dict[int, tuple[ProcessId, ConfigurationInfo]] = {}
        """By later configuration: its start, and the member that sent it ahead."""
        self._first_needed = 0
        """No process needs instances of configurations below this one."""
        self._is_retry_armed = False
        self._is_starting = False
        """The step contains Started: deliveries may be repeated from records."""
        self._bare_process: Process | None = None
        """The protocol's process while no configuration but 0 is known and its effects need no translation."""
        self._bare_position = 0
        """The position of that process after its last step."""

    @property
    def configuration(self) -> int:
        """The current configuration; -1 while a joining process does not know it."""
        return self._instances[-1].configuration if self._instances else -1

    @property
    def current(self) -> ConfigurationInstance | None:
        """The instance of the current configuration."""
        return self._instances[-1] if self._instances else None

    def has_old_instances(self) -> bool:
        """Whether an instance of an earlier configuration still runs."""
        return len(self._instances) > 1

    def is_server(self, process: ProcessId) -> bool:
        """Whether a process is a member in a configuration that still runs here."""
        topologies = [self._initial_topology, *(instance.topology for instance in self._instances)]
        return any(topology.group_of(process) is not None for topology in topologies)

    def make_announcement(self) -> ConfigurationStarted:
        """The body that announces the current configuration to other processes."""
        return ConfigurationStarted(self.configuration, encode_topology(self.topology))

    def recorded_topology(self, records: Sequence[Record]) -> Topology:
        """The newest topology that records tell of; the first one of this process if they tell of none."""
        return find_recorded_topology(records) or self._initial_topology

    # Steps

    def step(self, events: Sequence[Event], now: int) -> list[Effect]:
        self.now = now
        for event in events:
            self._handle_event(event)
        return self._finish_step()

    def fast_step(self, events: Sequence[Event], now: int) -> list[Effect]:
        """The fast twin of `step`, for events that do not concern membership: bodies of the protocol and multicasts.
        While no configuration but 0 is known, they go to the protocol directly, and its effects are returned unchanged
        unless they may contain a change: the node has examined every event already."""
        process = self._bare_process
        if process is None:
            self.is_idle = False
            return self.step(events, now)
        self.now = now
        effects = process.step(events, now)
        self.is_idle = process.position == self._bare_position
        if self.is_idle:
            return effects
        self._bare_position = process.position
        only = self._instances[0]
        if self._can_pass_through(effects, only):
            return effects
        self._apply_effects(only, effects)
        return self._finish_step()

    def _finish_step(self) -> list[Effect]:
        self._step_instances()
        if self._doubt.since:
            self._end_doubt_if_possible()
        self._bare_process = None
        if len(self._instances) == 1:
            only = self._instances[0]
            process = only.process
            is_plain = only.configuration == 0 and only.barrier < 0 and not only.has_skipped_barrier
            is_plain = is_plain and only.own_deliveries is None and not self._is_behind() and not self._doubt.since
            if is_plain and process is not None and not process.sends_replies:
                self._bare_process, self._bare_position = process, process.position
        effects = self._outbox
        self._outbox = []
        return effects

    def _can_pass_through(self, effects: list[Effect], only: ConfigurationInstance) -> bool:
        """Whether the effects of the only instance contain neither a change nor an installed state."""
        groups = len(only.topology.groups)
        for effect in effects:
            kind = type(effect)
            if kind is Deliver:
                message = effect.message  # type: ignore[attr-defined]
                # A bundle is not opened: its payload contains the prefix if one of its messages may be a change.
                # (`in` would be slower than `find`: it first tries, and fails, to read the bytes as a number.)
                if len(message.destinations) == groups and message.payload.find(CHANGE_PREFIX) >= 0:
                    return False
                count = effect.message_count  # type: ignore[attr-defined]
                self.position = effect.position + (1 if count < 0 else count)  # type: ignore[attr-defined]
            elif kind is Note and effect.name == "installed":  # type: ignore[attr-defined]
                return False
        return True

    def _step_instances(self) -> None:
        """Steps every instance that has events; the last one may start another."""
        index = 0
        while index < len(self._instances):
            instance = self._instances[index]
            index += 1
            if self._is_starting and instance.start.position > self.position and index == len(self._instances):
                # The record of a configuration's start can survive a crash that the deliveries before it did not.
                self.install_position(instance.start.position)
            if instance.inbox and instance.process is not None:
                inbox, instance.inbox = instance.inbox, []
                self._apply_effects(instance, instance.process.step(inbox, self.now))
        if self._is_starting:
            self._is_starting = False
            self._announce()
        self._drop_old_instances()
        self._arm_retry()

    # Events

    def _handle_event(self, event: Event) -> None:
        match event:
            case Receive(sender, body):
                self._handle_body(sender, body)
            case Submit(message):
                self._handle_submit(message)
            case Timer(name):
                self._handle_timer(name)
            case Leader(group, leader):
                self._leaders[group] = leader
                for instance in self._instances:
                    instance.inbox.append(Leader(group, self._choose_leader(instance, group, leader)))
            case Suspect(group, up):
                self._groups_up[group] = up
                for instance in self._instances:
                    instance.inbox.append(event)
            case LinkReset(peer):
                self._handle_link_reset(peer, event)
            case PeerDown():
                for instance in self._instances:
                    instance.inbox.append(event)
            case Started(records, incarnation):
                self._handle_start(records, incarnation)
            case _:
                raise AssertionError(f"unknown event {event!r}")

    def _choose_leader(self, instance: ConfigurationInstance, group: GroupId, leader: ProcessId) -> ProcessId:
        """The leader of an instance. A member that joined later cannot lead it: then the first member does that is
        still in the group and not suspected."""
        members = instance.topology.members(group)
        if leader in members:
            return leader
        remaining = [member for member in members if member in self.topology.members(group)]
        trusted = (member for member in remaining if member not in self.suspected_members)
        return next(trusted, remaining[0] if remaining else leader)

    def _handle_start(self, records: Sequence[Record], incarnation: int) -> None:
        """Recovers the recorded instances. Without records it starts configuration 0, or asks for the current one."""
        self._incarnation = incarnation
        self._doubt.recall(records)
        self._is_starting = True
        initial = self._initial_topology
        self._instances = recover_instances(
            records, incarnation, self.me, initial, self._make_process, self.config.max_old_instances
        )
        if self._instances:
            self._adopt_topology(self._instances[-1].topology)
            self._peers.reached[self.me] = self.configuration
        elif initial.configuration == 0:
            self._doubt.since = incarnation
            start = ConfigurationStart(0, encode_topology(initial))
            instance = ConfigurationInstance(start, initial, self._make_process(self.me, initial), incarnation)
            instance.inbox.append(Started((), incarnation))
            self._instances = [instance]
            if incarnation > 0:
                self._ask_members(REPORT)
        elif incarnation > 0 and not records:
            self._doubt.since = incarnation
            self._ask_members(REPORT)
        else:
            self.persist(JoinRecord())
            self._ask_members(self.configuration)
        self._request_marker()

    def _handle_link_reset(self, peer: ProcessId, event: Event) -> None:
        self._early.discard_from(peer)
        if self.configuration > 0:
            self.send(peer, self.make_announcement())
            self._offer_starts((peer,))
        for instance in self._instances:
            if peer in instance.topology.processes:
                instance.inbox.append(event)

    def _handle_timer(self, name: str) -> None:
        if name == RETRY_TIMER:
            self._is_retry_armed = False
            if self._is_behind():
                is_reporting = self._doubt.since > 0 or self.group is None
                self._ask_members(REPORT if is_reporting else self.configuration)
            self._request_marker()
            return
        configuration = 0
        if name.startswith(TIMER_PREFIX):
            digits, _, name = name.removeprefix(TIMER_PREFIX).partition(":")
            configuration = int(digits)
        instance = self._find_instance(configuration)
        if instance is not None:
            instance.inbox.append(Timer(name))

    def _handle_body(self, sender: ProcessId, body: Body) -> None:
        match body:
            case ConfigurationBody(configuration, inner, barrier):
                self._handle_instance_body(sender, configuration, inner, barrier)
            case ConfigurationStarted(configuration, topology):
                self._handle_configuration_started(sender, configuration, topology)
            case FindConfiguration(configuration, group):
                self._handle_find_configuration(sender, configuration, group)
            case ConfigurationInfo(start, first_needed, is_offer):
                if is_offer:
                    self._handle_offer(sender, body)
                else:
                    self._handle_configuration_info(sender, start, first_needed)
            case ResendLink(configuration):
                instance = self._find_instance(configuration)
                if instance is not None:
                    instance.inbox.append(LinkReset(sender, 0))
            case Request(message):
                self._handle_request(sender, message)
            case _:
                self._handle_instance_body(sender, 0, body, -1)

    def _handle_instance_body(self, sender: ProcessId, configuration: int, body: Body, barrier: int) -> None:
        """Gives a body to its instance, or holds it back if the instance does not exist yet. Bodies of instances that
        are gone are ignored."""
        if configuration > self.configuration:
            self._hold_back(sender, configuration, body, barrier)
            return
        instance = self._find_instance(configuration)
        if instance is None:
            return
        if barrier >= 0 and instance.barrier < 0 and instance.topology.group_of(sender) == self.home:
            instance.barrier = barrier
        kind = type(body)
        if instance is self._instances[-1] and (kind is Request or kind is CheckDelivered):
            self._handle_current_request(sender, instance, body)
        elif kind is not CheckDelivered:
            instance.inbox.append(Receive(sender, body))

    def _find_instance(self, configuration: int) -> ConfigurationInstance | None:
        for instance in self._instances:
            if instance.configuration == configuration:
                return instance
        return None

    def _hold_back(self, sender: ProcessId, configuration: int, body: Body, barrier: int) -> None:
        self._peers.learn(configuration)
        if not self._early.add(sender, configuration, body, barrier):
            self.note("overflow")

    # Requests: was the message delivered in an earlier configuration?

    def _handle_submit(self, message: Message) -> None:
        """Multicasts for the local user. After a reconfiguration an earlier configuration may have delivered the
        message, so its contacts check that before they order it."""
        current = self.current
        if current is not None and current.process is not None:
            if current.configuration == 0:
                current.inbox.append(Submit(message))
            else:
                self.send_all(current.process.contacts(message), Request(message), message.id)

    def _handle_request(self, sender: ProcessId, message: Message) -> None:
        """Orders a message that is not delivered here. Its sender may have requested it in an earlier configuration."""
        current = self.current
        if self._is_behind() and self.home in message.destinations and not is_bundle(message.id):
            self._hold_back(sender, NEXT_CONFIGURATION, Request(message), -1)
        if current is None:
            return
        request = Receive(sender, Request(message))
        for old in self._instances[:-1]:
            # Another group may still wait, in an old instance, for this group's part in a message before the barrier.
            if old.process is None or self.home not in message.destinations or message.id in old.earlier_deliveries:
                continue
            if old.configuration == 0 or not is_bundle(message.id):
                old.inbox.append(request)
        if current.process is None:
            self.send(sender, self.make_announcement())
        elif current.configuration == 0:
            current.inbox.append(request)
        elif is_bundle(message.id):
            return  # a bundle of configuration 0; its gateway requests what was not delivered after it gets here
        elif self.home in message.destinations or current.is_newer(message):
            if not current.has_delivered(message.id):
                current.inbox.append(request)
        else:
            contacts = current.topology.members(message.destinations[0])
            self._send_from(current, contacts, CheckDelivered(message), message.id)

    def _handle_current_request(self, sender: ProcessId, current: ConfigurationInstance, body: Body) -> None:
        """Handles a Request or CheckDelivered that was sent in the current configuration."""
        message: Message = body.message  # type: ignore[attr-defined]
        if current.has_delivered(message.id):
            client = gateway_process(message.sender) if is_bundle(message.id) else message.sender
            self.send(client, Reply(message.id, self.home), message.id)
            extra = self.reply_extra(message)
            if extra is not None:
                self.send(client, extra)
        elif type(body) is CheckDelivered:
            self._send_from(current, (sender,), Request(message), message.id)
        elif current.process is not None:
            if self.home not in message.destinations:
                current.record_confirmed(message)
            current.inbox.append(Receive(sender, body))

    # Starting a configuration

    def _start_instance(self, start: ConfigurationStart, topology: Topology) -> None:
        """Starts the instance of the next configuration and announces it. Its record is persisted first, so nothing is
        sent in the instance before the record is durable. A restart begins at this record and may not reach the end
        of the previous instance again, so the record waits for the deliveries before it."""
        before = self.current
        self._adopt_topology(topology)
        process = None if self.group is None else self._make_process(self.me, topology)
        instance = ConfigurationInstance(start, topology, process, 0)
        if self._doubt.since and self._doubt.is_ended_by(instance):
            self._doubt.since = 0
        instance.doubt = self._doubt.since
        self.persist(
            ConfigurationRecord(start, encode_topology(before.topology) if before is not None else b"", instance.doubt),
            after_deliveries=True,
        )
        instance.inbox.append(Started((), self._incarnation if instance.doubt else 0))
        for group, leader in sorted(self._leaders.items()):
            if leader in topology.members(group):
                instance.inbox.append(Leader(group, leader))
        instance.inbox += [Suspect(group, up) for group, up in sorted(self._groups_up.items())]
        if before is not None:
            before.first_sequences = {}
        self._instances.append(instance)
        self._offers = {later: offer for later, offer in self._offers.items() if later > start.configuration}
        del self._instances[: -self.config.max_old_instances - 1]
        self._peers.reached[self.me] = start.configuration
        self.note("turned", value=float(start.configuration))
        self._announce()
        self._release_early_bodies(instance)
        self._request_marker()

    def _adopt_topology(self, topology: Topology) -> None:
        self.topology = topology
        self.group = topology.group_of(self.me)
        self._peers.learn(topology.configuration, encode_topology(topology))

    def _announce(self) -> None:
        """Announces the current configuration to all processes of the configurations that still run."""
        if self.configuration > 0:
            processes = {process for instance in self._instances for process in instance.topology.processes}
            processes.update(self.topology.processes)
            self.send_all(tuple(sorted(processes - {self.me})), self.make_announcement())
            self._offer_starts(tuple(sorted(processes - {self.me})))

    def _offer_starts(self, processes: tuple[ProcessId, ...]) -> None:
        """Sends members that may lag behind the starts of later configurations, ahead of any state from beyond a
        barrier: a member that installs such a state must not depend on this process' memory of what was before."""
        for before, instance in zip(self._instances, self._instances[1:], strict=False):
            targets = tuple(process for process in processes if before.topology.group_of(process) == self.home)
            if targets:
                self.send_all(targets, ConfigurationInfo(instance.start, self._first_needed, is_offer=True))

    def _handle_offer(self, sender: ProcessId, body: ConfigurationInfo) -> None:
        current = self.current
        if current is None or body.start.configuration <= current.configuration:
            return
        if current.has_skipped_barrier:
            self._handle_configuration_info(sender, body.start, body.first_needed)
        else:
            self._offers[body.start.configuration] = (sender, body)

    def _release_early_bodies(self, instance: ConfigurationInstance) -> None:
        """Handles the bodies that arrived too early for this instance, and asks for those that were dropped."""
        for sender, configuration, body, barrier in self._early.pop_all():
            if configuration == NEXT_CONFIGURATION:
                configuration = instance.configuration
            self._handle_instance_body(sender, configuration, body, barrier)
        for sender in self._early.pop_dropped_senders(instance.configuration):
            self.send(sender, ResendLink(instance.configuration))
            instance.inbox.append(LinkReset(sender, 0))

    def _handle_configuration_started(self, sender: ProcessId, configuration: int, topology: bytes) -> None:
        self._peers.record_announcement(sender, configuration, topology)
        if self.current is None:
            announced = decode_topology(topology)
            if announced.group_of(sender) == self.home and announced.group_of(self.me) is not None:
                self.send(sender, FindConfiguration(self.configuration, self.home))

    # Doubt after a loss of memory

    def _request_marker(self) -> None:
        """Requests the marker of a process in doubt, as a client requests a message that was not answered: from every
        process that may order it."""
        current = self.current
        if not self._doubt.since or current is None or current.process is None:
            return
        marker = self._doubt.make_marker(self.home)
        topology = current.topology
        homes = {topology.group_of(contact) for contact in (self.me, *current.process.contacts(marker))}
        targets = topology.processes_of(tuple(group for group in topology.groups if group in homes))
        self.send_all(targets, Request(marker), marker.id)

    def _end_doubt_if_possible(self) -> None:
        """Ends the doubt once the marker is delivered, and the instance has a record of its own: without one, a restart
        begins the instance without memory again, which is a new loss."""
        current = self.current
        if current is None or current.process is None or not self._doubt.is_ended_by(current):
            return
        if current.process.status().get("joined", 1):
            self._doubt.since = 0
            self.persist(DoubtEnded(current.configuration))
            self.note("remembered", value=float(current.configuration))

    # Dropping old instances

    def _drop_old_instances(self) -> None:
        """Drops an instance once a majority of every group of a later configuration has started that one. It need not
        be the next configuration: members of that one may have been removed since, and their announcements lost. A
        removed process does not start later configurations; it counts on the newest that it heard of."""
        newest, topology = self._peers.newest
        if self.group is None and topology and self._have_quorums_reached(newest, decode_topology(topology)):
            self._first_needed = max(self._first_needed, newest)
        for later in reversed(self._instances[1:]):
            if later.configuration <= self._first_needed or self._have_quorums_reached(
                later.configuration, later.topology
            ):
                self._first_needed = max(self._first_needed, later.configuration)
                break
        while len(self._instances) > 1 and self._instances[0].configuration < self._first_needed:
            del self._instances[0]
        if len(self._instances) > 1:
            return
        current = self.current
        if current is not None and current.process is None:
            self._retire(current.configuration)

    def _have_quorums_reached(self, configuration: int, topology: Topology) -> bool:
        return self._peers.have_quorums_reached(configuration, topology, self._groups_up)

    def _retire(self, configuration: int) -> None:
        if not self.is_retired:
            self.is_retired = True
            self.note("retired", value=float(configuration))

    # Lagging behind

    def _is_behind(self) -> bool:
        """Whether a newer configuration is known to exist; or this process was removed, and does not know yet whether
        another process needs it."""
        current = self.current
        if current is None or current.has_skipped_barrier:
            return not self.is_retired
        if current.process is not None:
            return self._peers.newest[0] > current.configuration
        return len(self._instances) > 1

    def _arm_retry(self) -> None:
        is_in_doubt = self._doubt.since > 0 and self.group is not None
        if (is_in_doubt or self._is_behind()) and not self._is_retry_armed:
            self._is_retry_armed = True
            self.set_timer(RETRY_TIMER, self.config.retry_ns)

    def _ask_members(self, configuration: int) -> None:
        """Asks every process that may be a member of the group for configurations after this one. A removed process
        asks all groups: it waits for majorities of them, and who restarted since announces nothing to it."""
        newest = self._peers.newest[1]
        asked: set[ProcessId] = set()
        for topology in (self.topology, decode_topology(newest) if newest else self.topology):
            asked.update(topology.servers if self.group is None else topology.members(self.home))
        asked.discard(self.me)
        if asked:
            self.send_all(tuple(sorted(asked)), FindConfiguration(configuration, self.home))

    def _handle_find_configuration(self, sender: ProcessId, configuration: int, group: GroupId) -> None:
        """Replies with the start of every later configuration that still runs, not only of the last one: the sender's
        vote may be needed in each of them. Removed members are answered too, because they must learn of it."""
        current = self.current
        if configuration == REPORT and current is not None:
            self.send(sender, self.make_announcement())
        if current is None or current.configuration <= max(configuration, 0):
            return
        if group != self.home:
            self.send(sender, self.make_announcement())
            return
        for instance in self._instances:
            if instance.configuration > max(configuration, 0):
                self.send(sender, ConfigurationInfo(instance.start, self._first_needed))

    def _handle_configuration_info(self, sender: ProcessId, start: ConfigurationStart, first_needed: int) -> None:
        """Starts a configuration that another member described. What the group delivered before counts as delivered
        here."""
        self._first_needed = max(self._first_needed, first_needed)
        if start.configuration <= self.configuration:
            return
        topology = decode_topology(start.topology)
        current = self.current
        is_member = topology.group_of(self.me) is not None
        if current is None and not is_member and start.configuration > self._initial_topology.configuration:
            # The process was removed while it was down, and has no memory that another process could need.
            self._retire(start.configuration)
            return
        takes_part = current is not None and current.process is not None
        is_of_group = self.home in (topology.group_of(sender), self.topology.group_of(sender))
        if not is_of_group or not (takes_part or is_member):
            return
        if start.position > self.position:
            self.install_position(start.position)
        self._start_instance(start, topology)

    # Effects of instances

    def _apply_effects(self, instance: ConfigurationInstance, effects: list[Effect]) -> None:
        """Translates an instance's effects: envelopes for bodies and records, timer names, positions and ranks."""
        if instance is self.current and not instance.has_skipped_barrier and instance.barrier >= 0:
            self._detect_skipped_barrier(instance, effects)
        for index, effect in enumerate(effects):
            match effect:
                case Send(targets, body, about, deferrable):
                    if type(body) is not Reply:  # the node replies to senders, and only for messages that count
                        self._send_from(instance, targets, body, about, deferrable)
                case Deliver():
                    self._deliver_from(instance, effect, effects[index + 1 :])
                case Persist(record, replaces, after_deliveries):
                    self._persist_from(instance, record, replaces, after_deliveries)
                case SetTimer(name, low, high):
                    self._outbox.append(SetTimer(instance.timer_name(name), low, high))
                case CancelTimer(name):
                    self._outbox.append(CancelTimer(instance.timer_name(name)))
                case Note("installed", _, value):
                    if instance is self.current and not instance.has_skipped_barrier and value is not None:
                        self.install_position(instance.start.position + int(value))
                case Note("resumed", _, value):
                    if instance is self.current and not instance.has_skipped_barrier and value is not None:
                        self.position = instance.start.position + int(value)
                        self.resume_position(self.position)
                case _:
                    self._outbox.append(effect)

    def _detect_skipped_barrier(self, instance: ConfigurationInstance, effects: list[Effect]) -> None:
        """Detects a state transfer to a position beyond the barrier, which hides where the barrier was. The start of
        the next configuration must be durable before any effect of the transfer; without it, that it is unknown."""
        for effect in effects:
            if type(effect) is not Note or effect.name != "installed" or effect.value is None:
                continue
            if instance.start.position + int(effect.value) >= instance.barrier:
                self.note("overtaken", value=float(instance.configuration))
                offer = self._offers.get(instance.configuration + 1)
                if offer is not None:
                    sender, info = offer
                    self._handle_configuration_info(sender, info.start, info.first_needed)
                if instance is self.current:
                    instance.has_skipped_barrier = True
                    self.persist(SkippedBarrier(instance.configuration))
                return

    def _send_from(
        self,
        instance: ConfigurationInstance,
        targets: tuple[ProcessId, ...],
        body: Body,
        about: About,
        deferrable: tuple[ProcessId, ...] = (),
    ) -> None:
        """Sends an instance's body. Servers get it in an envelope with the configuration and, if this process knows it,
        the configuration's barrier; clients get it bare."""
        barrier = instance.barrier
        if instance is not self._instances[-1]:
            barrier = self._end_of(instance)
        if instance.configuration == 0 and barrier < 0:
            self._outbox.append(Send(targets, body, about, deferrable))
            return
        servers = tuple(target for target in targets if instance.topology.group_of(target) is not None)
        if servers:
            envelope = self._body_type(instance.configuration, body, barrier)
            self._outbox.append(Send(servers, envelope, about, deferrable))
        if len(servers) < len(targets):
            others = tuple(target for target in targets if target not in servers)
            self._outbox.append(Send(others, body, about))

    def _end_of(self, instance: ConfigurationInstance) -> int:
        """The group's position at the barrier of an old instance."""
        return self._instances[self._instances.index(instance) + 1].start.position

    def _persist_from(
        self, instance: ConfigurationInstance, record: Record, replaces: bool, after_deliveries: bool
    ) -> None:
        """Persists an instance's record. It may replace all records only while there is one instance. Otherwise it
        replaces the records of its instance; a restart then does not repeat its deliveries, so it waits for them."""
        is_only = len(self._instances) == 1 and not instance.has_skipped_barrier
        configuration, doubt = instance.configuration, self._doubt.since
        if configuration == 0 and is_only and not doubt:
            self._outbox.append(Persist(record, replaces, after_deliveries))
        elif is_only and replaces:
            envelope = self._record_type(configuration, True, record, instance.start, doubt)
            self._outbox.append(Persist(envelope, True, after_deliveries))
        else:
            envelope = self._record_type(configuration, replaces, record, None, doubt)
            self._outbox.append(Persist(envelope, after_deliveries=replaces or after_deliveries))

    # Deliveries

    def _deliver_from(self, instance: ConfigurationInstance, delivery: Deliver, later: list[Effect]) -> None:
        """Delivers for the current instance up to its barrier. An old instance delivers only what a restart repeats
        from before the barrier."""
        if instance is not self._instances[-1]:
            end = self._end_of(instance)
            for part in delivery.expand() if self._is_starting else ():
                if instance.start.position + part.position < end:
                    self._emit_delivery(instance, part)
            return
        if instance.has_skipped_barrier:
            return
        if len(delivery.message.destinations) == len(instance.topology.groups):
            for index, message in enumerate(delivery.messages()):
                if is_change(message):
                    topology = parse_change(instance.topology, message)
                    if topology is not None:
                        self._pass_barrier(instance, delivery, index, topology, later)
                        return
                    if not is_marker(message):
                        self.note("stale", message.id)
        self._emit_delivery(instance, delivery)

    def _emit_delivery(self, instance: ConfigurationInstance, delivery: Deliver) -> None:
        start = instance.start
        count = delivery.message_count
        position = start.position + delivery.position
        self.position = position + (1 if count < 0 else count)
        if instance.own_deliveries is not None:
            instance.own_deliveries.add(delivery.message.id)
            instance.own_deliveries.add_all(delivery.messages() if count > 0 else ())
        if start.configuration == 0:
            self._outbox.append(delivery)
            return
        rank = None if delivery.rank_time is None else start.rank + delivery.rank_time
        self._outbox.append(
            Deliver(
                delivery.message, position, rank, delivery.rank_tie, delivery.committed_ns, count,
                delivery.duplicate_places, delivery.ordered_elsewhere, delivery.ordered_here, delivery.is_ahead,
            )
        )  # fmt: skip

    def _pass_barrier(
        self,
        instance: ConfigurationInstance,
        delivery: Deliver,
        index: int,
        topology: Topology,
        later: list[Effect],
    ) -> None:
        """Passes the barrier, which is the message at an index of a delivery: messages up to it are delivered, later
        ones of this step are discarded, and the next configuration starts."""
        for part in delivery.expand()[: index + 1]:
            self._emit_delivery(instance, part)
        start = instance.start
        rank = start.rank if delivery.rank_time is None else start.rank + delivery.rank_time + 1
        position = start.position + delivery.position + index + 1
        delivered = self._deliveries_before_barrier(instance, delivery, index, later)
        following = ConfigurationStart(
            start.configuration + 1, encode_topology(topology), position, rank, delivered.snapshot()
        )
        self._start_instance(following, topology)

    def _deliveries_before_barrier(
        self, instance: ConfigurationInstance, delivery: Deliver, index: int, later: list[Effect]
    ) -> DeliveredSet:
        """Everything that the group delivered up to the barrier, without what the protocol delivered behind it."""
        process = instance.process
        assert process is not None
        delivered = DeliveredSet()
        delivered.restore(instance.start.delivered)
        if instance.own_deliveries is not None:
            delivered.merge(instance.own_deliveries.snapshot())
        else:
            known = process.delivered_set(delivery.message.id)
            assert known is not None
            delivered.merge(known)  # type: ignore[arg-type]
        discarded = [message.id for message in delivery.messages()[index + 1 :]]
        if delivery.message_count >= 0:
            discarded.append(delivery.message.id)
        for other in later:
            if type(other) is Deliver:
                discarded += [other.message.id, *(message.id for message in other.messages())]
        for id in discarded:
            delivered.forget(id)
        return delivered

    # Queries of the node and its driver

    def has_delivered(self, message: MessageId) -> bool:
        current = self.current
        return current is not None and current.has_delivered(message)

    def bundle_contacts(self, bundle: Message) -> tuple[ProcessId, ...]:
        current = self.current
        return () if current is None or current.process is None else current.process.bundle_contacts(bundle)

    def has_delivered_any(self, messages: Sequence[MessageId]) -> bool:
        current = self.current
        return current is not None and current.has_delivered_any(messages)

    def accepted(self) -> Accepted | None:
        """What the current instance states. The barrier is a message: whoever reads in a configuration that a majority
        has left is told of it, and finds itself in another configuration when it has delivered it."""
        current = self.current
        return None if current is None or current.process is None else current.process.accepted()

    def reply_extra(self, message: Message) -> Body | None:
        current = self.current
        return None if current is None or current.process is None else current.process.reply_extra(message)

    def lost_groups(self) -> tuple[GroupId, ...]:
        current = self.current
        return () if current is None or current.process is None else current.process.lost_groups()

    def stored_message(self, message: MessageId) -> Message | None:
        for instance in reversed(self._instances):
            if instance.process is not None:
                stored = instance.process.stored_message(message)
                if stored is not None:
                    return stored
        return None

    def contacts(self, message: Message) -> tuple[ProcessId, ...]:
        current = self.current
        return () if current is None or current.process is None else current.process.contacts(message)

    def tag_bundles(self, effects: list[Effect]) -> list[Effect]:
        """The effects of this process's gateway, with the current configuration on requests of bundles: a bundle
        belongs to one configuration. A joining process that does not know its configuration requests none."""
        configuration = self.configuration
        if configuration == 0:
            return effects
        tagged: list[Effect] = []
        for effect in effects:
            if type(effect) is Send and type(effect.body) is Request and is_bundle(effect.body.message.id):
                if configuration < 0:
                    continue
                effect = Send(effect.targets, self._body_type(configuration, effect.body), effect.about)
            tagged.append(effect)
        return tagged

    def status(self) -> ProcessStatus:
        current = self.current
        inner: ProcessStatus = {} if current is None or current.process is None else current.process.status()
        if "joined" in inner:
            # Lagging groups need every instance that still runs, also those in which this member has no vote yet.
            running = [instance.process.status() for instance in self._instances if instance.process is not None]
            inner["joined"] = min(status.get("joined", 1) for status in running)
        if self._doubt.since and current is not None:
            inner["joined"] = 0
        return {
            **inner,
            "position": self.position,
            "configuration": self.configuration,
            "instances": len(self._instances),
        }

    def explain(self, message: MessageId) -> list[Phase]:
        current = self.current
        if current is None:
            description = f"process {self.me} joins group {self.home} and does not know its configuration yet"
            return [Phase("joining", False, description, self.topology.members(self.home))]
        return [] if current.process is None else current.process.explain(message)

    def on_request(self, message: Message) -> None:
        raise AssertionError("events go to instances")

    def on_receive(self, sender: ProcessId, body: Body) -> None:
        raise AssertionError("events go to instances")

    def snapshot(self) -> ReconfigurableState:
        early, dropped = self._early.snapshot()
        return ReconfigurableState(
            self.position,
            self._incarnation,
            self._doubt.since,
            tuple(instance.snapshot() for instance in self._instances),
            tuple(sorted(self._peers.reached.items())),
            self._peers.newest,
            early,
            dropped,
            tuple(sorted(self._leaders.items())),
            tuple(sorted(self._groups_up.items())),
            tuple(sorted(self._offers.items())),
            self._first_needed,
            self._is_retry_armed,
            self.is_retired,
        )

    def restore(self, state: State) -> None:
        assert isinstance(state, ReconfigurableState)
        self.position = state.position
        self._incarnation = state.incarnation
        self._doubt.since = state.doubt
        self._instances = [
            ConfigurationInstance.from_state(instance, self.me, self._make_process) for instance in state.instances
        ]
        self._peers.reached = dict(state.reached)
        self._peers.newest = state.newest
        self._early.restore(state.early, state.dropped)
        self._leaders = dict(state.leaders)
        self._groups_up = dict(state.groups_up)
        self._offers = dict(state.offers)
        self._first_needed = state.first_needed
        self._is_retry_armed = state.is_retry_armed
        self.is_retired = state.is_retired
        self._bare_process = None
        if self._instances:
            self.topology = self._instances[-1].topology
            self.group = self.topology.group_of(self.me)


def build_reconfigurable_spec(spec: Spec, config: ReconfigurableConfig = DEFAULT_CONFIG) -> Spec:
    """The same protocol with members that can change, to be run in nodes."""

    def make(me: ProcessId, topology: Topology, options: Any) -> Process:
        def make_process(me: ProcessId, topology: Topology) -> Process:
            return spec.process(me, topology, options)

        return Reconfigurable(me, topology, make_process, config, spec.bodies, spec.records)

    return replace(
        spec,
        process=make,
        bodies=(*spec.bodies, *MEMBERSHIP_BODIES, make_body_type(spec.bodies)),
        records=(
            *spec.records,
            ConfigurationRecord,
            DoubtEnded,
            JoinRecord,
            SkippedBarrier,
            make_record_type(spec.records),
        ),
        states=(*spec.states, ReconfigurableState),
    )
