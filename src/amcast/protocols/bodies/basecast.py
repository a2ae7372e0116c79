"""What BaseCast can be told."""

from amcast.parts.bodies.stamps import StampConfig


class BaseCastConfig(StampConfig, frozen=True):
    """Nothing beyond what all groups that stamp can be told."""
