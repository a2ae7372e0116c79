"""Errors of durable storage."""

from amcast.kernel.errors import UsageError


class DamagedLogError(UsageError):
    """A log that cannot be trusted. The sentence names the file and the byte; nothing was changed."""
