"""The errors of amcast. All of them are below `Error`, so that a caller can catch whatever amcast raises on purpose."""


class Error(Exception):
    """Base of every exception that amcast raises on purpose."""


class UsageError(Error, ValueError):
    """A user's mistake: one sentence that names the field, the value and what was expected. Exit code 64."""


class CannotTellError(Error):
    """What was asked cannot be decided from what there is: one sentence that says what is missing. Exit code 2."""


class DeliveryUnknownError(CannotTellError, TimeoutError):
    """A multicast was not answered in time: it may be delivered or not."""
