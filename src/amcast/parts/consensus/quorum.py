"""Ballots and majorities.

A ballot is one integer that identifies a leader and orders all attempts to lead: (round, incarnation, member), the
round weighing most. It contains the incarnation because a restarted member may have forgotten which rounds it used:
two incarnations never share a ballot, so no two values are proposed for one instance under one ballot.

Votes are sets of members, stored as the bits of an integer by the member's place in its group.
"""

from typing import Final

from amcast.kernel.ids import ProcessId
from amcast.kernel.topology import Topology

MAX_MEMBERS: Final = 1024
"""The most members that a ballot can tell apart: of one group, or of all groups where they vote together (A_dt)."""
MAX_INCARNATIONS: Final = 1 << 16
"""The most incarnations of a member that a ballot can tell apart."""


def ballot_of(round: int, incarnation: int, place: int) -> int:
    """The ballot of a member, by its place in the group. Ballot 0 is the first member's in its first incarnation."""
    assert 0 <= place < MAX_MEMBERS, f"place {place}; expected less than {MAX_MEMBERS}"
    assert 0 <= incarnation < MAX_INCARNATIONS, f"incarnation {incarnation}; expected less than {MAX_INCARNATIONS}"
    return (round * MAX_INCARNATIONS + incarnation) * MAX_MEMBERS + place


def place_of(ballot: int) -> int:
    """The place of the member that leads in a ballot."""
    return ballot % MAX_MEMBERS


def incarnation_of(ballot: int) -> int:
    """The incarnation of the member that leads in a ballot."""
    return ballot // MAX_MEMBERS % MAX_INCARNATIONS


def round_of(ballot: int) -> int:
    """The round of a ballot: roughly how many times the leader changed, for display."""
    return ballot // (MAX_MEMBERS * MAX_INCARNATIONS)


def next_ballot(above: int, incarnation: int, place: int) -> int:
    """The lowest ballot of a member that is higher than `above`."""
    return ballot_of(above // (MAX_MEMBERS * MAX_INCARNATIONS) + 1, incarnation, place)


def majority(members: int) -> int:
    """The size of a majority."""
    return members // 2 + 1


def role_of(topology: Topology, process: ProcessId) -> str:
    """The role of a process before any leader change: the first member of each group leads."""
    group = topology.group_of(process)
    return "client" if group is None else "leader" if process == topology.members(group)[0] else "follower"


class Tally:
    """Counts the votes for the highest ballot seen. Votes for lower ballots no longer matter: a value that they may
    have decided is proposed again in the higher ballot."""

    __slots__ = ("ballot", "votes")

    def __init__(self) -> None:
        self.ballot = -1
        self.votes = 0

    def count(self, ballot: int, place: int) -> int:
        """Adds a vote and returns how many votes that ballot has; 0 for an outdated ballot."""
        if ballot < self.ballot:
            return 0
        if ballot > self.ballot:
            self.ballot = ballot
            self.votes = 0
        self.votes |= 1 << place
        return self.votes.bit_count()
