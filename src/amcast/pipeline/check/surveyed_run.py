"""A run after its survey: what the judges of order, genuineness and sessions need to know about it."""

from dataclasses import dataclass

from amcast.pipeline.check.gaps import PositionGaps
from amcast.pipeline.check.run_view import RunView
from amcast.pipeline.check.runner import Runner
from amcast.pipeline.check.survey import MulticastSurvey


@dataclass(frozen=True)
class SurveyedRun:
    """One run, who makes calls about it, and what its survey found."""

    view: RunView
    runner: Runner
    ends: dict[int, int]
    """process -> its last recorded position + 1."""
    buckets: int
    """How many buckets the fingerprints of this run have."""
    gaps: PositionGaps
    multicasts: MulticastSurvey
