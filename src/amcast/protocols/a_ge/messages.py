"""Settings of A_ge and A_ge*."""

from typing import Literal

from amcast.parts.groups.timestamped_messages import TimestampConfig


class AGeConfig(TimestampConfig, frozen=True):
    """Settings of A_ge and A_ge*."""

    stamps: Literal["leader", "all"] = "all"
    """As 001 section 3.1 has it, every member sends; "leader" is the filter of its section 6."""
    convoy_free: bool = False
    """Distinguishes A_ge* from A_ge: local messages are delivered when the log has them, and global messages pass
    through all four stages."""
