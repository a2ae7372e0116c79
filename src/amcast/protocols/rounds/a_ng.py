"""A_ng: groups exchange batches once a round. Not genuine; one inter-group delay, the minimum.

Source: paper 001, sections 4 (the algorithm), 5 (kappa, eta) and 6 (leaders send for their groups).

    sender       group g: leader, members              group h: leader, members
      |--Request--->|->|                                   |  |
      |             |==|  Paxos: an instance               |==|  Paxos: an instance, maybe empty
      |          deliver local messages                  deliver local messages
      |             |-----------RoundBatch---------------->|  |
      |             |<----------RoundBatch-----------------|  |
      |             |->| RoundBatch                        |->| RoundBatch
      |          deliver the round's global messages     deliver the same

Every group sends a batch to every other group in every round, an empty one if it has no messages: without it the others
could not end the round. So the protocol is never quiescent, and a group that has lost its majority stops all groups.

Claims: one inter-group delay for a global message that arrives just before its group proposes, if all groups' rounds
are aligned; none for local ones. A minority of each group may crash; recovery; lost memory.

A leader sends a batch to the other group's leader, which forwards it to its group. Every member of the sending group
retains the batch until a majority of every other group is durably past that round. A new leader sends the last batches
again; a member that waits too long requests (BatchRequest) the batch from the groups, and then a state past the round
from its own group (StateTransfer): the checkpoint of a log, because a later state of the sender may have been delivered
nowhere after a crash.
"""

from collections.abc import Iterable

from amcast.kernel.ids import GroupId, MessageId, ProcessId
from amcast.kernel.message import Body, Message, State
from amcast.kernel.spec import Claims, Spec, majorities_survive
from amcast.kernel.topology import Topology
from amcast.parts.consensus.messages import PAXOS_BODIES, PAXOS_RECORDS
from amcast.parts.consensus.quorum import role_of
from amcast.parts.groups.claims import CRASH_FAULTS, PAXOS_RECOVERY_GOALS
from amcast.parts.groups.contacts import contact_one_group
from amcast.protocols.rounds.messages import (
    BODIES,
    ANgState,
    BatchRequest,
    DurableRound,
    Messages,
    RoundBatch,
    RoundsConfig,
    RoundsCore,
    RoundsState,
    StateTransfer,
)
from amcast.protocols.rounds.process import MAX_RESENDS, RoundGroup, about
from amcast.protocols.rounds.statements import build_a_ng_table


class ANg(RoundGroup):
    """A member of a group of A_ng."""

    def __init__(self, me: ProcessId, topology: Topology, config: RoundsConfig) -> None:
        super().__init__(me, topology, config)
        self._batches: dict[int, dict[GroupId, Messages]] = {}
        """By round that is not delivered here and other group: the batch's messages for the own group."""
        self._reached_rounds: dict[GroupId, int] = dict.fromkeys(self._other_groups, 0)
        """The latest round that each other group is known to have ended."""
        self._safe_rounds: dict[GroupId, int] = dict.fromkeys(self._other_groups, 0)
        """The round up to which each other group needs no batches any more."""
        self._durable_rounds: dict[ProcessId, int] = dict.fromkeys(topology.members(self.home), 0)
        """The round that each member of the own group is durably past."""
        self._remote_leaders: dict[GroupId, ProcessId] = {
            group: topology.members(group)[0] for group in self._other_groups
        }
        """The leader of each other group, as far as known."""

    # Rounds

    def _collect_round(self, round: int) -> Iterable[Message] | None:
        batches = self._batches.get(round, {})
        if len(batches) < len(self._other_groups):
            return None
        return [
            *self._own_batches.get(round, ()),
            *(message for group in sorted(batches) for message in batches[group]),
        ]

    def _finish_batch(self, round: int, messages: Messages) -> None:
        if not self._other_groups:
            self._own_batches = {round: messages}
            return
        self._own_batches[round] = messages
        if self._paxos.role == "leading":
            for group in self._other_groups:
                self._send_batch(self._remote_leaders[group], group, round)

    def _missing_groups(self, round: int) -> tuple[GroupId, ...]:
        own = () if round * self._config.eta <= self._instance else (self.home,)
        return (*own, *(group for group in self._other_groups if group not in self._batches.get(round, {})))

    def _find_round(self, message: MessageId) -> int:
        remote = [(round, batch) for round, batches in self._batches.items() for batch in batches.values()]
        known = (*self._own_batches.items(), *remote)
        return max((round for round, batch in known if any(other.id == message for other in batch)), default=0)

    def _on_round_delivered(self, round: int) -> None:
        self._batches.pop(round, None)

    def _latest_remote_round(self) -> int:
        return max(self._reached_rounds.values(), default=0)

    def _latest_nonempty_round(self) -> int:
        latest = max((round for round, batches in self._batches.items() if any(batches.values())), default=0)
        for round in range(self._instance // self._config.eta, max(self._round, latest), -1):
            if self._own_batches.get(round):
                return round
        return latest

    # Between groups

    def on_receive(self, sender: ProcessId, body: Body) -> None:
        match body:
            case RoundBatch():
                self._handle_batch(sender, body)
            case BatchRequest(round):
                self._handle_batch_request(sender, round)
            case DurableRound(round):
                self._durable_rounds[sender] = max(self._durable_rounds[sender], round)
            case StateTransfer(state):
                self._install_core(state)
                self._advance()
            case _:
                super().on_receive(sender, body)

    def _handle_batch(self, sender: ProcessId, batch: RoundBatch) -> None:
        group, round = batch.group, batch.round
        self._update_reached_round(group, round)
        if batch.safe > self._safe_rounds[group]:
            self._safe_rounds[group] = batch.safe
            self._drop_safe_batches()
        direct = self.topology.group_of(sender) == group
        if direct and self._remote_leaders[group] != sender:
            self._remote_leaders[group] = sender
            if self._paxos.role == "leading":
                self._resend_batches(group, sender)
        if round <= self._round or group in self._batches.setdefault(round, {}):
            return
        self._batches[round][group] = batch.messages
        if direct and self._other_members:
            self.send_all(self._other_members, batch, about(batch.messages))
        self._advance()

    def _update_reached_round(self, group: GroupId, round: int) -> None:
        self._reached_rounds[group] = max(self._reached_rounds[group], round)

    def _send_batch(self, target: ProcessId, group: GroupId, round: int) -> None:
        messages = tuple(message for message in self._own_batches[round] if group in message.destinations)
        self.send(target, RoundBatch(round, self.home, messages, self._own_safe_round()), about(messages))

    def _resend_batches(self, group: GroupId, target: ProcessId) -> None:
        """Sends the batches that a group may lack, judged by the round that it has reached."""
        first = self._reached_rounds[group] - self._config.kappa // self._config.eta - 1
        for round in sorted(self._own_batches):
            if round >= first:
                self._send_batch(target, group, round)

    def _on_leading(self) -> None:
        for group in self._other_groups:
            self._resend_batches(group, self._remote_leaders[group])

    def on_leader(self, group: GroupId, leader: ProcessId) -> None:
        super().on_leader(group, leader)
        if group != self.home and leader in self.topology.members(group) and leader != self._remote_leaders[group]:
            self._remote_leaders[group] = leader
            if self._paxos.role == "leading":
                self._resend_batches(group, leader)

    def on_link_reset(self, peer: ProcessId, incarnation: int) -> None:
        super().on_link_reset(peer, incarnation)
        group = self.topology.group_of(peer)
        if peer in self._other_members:
            self._on_durable()
            for round, batches in sorted(self._batches.items()):
                for other, messages in sorted(batches.items()):
                    self.send(peer, RoundBatch(round, other, messages, self._safe_rounds[other]), about(messages))
        elif group is not None and peer == self._remote_leaders.get(group) and self._paxos.role == "leading":
            self._resend_batches(group, peer)

    # Missing batches

    def _request_batches(self, round: int, times: int) -> None:
        known = self._batches.get(round, {})
        missing = tuple(group for group in self._other_groups if group not in known)
        self.send_all(self.topology.processes_of(missing), BatchRequest(round))
        if times > 1 and self._other_members:
            self.send_all(self._other_members, BatchRequest(round))

    def _handle_batch_request(self, sender: ProcessId, round: int) -> None:
        group = self.topology.group_of(sender)
        assert group is not None, f"process {sender} is in no group and requests batches"
        if group != self.home:
            self._update_reached_round(group, round)
            for later in [later for later in sorted(self._own_batches) if later >= round][:MAX_RESENDS]:
                self._send_batch(sender, group, later)
        elif round <= self._durable_round():
            self.note("handed")
            self.send(sender, StateTransfer(self._paxos.log.checkpoint))
        else:
            for other, messages in sorted(self._batches.get(round, {}).items()):
                self.send(sender, RoundBatch(round, other, messages, self._safe_rounds[other]), about(messages))

    # Durable rounds

    def _on_durable(self) -> None:
        """Reports to the own group from which round this process would restart."""
        round = self._durable_round()
        self._durable_rounds[self.me] = round
        if self._other_members:
            self.send_all(self._other_members, DurableRound(round))

    def _own_safe_round(self) -> int:
        """A majority of the own group is durably past this round, and can send the others its state."""
        return sorted(self._durable_rounds.values(), reverse=True)[self._paxos.quorum - 1]

    def _drop_safe_batches(self) -> None:
        needed = min(self._safe_rounds.values())
        for round in [round for round in self._own_batches if round <= min(needed, self._round)]:
            del self._own_batches[round]

    def _restore_core(self, core: RoundsCore) -> None:
        super()._restore_core(core)
        for round in [round for round in self._batches if round <= self._round]:
            del self._batches[round]

    def snapshot(self) -> ANgState:
        return ANgState(
            self._snapshot_base(),
            tuple((round, tuple(sorted(batches.items()))) for round, batches in sorted(self._batches.items())),
            tuple(sorted(self._reached_rounds.items())),
            tuple(sorted(self._safe_rounds.items())),
            tuple(sorted(self._durable_rounds.items())),
            tuple(sorted(self._remote_leaders.items())),
        )

    def restore(self, state: State) -> None:
        assert isinstance(state, ANgState)
        self._restore_base(state.base)
        self._batches = {round: dict(batches) for round, batches in state.batches}
        self._reached_rounds = dict(state.reached_rounds)
        self._safe_rounds = dict(state.safe_rounds)
        self._durable_rounds = dict(state.durable_rounds)
        self._remote_leaders = dict(state.remote_leaders)


def _delays(role: str, destinations: int, replicas: int) -> int | None:
    return (1 if destinations > 1 else 0) if role == "max" else None


SPEC = Spec(
    name="a-ng",
    summary="groups exchange batches of messages, round after round",
    source="paper 001 sections 4, 5 and 6",
    process=ANg,
    config=RoundsConfig,
    bodies=(*PAXOS_BODIES, *BODIES),
    records=PAXOS_RECORDS,
    statements=build_a_ng_table,
    states=(ANgState, RoundsState),
    claims=Claims(
        genuine="no",
        faults=CRASH_FAULTS,
        tolerates=majorities_survive,
        ranked=True,
        quiescent=False,
        world="intergroup",
        delays=_delays,
        round_start_ns=lambda config: config.idle_ns[0],
    ),
    contacts=contact_one_group,
    role_of=role_of,
    goals=("hurried", "asked", "led", "admitted"),
    recovery_goals=PAXOS_RECOVERY_GOALS,
)
