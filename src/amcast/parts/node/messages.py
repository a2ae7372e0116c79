"""Bodies, states and settings of nodes: leader oracle, admission, comparison of replicas, gateway, replies."""

from collections.abc import Sequence
from functools import cache
from typing import Any, ClassVar, Final, Literal, Union

import msgspec
from msgspec import Struct, field

from amcast.kernel.config import MILLISECOND, Config, SearchValues
from amcast.kernel.effects import Deliver
from amcast.kernel.events import Event
from amcast.kernel.folder import Condition, FolderState, KnownFolder, Starts
from amcast.kernel.ids import GroupId, MessageId, ProcessId
from amcast.kernel.message import Body, Message, Record, State
from amcast.parts.client.messages import ClientSessionState
from amcast.parts.ordering.consistent_cut import GroupOrderState, OpenMessage
from amcast.parts.ordering.messages import ChainPoint, DeliveredRange

Verdict = Literal["new", "known", "replaced", "other", "ahead"]
"""What a process remembers of the folder that another one states. new: nothing. known: this folder, and no more of it
than is stated. replaced: another one, which an operator has replaced by this one. other: another one. ahead: this
folder, in a later incarnation or with more records than is stated: it is an older copy."""


class OmegaConfig(Config, frozen=True):
    """Settings of the leader oracle."""

    heartbeat_ns: int = 200 * MILLISECOND
    """The time between two heartbeats."""
    suspect_after_ns: tuple[int, int] = (400 * MILLISECOND, 550 * MILLISECOND)
    """The silence after which a member is suspected; doubled with each wrong suspicion, which is forgiven in time."""

    def __post_init__(self) -> None:
        low, high = self.suspect_after_ns
        if not 0 < self.heartbeat_ns < low <= high:
            raise ValueError(
                f"heartbeat_ns = {self.heartbeat_ns}, suspect_after_ns = {list(self.suspect_after_ns)};"
                " expected a heartbeat above 0 and a range of longer timeouts, lower end first"
            )


class Difference(Struct, frozen=True, array_like=True, gc=False):
    """A member holds something else than the sender."""

    member: ProcessId
    position: int
    own: int
    """The digest that the sender holds at the position."""
    other: int
    """The digest that the member holds there."""


class Findings(Struct, frozen=True, array_like=True):
    """What a member found when it compared itself with others (`parts/node/comparison_results.py`)."""

    equal: tuple[tuple[ProcessId, int], ...] = ()
    """By member: the last position at which both were equal."""
    differing: tuple[Difference, ...] = ()


NO_FINDINGS: Final = Findings()


class ComparisonReport(Struct, frozen=True, array_like=True):
    """What a member tells the others so that all can compare themselves (`parts/node/replica_comparison.py`)."""

    point: ChainPoint | None = None
    """The end of the chain of its deliveries; None if it does not know the chain."""
    deliveries: Findings = NO_FINDINGS
    state: tuple[int, int] | None = None
    """A position, and the digest of its application's state there."""
    states: Findings = NO_FINDINGS


class ChainRecord(Record, frozen=True):
    """The chain of deliveries at a checkpoint, behind which it is written: a restart continues the chain from here."""

    point: ChainPoint
    since: int
    """The position from which on the member has computed the chain itself."""


class Heartbeat(Body, frozen=True):
    """A member is up, in this incarnation."""

    incarnation: int
    since_ns: int = 0
    """When the incarnation began on the member's clock; 0 in its first incarnation."""
    records: int = 0
    """How many records the member has made durable. Others remember it: an older copy of its folder has fewer."""
    comparison: ComparisonReport | None = None


class AdmissionConfig(Config, frozen=True):
    """Settings of the admission of a data folder by its group."""

    grace_ns: int = 400 * MILLISECOND
    """How long a process that could take part waits for the answers of all other servers."""
    retry_ns: tuple[int, int] = (150 * MILLISECOND, 250 * MILLISECOND)
    """How long it waits before it asks again; doubled each time, up to 32 times as long."""
    remember_ns: int = 1000 * MILLISECOND
    """How often record counts of other members are made durable, at most."""
    readmits: bool = False
    """Whether the protocol readmits a member that lost its records."""


class AdmissionRequest(Body, frozen=True):
    """A process that starts states what its data folder says of itself (`kernel/folder.py`)."""

    folder: int
    incarnation: int
    start: int
    records: int
    condition: Condition
    accepts_loss: bool = False
    configuration: int = 0
    """The newest configuration that the process knows."""
    is_confirmed: bool = False
    """Enough members know this folder: a memory of an earlier one is outdated."""
    starts: Starts = ()
    """`FolderState.starts`."""


class AdmissionReply(Body, frozen=True):
    """What the sender durably remembers of the data folder of a process, and the sender's own folder."""

    start: int
    """`AdmissionRequest.start` of the request."""
    verdict: Verdict
    known: KnownFolder | None
    """The folder that the sender remembers, for the verdicts `other` and `ahead`."""
    is_admitted: bool
    """Whether the sender takes part in its group."""
    own: KnownFolder
    """The sender's own folder."""
    topology: bytes = b""
    """The sender's topology, if its configuration is newer than that of the request."""


class AdmissionState(State, frozen=True):
    """The snapshot of an admission."""

    folder: FolderState | None
    state: str
    doubt: str
    has_graced: bool
    has_taken_part: bool
    attempts: int
    known: tuple[KnownFolder, ...]
    replies: tuple[tuple[ProcessId, AdmissionReply], ...]
    persisted: int
    written: tuple[KnownFolder, ...]
    written_ns: int
    records: tuple[Record, ...] = ()
    held: tuple[Event, ...] = ()
    topology: bytes = b""
    """What the process knows of the members while it waits."""
    divergence: str = ""
    recorded_topology: bytes = b""


class ResultsState(State, frozen=True):
    """The snapshot of the results of comparisons."""

    members: tuple[ProcessId, ...]
    own: Findings
    received: tuple[tuple[ProcessId, Findings], ...]


class ComparisonState(State, frozen=True):
    """The snapshot of a comparison of replicas."""

    point: ChainPoint
    is_anchored: bool
    since: int
    points: tuple[tuple[int, int, int], ...]
    unchained: tuple[Deliver, ...]
    claims: tuple[tuple[ProcessId, ChainPoint], ...]
    waits: int
    incarnations: tuple[tuple[ProcessId, int], ...]
    deliveries: ResultsState
    own_states: tuple[tuple[int, int], ...]
    claimed_states: tuple[tuple[ProcessId, tuple[int, int]], ...]
    states: ResultsState
    reported: ComparisonReport | None
    skipped: int


class OmegaState(State, frozen=True):
    """The snapshot of a leader oracle."""

    incarnation: int
    leader: ProcessId
    incarnations: tuple[tuple[ProcessId, int], ...]
    suspected: tuple[ProcessId, ...]
    mistakes: tuple[tuple[ProcessId, tuple[int, int]], ...]
    left: tuple[tuple[ProcessId, int], ...] = ()
    since: tuple[tuple[ProcessId, int], ...] = ()
    members: tuple[ProcessId, ...] = ()
    met: tuple[ProcessId, ...] = ()


class GatewayConfig(Config, frozen=True):
    """Settings of gateways."""

    search_values: ClassVar[SearchValues] = {
        "max_in_flight": (1, 2),
        "bundle_messages": (1, 2, 3),
        "bundle_bytes": (1, 100),
    }
    retry_ns: tuple[int, int] = (1000 * MILLISECOND, 2000 * MILLISECOND)
    """How long a gateway waits for replies to a bundle before it requests it from all members."""
    max_in_flight: int = 64
    """How many bundles may be in flight to the same destinations; further messages gather for the next bundle."""
    gather_ns: tuple[int, int] = (100 * MILLISECOND, 100 * MILLISECOND)
    """The time after which gathered messages no longer wait for bundles in flight."""
    is_paced: bool = True
    """Whether bundles leave at an interval (`parts/node/bundle_pace.py`)."""
    bundle_messages: int = 1024
    """The most messages in a bundle."""
    bundle_bytes: int = 256 * 1024
    """The most payload in a bundle of several messages."""

    def __post_init__(self) -> None:
        low, high = self.retry_ns
        if not 0 < low <= high:
            raise ValueError(f"retry_ns = {list(self.retry_ns)}; expected a range above 0, lower end first")
        for name in ("max_in_flight", "bundle_messages", "bundle_bytes"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} = {getattr(self, name)}; expected 1 or more")
        if not 0 < self.gather_ns[0] <= self.gather_ns[1]:
            raise ValueError(f"gather_ns = {list(self.gather_ns)}; expected a range above 0, lower end first")


class BundlePaceState(State, frozen=True):
    """The snapshot of the pace of bundles to some destinations."""

    groups: tuple[GroupId, ...]
    interval_ns: int
    sent_ns: int
    missing: tuple[ProcessId, ...]
    least_ns: int
    least_before_ns: int
    period_ns: int
    may_overlap: bool
    report_ns: int = 0
    held_at_ns: int = 0


class GatewayState(State, frozen=True):
    """The snapshot of a gateway."""

    sender: ProcessId
    sequence: int
    open: tuple[tuple[MessageId, tuple[Message, ...]], ...]
    """Bundles without all replies, and their messages."""
    gathered: tuple[Message, ...]
    is_gather_armed: bool
    session: ClientSessionState
    sent_ns: tuple[tuple[MessageId, int], ...] = ()
    paces: tuple[BundlePaceState, ...] = ()
    timer_ns: int = 0
    gathering_since_ns: tuple[tuple[tuple[GroupId, ...], int], ...] = ()
    delivered_ns: tuple[tuple[MessageId, int], ...] = ()
    timer_set_ns: int = 0
    now_ns: int = 0


class RealTimeConfig(Config, frozen=True):
    """Settings of real-time order (`parts/node/real_time_order.py`)."""

    search_values: ClassVar[SearchValues] = {"follow_after_ns": (0,), "max_open": (1, 3)}
    retry_ns: tuple[int, int] = (500 * MILLISECOND, 1000 * MILLISECOND)
    """How long the first open message stays the same before a node asks for what is missing."""
    follow_after_ns: int = 5 * MILLISECOND
    """How long an answer waits for the order of a group that is no destination before a leader follows that group."""
    follow_ns: int = 2000 * MILLISECOND
    """How long a group that is followed reports all its deliveries."""
    max_open: int = 16_384
    """How many open messages of another group are remembered; beyond that they are forgotten, and asked for again."""

    def __post_init__(self) -> None:
        if not 0 < self.retry_ns[0] <= self.retry_ns[1]:
            raise ValueError(f"retry_ns = {list(self.retry_ns)}; expected a range above 0, lower end first")
        for name, least in (("follow_after_ns", 0), ("follow_ns", 1), ("max_open", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} = {getattr(self, name)}; expected {least} or more")


class OrderReport(Body, frozen=True):
    """A statement about the order of a group (`parts/ordering/consistent_cut.py`)."""

    group: GroupId
    closed: int
    """Every delivery of the group before this position is closed."""
    begin: int
    end: int
    messages: tuple[OpenMessage, ...]
    """All messages to several groups among the deliveries from `begin` up to `end` that are not closed; some of them
    may be closed."""
    closed_messages: tuple[MessageId, ...] = ()
    """Of the messages in a request: those that are closed."""


class OrderRequest(Body, frozen=True):
    """Asks for a report about the order of a group."""

    group: GroupId
    messages: tuple[MessageId, ...] = ()
    """Messages of which the sender does not know whether the group has delivered them."""
    follows: bool = False
    """Whether the leader of the group is to report all its deliveries for a while."""


class AcceptedRequest(Body, frozen=True):
    """Asks a member of the own group what it has accepted."""

    round: int


class AcceptedReport(Body, frozen=True):
    """What a member has accepted (`kernel/process.py`, Accepted)."""

    round: int
    configuration: int
    position: int
    messages: tuple[MessageId, ...]


class RealTimeCheckpoint(Record, frozen=True):
    """The envelope of a record from which a restart does not repeat earlier deliveries: it also has what was known
    about the order of these. `make_checkpoint_type` derives the type for the records of one protocol."""

    record: Any
    order: GroupOrderState


@cache
def make_checkpoint_type(records: tuple[type[Record], ...]) -> type[RealTimeCheckpoint]:
    """Derives the envelope type for a protocol's records."""
    if not records:
        return RealTimeCheckpoint
    made: Any = msgspec.defstruct(
        "RealTimeCheckpoint",
        [("record", Union[records]), ("order", GroupOrderState)],  # noqa: UP007
        bases=(RealTimeCheckpoint,),
        frozen=True,
        array_like=True,
        tag="RealTimeCheckpoint",
        gc=False,
    )
    checkpoint_type: type[RealTimeCheckpoint] = made
    return checkpoint_type


def open_checkpoints(records: Sequence[Record]) -> tuple[Record, ...]:
    """The records without envelopes."""
    return tuple(record.record if isinstance(record, RealTimeCheckpoint) else record for record in records)


class HeldAnswer(State, frozen=True):
    """An answer that waits until its message is closed."""

    end: int
    """The message is closed when everything before this position is."""
    kind: Literal["delivery", "gateway", "retry"]
    """delivery: the leader answers; gateway: this process is the gateway of the bundle; retry: this process was asked.
    """
    receiver: ProcessId
    message: MessageId
    destinations: tuple[GroupId, ...]


class RealTimeState(State, frozen=True):
    """The snapshot of a `RealTimeOrder`."""

    orders: tuple[tuple[GroupId, GroupOrderState], ...]
    closed: tuple[MessageId, ...]
    held: tuple[HeldAnswer, ...]
    sent: tuple[tuple[GroupId, int], ...]
    context: tuple[tuple[GroupId, tuple[int, ...]], ...]
    followers: tuple[tuple[GroupId, int], ...]
    follows: tuple[tuple[GroupId, int], ...]
    is_leading: bool
    is_timer_set: bool
    first: tuple[int, int]
    asked: int
    position: int
    stated: int = 0


class NodeConfig(Config, frozen=True):
    """Settings of nodes."""

    omega: OmegaConfig | None = field(default_factory=OmegaConfig)
    """None: no heartbeats; Leader events come from the driver."""
    replies: Literal["leader", "all"] = "leader"
    """The members that reply to a sender: the leader of a destination, or all. All members reply to retries, and to a
    gateway whose bundle holds very few messages."""
    gateway: GatewayConfig | None = None
    """None: clients send requests to the protocol's contacts. Otherwise every node is a gateway for its clients."""
    admission: AdmissionConfig = field(default_factory=AdmissionConfig)
    real_time: RealTimeConfig | None = None
    """None: a message is answered when every destination has delivered it, or knows its place. Otherwise it is answered
    when it is closed."""
    read_retry_ns: tuple[int, int] = (100_000_000, 150_000_000)
    """How long a read waits for a majority, and for what that has accepted, before it asks again."""


class ReadIndexState(State, frozen=True):
    """The reads that wait at a node, and the last round. A restored node asks anew."""

    round: int
    waiting: tuple[int, ...]


class NodeState(State, frozen=True):
    """The snapshot of a node."""

    protocol: State
    omega: OmegaState | None
    delivered: tuple[DeliveredRange, ...]
    own_requests: tuple[tuple[Message, tuple[GroupId, ...]], ...]
    leaders: tuple[tuple[GroupId, ProcessId], ...]
    gateway: GatewayState | None = None
    pending_replies: tuple[tuple[tuple[ProcessId, MessageId], ...], tuple[tuple[ProcessId, MessageId], ...]] = ((), ())
    admission: AdmissionState | None = None
    comparison: ComparisonState | None = None
    real_time: RealTimeState | None = None
    reads: ReadIndexState | None = None
