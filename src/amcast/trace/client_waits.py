"""How long the clients of a run waited for their answers, with local messages (to one group) apart from global ones."""

from collections import defaultdict
from collections.abc import Sequence
from math import ceil
from typing import Final

from amcast.trace.run import Run

KINDS: Final = ("all", "local", "global")
SHARES: Final = (50, 90, 95, 99, 100)

Waits = dict[str, list[int]]
"""Sorted nanoseconds from the multicast to the answer, by kind of message; only kinds that occur."""


def list_waits(run: Run) -> Waits:
    """The waits of all messages that were answered; empty if the run records no answers."""
    if run.answers is None:
        return {}
    answered = dict(zip(run.answers["message"], run.answers["at_ns"], strict=True))
    spans: Waits = defaultdict(list)
    multicasts = run.multicasts
    for message, groups, at_ns in zip(
        multicasts["message"], multicasts["destinations"], multicasts["at_ns"], strict=True
    ):
        if message in answered:
            for kind in ("all", "local" if len(groups) == 1 else "global"):
                spans[kind].append(answered[message] - at_ns)
    return {kind: sorted(spans[kind]) for kind in KINDS if kind in spans}


def take_percentiles(spans: Sequence[int]) -> dict[str, int]:
    """Percentiles of sorted values by the nearest rank: each is one that occurred."""
    return {f"p{share}": spans[max(0, ceil(len(spans) * share / 100) - 1)] for share in SHARES}
