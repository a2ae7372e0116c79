"""Settings, bodies and states of A_ge and A_ge*."""

from typing import ClassVar, Literal

from amcast.kernel.config import SearchValues
from amcast.kernel.ids import GroupId, MessageId, ProcessId
from amcast.kernel.message import Body, Message, State
from amcast.parts.groups.timestamped_messages import TimestampConfig, TimestampState


class AGeConfig(TimestampConfig, frozen=True):
    """Settings of A_ge and A_ge*."""

    search_values: ClassVar[SearchValues] = {**TimestampConfig.search_values, "transfer": ("members", "leader")}
    stamps: Literal["leader", "all"] = "all"
    """As 001 section 3.1 has it, every member sends; "leader" is the filter of its section 6."""
    convoy_free: bool = False
    """Distinguishes A_ge* from A_ge: local messages are delivered when the log has them, and global messages pass
    through all four stages."""
    transfer: Literal["members", "leader"] = "members"
    """How messages, timestamps and confirmations come to another group: each by itself to its members; or, as 001
    section 6 has it, from leader to leader, those of one step together. Then leaders alone send timestamps, whatever
    `stamps` says, and a client asks one group."""


class GroupTransfer(Body, frozen=True):
    """What a group's leader has for another group, whose leader passes it on to the members."""

    group: GroupId
    messages: tuple[Message, ...]
    timestamps: tuple[tuple[MessageId, int], ...]
    """Those of `group`, as in GroupTimestamp."""
    stored: tuple[MessageId, ...]
    """Confirmations, as in FinalStored."""


class AGeState(State, frozen=True):
    base: TimestampState
    remote_leaders: tuple[tuple[GroupId, ProcessId], ...]
