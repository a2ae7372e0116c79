"""Proves that every message id is used once, by order, without sorting or remembering ids.

An id is its sender's number times 10^9 plus a count. If, in the order of the files, the ids of every sender ascend,
then no id occurs twice. Senders that do not keep to this violate nothing: the proof fails, and an exact count must
decide.
"""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from amcast.kernel.ids import MESSAGES_PER_SENDER
from amcast.pipeline.kernels.fingerprints import Int64Array, compile_kernel

MAX_SENDERS: Final = 1 << 22


@compile_kernel
def _absorb_ids(messages: Any, per: Any, first: Any, last: Any) -> Any:
    for row in range(messages.size):
        message = messages[row]
        sender = message // per
        if last[sender] >= message:
            return False
        if last[sender] < 0:
            first[sender] = message
        last[sender] = message
    return True


class AscendingIds:
    """The first and the last id of every sender over some consecutive rows, as long as they ascend."""

    def __init__(self) -> None:
        self.is_ascending = True
        self.first: Int64Array = np.full(1024, -1, np.int64)
        self.last: Int64Array = np.full(1024, -1, np.int64)

    def absorb(self, messages: Int64Array) -> None:
        """Adds more rows, in the order of the files."""
        if not self.is_ascending or not messages.size:
            return
        highest = int(messages.max()) // MESSAGES_PER_SENDER
        if int(messages.min()) < 0 or highest >= MAX_SENDERS:
            self.is_ascending = False
            return
        if highest >= self.last.size:
            self._enlarge(2 * highest + 1)
        self.is_ascending = bool(_absorb_ids(messages, MESSAGES_PER_SENDER, self.first, self.last))

    def extend_with(self, later: "AscendingIds") -> None:
        """Appends what another task found in the rows after these."""
        if not (self.is_ascending and later.is_ascending):
            self.is_ascending = False
            return
        if later.last.size > self.last.size:
            self._enlarge(later.last.size)
        seen: NDArray[np.intp] = np.nonzero(later.last >= 0)[0]
        if (self.last[seen] >= later.first[seen]).any():
            self.is_ascending = False
            return
        fresh = seen[self.last[seen] < 0]
        self.first[fresh] = later.first[fresh]
        self.last[seen] = later.last[seen]

    def _enlarge(self, size: int) -> None:
        extra = np.full(size - self.last.size, -1, np.int64)
        self.first = np.concatenate([self.first, extra])
        self.last = np.concatenate([self.last, extra])
