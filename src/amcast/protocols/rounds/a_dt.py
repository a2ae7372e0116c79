"""A_dt: rounds that survive the loss of whole groups. Not genuine; two inter-group delays.

Source: paper 001, section 3.2 (the algorithm is Schiper and Pedone 2008, "Solving atomic multicast when groups crash",
whose text is not in the paper: whatever goes beyond that section is derived, see docs/protocols/a-dt.md).

    sender      group g: leader, members             every process
      |--Request-->|->|                                   |
      |            |==|  Paxos: an instance               |
      |         deliver local messages                    |
      |            |---------Item (the batch) ----------->|
      |            |<---------------Ack-------------------|---> all to all
      |         deliver the round's global messages     deliver the same, with the batches of all groups in view

Batches are broadcast by the generic broadcast of `parts/broadcast/generic.py`. All processes have the same view of the
groups that are waited for, and deliver the same batches between the same two changes of the view. So they agree on the
batches that make up a round: those of the groups in the view when the round is complete, and those that were delivered
before their group was removed.

A suspected group is removed from the view; if it is alive, its leader requests its return. Its batches of the time in
between do not count: its members learn that from the rounds and order these messages once more. A client without a
reply sends its request to all destinations, so that a message is not lost with the group that was to order it; the
first batch that delivers the message counts, later ones are ignored. Servers send clients the groups that are out of
the view (AbsentGroups), so that they do not wait for those.

A group is suspected when its batch is missing for long, even if some of its processes send other bodies. Whether its
leader may lead the change of the view is another question: it may as long as any process of the group sends something,
so that all live processes soon agree on one leader. A group that was suspected wrongly is given more time from then on.

Claims: two inter-group delays, local messages none; f < n/2 of all processes may crash, whole groups among them, as
long as every other group keeps a majority. Processes do not restart after a crash. Liveness once wrong suspicions end.
"""

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from amcast.kernel.diagnostics import ProcessStatus
from amcast.kernel.ids import GroupId, MessageId, ProcessId
from amcast.kernel.message import Body, Message, Record, State
from amcast.kernel.spec import Claims, Spec
from amcast.kernel.topology import Topology
from amcast.parts.broadcast import generic
from amcast.parts.broadcast.generic import GenericBroadcast, faults_tolerated
from amcast.parts.broadcast.messages import CLOSE, GENERIC_BODIES, OPEN, Change, Item
from amcast.parts.client.messages import AbsentGroups
from amcast.parts.consensus.messages import PAXOS_BODIES, PAXOS_RECORDS
from amcast.parts.consensus.quorum import role_of
from amcast.parts.groups.contacts import contact_one_group
from amcast.protocols.rounds.messages import (
    ADtConfig,
    ADtState,
    BatchRequest,
    Messages,
    RoundsCore,
    RoundsState,
    StateTransfer,
)
from amcast.protocols.rounds.process import RoundGroup, about
from amcast.protocols.rounds.statements import build_a_dt_table

MAX_LENIENCE: Final = 16
"""A group that was often suspected wrongly is given at most this many times the usual number of retries."""


class ADt(RoundGroup):
    """A member of a group of A_dt."""

    def __init__(self, me: ProcessId, topology: Topology, config: ADtConfig) -> None:
        super().__init__(me, topology, config)
        self._linger = config.linger
        self._patience = config.patience
        self._generic = GenericBroadcast(self, config.retry_ns)
        self._counted: dict[int, set[GroupId]] = {}
        """By round that is not delivered here: the groups whose batches count."""
        self._reordered: dict[int, Message] = {}
        """Messages of the own group whose batch did not count."""
        self._nonempty_rounds: set[int] = set()
        """Rounds that are not delivered here and have messages for the own group."""
        self._suspected: set[GroupId] = set()
        """Groups that the oracle suspects and that have sent nothing since."""
        self._silent_retries: dict[GroupId, int] = dict.fromkeys(self._other_groups, 0)
        """By group: consecutive retries of this process during which the group has sent nothing."""
        self._wrong_suspicions: dict[GroupId, int] = dict.fromkeys(self._other_groups, 0)
        """By group: how often it sent something, or returned, after it was taken for lost."""
        self._seen_members: set[ProcessId] = {me}
        """Members of the own group that have sent something since the group was last removed."""
        self._has_crashed = False
        """This process has crashed before and takes no part any more."""

    # Events

    def on_start(self, records: Sequence[Record], incarnation: int) -> None:
        self._has_crashed = incarnation > 0
        if not self._has_crashed:
            self._generic.begin()
            super().on_start(records, incarnation)

    def on_request(self, message: Message) -> None:
        if not self._has_crashed:
            super().on_request(message)
            if not self._has_all_destinations(message):
                self._send_absent_groups((message.sender,))

    def on_receive(self, sender: ProcessId, body: Body) -> None:
        if self._has_crashed:
            return
        match body:
            case BatchRequest(round):
                if round <= self._round:
                    self.note("handed")
                    self.send(sender, StateTransfer(msgspec.msgpack.encode(self._build_core())))
            case StateTransfer(state):
                self._install_core(state)
                self._advance()
            case _:
                if self._generic.receive(sender, body):
                    if isinstance(body, Item):
                        self._update_nonempty_rounds(body.number, body.messages)
                    self._observe_sender(sender)
                    self._handle_broadcast_events()
                else:
                    super().on_receive(sender, body)

    def on_leader(self, group: GroupId, leader: ProcessId) -> None:
        if not self._has_crashed:
            super().on_leader(group, leader)

    def on_suspect(self, group: GroupId, up: bool) -> None:
        if up:
            self._suspected.discard(group)
        elif not self._has_crashed:
            self._suspect(group)

    def on_link_reset(self, peer: ProcessId, incarnation: int) -> None:
        if self._has_crashed:
            return
        super().on_link_reset(peer, incarnation)
        self._generic.handle_link_reset(peer)
        if self._generic.epoch:
            self._send_absent_groups((peer,))
        if peer in self._generic.others and self._paxos.role == "leading":
            self._resend_batches((peer,))

    def on_timer(self, name: str) -> None:
        if self._has_crashed:
            return
        if name == generic.PAXOS_TIMER:
            self._generic.paxos.handle_timeout()
        else:
            super().on_timer(name)

    def on_step_end(self) -> None:
        if self._has_crashed:
            return
        self._request_reopening()
        self._handle_broadcast_events()
        super().on_step_end()
        self._generic.set_leading(self._paxos.suggested_leader == self.me and self._leads_first_live_group())
        self._generic.flush()

    # Suspicions

    def _suspect(self, group: GroupId) -> None:
        if group != self.home:
            self._suspected.add(group)
            self._generic.request_change((CLOSE, group))

    def _request_reopening(self) -> None:
        """Requests the return of the own group, if it was removed and has a majority; without one, others would only
        wait for it again."""
        enough = len(self._seen_members) >= self.topology.quorum(self.home)
        if self.home not in self._generic.open and self._paxos.can_propose() and enough:
            self._generic.request_change((OPEN, self.home))

    def _observe_sender(self, sender: ProcessId) -> None:
        """A group with a live process is not lost, though its batch may be late."""
        group = self.topology.group_of(sender)
        assert group is not None, f"process {sender} is in no group and broadcasts"
        if group == self.home:
            self._seen_members.add(sender)
        else:
            self._suspected.discard(group)
            if self._is_silent(group):
                self._count_wrong_suspicion(group)
            self._silent_retries[group] = 0

    def _count_wrong_suspicion(self, group: GroupId) -> None:
        """Gives a wrongly suspected group more time from now on."""
        self._wrong_suspicions[group] = min(self._wrong_suspicions[group] + 1, MAX_LENIENCE - 1)

    def _retry_limit(self, group: GroupId) -> int:
        """Retries after which a group is suspected."""
        return self._patience * (1 + self._wrong_suspicions[group])

    def _is_silent(self, group: GroupId) -> bool:
        return self._silent_retries[group] >= self._retry_limit(group)

    def _leads_first_live_group(self) -> bool:
        """Whether all groups before the own one seem lost: then its leader leads all processes."""
        before = self.topology.groups[: self.topology.groups.index(self.home)]
        return all(group in self._suspected or self._is_silent(group) for group in before)

    def _request_batches(self, round: int, times: int) -> None:
        self._generic.request_missing()
        if self._paxos.role == "leading":
            self._resend_batches(self._generic.others)
        if self._other_members and times > 1:
            self.send_all(self._other_members, BatchRequest(round))
        for group in self._other_groups:
            self._silent_retries[group] = min(self._silent_retries[group] + 1, self._patience * MAX_LENIENCE)
        for group in self._generic.find_late_streams(round):
            if group != self.home and times >= self._retry_limit(group):
                self._generic.request_change((CLOSE, group))

    # Rounds

    def _handle_broadcast_events(self) -> None:
        """Handles deliveries and view changes of the broadcast."""
        for event in self._generic.collect_events():
            if len(event) == 2 and isinstance(event[0], int) and isinstance(event[1], int):
                stream, number = event
                if number > self._round:
                    self._counted.setdefault(number, set()).add(stream)
            else:
                changes: list[Change] = list(event)
                for kind, group in changes:
                    self.note("removed" if kind == CLOSE else "returned", value=float(group))
                    if group == self.home:
                        self._seen_members = {self.me}
                    elif kind == OPEN:
                        self._count_wrong_suspicion(group)
                    if group == self.home and kind == OPEN and self._paxos.role == "leading":
                        self._resend_batches(self._generic.others)
                if self._paxos.role == "leading":
                    self._send_absent_groups(self.topology.clients)
        self._advance()

    def _collect_round(self, round: int) -> Iterable[Message] | None:
        delivered = self._generic.delivered
        if any(delivered[group] < round for group in self._generic.open):
            return None
        items = self._generic.items
        return [message for group in sorted(self._counted.get(round, ())) for message in items[group].get(round, ())]

    def _missing_groups(self, round: int) -> tuple[GroupId, ...]:
        return tuple(sorted(group for group in self._generic.open if self._generic.delivered[group] < round))

    def _find_round(self, message: MessageId) -> int:
        batches = [pair for items in self._generic.items.values() for pair in items.items()]
        return max((round for round, batch in batches if any(other.id == message for other in batch)), default=0)

    def _finish_batch(self, round: int, messages: Messages) -> None:
        self._own_batches[round] = messages
        self._generic.add_item(self.home, round, messages)
        self._update_nonempty_rounds(round, messages)
        if self._paxos.role == "leading":
            self._send_batch(self._generic.others, round, messages)

    def _on_round_delivered(self, round: int) -> None:
        self._nonempty_rounds.discard(round)
        counted = self._counted.pop(round, set())
        own = self._own_batches.pop(round, ())
        if self.home not in counted:
            for message in own:
                if message.id not in self._delivered:
                    self._reorder(message)
        self._generic.drop_below(round, self._linger)

    def _reorder(self, message: Message) -> None:
        """Orders a message of the own group once more."""
        self.note("again", message.id)
        self._reordered[message.id] = message
        self._add_request(message)

    def _latest_remote_round(self) -> int:
        newest = self._generic.newest
        return max((newest[group] for group in self._other_groups), default=0)

    def _latest_nonempty_round(self) -> int:
        return max(self._nonempty_rounds, default=0)

    def _update_nonempty_rounds(self, round: int, messages: Messages) -> None:
        """Notes whether a batch has messages for the own group."""
        if round > self._round and any(self.home in message.destinations for message in messages):
            self._nonempty_rounds.add(round)

    def _is_responsible_for(self, message: Message) -> bool:
        return self.home in message.destinations and message.id not in self._delivered

    def _is_new_in_log(self, message: Message) -> bool:
        if self._reordered.pop(message.id, None) is not None:
            return True
        return super()._is_new_in_log(message)

    # Batches

    def _send_batch(self, targets: tuple[ProcessId, ...], round: int, messages: Messages) -> None:
        if targets:
            self.send_all(targets, Item(self.home, round, messages), about(messages))

    def _resend_batches(self, targets: tuple[ProcessId, ...]) -> None:
        delivered = self._generic.delivered[self.home]
        for round, messages in sorted(self._generic.items[self.home].items()):
            if round > delivered:
                self._send_batch(targets, round, messages)

    def _on_leading(self) -> None:
        self._resend_batches(self._generic.others)
        if self._generic.epoch:
            self._send_absent_groups(self.topology.clients)

    def _send_absent_groups(self, processes: tuple[ProcessId, ...]) -> None:
        """Sends clients the groups that are out of the view, so that they do not wait for replies of those."""
        clients = tuple(process for process in processes if self.topology.group_of(process) is None)
        if clients:
            self.send_all(clients, self._absent_groups())

    def _absent_groups(self) -> AbsentGroups:
        return AbsentGroups(self._generic.epoch, self.lost_groups())

    def lost_groups(self) -> tuple[GroupId, ...]:
        return tuple(group for group in self.topology.groups if group not in self._generic.open)

    def status(self) -> ProcessStatus:
        status = super().status()
        return {**status, "role": "gone", "joined": 0} if self._has_crashed else status

    def reply_extra(self, message: Message) -> AbsentGroups | None:
        """A client may wait for a group that was lost after the others delivered: its retry learns of the loss here."""
        waits = self.topology.group_of(message.sender) is None and not self._has_all_destinations(message)
        return self._absent_groups() if waits else None

    def _has_all_destinations(self, message: Message) -> bool:
        return set(message.destinations).issubset(self._generic.open)

    # Snapshots

    def _build_core(self) -> RoundsCore:
        reordered = tuple(message for _, message in sorted(self._reordered.items()))
        return msgspec.structs.replace(
            super()._build_core(), reordered=reordered, broadcast_progress=self._generic.get_progress()
        )

    def _restore_core(self, core: RoundsCore) -> None:
        super()._restore_core(core)
        self._reordered = {message.id: message for message in core.reordered}
        self._counted = {round: groups for round, groups in self._counted.items() if round > self._round}
        self._nonempty_rounds = {round for round in self._nonempty_rounds if round > self._round}

    def _install_core(self, state: bytes) -> None:
        before = self._instance, self._round
        super()._install_core(state)
        if (self._instance, self._round) != before:
            core = msgspec.msgpack.decode(state, type=RoundsCore)
            self._generic.install_progress(*core.broadcast_progress)
            self._generic.drop_below(self._round, self._linger)
            for round, messages in core.own_batches:
                self._generic.add_item(self.home, round, messages)
                self._update_nonempty_rounds(round, messages)
            for message in core.reordered:
                self._add_request(message)

    def snapshot(self) -> ADtState:
        return ADtState(
            self._snapshot_base(),
            self._generic.snapshot(),
            tuple((round, tuple(sorted(groups))) for round, groups in sorted(self._counted.items())),
            tuple(sorted(self._nonempty_rounds)),
            tuple(sorted(self._suspected)),
            tuple(self._silent_retries.items()),
            tuple(self._wrong_suspicions.items()),
            tuple(sorted(self._seen_members)),
            self._has_crashed,
        )

    def restore(self, state: State) -> None:
        assert isinstance(state, ADtState)
        self._restore_base(state.base)
        self._generic.restore(state.generic)
        self._nonempty_rounds = set(state.nonempty_rounds)
        self._counted = {round: set(groups) for round, groups in state.counted}
        self._suspected = set(state.suspected)
        self._silent_retries = dict(state.silent_retries)
        self._wrong_suspicions = dict(state.wrong_suspicions)
        self._seen_members = set(state.seen_members)
        self._has_crashed = state.has_crashed


def tolerates(topology: Topology, crashed: frozenset[ProcessId]) -> bool:
    """A majority of all is left, and every group keeps a majority or is lost as a whole."""
    if sum(server in crashed for server in topology.servers) > faults_tolerated(len(topology.servers)):
        return False
    for group in topology.groups:
        left = sum(member not in crashed for member in topology.members(group))
        if 0 < left < topology.quorum(group):
            return False
    return True


def _delays(role: str, destinations: int, replicas: int) -> int | None:
    return (2 if destinations > 1 else 0) if role == "max" else None


SPEC = Spec(
    name="a-dt",
    summary="rounds whose batches are broadcast: whole groups may be lost",
    source="paper 001 section 3.2; Schiper and Pedone 2008",
    process=ADt,
    config=ADtConfig,
    bodies=(*PAXOS_BODIES, *GENERIC_BODIES, BatchRequest, StateTransfer, AbsentGroups),
    records=PAXOS_RECORDS,
    statements=build_a_dt_table,
    states=(ADtState, RoundsState),
    claims=Claims(
        genuine="no",
        faults=frozenset(
            {"pause", "slow", "partition", "loss", "skew", "leaders", "suspects", "unreachable", "links", "crash"}
        ),
        tolerates=tolerates,
        removes_groups=True,
        ranked=True,
        quiescent=False,
        world="intergroup",
        delays=_delays,
        round_start_ns=lambda config: config.idle_ns[0],
    ),
    contacts=contact_one_group,
    role_of=role_of,
    goals=("hurried", "asked", "led", "removed", "returned", "again"),
    recovery_goals=("checkpointed", "truncated", "handed", "installed"),
)
