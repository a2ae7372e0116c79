"""Runs seeds until one fails, whatever a planted fault does to them."""

import signal
from collections.abc import Iterable
from types import FrameType
from typing import Final, NamedTuple

from tests.mutation.sample import JudgeSeed

HANG_S: Final = 15.0
"""A seed that takes more CPU time has met a fault that does not end."""


class HangError(BaseException):
    """A seed does not end. No handler of exceptions may keep it."""


class Failure(NamedTuple):
    """The first seed that failed."""

    seed: int
    status: str
    """violated, stuck, hang; error: an exception outside the simulated processes."""
    story: str
    runs: int
    """How many seeds ran, this one included."""


def find_failure(judge: JudgeSeed, seeds: Iterable[int]) -> Failure | None:
    """Runs seeds in order until one fails."""
    signal.signal(signal.SIGVTALRM, _end_seed)
    for count, seed in enumerate(seeds, 1):
        try:
            signal.setitimer(signal.ITIMER_VIRTUAL, HANG_S)
            status, story = judge(seed)
        except HangError:
            status, story = "hang", f"seed {seed} does not end"
        except Exception as error:  # whatever the fault breaks beside its process
            status, story = "error", repr(error)
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        if status != "holds":
            return Failure(seed, status, story, count)
    return None


def _end_seed(signal_number: int, frame: FrameType | None) -> None:
    raise HangError
