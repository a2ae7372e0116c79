"""What counts as a caught mutant."""

from amcast.simulation.schedulers.fuzz import FuzzOutcome


def is_caught(outcome: FuzzOutcome) -> bool:
    """Whether a run shows a mutant's mistake: it violates a property or an assertion of the protocol, or is stuck.

    Any other exception shows nothing: the mutant, or what it calls, no longer fits the protocol.
    """
    shown = outcome.status != "error" or outcome.story.startswith("AssertionError: ")
    assert shown, f"seed {outcome.seed}: the mutant raises instead of misbehaving: {outcome.story}"
    return outcome.status != "holds"
