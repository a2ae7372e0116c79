"""What an operator may ask a process: how it is (`vitals`), and what a message waits for (`explain`)."""

from typing import Final, NamedTuple

from amcast.kernel.ids import ProcessId

ProcessStatus = dict[str, int | str]
"""A few numbers by name, cheap to tell: position, pending, epoch, leader, role and the like."""


class Phase(NamedTuple):
    """One thing that must happen before a message is delivered here."""

    name: str
    is_done: bool
    description: str
    """What is known of it, in a sentence."""
    waiting_for: tuple[ProcessId, ...] = ()
    """Whose word is missing."""


PHASES_AFTER_DELIVERY: Final = frozenset({"carried", "confirmed", "passed"})
"""Phases that may be open where a message is delivered already: what others have not taken from here."""
