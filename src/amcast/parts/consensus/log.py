"""The replicated log of a group, as one process knows it.

Values are decided in any order and returned to the owner in log order. From time to time a checkpoint, the owner's
encoded state after every instance below `checkpoint_end`, replaces the log before it. Values below `floor` are
truncated: a peer that needs them gets the checkpoint, every other peer gets values. `floor` is the end of the previous
checkpoint, so that a peer that is only a little behind never needs a whole state.
"""

from amcast.kernel.ids import ProcessId
from amcast.kernel.process import Process
from amcast.parts.consensus.messages import Install, Learn, LogState, LogStatus, Value

Decided = list[tuple[int, Value | bytes]]
"""What the owner applies next, in order: the value of an instance, or a checkpoint (bytes) that replaces everything
below the instance."""


class Log:
    """The decided values, and how peers that lack some of them catch up."""

    def __init__(self, owner: Process, checkpoint_interval: int, batch: int) -> None:
        self.owner = owner
        self.checkpoint_interval = checkpoint_interval
        self._batch = batch
        """The most values that one Learn carries."""
        self.decided_until = 0
        """Every instance below is decided and was returned to the owner."""
        self.floor = 0
        """Values below are truncated; never above `checkpoint_end`."""
        self.checkpoint_end = 0
        """The checkpoint covers every instance below."""
        self.checkpoint = b""
        self.retain_from: int | None = None
        """Values at or above are not truncated, whatever the checkpoints cover; None: no restriction."""
        self.known_until = 0
        """Some peer has every instance below."""
        self._decided: dict[int, Value] = {}
        """Values from `floor` on; above `decided_until` with gaps."""

    def is_decided(self, instance: int) -> bool:
        return instance < self.decided_until or instance in self._decided

    def decide(self, instance: int, value: Value) -> None:
        if instance >= self.decided_until:
            self._add(instance, value)

    def _add(self, instance: int, value: Value) -> None:
        known = self._decided.setdefault(instance, value)
        assert known == value, f"instance {instance} of process {self.owner.me}: {known} and {value} were decided"

    def collect_ready(self) -> Decided:
        """Advances over the decided values that follow without a gap, and returns them."""
        ready: Decided = []
        while (value := self._decided.get(self.decided_until)) is not None:
            ready.append((self.decided_until, value))
            self.decided_until += 1
        return ready

    def is_behind(self) -> bool:
        """Whether a decided value is missing here: a peer has more, or a later value is known."""
        return self.decided_until < self.known_until or len(self._decided) > self.decided_until - self.floor

    # Catching up

    def send_status(self, peer: ProcessId) -> None:
        self.owner.send(peer, LogStatus(self.decided_until))

    def handle_status(self, peer: ProcessId, decided_until: int) -> None:
        """Sends a peer that is behind what it lacks, and asks a peer that is ahead."""
        if decided_until > self.decided_until:
            self.known_until = max(self.known_until, decided_until)
            self.send_status(peer)
        elif decided_until < self.decided_until:
            self.send_decided(peer, decided_until)

    def send_decided(self, peer: ProcessId, first: int) -> None:
        """Sends decided values from `first` on; the checkpoint first, where values are truncated."""
        if first < self.floor:
            if self.owner.topology.group_of(peer) != self.owner.group:
                return  # a checkpoint contains what the group has delivered: it is of use to its own members only
            self.owner.note("transferred", value=float(self.checkpoint_end))
            self.owner.send(peer, Install(self.checkpoint_end, self.checkpoint, *self.retained_values()))
            first = self.checkpoint_end
        if first < self.decided_until:
            last = min(self.decided_until, first + self._batch)
            values = tuple(self._decided[instance] for instance in range(first, last))
            self.owner.send(peer, Learn(first, values, self.decided_until))

    def learn(self, values: tuple[Value, ...], first: int = 0) -> Decided:
        for instance, value in enumerate(values, first):
            self.decide(instance, value)
        return self.collect_ready()

    def handle_learn(self, sender: ProcessId, body: Learn) -> Decided:
        ready = self.learn(body.values, body.first)
        if self.decided_until < body.decided_until:
            self.known_until = max(self.known_until, body.decided_until)
            self.send_status(sender)
        return ready

    def install(self, end: int, checkpoint: bytes, floor: int, values: tuple[Value, ...]) -> Decided:
        """Adopts a checkpoint that is ahead of this log, and values from `floor` on that may go beyond it.

        Values below `decided_until` are kept, too: this log may have truncated them under an earlier checkpoint, from a
        member that retains fewer.
        """
        if end <= self.decided_until:
            return []
        for instance, value in enumerate(values, floor):
            self._add(instance, value)
        self.checkpoint_end = self.decided_until = end
        self.floor = floor
        self.checkpoint = checkpoint
        self._truncate()
        return [(end, checkpoint), *self.collect_ready()]

    # Truncation

    def needs_checkpoint(self) -> bool:
        return self.decided_until - self.checkpoint_end >= self.checkpoint_interval

    def compact(self, end: int, checkpoint: bytes) -> None:
        """Adopts the owner's checkpoint and truncates the log before the previous one."""
        if end <= self.checkpoint_end:
            return
        if self.retain_from is None:
            self.floor = self.checkpoint_end
        else:
            self.floor = max(self.floor, min(self.checkpoint_end, self.retain_from))
        self.checkpoint_end = end
        self.checkpoint = checkpoint
        self.owner.note("truncated" if self.floor else "checkpointed", value=float(end))
        self._truncate()

    def retained_values(self) -> tuple[int, tuple[Value, ...]]:
        """The values that the checkpoint covers and `retain_from` keeps, and the first instance of them."""
        if self.retain_from is None:
            return (self.checkpoint_end, ())
        return (self.floor, tuple(self._decided[instance] for instance in range(self.floor, self.checkpoint_end)))

    def values_after_checkpoint(self) -> tuple[Value, ...]:
        return tuple(self._decided[instance] for instance in range(self.checkpoint_end, self.decided_until))

    def _truncate(self) -> None:
        for instance in [i for i in self._decided if i < self.floor]:
            del self._decided[instance]

    def snapshot(self) -> LogState:
        decided = tuple(sorted(self._decided.items()))
        return LogState(
            self.decided_until,
            self.floor,
            self.checkpoint_end,
            self.checkpoint,
            self.known_until,
            decided,
            self.retain_from,
        )

    def restore(self, state: LogState) -> None:
        self.decided_until = state.decided_until
        self.floor = state.floor
        self.checkpoint_end = state.checkpoint_end
        self.checkpoint = state.checkpoint
        self.known_until = state.known_until
        self._decided = dict(state.decided)
        self.retain_from = state.retain_from
