"""A group's log as one process knows it: what is decided, in order, and how others are taught it.

Values are decided in any order and handed to the owner in theirs. Now and then the owner's state takes the place of
the log before it: `state` is what the owner was after everything below `upto`. The log below `floor` is forgotten; who
is behind it gets the state, everybody else gets values. `floor` is the `upto` before the last one, so that somebody
who is a little late is never sent a whole state.
"""

from amcast.kernel.ids import ProcessId
from amcast.kernel.process import Process
from amcast.parts.consensus.messages import Install, Learn, LogState, LogStatus, Value

VALUES_PER_LEARN = 64
"""How many values one Learn carries at most."""

Decided = list[tuple[int, Value | bytes]]
"""What the owner must do next, in order: apply the value of an instance, or become the state (bytes) that stands for
everything below the instance."""


class Log:
    """What is decided."""

    def __init__(self, owner: Process, keep: int) -> None:
        self.owner = owner
        self.checkpoint_interval = keep
        self.decided_until = 0
        """Everything below is decided and was handed up."""
        self.floor = 0
        """Everything below is forgotten; never above `upto`."""
        self.checkpoint_end = 0
        self.checkpoint = b""
        self.retain_from: int | None = None
        """Nothing at or above may be forgotten, whatever the snapshots say."""
        self.known_until = 0
        """Somebody said to know everything below."""
        self._decided: dict[int, Value] = {}
        """From `floor` on; above `chosen` with gaps."""

    def is_decided(self, instance: int) -> bool:
        return instance < self.decided_until or instance in self._decided

    def decide(self, instance: int, value: Value) -> None:
        if instance >= self.decided_until:
            known = self._decided.setdefault(instance, value)
            assert known == value, f"instance {instance} of process {self.owner.me}: {known} and {value} were decided"

    def collect_ready(self) -> Decided:
        """What can be handed up now."""
        ready: Decided = []
        while (value := self._decided.get(self.decided_until)) is not None:
            ready.append((self.decided_until, value))
            self.decided_until += 1
        return ready

    def is_behind(self) -> bool:
        """Whether something is decided that is not known here: somebody said so, or a later value is."""
        return self.decided_until < self.known_until or len(self._decided) > self.decided_until - self.floor

    # Teaching

    def send_status(self, peer: ProcessId) -> None:
        self.owner.send(peer, LogStatus(self.decided_until))

    def handle_status(self, peer: ProcessId, chosen: int) -> None:
        """A peer said how far it is: teach it, or ask it."""
        if chosen > self.decided_until:
            self.known_until = max(self.known_until, chosen)
            self.send_status(peer)
        elif chosen < self.decided_until:
            self.send_decided(peer, chosen)

    def send_decided(self, peer: ProcessId, first: int) -> None:
        if first < self.floor:
            if self.owner.topology.group_of(peer) != self.owner.group:
                return  # a state says what a group has delivered: only its own members may hand it on
            self.owner.note("transferred", value=float(self.checkpoint_end))
            self.owner.send(peer, Install(self.checkpoint_end, self.checkpoint, *self.retained_values()))
            first = self.checkpoint_end
        if first < self.decided_until:
            last = min(self.decided_until, first + VALUES_PER_LEARN)
            values = tuple(self._decided[instance] for instance in range(first, last))
            self.owner.send(peer, Learn(first, values, self.decided_until))

    def learn(self, values: tuple[Value, ...], first: int = 0) -> Decided:
        for instance, value in enumerate(values, first):
            self.decide(instance, value)
        return self.collect_ready()

    def handle_learn(self, teacher: ProcessId, body: Learn) -> Decided:
        ready = self.learn(body.values, body.first)
        if self.decided_until < body.chosen:
            self.known_until = max(self.known_until, body.chosen)
            self.send_status(teacher)
        return ready

    def install(self, upto: int, state: bytes, floor: int, values: tuple[Value, ...]) -> Decided:
        """Take over a state that is ahead of mine, and values from `floor` on that may go beyond it."""
        if upto <= self.decided_until:
            return []
        for instance, value in enumerate(values, floor):
            self.decide(instance, value)
        self.checkpoint_end = self.decided_until = upto
        self.floor = floor
        self.checkpoint = state
        self._truncate()
        return [(upto, state), *self.collect_ready()]

    # Truncation

    def needs_checkpoint(self) -> bool:
        return self.decided_until - self.checkpoint_end >= self.checkpoint_interval

    def compact(self, upto: int, state: bytes) -> None:
        """The owner's state at `upto` is safe: forget what nobody should need any more."""
        if upto <= self.checkpoint_end:
            return
        self.floor = (
            self.checkpoint_end
            if self.retain_from is None
            else max(self.floor, min(self.checkpoint_end, self.retain_from))
        )
        self.checkpoint_end = upto
        self.checkpoint = state
        self._truncate()

    def retained_values(self) -> tuple[int, tuple[Value, ...]]:
        """What the state covers and others still need, if somebody asked to hold it."""
        if self.retain_from is None:
            return (self.checkpoint_end, ())
        return (self.floor, tuple(self._decided[instance] for instance in range(self.floor, self.checkpoint_end)))

    def values_after_checkpoint(self) -> tuple[Value, ...]:
        """What was decided after the state."""
        return tuple(self._decided[instance] for instance in range(self.checkpoint_end, self.decided_until))

    def _truncate(self) -> None:
        for instance in [i for i in self._decided if i < self.floor]:
            del self._decided[instance]

    def snapshot(self) -> LogState:
        decided = tuple(sorted(self._decided.items()))
        return LogState(self.decided_until, self.floor, self.checkpoint_end, self.checkpoint, self.known_until, decided)

    def restore(self, state: LogState) -> None:
        self.decided_until = state.chosen
        self.floor = state.floor
        self.checkpoint_end = state.upto
        self.checkpoint = state.state
        self.known_until = state.goal
        self._decided = dict(state.decided)
