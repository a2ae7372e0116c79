"""Recovery: how long every group was silent after each fault, and when it delivered new messages again.

Faults are notes called `fault-...` (the simulator writes one when a fault happens) and processes that stayed down.
"""

from collections.abc import Collection
from typing import Any

import numpy as np

from amcast.pipeline.kernels.fingerprints import Int64Array
from amcast.pipeline.measure.observation import GroupAnswers

Row = dict[str, Any]


def measure_recovery(group: int, answers: GroupAnswers | None, faults: Collection[tuple[int, str, int]]) -> list[Row]:
    """Per fault. Times are counted from the fault; null: there was no such delivery."""
    nothing = np.zeros(0, np.int64)
    at, sent = (answers.at, answers.sent) if answers is not None else (nothing, nothing)
    by_time, by_multicast = np.sort(at), np.argsort(sent, kind="stable")
    # The earliest delivery among the messages multicast from here on.
    soonest = np.minimum.accumulate(at[by_multicast][::-1])[::-1]
    silences = _find_silences(by_time, sorted({time for time, _, _ in faults}))
    rows = []
    for time, kind, process in sorted(faults):
        after = int(np.searchsorted(by_time, time))
        fresh = int(np.searchsorted(sent[by_multicast], time))
        rows.append(
            {
                "fault_ns": time,
                "fault": kind,
                "process": process,
                "group": group,
                "next_delivery_after_ns": int(by_time[after]) - time if after < at.size else None,
                "new_message_after_ns": int(soonest[fresh]) - time if fresh < at.size else None,
                "longest_silence_ns": silences.get(time),
            }
        )
    return rows


def _find_silences(by_time: Int64Array, faults: list[int]) -> dict[int, int]:
    """Per fault: the longest time between two deliveries that ended after it and before the next fault."""
    gaps, ends = np.diff(by_time), by_time[1:]
    bounds = [*np.searchsorted(ends, faults).tolist(), ends.size]
    return {
        time: int(gaps[low:high].max())
        for time, low, high in zip(faults, bounds[:-1], bounds[1:], strict=True)
        if low < high
    }
