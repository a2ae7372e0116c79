"""What the simplest client knows."""

from amcast.kernel.message import State


class SenderState(State, frozen=True):
    """Nothing."""
