"""What a member of a group that stamps knows, and how that is kept, handed on and taken over."""

from amcast.kernel.ids import GroupId, MessageId, ProcessId
from amcast.kernel.message import Message, State
from amcast.kernel.process import Process
from amcast.kernel.topology import Topology
from amcast.parts.consensus.paxos import Paxos
from amcast.parts.consensus.ring_paxos import RingPaxos
from amcast.parts.groups.messages import TimestampConfig, TimestampCore, TimestampPendingState, TimestampState
from amcast.parts.ordering.delivered_set import DeliveredSet
from amcast.parts.ordering.delivery_queue import DeliveryQueue


class TimestampPending:
    """What is known of a message that the log stamped, until it is delivered and settled."""

    __slots__ = (
        "committed_ns", "confirmed", "delivered", "final", "heard", "message", "old", "own", "proposed", "settled",
        "soft", "synced",
    )  # fmt: skip

    def __init__(self, message: Message, own: int) -> None:
        self.message = message
        self.own = own
        """My group's timestamp; the final one is never lower."""
        self.heard: dict[GroupId, int] = {}
        """Timestamps that groups told me: facts, but not everybody here may know them."""
        self.synced: dict[GroupId, int] = {}
        """Timestamps in the log."""
        self.soft: dict[GroupId, int] = {}
        """Guesses in the log."""
        self.final = 0
        """0 while unknown."""
        self.settled = False
        """The final timestamp follows from the log alone."""
        self.delivered = False
        self.confirmed: set[GroupId] = set()
        """Groups that settled it before this one did."""
        self.committed_ns = -1
        self.old = False
        """It was pending already when the timer was set."""
        self.proposed = -1
        """The ballot in which I, leading, proposed what `_ordering` said."""


class StampMemory(Process):
    """The knowledge; `parts/groups/timestamped.py` acts on it."""

    def __init__(self, me: ProcessId, topology: Topology, config: TimestampConfig) -> None:
        super().__init__(me, topology)
        assert self.group is not None, f"process {me} is in no group"
        self.home: GroupId = self.group
        self._config = config
        self._fellows = tuple(member for member in topology.members(self.home) if member != me)
        consensus = RingPaxos if config.consensus == "ring" else Paxos
        self._paxos = consensus(self, topology.members(self.home), config)
        self._clock = 0
        """The highest timestamp the log has given or heard of; what it stamps next is higher."""
        self._pending: dict[MessageId, TimestampPending] = {}
        self._queue = DeliveryQueue()
        """What is stamped and not delivered, by a lower bound of its final (timestamp, id)."""
        self._last: tuple[int, MessageId] = (0, 0)
        """The rank of what was delivered last."""
        self._seen = DeliveredSet()
        """What the log has stamped."""
        self._waiting: dict[MessageId, Message] = {}
        """What was asked for and is not stamped yet."""
        self._old: set[MessageId] = set()
        """Those that waited already when the timer was set."""
        self._early: dict[MessageId, dict[GroupId, int]] = {}
        """Stamps of other groups for what is not stamped here yet."""
        self._kept: dict[GroupId, dict[MessageId, int]] = {}
        """My group's stamps of settled messages, by the groups that have not confirmed them."""
        self._confirming: dict[GroupId, list[MessageId]] = {}
        """Settled here, and that group is not told yet."""
        self._unconfirmed = 0
        """How many those are in all."""
        self._ahead: dict[MessageId, None] = {}
        """Final here, but not by the log alone, and not proposed to it by me in this ballot."""
        self._starting: list[MessageId] = []
        """Waiting, and not proposed by me in this ballot."""
        self._fresh: list[MessageId] = []
        """Pending, with something for me to propose."""
        self._led = 0
        """The ballot for which I took over."""
        self._armed = False

    def _finish(self, id: MessageId, entry: TimestampPending, final: int) -> None:
        """The final timestamp is known here."""
        assert entry.own <= final, f"message {id}: final {final} is below the group's own {entry.own}"
        entry.final = final
        entry.committed_ns = self.now
        self.end_blocking(entry.message)
        self._queue.fix(id, final)
        if not entry.settled:
            self._ahead[id] = None

    def _core(self) -> TimestampCore:
        return TimestampCore(
            self.position,
            self._clock,
            self._last,
            tuple(
                TimestampPendingState(
                    e.message,
                    e.own,
                    tuple(sorted(e.heard.items())),
                    tuple(sorted(e.synced.items())),
                    tuple(sorted(e.soft.items())),
                    e.final,
                    e.settled,
                    e.delivered,
                    tuple(sorted(e.confirmed)),
                    e.committed_ns,
                    e.old,
                    e.proposed,
                )
                for _, e in sorted(self._pending.items())
            ),
            self._seen.snapshot(),
            tuple((group, tuple(kept.items())) for group, kept in sorted(self._kept.items())),
            tuple((group, tuple(ids)) for group, ids in sorted(self._confirming.items())),
        )

    def _become(self, core: TimestampCore) -> None:
        self._clock = core.clock
        self._last = core.last
        self._seen.restore(core.seen)
        self._kept = {group: dict(kept) for group, kept in core.kept}
        self._confirming = {group: list(ids) for group, ids in core.confirming}
        self._unconfirmed = sum(len(ids) for _, ids in core.confirming)
        self._pending = {}
        self._queue = DeliveryQueue()
        self._ahead = {}
        for kept in core.pending:
            id = kept.message.id
            entry = self._pending[id] = TimestampPending(kept.message, kept.own)
            entry.heard = dict(kept.heard)
            entry.synced = dict(kept.synced)
            entry.soft = dict(kept.soft)
            entry.final = kept.final
            entry.settled = kept.settled
            entry.delivered = kept.delivered
            entry.confirmed = set(kept.confirmed)
            entry.committed_ns = kept.committed_ns
            entry.old = kept.old
            entry.proposed = kept.proposed
            if not entry.delivered:
                self._queue.add(entry.own, id)
                if entry.final:
                    self._queue.fix(id, entry.final)
            if entry.final and not entry.settled:
                self._ahead[id] = None

    def _install(self, core: TimestampCore) -> None:
        """Go on from a fellow's state (or my own of an earlier incarnation). What I delivered ahead of the log stays
        so."""
        position, last, mine = self.position, self._last, self._pending
        self._become(core)
        for id, entry in list(self._pending.items()):
            known = mine.get(id)
            if known is not None:
                entry.heard = {**known.heard, **entry.heard}
                if known.final and not entry.final:
                    self._finish(id, entry, known.final)
            entry.proposed = -1
            if entry.final and (entry.final, id) <= last and not entry.delivered:
                entry.delivered = True
                self._queue.drop(id)
                if entry.settled:
                    del self._pending[id]
        self._waiting = {id: message for id, message in self._waiting.items() if id not in self._seen}
        self._early = {id: heard for id, heard in self._early.items() if id not in self._seen}
        self._last = max(last, core.last)
        self._led = -1  # should I lead, what to propose must be looked for anew
        if core.position > position:
            self.install_position(core.position)

    def snapshot(self) -> State:
        return TimestampState(
            self._core(),
            self._paxos.snapshot(),
            tuple(self._waiting.values()),
            tuple(sorted(self._old)),
            tuple((id, tuple(sorted(heard.items()))) for id, heard in sorted(self._early.items())),
            tuple(self._starting),
            tuple(self._fresh),
            tuple(self._ahead),
            self._led,
            self._armed,
        )

    def restore(self, state: State) -> None:
        assert isinstance(state, TimestampState)
        self._become(state.core)
        self.position = state.core.position
        self._paxos.restore(state.paxos)
        self._waiting = {message.id: message for message in state.waiting}
        self._old = set(state.old)
        self._early = {id: dict(heard) for id, heard in state.early}
        self._starting = list(state.starting)
        self._fresh = list(state.fresh)
        self._ahead = dict.fromkeys(state.ahead)
        self._led = state.led
        self._armed = state.armed
