"""The kinds of faults of a tortured cluster, and what each needs of the protocol and the cluster."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

FAULTS: Final = {
    "kill": "some nodes, up to all of them, die by SIGKILL and start again from their logs",
    "stop": "some nodes stop by SIGSTOP, and continue",
    "leave": "a node stops in good order, and starts again",
    "cut": "links are cut: one node, two halves, a bridge, a node from its own group only, random links; also one way",
    "flap": "the same, on and off several times a second",
    "corrupt": "bits flip between nodes (with proxies only)",
    "torn": "the power of some nodes, up to all of them, is cut while they write: the last commit is torn",
    "rot": "a bit flips or a sector is lost in the log of a node that is down, or of a majority, which must say so",
    "rollback": "an older copy of a node's data folder is put back",
    "emptied": "a node's data folder is emptied: it is refused until an operator replaces it",
    "full": "the disk of a node is full: it stops, and starts again when there is space",
    "slow": "the disks of some nodes are slow",
    "members": "members are added and removed, dead ones, too",
}
"""Kinds of faults, with a sentence for each."""
NEEDED_CLAIMS: Final = {
    "kill": "recovery",
    "leave": "recovery",
    "torn": "recovery",
    "full": "recovery",
    "rot": "amnesia",
    "rollback": "amnesia",
    "emptied": "amnesia",
}
"""Faults that only some protocols claim to survive, by the kind of fault in their claims."""
NEEDED_REPLICAS: Final = {"rot": 3, "rollback": 3, "emptied": 3}
"""The smallest group that can give a member its state again: a majority besides that member."""


class Stage(IntEnum):
    """The order in which faults are healed: a later one needs what an earlier one brings back."""

    LINKS = 0
    NODES = 1
    MEMBERS = 2
    FOLDERS = 3


@dataclass(frozen=True)
class Blow:
    """A fault that was performed, and how it is healed."""

    detail: str
    heal: Callable[[], object]
    stage: Stage


@dataclass(frozen=True)
class Strike:
    """A fault in the record of a run."""

    at_ns: int
    kind: str
    detail: str
