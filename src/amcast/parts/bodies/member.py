"""What members of groups with a leader say, whatever their protocol, and what they know (`parts/member.py`)."""

from typing import Final

from msgspec import Struct

from amcast.kernel.config import Config
from amcast.kernel.ids import ProcessId
from amcast.kernel.message import Body, Message, State

MILLISECOND: Final = 1_000_000


class MemberConfig(Config, frozen=True):
    repair_ns: tuple[int, int] = (1000 * MILLISECOND, 1500 * MILLISECOND)
    """How long to wait before what should have come is asked for."""
    keep: int = 256
    """How many deliveries a process remembers for fellows that lag, and records between two checkpoints."""

    def __post_init__(self) -> None:
        low, high = self.repair_ns
        if not 0 < low <= high:
            raise ValueError(f"repair_ns = {list(self.repair_ns)}; expected a range above 0, lower end first")
        if not 1 <= self.keep <= 1_000_000:
            raise ValueError(f"keep = {self.keep}; expected 1 to 1000000 deliveries")


class Entry(Struct, frozen=True, array_like=True, gc=False):
    """A message and its group's timestamp."""

    message: Message
    timestamp: int


class Nack(Body, frozen=True):
    """The sender has promised this higher ballot."""

    ballot: int


class Join(Body, frozen=True):
    """The sender lost its memory in this life. The helper, if any, shall start an epoch to take it in."""

    birth: int
    helper: ProcessId


class Welcome(Body, frozen=True):
    """The answer: nothing that the forgetful member did before that life counts here any more."""

    birth: int
    promised: int
    clock: int


class MemberState(State, frozen=True):
    """What a member knows beside its durable state and its protocol's; see the fields of `parts.member.Member`."""

    position: int
    life: int
    role: str
    positions: tuple[int, ...]
    oracle: ProcessId
    heard_epoch: int
    welcomes: tuple[tuple[int, Welcome], ...]
    turn: int
    armed: bool
    lag: bool
    durable: tuple[int, int]
    durable_births: tuple[int, ...]
    records: int
