"""Bodies, records and states of reconfiguration."""

from functools import cache
from typing import Any, ClassVar, Union

import msgspec

from amcast.kernel.config import MILLISECOND, Config, SearchValues
from amcast.kernel.ids import GroupId, ProcessId
from amcast.kernel.message import Body, Message, Record, Request, State
from amcast.parts.client.messages import ConfigurationStarted
from amcast.parts.ordering.messages import DeliveredRange


class ReconfigurableConfig(Config, frozen=True):
    """Settings of reconfiguration."""

    search_values: ClassVar[SearchValues] = {"max_early_bodies": (1, 3, 20), "max_old_instances": (2, 3)}
    retry_ns: tuple[int, int] = (500 * MILLISECOND, 1000 * MILLISECOND)
    """How long a process that lags behind, or joins, waits before it asks the members of its group again."""
    max_early_bodies: int = 10_000
    """How many bodies of configurations that are not reached yet are held back; further ones are dropped and resent."""
    max_old_instances: int = 64
    """How many instances of earlier configurations run on for processes that have not passed their barrier."""

    def __post_init__(self) -> None:
        if not 0 < self.retry_ns[0] <= self.retry_ns[1]:
            raise ValueError(f"retry_ns = {list(self.retry_ns)}; expected a range above 0, lower end first")
        for name in ("max_early_bodies", "max_old_instances"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} = {getattr(self, name)}; expected 1 or more")


class ConfigurationStart(State, frozen=True):
    """The state in which one group starts a configuration: all that a member needs in order to take part in it."""

    configuration: int
    topology: bytes
    position: int = 0
    """The number of messages that the group delivered in earlier configurations."""
    rank: int = 0
    """The offset of this configuration's ranks, so that ranks rise across configurations."""
    delivered: tuple[DeliveredRange, ...] = ()
    """The messages that the group delivered in earlier configurations."""


class FindConfiguration(Body, frozen=True):
    """A process that lags behind, or joins, asks members of its group for configurations after this one."""

    configuration: int
    group: GroupId


class ConfigurationInfo(Body, frozen=True):
    """The start of a configuration: the reply to FindConfiguration, or sent ahead to the own group."""

    start: ConfigurationStart
    first_needed: int
    """No process needs instances of configurations below this one."""
    is_offer: bool = False
    """Sent ahead: the receiver starts the configuration only if a state transfer leads it past the barrier."""


class CheckDelivered(Body, frozen=True):
    """A contact outside the destinations asks a destination whether an earlier configuration delivered the message. A
    destination that has not delivered it returns a Request; one that has replies to the message's sender."""

    message: Message


class ResendLink(Body, frozen=True):
    """The sender dropped early bodies of this configuration: the receiver treats the link as reset, and resends."""

    configuration: int


class ConfigurationBody(Body, frozen=True):
    """The envelope of an instance's body. `make_body_type` derives the type for the bodies of one protocol."""

    configuration: int
    body: Any
    barrier: int = -1
    """The position of the sender's group at the barrier of the configuration, once the sender knows it."""


class ConfigurationRecord(Record, frozen=True):
    """The process started a configuration; the instance of the previous one runs on for a while."""

    start: ConfigurationStart
    before: bytes
    """The topology of the previous configuration; empty if the process had none."""
    doubt: int
    """Above 0: the instance was started in doubt, after memory was lost before this incarnation, as one without memory.
    """


class JoinRecord(Record, frozen=True):
    """The process is new and waits for its configuration. A restart that finds this record has lost no memory."""


class DoubtEnded(Record, frozen=True):
    """The group has delivered the marker of the process in this configuration: no earlier life started a later one."""

    configuration: int


class SkippedBarrier(Record, frozen=True):
    """A state transfer inside this configuration led past its barrier: its later deliveries are discarded, and the
    process asks for the start of the next configuration."""

    configuration: int


class InstanceRecord(Record, frozen=True):
    """The envelope of an instance's record. `make_record_type` derives the type for the records of one protocol."""

    configuration: int
    replaces: bool
    """Whether it replaces the earlier records of this configuration."""
    record: Any
    start: ConfigurationStart | None = None
    """Set if this record alone is enough for a restart: no instance of an earlier configuration remains."""
    doubt: int = 0
    """The incarnation before which memory was lost, while the process is in doubt. Every record of an instance says
    it then, because it may be the only one that remains."""


class InstanceState(State, frozen=True):
    """The snapshot of one instance."""

    start: ConfigurationStart
    doubt: int
    process: State | None
    skipped_barrier: bool
    barrier: int
    own_deliveries: tuple[DeliveredRange, ...] | None
    first_sequences: tuple[tuple[ProcessId, int], ...] = ()


class ReconfigurableState(State, frozen=True):
    """The snapshot of a `Reconfigurable`."""

    position: int
    incarnation: int
    doubt: int
    instances: tuple[InstanceState, ...]
    """Oldest first; none at a process that joins and does not know its configuration."""
    reached: tuple[tuple[ProcessId, int], ...]
    newest: tuple[int, bytes]
    early: tuple[tuple[ProcessId, int, Body, int], ...]
    dropped: tuple[tuple[ProcessId, int], ...]
    leaders: tuple[tuple[GroupId, ProcessId], ...]
    groups_up: tuple[tuple[GroupId, bool], ...]
    offers: tuple[tuple[int, tuple[ProcessId, ConfigurationInfo]], ...]
    first_needed: int
    is_retry_armed: bool
    is_retired: bool


MEMBERSHIP_BODIES = (ConfigurationStarted, FindConfiguration, ConfigurationInfo, ResendLink)
"""Bodies of reconfiguration itself, outside any envelope."""


@cache
def make_body_type(bodies: tuple[type[Body], ...]) -> type[ConfigurationBody]:
    """Derives the envelope type for a protocol's bodies, so that envelope and content are encoded in one pass."""
    content: Any = Union[tuple(dict.fromkeys((*bodies, Request, CheckDelivered)))]  # noqa: UP007
    made: Any = msgspec.defstruct(
        "ConfigurationBody",
        [("configuration", int), ("body", content), ("barrier", int, -1)],
        bases=(ConfigurationBody,),
        frozen=True,
        array_like=True,
        tag="ConfigurationBody",
        gc=False,
    )
    body_type: type[ConfigurationBody] = made
    return body_type


@cache
def make_record_type(records: tuple[type[Record], ...]) -> type[InstanceRecord]:
    """Derives the envelope type for a protocol's records."""
    if not records:
        return InstanceRecord
    made: Any = msgspec.defstruct(
        "InstanceRecord",
        [
            ("configuration", int),
            ("replaces", bool),
            ("record", Union[records]),  # noqa: UP007
            ("start", ConfigurationStart | None, None),
            ("doubt", int, 0),
        ],
        bases=(InstanceRecord,),
        frozen=True,
        array_like=True,
        tag="InstanceRecord",
        gc=False,
    )
    record_type: type[InstanceRecord] = made
    return record_type
