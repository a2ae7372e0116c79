"""The properties straight from their definitions: quantifiers and loops without optimizations, for tiny traces only."""

from itertools import product

from tests.mutants.planted import Trace


class Oracle:
    """Judges a trace without gaps or snapshots. Every method returns whether a property is violated."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.processes = [p for members in trace.groups.values() for p in members]
        self.messages = list(trace.multicasts)
        self.sequence = {p: trace.delivered(p) for p in self.processes}

    def addressed(self, process: int, message: int) -> bool:
        row = self.trace.multicasts.get(message)
        return row is not None and self.trace.group_of(process) in row["destinations"]

    def place(self, process: int, message: int) -> int | None:
        """Where a process first delivered a message that is addressed to it."""
        if message in self.sequence[process] and self.addressed(process, message):
            return self.sequence[process].index(message)
        return None

    def before(self, process: int, message: int, other: int) -> bool:
        first, second = self.place(process, message), self.place(process, other)
        return first is not None and second is not None and first < second

    def integrity(self) -> bool:
        for process in self.processes:
            for at, message in enumerate(self.sequence[process]):
                if message in self.sequence[process][:at] or not self.addressed(process, message):
                    return True
        return False

    def missing(self, message: int) -> bool:
        return any(
            self.addressed(p, message) and p not in self.trace.crashed and message not in self.sequence[p]
            for p in self.processes
        )

    def validity(self) -> bool:
        senders = {m: row["sender"] for m, row in self.trace.multicasts.items()}
        return any(senders[m] not in self.trace.crashed and self.missing(m) for m in self.messages)

    def agreement(self) -> bool:
        return any(any(m in self.sequence[p] for p in self.processes) and self.missing(m) for m in self.messages)

    def prefix_order(self) -> bool:
        """For m, m' and p, q addressed by both: p delivers m and q delivers m', yet neither had the other's first."""
        for m, other in product(self.messages, repeat=2):
            for p, q in product(self.processes, repeat=2):
                both = m != other and all(self.addressed(x, y) for x in (p, q) for y in (m, other))
                delivered = self.place(p, m) is not None and self.place(q, other) is not None
                if both and delivered and not self.before(p, other, m) and not self.before(q, m, other):
                    return True
        return False

    def precedes(self, m: int, other: int) -> list[int]:
        """The processes, addressed by both, that deliver m while they have not delivered the other."""
        return [
            p
            for p in self.processes
            if m != other
            and self.addressed(p, m)
            and self.addressed(p, other)
            and self.place(p, m) is not None
            and not self.before(p, other, m)
        ]

    def shortest_cycle(self) -> int | None:
        """The length of the shortest cycle of `precedes`."""
        return self._shortest({m: {n for n in self.messages if self.precedes(m, n)} for m in self.messages})

    def completed(self, message: int) -> int | None:
        """When a message was answered; or, in a trace without answers, delivered in all its destinations."""
        sent = self.trace.multicasts[message]["at_ns"]
        if self.trace.answers is not None:
            times = [at_ns for answered, at_ns in self.trace.answers if answered == message]
            return max(sent, min(times)) if times else None
        moment = sent
        for group in self.trace.multicasts[message]["destinations"]:
            rows = [row for p in self.trace.groups[group] for row in self.trace.sequences.get(p, [])]
            times = [at_ns for _, delivered, at_ns in rows if delivered == message]
            if not times:
                return None
            moment = max(moment, min(times))
        return moment

    def precedes_in_time(self, m: int, other: int) -> bool:
        """Whether m was complete before the other was multicast."""
        completed = self.completed(m)
        apart = self.trace.clock_bound_ns or 0
        return completed is not None and self.trace.multicasts[other]["at_ns"] - completed > apart

    def shortest_timed_cycle(self) -> int | None:
        """The length of the shortest cycle of `precedes` and `precedes_in_time` together."""
        return self._shortest(
            {m: {n for n in self.messages if self.precedes(m, n) or self.precedes_in_time(m, n)} for m in self.messages}
        )

    def _shortest(self, edges: dict[int, set[int]]) -> int | None:
        """The length of a shortest cycle, by powers of the relation."""
        reach = edges
        for length in range(1, len(self.messages) + 1):
            if any(m in reach[m] for m in self.messages):
                return length
            reach = {m: {n for step in reach[m] for n in edges[step]} for m in self.messages}
        return None

    def fifo(self) -> bool:
        for p, m, later in product(self.processes, self.messages, self.messages):
            one, two = self.trace.multicasts[m], self.trace.multicasts[later]
            if one["session"] != two["session"] or one["sequence"] >= two["sequence"]:
                continue
            if self.addressed(p, m) and self.place(p, later) is not None and not self.before(p, m, later):
                return True
        return False
