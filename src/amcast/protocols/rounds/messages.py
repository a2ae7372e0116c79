"""What round-based protocols (A_ng, A_dt) say between groups, what they know and what they can be told."""

from amcast.kernel.ids import GroupId, MessageId, ProcessId
from amcast.kernel.message import Body, Message, State
from amcast.kernel.units import MILLISECOND
from amcast.parts.broadcast.messages import GenericState
from amcast.parts.consensus.messages import PaxosConfig, PaxosState, Value
from amcast.parts.ordering.messages import DeliveredRange

Messages = tuple[Message, ...]


class RoundsConfig(PaxosConfig, frozen=True):
    kappa: int = 1
    """Instances between the end of a round and the delivery of its global messages."""
    eta: int = 1
    """Instances per round: after so many, groups exchange bundles."""
    pace_ns: int = MILLISECOND
    """While there is a reason to go on, instances are proposed this far apart."""
    idle_ns: tuple[int, int] = (20 * MILLISECOND, 20 * MILLISECOND)
    """Without any reason, the next (empty) instance comes after this long."""

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
    """A group's global messages of one round, those for the receiver's group; empty ones count too. `safe`: nobody in
    the bundle's group will ever need a bundle of a round up to this one again."""

    round: int
    group: GroupId
    messages: Messages
    safe: int


class Lacking(Body, frozen=True):
    """I wait for the bundles of this round: to another group, for its own; to fellows, for any, or for their state."""

    round: int


class Kept(Body, frozen=True):
    """To fellows: everything up to this round is durable here."""

    round: int


class Handover(Body, frozen=True):
    """To a fellow that needs bundles which are forgotten: what I am, which is further than that."""

    state: bytes


class RoundsCore(State, frozen=True):
    """What the group's log and all groups' bundles determine; the same at every member after the same instance."""

    position: int
    instance: int
    round: int
    open: Messages
    own: tuple[tuple[int, Messages], ...]
    ordered: tuple[DeliveredRange, ...]
    delivered: tuple[DeliveredRange, ...]
    again: Messages = ()
    """A_dt: ordered, but the bundle did not count: to be ordered once more."""
    vouch: tuple[int, tuple[int, ...]] = (0, ())
    """A_dt: an epoch of the generic broadcast, and what was handed up of each group's stream."""


class RoundsState(State, frozen=True):
    """A member of any round-based protocol, without what is known of other groups."""

    core: RoundsCore
    paxos: PaxosState
    queue: tuple[tuple[Value, int], ...]
    waiting: Messages
    old: tuple[MessageId, ...]
    fresh: tuple[MessageId, ...]
    held: tuple[tuple[MessageId, int], ...]
    led: int
    last_ns: int
    armed: str
    stuck: tuple[int, int]
    retrying: bool


class ANgState(State, frozen=True):
    base: RoundsState
    bundles: tuple[tuple[int, tuple[tuple[GroupId, Messages], ...]], ...]
    reached: tuple[tuple[GroupId, int], ...]
    safe: tuple[tuple[GroupId, int], ...]
    kept: tuple[tuple[ProcessId, int], ...]
    doors: tuple[tuple[GroupId, ProcessId], ...]


class ADtConfig(RoundsConfig, frozen=True):
    """A_dt's options beyond those of all rounds."""

    idle_ns: tuple[int, int] = (50 * MILLISECOND, 50 * MILLISECOND)
    linger: int = 1024
    """So many rounds after its delivery, a bundle can still be had from everybody. A group that is cut off for longer
    cannot come back."""
    patience: int = 2
    """After so many vain retries a group whose bundle is missing is suspected."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.linger <= 1_000_000:
            raise ValueError(f"linger = {self.linger}; expected 1 to 1000000 rounds")
        if not 1 <= self.patience <= 1000:
            raise ValueError(f"patience = {self.patience}; expected 1 to 1000 retries")


class ADtState(State, frozen=True):
    base: RoundsState
    generic: GenericState
    have: tuple[tuple[int, tuple[GroupId, ...]], ...]
    busy: tuple[int, ...]
    suspected: tuple[GroupId, ...]
    quiet: tuple[tuple[GroupId, int], ...]
    wronged: tuple[tuple[GroupId, int], ...]
    around: tuple[ProcessId, ...]
    gone: bool


BODIES: tuple[type[Body], ...] = (RoundBatch, Lacking, Kept, Handover)
