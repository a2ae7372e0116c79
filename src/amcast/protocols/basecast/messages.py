"""What BaseCast can be told."""

from amcast.parts.groups.messages import StampConfig


class BaseCastConfig(StampConfig, frozen=True):
    """Nothing beyond what all groups that stamp can be told."""
