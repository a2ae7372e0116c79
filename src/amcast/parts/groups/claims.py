"""Claims that follow from the replication of groups, and not from the protocol.

Where `parts/groups/replicated.py` runs a protocol of single processes in groups of several, members may crash, lose
their state and suspect each other wrongly, as long as a majority of each group is left; every message delay becomes
three, because the group's log orders all input first (to the leader, to the members, back); channels between groups
need FIFO links. The number of packets is not claimed.
"""

from dataclasses import replace
from typing import Final

from amcast.kernel.spec import Claims, FaultKind, majorities_survive
from amcast.parts.groups.replicated_messages import ReplicatedConfig

LINK_FAULTS: Final[frozenset[FaultKind]] = frozenset({"pause", "slow", "partition", "loss", "skew"})
"""Faults that a protocol for processes that do not crash survives."""
CRASH_FAULTS: Final[frozenset[FaultKind]] = LINK_FAULTS | {
    "leaders",
    "unreachable",
    "links",
    "crash",
    "leave",
    "recovery",
    "amnesia",
}
"""Faults that groups survive that agree by majorities and have durable state."""
MAJORITY_CLAIMS: Final = Claims(genuine="strict", faults=CRASH_FAULTS, tolerates=majorities_survive, ranked=True)
"""Claims of genuine protocols whose groups survive these faults and order by timestamps; delays are per protocol."""
PAXOS_RECOVERY_GOALS: Final = (
    "led",
    "replayed",
    "checkpointed",
    "truncated",
    "transferred",
    "installed",
    "admitted",
    "restarted-after-admission",
)
"""Recovery of groups that agree by Paxos: a log that is replayed, checkpointed, truncated and sent as a state, and
a member that lost its disk, was readmitted, and started from its new disk."""
LEADER_RECOVERY_GOALS: Final = ("replayed", "checkpointed", "trimmed", "installed", "restarted-after-admission")
"""The same for groups with a leader of their own."""


def replicate_claims(single: Claims) -> Claims:
    """Derives the claims for replicated groups from those for single processes."""

    def delays(role: str, destinations: int, replicas: int) -> int | None:
        count = single.delays(role, destinations, replicas)
        return None if count is None else 3 * count

    return replace(
        single,
        links="fifo",
        faults=CRASH_FAULTS,
        tolerates=majorities_survive,
        delays=delays,
        bound=lambda role, skew: None,
        packets=lambda destinations, replicas: None,
    )


def adapt_replicated_claims(claims: Claims, config: ReplicatedConfig) -> Claims:
    """Round a ring, the delays of a group depend on its size: none are claimed."""
    if config.consensus == "ring":
        return replace(claims, delays=lambda role, destinations, replicas: None)
    return claims
