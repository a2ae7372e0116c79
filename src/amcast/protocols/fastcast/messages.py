"""What FastCast says beyond BaseCast, and can be told."""

from amcast.kernel.ids import GroupId, MessageId
from amcast.kernel.message import Body, State
from amcast.parts.groups.messages import TimestampConfig, TimestampState


class FastCastConfig(TimestampConfig, frozen=True):
    wrong_guesses: bool = False
    """Make every guess wrong, so that every global message takes the slow path."""


class SoftTimestamp(Body, frozen=True):
    """SEND-SOFT: a leader's guess of the timestamp that its group's log will give a message."""

    message: MessageId
    group: GroupId
    timestamp: int


class FastCastState(State, frozen=True):
    stamps: TimestampState
    guess: int
    softs: tuple[tuple[MessageId, tuple[tuple[GroupId, int], ...]], ...]
    guessing: tuple[MessageId, ...]
    guessed: tuple[MessageId, ...]
