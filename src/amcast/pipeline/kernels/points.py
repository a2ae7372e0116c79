"""Points in time for transactions: the earliest ones at which each could have happened at once.

A transaction happens at a point between its begin and its end, and not before the points of those that it depends on.
If the dependencies have no cycle, the earliest points follow in one pass over them in order. A point behind the end of
its transaction shows a cycle of dependencies and time: the point is the begin of another one, which time puts behind.
Without such a point the order of points is one that all dependencies and all times agree with.
"""

from typing import Any, Final

import numpy as np

from amcast.pipeline.kernels.fingerprints import Int64Array, compile_kernel

IN_CYCLE: Final = -2


@compile_kernel
def find_points(
    offsets: Int64Array, targets: Int64Array, counts: Int64Array, begins: Int64Array
) -> "tuple[Any, Any, int]":
    """The points of transactions, the one that each is behind (-1: its own begin; IN_CYCLE: it follows a cycle of
    dependencies), and how many follow none. Transaction i precedes `targets[offsets[i]:offsets[i + 1]]`; `counts` are
    numbers of predecessors."""
    size = begins.size
    points, before = begins.copy(), np.full(size, -1, np.int64)
    left, queue = counts.copy(), np.empty(size, np.int64)
    end = 0
    for number in range(size):
        if left[number] == 0:
            queue[end] = number
            end += 1
    at = 0
    while at < end:
        number = queue[at]
        at += 1
        for place in range(offsets[number], offsets[number + 1]):
            after = targets[place]
            if points[number] > points[after]:
                points[after], before[after] = points[number], number
            left[after] -= 1
            if left[after] == 0:
                queue[end] = after
                end += 1
    for number in range(size):
        if left[number] > 0:
            before[number] = IN_CYCLE
    return points, before, end
