"""What BaseCast can be told."""

from amcast.parts.groups.messages import TimestampConfig


class BaseCastConfig(TimestampConfig, frozen=True):
    """Nothing beyond what all groups that stamp can be told."""
