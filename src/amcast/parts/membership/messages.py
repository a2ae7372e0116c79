"""What processes say, keep and know about changes of members."""

from functools import cache
from typing import Any, Union

import msgspec

from amcast.kernel.config import Config
from amcast.kernel.ids import GroupId, ProcessId
from amcast.kernel.message import Body, Message, Record, Request, State
from amcast.kernel.units import MILLISECOND
from amcast.parts.client.messages import ConfigurationStarted
from amcast.parts.ordering.messages import DeliveredRange


class ReconfigurableConfig(Config, frozen=True):
    retry_ns: tuple[int, int] = (500 * MILLISECOND, 1000 * MILLISECOND)
    """How long a process that is behind, or new, waits before it asks its fellows."""
    max_early_bodies: int = 10_000
    """Bodies of a number that is not reached yet are kept back, so many."""
    max_old_instances: int = 64
    """So many numbers before the current one are kept running for those who have not passed them."""

    def __post_init__(self) -> None:
        if not 0 < self.retry_ns[0] <= self.retry_ns[1]:
            raise ValueError(f"retry_ns = {list(self.retry_ns)}; expected a range above 0, lower end first")
        for name in ("max_early_bodies", "max_old_instances"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} = {getattr(self, name)}; expected 1 or more")


class ConfigurationStart(State, frozen=True):
    """Where a number begins, for one group: what any member must know in order to take part in it."""

    configuration: int
    topology: bytes
    position: int = 0
    """How many messages the group delivered before."""
    rank: int = 0
    """Added to the ranks of this number: they rise from number to number."""
    delivered: tuple[DeliveredRange, ...] = ()
    """What the group delivered before."""


class FindConfiguration(Body, frozen=True):
    """A process that is behind (or new) asks those of its group for a number above this one."""

    configuration: int
    group: GroupId


class ConfigurationInfo(Body, frozen=True):
    """The answer of a fellow."""

    start: ConfigurationStart
    first_needed: int
    """Nobody needs the instances of numbers below this one."""


class CheckDelivered(Body, frozen=True):
    """A contact that is no destination asks one whether a message was delivered under an earlier number."""

    message: Message


class ResendLink(Body, frozen=True):
    """Bodies were lost before I reached this number: take the link as begun anew."""

    configuration: int


class ConfigurationBody(Body, frozen=True):
    """A body of one number's instance. `numbered` makes the kind for a protocol's bodies."""

    configuration: int
    body: Any
    barrier: int = -1
    """The sender has passed the end of that number: its group's position there."""


class ConfigurationRecord(Record, frozen=True):
    """I passed into a number; before it was another topology, whose instance goes on for a while."""

    start: ConfigurationStart
    before: bytes
    incarnation: int
    """The incarnation in which this number's instance was begun without memory; 0 if with it."""


class JoinRecord(Record, frozen=True):
    """I am new, and wait to be told: whoever finds this has lost no memory."""


class SkippedBarrier(Record, frozen=True):
    """What a fellow told me inside this number's instance lies beyond its end: I need a Here."""

    configuration: int


class InstanceRecord(Record, frozen=True):
    """A record of one number's instance. `kept` makes the kind for a protocol's records."""

    configuration: int
    replaces: bool
    """It replaces that number's earlier ones."""
    record: Any
    start: ConfigurationStart | None = None
    """This record alone is enough: nothing is left of earlier numbers."""


class InstanceState(State, frozen=True):
    start: ConfigurationStart
    incarnation: int
    process: State | None
    skipped_barrier: bool
    barrier: int
    own_deliveries: tuple[DeliveredRange, ...] | None


class ReconfigurableState(State, frozen=True):
    position: int
    incarnation: int
    instances: tuple[InstanceState, ...]
    """Oldest first; none of a new process that was not told anything."""
    turned: tuple[tuple[ProcessId, int], ...]
    early: tuple[tuple[ProcessId, int, Body, int], ...]
    lost: tuple[tuple[ProcessId, int], ...]
    leaders: tuple[tuple[GroupId, ProcessId], ...]
    suspects: tuple[tuple[GroupId, bool], ...]
    newest: tuple[int, bytes]
    armed: bool
    retired: bool
    vouched: tuple[tuple[ProcessId, int], ...]
    reported: tuple[tuple[ProcessId, int], ...]
    done: int


BODIES = (ConfigurationStarted, FindConfiguration, ConfigurationInfo, ResendLink)


@cache
def configuration_body(bodies: tuple[type[Body], ...]) -> type[ConfigurationBody]:
    """The envelope for some bodies: encoded and decoded with its content in one go."""
    inside: Any = Union[tuple(dict.fromkeys((*bodies, Request, CheckDelivered)))]  # noqa: UP007
    made: Any = msgspec.defstruct(
        "ConfigurationBody",
        [("configuration", int), ("body", inside), ("barrier", int, -1)],
        bases=(ConfigurationBody,),
        frozen=True,
        array_like=True,
        tag="ConfigurationBody",
        gc=False,
    )
    kind: type[ConfigurationBody] = made
    return kind


@cache
def instance_record(records: tuple[type[Record], ...]) -> type[InstanceRecord]:
    """The same for records."""
    if not records:
        return InstanceRecord
    made: Any = msgspec.defstruct(
        "InstanceRecord",
        [
            ("configuration", int),
            ("replaces", bool),
            ("record", Union[records]),  # noqa: UP007
            ("start", ConfigurationStart | None, None),
        ],
        bases=(InstanceRecord,),
        frozen=True,
        array_like=True,
        tag="InstanceRecord",
        gc=False,
    )
    kind: type[InstanceRecord] = made
    return kind
