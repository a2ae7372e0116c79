"""Settings, bodies and states of FastCast beyond BaseCast."""

from typing import ClassVar

from amcast.kernel.config import SearchValues
from amcast.kernel.ids import GroupId, MessageId
from amcast.kernel.message import Body, State
from amcast.parts.groups.timestamped_messages import TimestampConfig, TimestampState


class FastCastConfig(TimestampConfig, frozen=True):
    """Settings of FastCast."""

    search_values: ClassVar[SearchValues] = {**TimestampConfig.search_values, "wrong_guesses": (False, False, True)}
    wrong_guesses: bool = False
    """Make every guess wrong, so that every global message takes the slow path."""


class SoftTimestamp(Body, frozen=True):
    """SEND-SOFT: a leader's guess of the timestamp that its group's log will give a message."""

    message: MessageId
    group: GroupId
    timestamp: int


class FastCastState(State, frozen=True):
    """The fields of `FastCast`."""

    timestamps: TimestampState
    guessed_clock: int
    guesses: tuple[tuple[MessageId, tuple[tuple[GroupId, int], ...]], ...]
    unproposed_guesses: tuple[MessageId, ...]
    proposed_guesses: tuple[MessageId, ...]
