"""Errors of the live system that more than one of its packages raises or handles."""

from amcast.kernel.errors import Error


class BadFrameError(Error):
    """Bytes that no correct peer sends. The connection is closed and the sentence goes to the log."""


class CorruptedFrameError(BadFrameError):
    """A frame whose checksum does not match: its bytes were changed on their way, and the link sends it again."""


class DivergedError(Error):
    """A replica has stopped, because a majority of its group contradicts what it delivered or its state."""


class RefusedError(Error):
    """The other side sent something that is not allowed. The connection ends and the sentence is sent to it."""
