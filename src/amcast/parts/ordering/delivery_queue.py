"""Delivery in the order of final (timestamp, id), from lower bounds.

A message enters with a lower bound of its final timestamp; later the final timestamp is fixed. The first message may be
delivered once it is fixed and no message to come can be lower. A heap holds the bounds; a bound that is below the final
timestamp is raised when it reaches the top, so that every message costs at most two additional heap operations.
"""

from heapq import heapify, heappop, heappush, heapreplace

from amcast.kernel.ids import MessageId


class DeliveryQueue:
    """Undelivered messages, by final timestamp or a lower bound of it."""

    __slots__ = ("_fixed", "_heap")

    def __init__(self) -> None:
        self._heap: list[tuple[int, MessageId]] = []
        self._fixed: dict[MessageId, int] = {}

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, bound: int, message: MessageId) -> None:
        """Adds a message whose final timestamp will be `bound` or higher."""
        heappush(self._heap, (bound, message))

    def fix(self, message: MessageId, final: int) -> None:
        """Fixes the final timestamp of a message in the queue."""
        self._fixed[message] = final

    def pop_first(self, limit: int) -> MessageId | None:
        """Removes and returns the first message, if it is fixed at `limit` or below and no other can precede it."""
        heap = self._heap
        while heap:
            bound, message = heap[0]
            final = self._fixed.get(message)
            if final is None:
                return None
            if final > bound:
                heapreplace(heap, (final, message))
                continue
            if final > limit:
                return None
            heappop(heap)
            del self._fixed[message]
            return message
        return None

    def drop(self, message: MessageId) -> None:
        """Removes a message at any position. Costs a pass over the heap; rare."""
        self._fixed.pop(message, None)
        self._heap = [pair for pair in self._heap if pair[1] != message]
        heapify(self._heap)
