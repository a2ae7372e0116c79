"""Errors of services, below `amcast.Error`."""

from collections.abc import Mapping

from amcast.kernel.errors import CannotTellError, Error

RETURNED = "returned after"


class CommandError(Error):
    """A command raised an exception: that is its result, the same at every replica of a group."""

    def __init__(self, command: str, kind: str, text: str, by_group: Mapping[str, object]) -> None:
        super().__init__(f"{command} raised {kind}: {text}")
        self.command = command
        self.kind = kind
        """The name of the exception's class at the replicas."""
        self.text = text
        self.by_group = dict(by_group)
        """What each group returned; a `Failure` where it raised."""


class GroupEndedError(Error):
    """Raised at a `yield`: another destination group ended the command before it gave this value."""

    def __init__(self, group: str, reason: str) -> None:
        super().__init__(f"group {group} {reason}")
        self.group = group
        self.has_returned = reason.startswith(RETURNED)
        """Whether the group returned, and raised nothing."""


class ServiceFailedError(Error):
    """A service breaks a rule in a way that makes its state unusable: the replica stops."""


class OutcomeUnknownError(CannotTellError, TimeoutError):
    """No result arrived in time: the command may be executed already, may be executed later, or never."""


class ReadRefusedError(CannotTellError):
    """No replica of a group could answer a read with the promise that was asked for."""
