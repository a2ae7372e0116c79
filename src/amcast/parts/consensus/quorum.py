"""Ballots and majorities.

A ballot is one integer that says who leads and orders all attempts to lead: (round, incarnation, member), the round
weighing most. The incarnation is in it because a restarted member may have forgotten which rounds it used up: two
incarnations never share a ballot, and so no two values are ever proposed for one instance under one ballot.

Votes are sets of members, kept as the bits of an integer by the member's place in its group.
"""

from typing import Final

from amcast.kernel.ids import ProcessId
from amcast.kernel.topology import Topology

MAX_MEMBERS: Final = 1024
"""As many as a ballot can tell apart: of one group, or of all groups where all of them vote together (A_dt)."""
MAX_INCARNATIONS: Final = 1 << 16


def ballot_of(round: int, incarnation: int, place: int) -> int:
    """The ballot of a member (by place in its group) in one of its incarnations; ballot 0 is the first member's
    first."""
    assert 0 <= place < MAX_MEMBERS, f"place {place}; expected less than {MAX_MEMBERS}"
    assert 0 <= incarnation < MAX_INCARNATIONS, f"incarnation {incarnation}; expected less than {MAX_INCARNATIONS}"
    return (round * MAX_INCARNATIONS + incarnation) * MAX_MEMBERS + place


def place_of(ballot: int) -> int:
    """Who leads in this ballot, by place in its group."""
    return ballot % MAX_MEMBERS


def round_of(ballot: int) -> int:
    """How often the lead was taken, about: for people."""
    return ballot // (MAX_MEMBERS * MAX_INCARNATIONS)


def next_ballot(above: int, incarnation: int, place: int) -> int:
    """The lowest ballot of a member that is higher than everything it knows of."""
    return ballot_of(above // (MAX_MEMBERS * MAX_INCARNATIONS) + 1, incarnation, place)


def majority(members: int) -> int:
    """The size of a majority."""
    return members // 2 + 1


def role_of(topology: Topology, process: ProcessId) -> str:
    """Without an oracle's word the first member of each group leads."""
    group = topology.group_of(process)
    return "client" if group is None else "leader" if process == topology.members(group)[0] else "follower"


class Tally:
    """Votes for the highest ballot heard of; votes for a lower one no longer matter, because what they may have
    chosen is proposed again in the higher one."""

    __slots__ = ("ballot", "votes")

    def __init__(self) -> None:
        self.ballot = -1
        self.votes = 0

    def count(self, ballot: int, place: int) -> int:
        """Add a vote; how many votes that ballot has now (0 for a ballot that is out of date)."""
        if ballot < self.ballot:
            return 0
        if ballot > self.ballot:
            self.ballot = ballot
            self.votes = 0
        self.votes |= 1 << place
        return self.votes.bit_count()
