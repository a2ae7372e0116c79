"""What waits to be delivered in the order of final (timestamp, id), by lower bounds.

A message enters with a timestamp that its final one cannot be below; later the final one is fixed. The first message
may be delivered when it is fixed and nothing that comes can be lower. A heap holds bounds; a bound that proves too low
is raised when it comes to the top, so that every message costs at most two heap operations more than its own.
"""

from heapq import heapify, heappop, heappush, heapreplace

from amcast.kernel.ids import MessageId


class DeliveryQueue:
    """A heap of lower bounds, some of them fixed."""

    __slots__ = ("_fixed", "_heap")

    def __init__(self) -> None:
        self._heap: list[tuple[int, MessageId]] = []
        self._fixed: dict[MessageId, int] = {}

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, bound: int, message: MessageId) -> None:
        """A message whose final timestamp will be `bound` or higher."""
        heappush(self._heap, (bound, message))

    def fix(self, message: MessageId, final: int) -> None:
        """The final timestamp of a message that was added."""
        self._fixed[message] = final

    def first(self, reached: int) -> MessageId | None:
        """Take out the first message, if it is fixed at `reached` or below and nothing else can be before it."""
        heap = self._heap
        while heap:
            bound, message = heap[0]
            final = self._fixed.get(message)
            if final is None:
                return None
            if final > bound:
                heapreplace(heap, (final, message))
                continue
            if final > reached:
                return None
            heappop(heap)
            del self._fixed[message]
            return message
        return None

    def drop(self, message: MessageId) -> None:
        """Forget a message, wherever it is. Rare: it costs a walk."""
        self._fixed.pop(message, None)
        self._heap = [pair for pair in self._heap if pair[1] != message]
        heapify(self._heap)
