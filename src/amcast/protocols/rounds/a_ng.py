"""A_ng: groups swap bundles once a round. Not genuine, and as fast as light: one inter-group delay.

Source: paper 001, sections 4 (the algorithm), 5 (kappa, eta) and 6 (leaders speak for their groups).

    sender       group g: leader, members              group h: leader, members
      |--Request--->|->|                                   |  |
      |             |==|  Paxos: an instance               |==|  Paxos: an instance, maybe empty
      |          deliver local messages                  deliver local messages
      |             |-------------Bundle------------------>|  |
      |             |<------------Bundle-------------------|  |
      |             |->| Bundle                            |->| Bundle
      |          deliver the round's global messages     deliver the same

Every group sends a bundle to every other in every round, an empty one if it has nothing: without it the others could
not end the round. So the protocol never falls silent, and a group that has lost its majority stops everybody.

Claims: one inter-group delay for a global message that arrives just before its group proposes, if all groups' rounds
are aligned; none for local ones. A minority of each group may crash; recovery; lost memory.

A bundle goes from leader to leader, who hands it to its fellows. It can be had from any member of its group: all keep
it until a majority of every other group has made durable that it is past that round. A new leader sends the last ones
again; whoever waits too long asks (Lacking) the groups, and then its fellows for a state that is as good (Handover):
that with which a log begins, because only what its giver would come back to is certain to have been handed up there.
"""

from collections.abc import Iterable

from amcast.kernel.ids import GroupId, MessageId, ProcessId
from amcast.kernel.message import Body, Message, State
from amcast.kernel.spec import Claims, Spec, majorities_survive
from amcast.kernel.topology import Topology
from amcast.parts.consensus.messages import PAXOS_BODIES, PAXOS_RECORDS
from amcast.parts.consensus.quorum import role_of
from amcast.parts.groups.claims import CRASH_FAULTS
from amcast.protocols.rounds.messages import (
    BODIES,
    ANgState,
    Handover,
    Kept,
    Lacking,
    Messages,
    RoundBatch,
    RoundsConfig,
    RoundsCore,
    RoundsState,
)
from amcast.protocols.rounds.process import AT_ONCE, RoundGroup, about, contact


class ANg(RoundGroup):
    """A member of a group of A_ng."""

    def __init__(self, me: ProcessId, topology: Topology, config: RoundsConfig) -> None:
        super().__init__(me, topology, config)
        self._bundles: dict[int, dict[GroupId, Messages]] = {}
        """Bundles of other groups for rounds that are not delivered here, without what is not for my group."""
        self._reached: dict[GroupId, int] = dict.fromkeys(self._others, 0)
        """The latest round that each other group is known to have ended."""
        self._safe: dict[GroupId, int] = dict.fromkeys(self._others, 0)
        """The round up to which each other group needs no bundles any more."""
        self._durable: dict[ProcessId, int] = dict.fromkeys(topology.members(self.home), 0)
        """The round that each member of my group is past, durably."""
        self._doors: dict[GroupId, ProcessId] = {group: topology.members(group)[0] for group in self._others}
        """Whom to tell in each other group: its leader, as far as I know."""

    # Rounds

    def _contents(self, round: int) -> Iterable[Message] | None:
        bundles = self._bundles.get(round, {})
        if len(bundles) < len(self._others):
            return None
        return [*self._own.get(round, ()), *(message for group in sorted(bundles) for message in bundles[group])]

    def _close(self, round: int, messages: Messages) -> None:
        if not self._others:
            self._own = {round: messages}
            return
        self._own[round] = messages
        if self._paxos.role == "leading":
            for group in self._others:
                self._tell(self._doors[group], group, round)

    def _lacking(self, round: int) -> tuple[GroupId, ...]:
        mine = () if round * self._config.eta <= self._instance else (self.home,)
        return (*mine, *(group for group in self._others if group not in self._bundles.get(round, {})))

    def _round_of(self, message: MessageId) -> int:
        bundles = [(round, bundle) for round, kept in self._bundles.items() for bundle in kept.values()]
        found = [round for round, bundle in (*self._own.items(), *bundles) if any(one.id == message for one in bundle)]
        return max(found, default=0)

    def _past(self, round: int) -> None:
        self._bundles.pop(round, None)

    def _ahead(self) -> int:
        return max(self._reached.values(), default=0)

    def _lively(self) -> int:
        latest = max((round for round, bundles in self._bundles.items() if any(bundles.values())), default=0)
        for round in range(self._instance // self._config.eta, max(self._round, latest), -1):
            if self._own.get(round):
                return round
        return latest

    # Between groups

    def on_receive(self, sender: ProcessId, body: Body) -> None:
        match body:
            case RoundBatch():
                self._hear(sender, body)
            case Lacking(round):
                self._answer(sender, round)
            case Kept(round):
                self._durable[sender] = max(self._durable[sender], round)
            case Handover(state):
                self._install(state)
                self._advance()
            case _:
                super().on_receive(sender, body)

    def _hear(self, sender: ProcessId, bundle: RoundBatch) -> None:
        group, round = bundle.group, bundle.round
        self._reach(group, round)
        if bundle.safe > self._safe[group]:
            self._safe[group] = bundle.safe
            self._forget()
        direct = self.topology.group_of(sender) == group
        if direct and self._doors[group] != sender:
            self._doors[group] = sender
            if self._paxos.role == "leading":
                self._tell_again(group, sender)
        if round <= self._round or group in self._bundles.setdefault(round, {}):
            return
        self._bundles[round][group] = bundle.messages
        if direct and self._fellows:
            self.send_all(self._fellows, bundle, about(bundle.messages))
        self._advance()

    def _reach(self, group: GroupId, round: int) -> None:
        self._reached[group] = max(self._reached[group], round)

    def _tell(self, target: ProcessId, group: GroupId, round: int) -> None:
        messages = tuple(message for message in self._own[round] if group in message.destinations)
        self.send(target, RoundBatch(round, self.home, messages, self._past_need()), about(messages))

    def _tell_again(self, group: GroupId, target: ProcessId) -> None:
        """What a group may lack, judged by the round that it has reached."""
        first = self._reached[group] - self._config.kappa // self._config.eta - 1
        for round in sorted(self._own):
            if round >= first:
                self._tell(target, group, round)

    def _take_over(self) -> None:
        for group in self._others:
            self._tell_again(group, self._doors[group])

    def on_leader(self, group: GroupId, leader: ProcessId) -> None:
        super().on_leader(group, leader)
        if group != self.home and leader in self.topology.members(group) and leader != self._doors[group]:
            self._doors[group] = leader
            if self._paxos.role == "leading":
                self._tell_again(group, leader)

    def on_link_reset(self, peer: ProcessId, incarnation: int) -> None:
        super().on_link_reset(peer, incarnation)
        group = self.topology.group_of(peer)
        if peer in self._fellows:
            self._kept()
            for round, bundles in sorted(self._bundles.items()):
                for other, messages in sorted(bundles.items()):
                    self.send(peer, RoundBatch(round, other, messages, self._safe[other]), about(messages))
        elif group is not None and peer == self._doors.get(group) and self._paxos.role == "leading":
            self._tell_again(group, peer)

    # Who lacks a bundle

    def _ask(self, round: int, times: int) -> None:
        have = self._bundles.get(round, {})
        missing = tuple(group for group in self._others if group not in have)
        self.send_all(self.topology.processes_of(missing), Lacking(round))
        if times > 1 and self._fellows:
            self.send_all(self._fellows, Lacking(round))

    def _answer(self, sender: ProcessId, round: int) -> None:
        group = self.topology.group_of(sender)
        assert group is not None, f"process {sender} is in no group and lacks bundles"
        if group != self.home:
            self._reach(group, round)
            for later in [kept for kept in sorted(self._own) if kept >= round][:AT_ONCE]:
                self._tell(sender, group, later)
        elif round <= self._kept_round():
            self.note("handed")
            self.send(sender, Handover(self._paxos.log.checkpoint))
        else:
            for other, messages in sorted(self._bundles.get(round, {}).items()):
                self.send(sender, RoundBatch(round, other, messages, self._safe[other]), about(messages))

    # Memory

    def _kept(self) -> None:
        """Tell fellows how far I would come back after a crash."""
        mine = self._kept_round()
        self._durable[self.me] = mine
        if self._fellows:
            self.send_all(self._fellows, Kept(mine))

    def _past_need(self) -> int:
        """A majority of my group is durably past this round: the rest can be handed their state."""
        return sorted(self._durable.values(), reverse=True)[self._paxos.quorum - 1]

    def _forget(self) -> None:
        needed = min(self._safe.values())
        for round in [round for round in self._own if round <= min(needed, self._round)]:
            del self._own[round]

    def _become(self, core: RoundsCore) -> None:
        super()._become(core)
        for round in [round for round in self._bundles if round <= self._round]:
            del self._bundles[round]

    def snapshot(self) -> ANgState:
        return ANgState(
            self._base(),
            tuple((round, tuple(sorted(bundles.items()))) for round, bundles in sorted(self._bundles.items())),
            tuple(sorted(self._reached.items())),
            tuple(sorted(self._safe.items())),
            tuple(sorted(self._durable.items())),
            tuple(sorted(self._doors.items())),
        )

    def restore(self, state: State) -> None:
        assert isinstance(state, ANgState)
        self._rebase(state.base)
        self._bundles = {round: dict(bundles) for round, bundles in state.bundles}
        self._reached = dict(state.reached)
        self._safe = dict(state.safe)
        self._durable = dict(state.kept)
        self._doors = dict(state.doors)


def _delays(role: str, destinations: int, replicas: int) -> int | None:
    return (1 if destinations > 1 else 0) if role == "max" else None


SPEC = Spec(
    name="a-ng",
    summary="groups swap bundles of messages, round after round",
    source="paper 001 sections 4, 5 and 6",
    process=ANg,
    config=RoundsConfig,
    bodies=(*PAXOS_BODIES, *BODIES),
    records=PAXOS_RECORDS,
    states=(ANgState, RoundsState),
    claims=Claims(
        genuine="no",
        faults=CRASH_FAULTS,
        tolerates=majorities_survive,
        ranked=True,
        quiescent=False,
        world="intergroup",
        delays=_delays,
        moment=lambda config: config.idle_ns[0],
    ),
    contacts=contact,
    roles=role_of,
    goals=("hurried", "asked", "led", "admitted"),
)
