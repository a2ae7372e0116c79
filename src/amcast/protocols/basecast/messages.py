"""Settings of BaseCast."""

from amcast.parts.groups.timestamped_messages import TimestampConfig


class BaseCastConfig(TimestampConfig, frozen=True):
    """Settings of BaseCast: none beyond those of every group that agrees on timestamps."""
