"""What A_ge can be told."""

from amcast.parts.groups.messages import TimestampConfig


class AGeConfig(TimestampConfig, frozen=True):
    """A_ge has no options of its own; whether stages may be skipped is what tells A_ge from A_ge*."""

    convoy_free: bool = False
    """A_ge*: local messages are delivered when the log has them; global ones always pass through all four stages."""
