"""BaseCast: Skeen's protocol with groups in place of processes, every step of a group agreed on by Paxos.

Source: papers 003 (algorithm 1) and 004 (algorithm 1, section 4.1.1); the idea is Fritzke et al. 1998.

    client     group g: leader, members          group h: leader, members
      |--Request-->|  |--------------------------->|  |          START
      |            |==|  Paxos: SET-HARD           |==|          the log gives the message the group's timestamp
      |            |-----GroupTimestamp----------->|->|          SEND-HARD, by the leader alone or by all
      |            |<-|<----GroupTimestamp----------|
      |            |==|  Paxos: SYNC-HARD          |==|          all groups' timestamps enter the log together
      |          deliver                         deliver         at the highest, once no lower one can come

Claims: genuine; six message delays, local messages three; f crashes in each group of 2f + 1, recovery, loss of state.

Deviations from the papers, each with its reason in docs/protocols/basecast.md: pairs (timestamp, id) are compared, not
timestamps; the clock follows SYNC-HARD, which 004 leaves out; only the leader proposes, and nothing twice in one
ballot; watermarks in place of ToOrder and Ordered; timestamps are remembered until confirmed.
"""

from dataclasses import replace

from amcast.kernel.ids import MessageId
from amcast.kernel.spec import Claims, Spec
from amcast.parts.consensus.messages import PAXOS_BODIES, PAXOS_RECORDS, Entry
from amcast.parts.consensus.quorum import role_of
from amcast.parts.groups.claims import MAJORITY_CLAIMS, PAXOS_RECOVERY_GOALS
from amcast.parts.groups.pending_timestamps import TimestampPending
from amcast.parts.groups.statements import build_timestamp_table
from amcast.parts.groups.timestamped import TimestampedGroup
from amcast.parts.groups.timestamped_messages import SYNC, TIMESTAMP_BODIES, TimestampState
from amcast.protocols.basecast.messages import BaseCastConfig


class BaseCast(TimestampedGroup):
    """A member of a group. Everything but this decision is in `parts/groups/timestamped.py`."""

    def _make_timestamp_entries(self, id: MessageId, pending: TimestampPending) -> list[Entry]:
        return [Entry(SYNC, id, group, timestamp) for group, timestamp in sorted(pending.received.items())]


def _delays(role: str, destinations: int, replicas: int) -> int | None:
    """Followers in a group of three decide one delay earlier: the leader's vote and their own are a majority."""
    if replicas == 1:
        return None
    return (6 if destinations > 1 else 3) - (1 if role == "follower" and replicas <= 3 else 0)


def _packets(destinations: int, replicas: int) -> int | None:
    """Requests, timestamps, and per group and instance one 2a and n 2b to each member."""
    k, n = destinations, replicas
    return k * (k * n + 3 * n + 2 * n * n) if k > 1 else 2 * n + n * n


def _delays_of_all(role: str, destinations: int, replicas: int) -> int | None:
    """Where followers decide early, they also send early: a group of three needs one delay less."""
    delays = _delays(role, destinations, replicas)
    return delays if delays is None or destinations == 1 or replicas > 3 else delays - 1


def _packets_of_all(destinations: int, replicas: int) -> int | None:
    """As `_packets`, with the timestamps of every member instead of the leader's alone."""
    packets = _packets(destinations, replicas)
    k, n = destinations, replicas
    return packets if packets is None or k == 1 else packets + k * k * n * (n - 1)


def _adapt_claims(claims: Claims, config: BaseCastConfig) -> Claims:
    if config.consensus != "paxos":
        return replace(claims, delays=lambda role, k, n: None, packets=lambda k, n: None)
    return replace(claims, delays=_delays_of_all, packets=_packets_of_all) if config.stamps == "all" else claims


SPEC = Spec(
    name="basecast",
    summary="Skeen's protocol over groups that agree by Paxos, twice",
    source="papers 003 algorithm 1, 004 algorithm 1",
    process=BaseCast,
    config=BaseCastConfig,
    bodies=(*PAXOS_BODIES, *TIMESTAMP_BODIES),
    records=PAXOS_RECORDS,
    statements=build_timestamp_table,
    states=(TimestampState,),
    claims=replace(
        MAJORITY_CLAIMS,
        delays=_delays,
        bound=lambda role, skew: 12,
        packets=_packets,
    ),
    adapt_claims=_adapt_claims,
    role_of=role_of,
    goals=("waited", "early", "led", "asked", "admitted"),
    recovery_goals=PAXOS_RECOVERY_GOALS,
)
