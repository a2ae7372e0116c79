"""The two ways in which amcast refuses: the user was wrong, or amcast was."""


class UsageError(ValueError):
    """A user's mistake: one sentence that names the field, the value and what was expected. Exit code 64."""


class CannotTellError(Exception):
    """What was asked cannot be decided from what there is: one sentence saying what is missing. Exit code 2."""
