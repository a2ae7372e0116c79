"""A_dt: rounds that go on when whole groups are lost. Not genuine; two inter-group delays.

Source: paper 001, section 3.2 (the algorithm is Schiper and Pedone 2008, "Solving atomic multicast when groups crash",
whose text is not in the paper: everything below the section's sentences is derived, see docs/protocols/a-dt.md).

    sender      group g: leader, members             every process
      |--Request-->|->|                                   |
      |            |==|  Paxos: an instance               |
      |         deliver local messages                    |
      |            |---------Item (the bundle)----------->|
      |            |<---------------Ack-------------------|---> everybody to everybody
      |         deliver the round's global messages     deliver the same, once the bundles of all groups in the view are

Bundles are not sent but broadcast, by the generic broadcast of `parts/broadcast/generic.py`. Everybody has the same
view of the groups that are waited for, and gets the same bundles between the same two changes of the view. So everybody
agrees which bundles make up a round: those of the groups in the view when the round is complete, and those that came
before their group was removed.

A group that is suspected is removed from the view; if it is there after all, its leader asks for it to come back. What
it said meanwhile does not count: its members know from the rounds which of their bundles did not, and order those
messages once more. A sender that gets no answer asks all destinations, so that a message does not die with the group
that was to order it; whoever delivers it first by one bundle ignores it in the others. Clients are told which groups
are out of the view (AbsentGroups), so that they do not wait for those.

A group is suspected when its bundle is missing for long, whoever of it still speaks. Whether its leader may lead
everybody is another question: it may as long as anybody of the group is heard, so that all who are there agree soon on
one leader for the change of the view. Whoever was suspected and spoke is given more time from then on.

Claims: two inter-group delays, local messages none; f < n/2 of all processes may crash, whole groups among them, as
long as every other group keeps a majority. Processes do not come back from a crash. Liveness once wrong suspicions end.
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
from amcast.protocols.rounds.messages import (
    ADtConfig,
    ADtState,
    Handover,
    Lacking,
    Messages,
    RoundsCore,
    RoundsState,
)
from amcast.protocols.rounds.process import RoundGroup, about, contact

LENIENCE: Final = 16
"""A group that was often suspected wrongly is given so many times the usual patience, and no more."""


class ADt(RoundGroup):
    """A member of a group of A_dt."""

    def __init__(self, me: ProcessId, topology: Topology, config: ADtConfig) -> None:
        super().__init__(me, topology, config)
        self._linger = config.linger
        self._patience = config.patience
        self._generic = GenericBroadcast(self, config.retry_ns)
        self._have: dict[int, set[GroupId]] = {}
        """Whose bundles count, for rounds that are not delivered here."""
        self._again: dict[int, Message] = {}
        """Messages of my group whose bundle did not count."""
        self._busy: set[int] = set()
        """Rounds that are not delivered here and have messages for my group."""
        self._suspected: set[GroupId] = set()
        """The oracle said so, and the group has not spoken since."""
        self._quiet: dict[GroupId, int] = dict.fromkeys(self._others, 0)
        """For how many vain retries of mine nobody of a group has spoken."""
        self._wronged: dict[GroupId, int] = dict.fromkeys(self._others, 0)
        """How often a group that I took for lost has spoken or come back."""
        self._around: set[ProcessId] = {me}
        """Members of my group that I have heard of since we were removed last."""
        self._gone = False
        """I crashed before, and stay silent."""

    # Events

    def on_start(self, records: Sequence[Record], incarnation: int) -> None:
        self._gone = incarnation > 0
        if not self._gone:
            self._generic.begin()
            super().on_start(records, incarnation)

    def on_request(self, message: Message) -> None:
        if not self._gone:
            super().on_request(message)
            if not self._present(message):
                self._tell_absent((message.sender,))

    def on_receive(self, sender: ProcessId, body: Body) -> None:
        if self._gone:
            return
        match body:
            case Lacking(round):
                if round <= self._round:
                    self.note("handed")
                    self.send(sender, Handover(msgspec.msgpack.encode(self._core())))
            case Handover(state):
                self._install(state)
                self._advance()
            case _:
                if self._generic.receive(sender, body):
                    if isinstance(body, Item):
                        self._watch(body.number, body.messages)
                    self._hear(sender)
                    self._turn()
                else:
                    super().on_receive(sender, body)

    def on_leader(self, group: GroupId, leader: ProcessId) -> None:
        if not self._gone:
            super().on_leader(group, leader)

    def on_suspect(self, group: GroupId, up: bool) -> None:
        if up:
            self._suspected.discard(group)
        elif not self._gone:
            self._suspect(group)

    def on_link_reset(self, peer: ProcessId, incarnation: int) -> None:
        if self._gone:
            return
        super().on_link_reset(peer, incarnation)
        self._generic.handle_link_reset(peer)
        if self._generic.epoch:
            self._tell_absent((peer,))
        if peer in self._generic.others and self._paxos.role == "leading":
            self._tell_again((peer,))

    def on_timer(self, name: str) -> None:
        if self._gone:
            return
        if name == generic.PAXOS_TIMER:
            self._generic.paxos.handle_timeout()
        else:
            super().on_timer(name)

    def on_step_end(self) -> None:
        if self._gone:
            return
        self._return()
        self._turn()
        super().on_step_end()
        self._generic.set_leading(self._paxos.suggested_leader == self.me and self._first())
        self._generic.flush()

    # Suspicions

    def _suspect(self, group: GroupId) -> None:
        if group != self.home:
            self._suspected.add(group)
            self._generic.request_change((CLOSE, group))

    def _return(self) -> None:
        """We were removed, and are there. What is left of a group without a majority would only be waited for again."""
        enough = len(self._around) >= self.topology.quorum(self.home)
        if self.home not in self._generic.open and self._paxos.can_propose() and enough:
            self._generic.request_change((OPEN, self.home))

    def _hear(self, sender: ProcessId) -> None:
        """A group whose process speaks is not lost, though its bundle may be late."""
        group = self.topology.group_of(sender)
        assert group is not None, f"process {sender} is in no group and broadcasts"
        if group == self.home:
            self._around.add(sender)
        else:
            self._suspected.discard(group)
            if self._silent(group):
                self._forgive(group)
            self._quiet[group] = 0

    def _forgive(self, group: GroupId) -> None:
        """It was not lost: next time it gets longer."""
        self._wronged[group] = min(self._wronged[group] + 1, LENIENCE - 1)

    def _patient(self, group: GroupId) -> int:
        """How many vain retries a group may cost."""
        return self._patience * (1 + self._wronged[group])

    def _silent(self, group: GroupId) -> bool:
        return self._quiet[group] >= self._patient(group)

    def _first(self) -> bool:
        """Nobody is there of the groups before mine: its leader leads everybody."""
        before = self.topology.groups[: self.topology.groups.index(self.home)]
        return all(group in self._suspected or self._silent(group) for group in before)

    def _ask(self, round: int, times: int) -> None:
        self._generic.request_missing()
        if self._paxos.role == "leading":
            self._tell_again(self._generic.others)
        if self._fellows and times > 1:
            self.send_all(self._fellows, Lacking(round))
        for group in self._others:
            self._quiet[group] = min(self._quiet[group] + 1, self._patience * LENIENCE)
        for group in self._generic.find_late_streams(round):
            if group != self.home and times >= self._patient(group):
                self._generic.request_change((CLOSE, group))

    # Rounds

    def _turn(self) -> None:
        """Take what the broadcast has to hand up."""
        for event in self._generic.collect_events():
            if len(event) == 2 and isinstance(event[0], int) and isinstance(event[1], int):
                stream, number = event
                if number > self._round:
                    self._have.setdefault(number, set()).add(stream)
            else:
                changes: list[Change] = list(event)
                for kind, group in changes:
                    self.note("removed" if kind == CLOSE else "returned", value=float(group))
                    if group == self.home:
                        self._around = {self.me}
                    elif kind == OPEN:
                        self._forgive(group)
                    if group == self.home and kind == OPEN and self._paxos.role == "leading":
                        self._tell_again(self._generic.others)
                if self._paxos.role == "leading":
                    self._tell_absent(self.topology.clients)
        self._advance()

    def _contents(self, round: int) -> Iterable[Message] | None:
        given = self._generic.delivered
        if any(given[group] < round for group in self._generic.open):
            return None
        items = self._generic.items
        return [message for group in sorted(self._have.get(round, ())) for message in items[group].get(round, ())]

    def _lacking(self, round: int) -> tuple[GroupId, ...]:
        return tuple(sorted(group for group in self._generic.open if self._generic.delivered[group] < round))

    def _round_of(self, message: MessageId) -> int:
        bundles = [pair for kept in self._generic.items.values() for pair in kept.items()]
        found = [round for round, bundle in bundles if any(one.id == message for one in bundle)]
        return max(found, default=0)

    def _close(self, round: int, messages: Messages) -> None:
        self._own[round] = messages
        self._generic.add_item(self.home, round, messages)
        self._watch(round, messages)
        if self._paxos.role == "leading":
            self._tell(self._generic.others, round, messages)

    def _past(self, round: int) -> None:
        self._busy.discard(round)
        counted = self._have.pop(round, set())
        own = self._own.pop(round, ())
        if self.home not in counted:
            for message in own:
                if message.id not in self._delivered:
                    self._redo(message)
        self._generic.drop_below(round, self._linger)

    def _redo(self, message: Message) -> None:
        """A message of my group must be ordered once more."""
        self.note("again", message.id)
        self._again[message.id] = message
        self._await(message)

    def _ahead(self) -> int:
        newest = self._generic.newest
        return max((newest[group] for group in self._others), default=0)

    def _lively(self) -> int:
        return max(self._busy, default=0)

    def _watch(self, round: int, messages: Messages) -> None:
        """A bundle is here: does its round have something for us?"""
        if round > self._round and any(self.home in message.destinations for message in messages):
            self._busy.add(round)

    def _accepts(self, message: Message) -> bool:
        return self.home in message.destinations and message.id not in self._delivered

    def _admits(self, message: Message) -> bool:
        if self._again.pop(message.id, None) is not None:
            return True
        return super()._admits(message)

    # Bundles

    def _tell(self, targets: tuple[ProcessId, ...], round: int, messages: Messages) -> None:
        if targets:
            self.send_all(targets, Item(self.home, round, messages), about(messages))

    def _tell_again(self, targets: tuple[ProcessId, ...]) -> None:
        given = self._generic.delivered[self.home]
        for round, messages in sorted(self._generic.items[self.home].items()):
            if round > given:
                self._tell(targets, round, messages)

    def _take_over(self) -> None:
        self._tell_again(self._generic.others)
        if self._generic.epoch:
            self._tell_absent(self.topology.clients)

    def _tell_absent(self, processes: tuple[ProcessId, ...]) -> None:
        """Clients must not wait for the answers of groups that are out of the view."""
        clients = tuple(process for process in processes if self.topology.group_of(process) is None)
        if clients:
            self.send_all(clients, self._view())

    def _view(self) -> AbsentGroups:
        absent = tuple(group for group in self.topology.groups if group not in self._generic.open)
        return AbsentGroups(self._generic.epoch, absent)

    def status(self) -> ProcessStatus:
        vitals = super().status()
        return {**vitals, "role": "gone", "joined": 0} if self._gone else vitals

    def reply_extra(self, message: Message) -> AbsentGroups | None:
        """Who waits for a group that was lost after the others delivered asks them, and they know it only now."""
        waits = self.topology.group_of(message.sender) is None and not self._present(message)
        return self._view() if waits else None

    def _present(self, message: Message) -> bool:
        return set(message.destinations).issubset(self._generic.open)

    # Snapshots

    def _core(self) -> RoundsCore:
        again = tuple(message for _, message in sorted(self._again.items()))
        return msgspec.structs.replace(super()._core(), again=again, vouch=self._generic.get_progress())

    def _become(self, core: RoundsCore) -> None:
        super()._become(core)
        self._again = {message.id: message for message in core.again}
        self._have = {round: groups for round, groups in self._have.items() if round > self._round}
        self._busy = {round for round in self._busy if round > self._round}

    def _install(self, state: bytes) -> None:
        before = self._instance, self._round
        super()._install(state)
        if (self._instance, self._round) != before:
            core = msgspec.msgpack.decode(state, type=RoundsCore)
            self._generic.install_progress(*core.vouch)
            self._generic.drop_below(self._round, self._linger)
            for round, messages in core.own:
                self._generic.add_item(self.home, round, messages)
                self._watch(round, messages)
            for message in core.again:
                self._await(message)

    def snapshot(self) -> ADtState:
        return ADtState(
            self._base(),
            self._generic.snapshot(),
            tuple((round, tuple(sorted(groups))) for round, groups in sorted(self._have.items())),
            tuple(sorted(self._busy)),
            tuple(sorted(self._suspected)),
            tuple(self._quiet.items()),
            tuple(self._wronged.items()),
            tuple(sorted(self._around)),
            self._gone,
        )

    def restore(self, state: State) -> None:
        assert isinstance(state, ADtState)
        self._rebase(state.base)
        self._generic.restore(state.generic)
        self._busy = set(state.busy)
        self._have = {round: set(groups) for round, groups in state.have}
        self._suspected = set(state.suspected)
        self._quiet = dict(state.quiet)
        self._wronged = dict(state.wronged)
        self._around = set(state.around)
        self._gone = state.gone


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
    summary="rounds whose bundles are broadcast: whole groups may be lost",
    source="paper 001 section 3.2; Schiper and Pedone 2008",
    process=ADt,
    config=ADtConfig,
    bodies=(*PAXOS_BODIES, *GENERIC_BODIES, Lacking, Handover, AbsentGroups),
    records=PAXOS_RECORDS,
    states=(ADtState, RoundsState),
    claims=Claims(
        genuine="no",
        faults=frozenset({"pause", "slow", "partition", "loss", "skew", "leaders", "suspects", "links", "crash"}),
        tolerates=tolerates,
        ranked=True,
        quiescent=False,
        world="intergroup",
        delays=_delays,
        moment=lambda config: config.idle_ns[0],
    ),
    contacts=contact,
    roles=role_of,
    goals=("hurried", "asked", "led", "removed", "returned", "again"),
)
