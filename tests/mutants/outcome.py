"""What counts as a caught mutant."""

import re

from amcast.simulation.schedulers.fuzz import FuzzOutcome


def is_caught(outcome: FuzzOutcome) -> bool:
    """Whether a run shows a mutant's mistake: it violates a property or an assertion of the protocol, or is stuck.

    Any other exception shows nothing: the mutant, or what it calls, no longer fits the protocol.
    """
    raised = re.match(r"process \d+ fails with (\w+) in ", outcome.story)
    shown = raised is None or raised[1] == "AssertionError"
    assert shown, f"seed {outcome.seed}: the mutant raises instead of misbehaving: {outcome.story}"
    return outcome.status != "holds"
