"""Bodies, snapshots and settings of the round-based protocols, A_ng and A_dt."""

from typing import ClassVar

from amcast.kernel.config import MILLISECOND, SearchValues
from amcast.kernel.ids import GroupId, MessageId, ProcessId
from amcast.kernel.message import Body, Message, State
from amcast.parts.broadcast.messages import GenericState
from amcast.parts.consensus.messages import PaxosConfig, PaxosState, Value
from amcast.parts.ordering.messages import DeliveredRange

Messages = tuple[Message, ...]


class RoundsConfig(PaxosConfig, frozen=True):
    search_values: ClassVar[SearchValues] = {**PaxosConfig.search_values, "kappa": (0, 1, 3), "eta": (1, 2, 3)}
    kappa: int = 1
    """Instances between the end of a round and the delivery of its global messages."""
    eta: int = 1
    """Instances per round; groups exchange batches at the end of each round."""
    pace_ns: int = MILLISECOND
    """The least time between two proposals, while there is a reason to propose."""
    idle_ns: tuple[int, int] = (20 * MILLISECOND, 20 * MILLISECOND)
    """The time after which an empty instance is proposed without a reason."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.kappa <= 100_000:
            raise ValueError(f"kappa = {self.kappa}; expected 0 to 100000 instances")
        if not 1 <= self.eta <= 100_000:
            raise ValueError(f"eta = {self.eta}; expected 1 to 100000 instances")
        low, high = self.idle_ns
        if not 0 < low <= high:
            raise ValueError(f"idle_ns = {list(self.idle_ns)}; expected a range above 0, lower end first")
        if not 0 < self.pace_ns <= low:
            raise ValueError(f"pace_ns = {self.pace_ns}; expected above 0 and at most idle_ns, {low}")


class RoundBatch(Body, frozen=True):
    """A group's global messages of one round that are addressed to the receiver's group; may be empty."""

    round: int
    group: GroupId
    messages: Messages
    safe: int
    """No member of `group` will need a batch of a round up to this one again."""


class BatchRequest(Body, frozen=True):
    """The sender waits for batches of this round: to another group, for its own; to other members of its group, for any
    batch or their state."""

    round: int


class DurableRound(Body, frozen=True):
    """To the own group: everything up to this round is durable at the sender."""

    round: int


class StateTransfer(Body, frozen=True):
    """The sender's state, for a member of its group that needs dropped batches of rounds before that state."""

    state: bytes


class RoundsCore(State, frozen=True):
    """The state that the group's log and all groups' batches determine; equal at every member after an instance."""

    position: int
    instance: int
    round: int
    collected: Messages
    own_batches: tuple[tuple[int, Messages], ...]
    ordered: tuple[DeliveredRange, ...]
    delivered: tuple[DeliveredRange, ...]
    reordered: Messages = ()
    """A_dt: messages of batches that did not count, which are ordered once more."""
    broadcast_progress: tuple[int, tuple[int, ...]] = (0, ())
    """A_dt: an epoch of the generic broadcast, and how much of each group's stream was delivered."""


class RoundsState(State, frozen=True):
    """The state of a member of any round-based protocol, without what it knows of other groups."""

    core: RoundsCore
    paxos: PaxosState
    queue: tuple[tuple[Value, int], ...]
    unordered: Messages
    overdue: tuple[MessageId, ...]
    unproposed: tuple[MessageId, ...]
    held_since: tuple[tuple[MessageId, int], ...]
    led_ballot: int
    last_proposal_ns: int
    round_timer: str
    overdue_round: tuple[int, int]
    retry_armed: bool


class ANgState(State, frozen=True):
    base: RoundsState
    batches: tuple[tuple[int, tuple[tuple[GroupId, Messages], ...]], ...]
    reached_rounds: tuple[tuple[GroupId, int], ...]
    safe_rounds: tuple[tuple[GroupId, int], ...]
    durable_rounds: tuple[tuple[ProcessId, int], ...]
    remote_leaders: tuple[tuple[GroupId, ProcessId], ...]


class ADtConfig(RoundsConfig, frozen=True):
    """The settings of A_dt beyond those of all round-based protocols."""

    search_values: ClassVar[SearchValues] = {**RoundsConfig.search_values, "patience": (1, 2, 4)}
    idle_ns: tuple[int, int] = (50 * MILLISECOND, 50 * MILLISECOND)
    linger: int = 1024
    """Rounds for which every process retains a batch after its delivery. A group that is cut off for longer cannot
    return."""
    patience: int = 2
    """Retries without success after which a group whose batch is missing is suspected."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.linger <= 1_000_000:
            raise ValueError(f"linger = {self.linger}; expected 1 to 1000000 rounds")
        if not 1 <= self.patience <= 1000:
            raise ValueError(f"patience = {self.patience}; expected 1 to 1000 retries")


class ADtState(State, frozen=True):
    base: RoundsState
    generic: GenericState
    counted: tuple[tuple[int, tuple[GroupId, ...]], ...]
    nonempty_rounds: tuple[int, ...]
    suspected: tuple[GroupId, ...]
    silent_retries: tuple[tuple[GroupId, int], ...]
    wrong_suspicions: tuple[tuple[GroupId, int], ...]
    seen_members: tuple[ProcessId, ...]
    has_crashed: bool


BODIES: tuple[type[Body], ...] = (RoundBatch, BatchRequest, DurableRound, StateTransfer)
