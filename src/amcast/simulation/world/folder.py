"""The data folder of a simulated node, apart from its records: identity and memory of other folders."""

from amcast.kernel.effects import Remember
from amcast.kernel.folder import MAX_STARTS, Condition, FolderState, KnownFolder, Starts


class Folder:
    """One folder. A folder that is emptied is replaced by another object."""

    __slots__ = ("admitted", "divergence", "doubt", "is_lost", "number", "peers", "starts")

    def __init__(self, number: int, is_lost: bool = False) -> None:
        self.number = number
        self.is_lost = is_lost
        """An operator prepared the folder in place of a lost one."""
        self.peers: tuple[KnownFolder, ...] = ()
        self.admitted = False
        self.doubt = ""
        self.divergence = ""
        self.starts: Starts = ()

    def remember(self, effect: Remember) -> None:
        """Makes durable what a node knows of folders."""
        self.peers, self.admitted, self.doubt = effect.peers, effect.admitted, effect.doubt
        self.divergence = effect.divergence

    def describe(self, incarnation: int, records: int, start: int) -> FolderState:
        """What the folder says of itself at a start."""
        self.starts = (*self.starts, (incarnation, start))[-MAX_STARTS:]
        condition: Condition = "sound" if self.admitted else "lost" if self.is_lost else "fresh"
        return FolderState(
            folder=self.number,
            incarnation=incarnation,
            records=records,
            condition="diverged" if self.divergence else "doubtful" if self.doubt else condition,
            reason=self.divergence or self.doubt,
            peers=self.peers,
            admitted=self.admitted,
            start=start,
            starts=self.starts,
        )
