"""What the leader oracle says and knows."""

from typing import Final

from amcast.kernel.config import Config
from amcast.kernel.ids import ProcessId
from amcast.kernel.message import Body, State

MILLISECOND: Final = 1_000_000


class OmegaConfig(Config, frozen=True):
    beat_ns: int = 200 * MILLISECOND
    """Between two heartbeats."""
    patience_ns: tuple[int, int] = (500 * MILLISECOND, 700 * MILLISECOND)
    """Silence after which a member is suspected; doubled each time a suspicion was wrong."""

    def __post_init__(self) -> None:
        low, high = self.patience_ns
        if not 0 < self.beat_ns < low <= high:
            raise ValueError(
                f"beat_ns = {self.beat_ns}, patience_ns = {list(self.patience_ns)};"
                " expected a beat above 0 and a range of longer patience, lower end first"
            )


class Heartbeat(Body, frozen=True):
    """I am here, in this life, which began at that time on my clock (0 in the first)."""

    life: int
    since_ns: int = 0


class Farewell(Body, frozen=True):
    """I leave now, in good order: do not wait for my silence. Clients ask somebody else."""

    life: int


class OmegaState(State, frozen=True):
    life: int
    leader: ProcessId
    lives: tuple[tuple[ProcessId, int], ...]
    suspected: tuple[ProcessId, ...]
    mistakes: tuple[tuple[ProcessId, int], ...]
    left: tuple[tuple[ProcessId, int], ...] = ()
    since: tuple[tuple[ProcessId, int], ...] = ()
    members: tuple[ProcessId, ...] = ()
