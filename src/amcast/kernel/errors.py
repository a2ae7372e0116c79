"""Errors that amcast raises on purpose. All of them derive from `Error`, so that a caller can catch them together."""


class Error(Exception):
    """Base of every exception that amcast raises on purpose."""


class UsageError(Error, ValueError):
    """A mistake of the user. The text is one sentence that names the field, the value and what was expected. Exit code
    64."""


class CannotTellError(Error):
    """A question cannot be answered from the available data. The text is one sentence that names what is missing. Exit
    code 2."""


class DeliveryUnknownError(CannotTellError, TimeoutError):
    """A multicast was not acknowledged in time: it may or may not be delivered."""
