"""Settings of A_ge and A_ge*."""

from amcast.parts.groups.timestamped_messages import TimestampConfig


class AGeConfig(TimestampConfig, frozen=True):
    """Settings of A_ge and A_ge*."""

    convoy_free: bool = False
    """Distinguishes A_ge* from A_ge: local messages are delivered when the log has them, and global messages pass
    through all four stages."""
