"""A_ge: timestamps by consensus inside groups, exchanged between groups, with stages skipped where they change nothing.

Source: paper 001, sections 3.1 and 5 (the algorithm is Schiper and Pedone 2008, after Fritzke et al. 1998).

    s0  reliably multicast to the destinations; each group's log gives the message the group's timestamp
    s1  every member sends it to all other destinations; the highest is final
    s2  the final timestamp passes through the log, so that the group's clock reaches it
    s3  deliver in the order of (final timestamp, id)

A local message goes from s0 to s3. In a group whose own timestamp is the final one the clock has reached it, and the
message goes from s1 to s3. A_ge* (001 section 5, against the convoy effect) gives local messages no timestamp: they
are delivered when the log has them. Then members must agree on the instance after which a global message comes, and no
stage may be skipped.

Claims: genuine; two inter-group delays, local messages none (senders inside the first destination); every member
sends timestamps, so that the loss of a leader costs nothing between groups: O(k^2 d^2) packets as in 001's figure 1.
With transfer = "leader" (001 section 6) the leaders alone speak between groups, and what one step has is one packet.

Deviations: the group's clock counts messages, not instances; the paper has no pseudocode, see docs/protocols/a-ge.md.
"""

from dataclasses import replace
from typing import cast

from amcast.kernel.ids import GroupId, MessageId, ProcessId
from amcast.kernel.message import Body, Message, State
from amcast.kernel.spec import Contacts, Spec
from amcast.kernel.topology import Topology
from amcast.parts.consensus.messages import PAXOS_BODIES, PAXOS_RECORDS, Entry
from amcast.parts.consensus.quorum import role_of
from amcast.parts.groups.claims import MAJORITY_CLAIMS, PAXOS_RECOVERY_GOALS
from amcast.parts.groups.contacts import contact_one_group
from amcast.parts.groups.pending_timestamps import TimestampPending
from amcast.parts.groups.timestamped import TimestampedGroup
from amcast.parts.groups.timestamped_messages import FINAL, TIMESTAMP_BODIES, TimestampState
from amcast.protocols.a_ge.messages import AGeConfig, AGeState, GroupTransfer
from amcast.protocols.a_ge.statements import build_a_ge_table
from amcast.protocols.a_ge.transfers import Transfers, list_concerned


class AGe(TimestampedGroup):
    """A member of a group, of A_ge or of A_ge*."""

    def __init__(self, me: ProcessId, topology: Topology, config: AGeConfig) -> None:
        super().__init__(me, topology, config)
        self._is_convoy_free = config.convoy_free
        self.delivers_ahead = not self._is_convoy_free
        self._transfers = Transfers(self.home) if config.transfer == "leader" else None
        """What waits for the end of the step; None: everything is sent to the members of other groups at once."""
        self._remote_leaders: dict[GroupId, ProcessId] = {
            group: topology.members(group)[0] for group in topology.groups if group != self.home
        }
        """The leader of each other group, as far as known."""

    def _handle_all_timestamps(self, id: MessageId, pending: TimestampPending) -> None:
        if not self._is_convoy_free and pending.own == max(pending.received.values()):
            self.note("skipped", id)
            self._set_final(id, pending, pending.own)

    def _make_timestamp_entries(self, id: MessageId, pending: TimestampPending) -> list[Entry]:
        return [Entry(FINAL, id, timestamp=max(pending.received.values()))]

    def _apply_set(self, message: Message) -> None:
        if self._is_convoy_free and len(message.destinations) == 1:
            self._requests.pop(message.id, None)
            if self._ordered.add(message.id):
                if len(self._queue):
                    self.note("overtook", message.id)
                self.deliver(message)
            return
        super()._apply_set(message)

    # From leader to leader

    def contacts(self, message: Message) -> tuple[ProcessId, ...]:
        return super().contacts(message) if self._transfers is None else contact_one_group(self.topology, message)

    def _sends_timestamps(self) -> bool:
        return self._paxos.role == "leading" if self._transfers is not None else super()._sends_timestamps()

    def _make_proposals(self) -> list[Entry]:
        if self._transfers is not None:
            for id in self._unproposed_requests:
                if id in self._requests:
                    self._pass_on(self._requests[id])
        return super()._make_proposals()

    def _pass_on(self, message: Message) -> None:
        """The group that a client asks passes the message on to the other destinations."""
        assert self._transfers is not None
        if self.topology.group_of(contact_one_group(self.topology, message)[0]) == self.home:
            for group in message.destinations:
                if group != self.home:
                    self._transfers.add_message(group, message)

    def _send_timestamp(self, id: MessageId, pending: TimestampPending) -> None:
        if self._transfers is None:
            super()._send_timestamp(id, pending)
            return
        for group in pending.message.destinations:
            if group != self.home:
                self._transfers.add_timestamp(group, id, pending.own)

    def _send_confirmation(self, group: GroupId, batch: tuple[MessageId, ...]) -> None:
        if self._transfers is None:
            super()._send_confirmation(group, batch)
        else:
            self._transfers.add_confirmations(group, batch)

    def on_step_end(self) -> None:
        super().on_step_end()
        if self._transfers is not None:
            for group, body in self._transfers.pop_bodies():
                self.send(self._remote_leaders[group], body, list_concerned(body))

    def on_receive(self, sender: ProcessId, body: Body) -> None:
        if type(body) is GroupTransfer:
            self._handle_transfer(sender, body)
        else:
            super().on_receive(sender, body)

    def _handle_transfer(self, sender: ProcessId, body: GroupTransfer) -> None:
        if self.topology.group_of(sender) == body.group:
            self._remote_leaders[body.group] = sender
            if self._other_members:
                self.send_all(self._other_members, body, list_concerned(body))
        for message in body.messages:
            self.on_request(message)
        for id, timestamp in body.timestamps:
            self._handle_timestamp(id, body.group, timestamp, ask=False)
        self._handle_confirmation(body.group, body.stored)

    def on_leader(self, group: GroupId, leader: ProcessId) -> None:
        super().on_leader(group, leader)
        known = self._remote_leaders.get(group, leader)
        if known != leader and leader in self.topology.members(group):
            self._remote_leaders[group] = leader
            if self._transfers is not None and self._paxos.role == "leading":
                self._resend_to(group)

    def _resend_to(self, group: GroupId) -> None:
        """Sends a group's new leader what the last one may have lost."""
        assert self._transfers is not None
        for id, pending in self._pending.items():
            if not pending.is_final_logged and group in pending.message.destinations:
                self._pass_on(pending.message)
                self._transfers.add_timestamp(group, id, pending.own)

    # Snapshots

    def snapshot(self) -> State:
        return AGeState(cast(TimestampState, super().snapshot()), tuple(sorted(self._remote_leaders.items())))

    def restore(self, state: State) -> None:
        assert isinstance(state, AGeState)
        super().restore(state.base)
        self._remote_leaders = dict(state.remote_leaders)


def make_contacts(config: AGeConfig) -> Contacts:
    """Who takes a message from its sender."""
    if config.transfer == "leader":
        return contact_one_group
    return lambda topology, message: topology.processes_of(message.destinations)


def _delays(role: str, destinations: int, replicas: int) -> int | None:
    return (2 if destinations > 1 else 0) if role == "max" else None


SPEC = Spec(
    name="a-ge",
    summary="timestamps by consensus inside groups; stages are skipped where they change nothing",
    source="paper 001 section 3.1; Schiper and Pedone 2008",
    process=AGe,
    config=AGeConfig,
    bodies=(*PAXOS_BODIES, *TIMESTAMP_BODIES, GroupTransfer),
    records=PAXOS_RECORDS,
    statements=build_a_ge_table,
    states=(AGeState, TimestampState),
    make_contacts=make_contacts,
    claims=replace(
        MAJORITY_CLAIMS,
        world="intergroup",
        delays=_delays,
    ),
    role_of=role_of,
    options={"convoy_free": False},
    goals=("skipped", "waited", "early", "led", "admitted"),
    recovery_goals=PAXOS_RECOVERY_GOALS,
)

STAR = replace(
    SPEC,
    name="a-ge-star",
    summary="A_ge without the convoy effect: local messages do not wait for global ones",
    source="paper 001 section 5",
    options={"convoy_free": True},
    claims=replace(SPEC.claims, ranked=False),
    goals=("overtook", "early", "led", "admitted"),
    recovery_goals=PAXOS_RECOVERY_GOALS,
)
