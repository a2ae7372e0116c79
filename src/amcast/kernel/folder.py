"""What a node's data folder says of itself when the node starts. Only its peers can tell whether that is still true:
an emptied folder looks like a new one, and an older copy of a folder looks sound."""

from typing import Final, Literal

from msgspec import Struct

from amcast.kernel.ids import ProcessId

Condition = Literal["fresh", "sound", "doubtful", "lost", "diverged"]
"""fresh: created by this start, or never admitted by its group. sound: every record that was ever durable here can be
read, unless the folder is an older copy. doubtful: records that were durable once may be missing or damaged. lost: an
operator prepared an empty folder in place of one that is lost (`amcast replace`). diverged: a majority of its group
contradicted what the node delivered."""


MAX_STARTS: Final = 128
"""How many of its last starts a folder keeps."""

Starts = tuple[tuple[int, int], ...]
"""Incarnations and random numbers of starts, oldest first."""


class KnownFolder(Struct, frozen=True, array_like=True, gc=False):
    """What a node durably remembers of the data folder of another process."""

    process: ProcessId
    folder: int
    """The random number of the folder."""
    incarnation: int
    """The highest incarnation that was heard of."""
    records: int
    """The highest number of durable records that was heard of; -1: the folder keeps none."""
    start: int = 0
    """`FolderState.start` of that incarnation."""


class FolderState(Struct, frozen=True, array_like=True):
    """The data folder of a node, as its storage found it."""

    folder: int
    """A random number of 63 bits, drawn when the folder was created."""
    incarnation: int
    records: int = 0
    """How many records were ever made durable here; -1 where the folder keeps none."""
    condition: Condition = "sound"
    reason: str = ""
    """Why the folder is doubtful or diverged, as a sentence."""
    peers: tuple[KnownFolder, ...] = ()
    """What the folder remembers of other processes, by process id."""
    admitted: bool = False
    """Whether its group has admitted this folder: the node has taken part with it."""
    start: int = 0
    """A random number of this start: two starts of copies of one folder may have the same incarnation."""
    accepts_loss: bool = False
    """Whether an operator lets the node take part with the folder as it is, and accepts what may be lost by it."""
    starts: Starts = ()
    """The last starts with these records, this one included."""
