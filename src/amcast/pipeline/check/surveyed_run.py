"""A run after its survey: what the judges of order, genuineness and sessions need to know about it."""

from dataclasses import dataclass
from typing import Final
from uuid import uuid4

from amcast.pipeline.check.gaps import PositionGaps
from amcast.pipeline.check.run_view import RunView
from amcast.pipeline.check.runner import Runner
from amcast.pipeline.check.survey import MulticastSurvey

PACKET_ROWS: Final = 10_000_000


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
    scratch: str | None = None
    """A folder for what is too large for memory; None in a small run."""
    packet_rows: int = PACKET_ROWS
    """Packets that one task judges."""

    def make_scratch_path(self) -> str | None:
        """The path of a new file in the scratch folder, if there is one."""
        return make_scratch_path(self.scratch)


def make_scratch_path(scratch: str | None) -> str | None:
    return None if scratch is None else f"{scratch}/{uuid4().hex}.parquet"
