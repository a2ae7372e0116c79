"""A_ge: timestamps by consensus inside groups, exchanged between groups, with stages skipped where nothing is lost.

Source: paper 001, sections 3.1 and 5 (the algorithm is Schiper and Pedone 2008, after Fritzke et al. 1998).

    s0  reliably multicast to the destinations; each group's log gives the message the group's timestamp
    s1  every member tells it to all other destinations; the highest is final
    s2  the final timestamp passes through the log, so that the group's clock gets beyond it
    s3  deliver in the order of (final timestamp, id)

A local message jumps from s0 to s3. In a group whose own timestamp is the final one the clock is there already, and the
message jumps from s1 to s3. A_ge* (001 section 5, against the convoy effect) gives local messages no timestamp at all:
they are delivered when the log has them. Then members must agree after which instance a global message comes, and no
stage may be skipped.

Claims: genuine; two inter-group delays, local messages none (senders inside the first destination); every member
tells stamps, so that the loss of a leader costs nothing between groups: O(k^2 d^2) packets as in 001's figure 1.

Deviations: the group's clock counts messages, not instances; the paper gives prose only, see docs/protocols/a-ge.md.
"""

from dataclasses import replace

from amcast.kernel.ids import MessageId, ProcessId
from amcast.kernel.message import Message
from amcast.kernel.spec import Spec
from amcast.kernel.topology import Topology
from amcast.parts.consensus.messages import PAXOS_BODIES, PAXOS_RECORDS, Entry
from amcast.parts.consensus.quorum import role_of
from amcast.parts.groups.claims import MAJORITY_CLAIMS
from amcast.parts.groups.messages import FINAL, TIMESTAMP_BODIES, TimestampState
from amcast.parts.groups.timestamped import TimestampedGroup, TimestampPending
from amcast.protocols.a_ge.messages import AGeConfig


class AGe(TimestampedGroup):
    """A member of a group, of A_ge or of A_ge*."""

    def __init__(self, me: ProcessId, topology: Topology, config: AGeConfig) -> None:
        super().__init__(me, topology, config)
        self._starred = config.convoy_free
        self.delivers_ahead = not self._starred

    def _speaks(self) -> bool:
        return True

    def _all_heard(self, id: MessageId, entry: TimestampPending) -> None:
        if not self._starred and entry.own == max(entry.heard.values()):
            self.note("skipped", id)
            self._finish(id, entry, entry.own)

    def _ordering(self, id: MessageId, entry: TimestampPending) -> list[Entry]:
        return [Entry(FINAL, id, timestamp=max(entry.heard.values()))]

    def _set(self, message: Message) -> None:
        if self._starred and len(message.destinations) == 1:
            self._waiting.pop(message.id, None)
            if self._seen.add(message.id):
                if len(self._queue):
                    self.note("overtook", message.id)
                self.deliver(message)
            return
        super()._set(message)


def _delays(role: str, destinations: int, replicas: int) -> int | None:
    return (2 if destinations > 1 else 0) if role == "max" else None


SPEC = Spec(
    name="a-ge",
    summary="timestamps by consensus inside groups; stages are skipped where nothing is lost",
    source="paper 001 section 3.1; Schiper and Pedone 2008",
    process=AGe,
    config=AGeConfig,
    bodies=(*PAXOS_BODIES, *TIMESTAMP_BODIES),
    records=PAXOS_RECORDS,
    states=(TimestampState,),
    claims=replace(
        MAJORITY_CLAIMS,
        world="intergroup",
        delays=_delays,
    ),
    roles=role_of,
    options={"convoy_free": False},
    goals=("skipped", "waited", "early", "led", "admitted"),
)

STAR = replace(
    SPEC,
    name="a-ge-star",
    summary="A_ge without the convoy effect: local messages wait for nobody",
    source="paper 001 section 5",
    options={"convoy_free": True},
    claims=replace(SPEC.claims, ranked=False),
    goals=("overtook", "early", "led", "admitted"),
)
