"""Errors that amcast raises on purpose. All of them derive from `Error`, so that a caller can catch them together."""


class Error(Exception):
    """Base of every exception that amcast raises on purpose."""


class UsageError(Error, ValueError):
    """A user's mistake; exit code 64. The text is one sentence: the field, the value and what was expected."""


class CannotTellError(Error):
    """A question cannot be answered from the available data; exit code 2. The text is one sentence: what is missing."""


class DeliveryUnknownError(CannotTellError, TimeoutError):
    """A multicast was not acknowledged in time: it may or may not be delivered."""
