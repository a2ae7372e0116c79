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

Deviations: the group's clock counts messages, not instances; the paper has no pseudocode, see docs/protocols/a-ge.md.
"""

from dataclasses import replace

from amcast.kernel.ids import MessageId, ProcessId
from amcast.kernel.message import Message
from amcast.kernel.spec import Spec
from amcast.kernel.topology import Topology
from amcast.parts.consensus.messages import PAXOS_BODIES, PAXOS_RECORDS, Entry
from amcast.parts.consensus.quorum import role_of
from amcast.parts.groups.claims import MAJORITY_CLAIMS, PAXOS_RECOVERY_GOALS
from amcast.parts.groups.pending_timestamps import TimestampPending
from amcast.parts.groups.statements import build_timestamp_table
from amcast.parts.groups.timestamped import TimestampedGroup
from amcast.parts.groups.timestamped_messages import FINAL, TIMESTAMP_BODIES, TimestampState
from amcast.protocols.a_ge.messages import AGeConfig


class AGe(TimestampedGroup):
    """A member of a group, of A_ge or of A_ge*."""

    def __init__(self, me: ProcessId, topology: Topology, config: AGeConfig) -> None:
        super().__init__(me, topology, config)
        self._is_convoy_free = config.convoy_free
        self.delivers_ahead = not self._is_convoy_free

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


def _delays(role: str, destinations: int, replicas: int) -> int | None:
    return (2 if destinations > 1 else 0) if role == "max" else None


SPEC = Spec(
    name="a-ge",
    summary="timestamps by consensus inside groups; stages are skipped where they change nothing",
    source="paper 001 section 3.1; Schiper and Pedone 2008",
    process=AGe,
    config=AGeConfig,
    bodies=(*PAXOS_BODIES, *TIMESTAMP_BODIES),
    records=PAXOS_RECORDS,
    statements=build_timestamp_table,
    states=(TimestampState,),
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
