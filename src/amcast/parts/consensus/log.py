"""A group's log as one process knows it: what is decided, in order, and how others are taught it.

Values are decided in any order and handed to the owner in theirs. Now and then the owner's state takes the place of
the log before it: `state` is what the owner was after everything below `upto`. The log below `floor` is forgotten; who
is behind it gets the state, everybody else gets values. `floor` is the `upto` before the last one, so that somebody
who is a little late is never sent a whole state.
"""

from amcast.kernel.ids import ProcessId
from amcast.kernel.process import Process
from amcast.parts.consensus.messages import Install, Learn, LogState, Status, Value

LESSON = 64
"""How many values one Learn carries at most."""

Decided = list[tuple[int, Value | bytes]]
"""What the owner must do next, in order: apply the value of an instance, or become the state (bytes) that stands for
everything below the instance."""


class Log:
    """What is decided."""

    def __init__(self, owner: Process, keep: int) -> None:
        self.owner = owner
        self.keep = keep
        self.chosen = 0
        """Everything below is decided and was handed up."""
        self.floor = 0
        """Everything below is forgotten; never above `upto`."""
        self.upto = 0
        self.state = b""
        self.hold: int | None = None
        """Nothing at or above may be forgotten, whatever the snapshots say."""
        self.goal = 0
        """Somebody said to know everything below."""
        self._decided: dict[int, Value] = {}
        """From `floor` on; above `chosen` with gaps."""

    def knows(self, instance: int) -> bool:
        return instance < self.chosen or instance in self._decided

    def decide(self, instance: int, value: Value) -> None:
        if instance >= self.chosen:
            known = self._decided.setdefault(instance, value)
            assert known == value, f"instance {instance} of process {self.owner.me}: {known} and {value} were decided"

    def take(self) -> Decided:
        """What can be handed up now."""
        ready: Decided = []
        while (value := self._decided.get(self.chosen)) is not None:
            ready.append((self.chosen, value))
            self.chosen += 1
        return ready

    def behind(self) -> bool:
        """Whether something is decided that is not known here: somebody said so, or a later value is."""
        return self.chosen < self.goal or len(self._decided) > self.chosen - self.floor

    # Teaching

    def tell(self, peer: ProcessId) -> None:
        self.owner.send(peer, Status(self.chosen))

    def hear(self, peer: ProcessId, chosen: int) -> None:
        """A peer said how far it is: teach it, or ask it."""
        if chosen > self.chosen:
            self.goal = max(self.goal, chosen)
            self.tell(peer)
        elif chosen < self.chosen:
            self.teach(peer, chosen)

    def teach(self, peer: ProcessId, first: int) -> None:
        if first < self.floor:
            if self.owner.topology.group_of(peer) != self.owner.group:
                return  # a state says what a group has delivered: only its own members may hand it on
            self.owner.note("transferred", value=float(self.upto))
            self.owner.send(peer, Install(self.upto, self.state, *self.held()))
            first = self.upto
        if first < self.chosen:
            last = min(self.chosen, first + LESSON)
            values = tuple(self._decided[instance] for instance in range(first, last))
            self.owner.send(peer, Learn(first, values, self.chosen))

    def learn_all(self, values: tuple[Value, ...], first: int = 0) -> Decided:
        for instance, value in enumerate(values, first):
            self.decide(instance, value)
        return self.take()

    def learn(self, teacher: ProcessId, body: Learn) -> Decided:
        ready = self.learn_all(body.values, body.first)
        if self.chosen < body.chosen:
            self.goal = max(self.goal, body.chosen)
            self.tell(teacher)
        return ready

    def install(self, upto: int, state: bytes, floor: int, values: tuple[Value, ...]) -> Decided:
        """Take over a state that is ahead of mine, and values from `floor` on that may go beyond it."""
        if upto <= self.chosen:
            return []
        for instance, value in enumerate(values, floor):
            self.decide(instance, value)
        self.upto = self.chosen = upto
        self.floor = floor
        self.state = state
        self._forget()
        return [(upto, state), *self.take()]

    # Truncation

    def full(self) -> bool:
        return self.chosen - self.upto >= self.keep

    def compact(self, upto: int, state: bytes) -> None:
        """The owner's state at `upto` is safe: forget what nobody should need any more."""
        if upto <= self.upto:
            return
        self.floor = self.upto if self.hold is None else max(self.floor, min(self.upto, self.hold))
        self.upto = upto
        self.state = state
        self._forget()

    def held(self) -> tuple[int, tuple[Value, ...]]:
        """What the state covers and others still need, if somebody asked to hold it."""
        if self.hold is None:
            return (self.upto, ())
        return (self.floor, tuple(self._decided[instance] for instance in range(self.floor, self.upto)))

    def since(self) -> tuple[Value, ...]:
        """What was decided after the state."""
        return tuple(self._decided[instance] for instance in range(self.upto, self.chosen))

    def _forget(self) -> None:
        for instance in [i for i in self._decided if i < self.floor]:
            del self._decided[instance]

    def snapshot(self) -> LogState:
        decided = tuple(sorted(self._decided.items()))
        return LogState(self.chosen, self.floor, self.upto, self.state, self.goal, decided)

    def restore(self, state: LogState) -> None:
        self.chosen = state.chosen
        self.floor = state.floor
        self.upto = state.upto
        self.state = state.state
        self.goal = state.goal
        self._decided = dict(state.decided)
