"""Claims that follow from how groups are run, and not from the protocol.

Where `parts/groups/replicated.py` runs a protocol of single processes in groups of several (`lifted`), groups may lose
members, forget, and be led by the wrong one, as long as a majority is left; every message delay becomes three, because
what arrives is ordered by the group's log first (to the leader, to the members, back); channels between groups need
FIFO links. How many packets that takes is not claimed.
"""

from dataclasses import replace
from typing import Final

from amcast.kernel.spec import Claims, FaultKind, majorities_survive

LINK_FAULTS: Final[frozenset[FaultKind]] = frozenset({"pause", "slow", "partition", "loss", "skew"})
"""What a protocol for processes that do not crash survives."""
CRASH_FAULTS: Final[frozenset[FaultKind]] = LINK_FAULTS | {"leaders", "links", "crash", "recovery", "amnesia"}
"""What groups survive that agree by majorities and keep what they said on disks."""
MAJORITY_CLAIMS: Final = Claims(genuine="strict", faults=CRASH_FAULTS, tolerates=majorities_survive, ranked=True)
"""What genuine protocols claim whose groups do so and order by timestamps; how fast they are is their own."""


def replicate_claims(alone: Claims) -> Claims:
    """The claims for groups of several, from those for groups of one."""

    def delays(role: str, destinations: int, replicas: int) -> int | None:
        count = alone.delays(role, destinations, replicas)
        return None if count is None else 3 * count

    return replace(
        alone,
        links="fifo",
        faults=CRASH_FAULTS,
        tolerates=majorities_survive,
        delays=delays,
        bound=lambda role, skew: None,
        packets=lambda destinations, replicas: None,
    )
