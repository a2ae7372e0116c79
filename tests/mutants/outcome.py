"""What counts as a caught mutant."""

import re
from typing import Final, Protocol

FAILURE: Final = re.compile(r"\bfails with (\w+) in ")
"""How a story names the exception of a process."""


class Outcome(Protocol):
    """A fuzzed run, or a counterexample of an exploration."""

    @property
    def status(self) -> str: ...
    @property
    def story(self) -> str: ...


def is_caught(outcome: Outcome) -> bool:
    """Whether a run shows a mutant's mistake: it violates a property or an assertion of the protocol, or is stuck.

    Any other exception shows nothing: the mutant, or what it calls, no longer fits the protocol.
    """
    failure = FAILURE.search(outcome.story)
    shown = failure is None or failure[1] == "AssertionError"
    assert shown, f"the mutant raises instead of misbehaving: {outcome.story}"
    return outcome.status != "holds"
