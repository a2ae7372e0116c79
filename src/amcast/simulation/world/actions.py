"""Everything that can happen in a world, as data: a script is a list of these, one JSON object a line.

An action names what it does in terms that survive the removal of earlier actions: the n-th packet that is in flight
on a link, not a packet's number. That is what makes scripts shrink.
"""

from collections.abc import Iterable
from typing import Annotated, Union

import msgspec
from msgspec import Meta, Struct

from amcast.kernel.config import describe_error
from amcast.kernel.errors import UsageError
from amcast.kernel.ids import GroupId, MessageId, ProcessId

Count = Annotated[int, Meta(ge=0)]


class Action(Struct, frozen=True, tag_field="do", tag=str.lower, forbid_unknown_fields=True, omit_defaults=True):
    """Base of actions."""


class Multicast(Action, frozen=True):
    """A sender a-multicasts."""

    sender: ProcessId
    message: MessageId
    destinations: tuple[GroupId, ...]
    size: Count = 0


class Arrive(Action, frozen=True):
    """Packets reach a process, in one step: for each, its source and its place among what is in flight on that link."""

    target: ProcessId
    packets: tuple[tuple[ProcessId, Count], ...]


class Fire(Action, frozen=True):
    """A timer runs out."""

    process: ProcessId
    timer: str


class Sync(Action, frozen=True):
    """The disk has made the first `count` waiting records durable (0: all)."""

    process: ProcessId
    count: Count = 0


class Drop(Action, frozen=True):
    """A packet is lost, on links that may lose."""

    source: ProcessId
    target: ProcessId
    place: Count = 0


class Repeat(Action, frozen=True):
    """A packet will arrive once more, on links that may double."""

    source: ProcessId
    target: ProcessId
    place: Count = 0


class Crash(Action, frozen=True):
    """A process stops; `kept` of the records that waited for its disk made it."""

    process: ProcessId
    kept: Count = 0


class Recover(Action, frozen=True):
    """A process starts again."""

    process: ProcessId
    amnesia: bool = False


class Pause(Action, frozen=True):
    """A process stops taking steps."""

    process: ProcessId


class Resume(Action, frozen=True):
    """A paused process goes on."""

    process: ProcessId


class Slow(Action, frozen=True):
    """A process needs this much longer for each packet (0: as fast as ever)."""

    process: ProcessId
    extra_ns: Count


class Block(Action, frozen=True):
    """Links hold everything back."""

    pairs: tuple[tuple[ProcessId, ProcessId], ...]


class Heal(Action, frozen=True):
    """All links work again."""


class Lossy(Action, frozen=True):
    """From now on links lose this share of packets (and repair it, if they are links that do)."""

    loss: Annotated[float, Meta(ge=0, lt=1)]


class Renew(Action, frozen=True):
    """A link overflows and begins anew."""

    one: ProcessId
    other: ProcessId


class Suggest(Action, frozen=True):
    """The leader oracle speaks to a process."""

    process: ProcessId
    group: GroupId
    leader: ProcessId


class Suspicion(Action, frozen=True):
    """The group oracle speaks to a process."""

    process: ProcessId
    group: GroupId
    up: bool


class Skew(Action, frozen=True):
    """A process' clock is off."""

    process: ProcessId
    offset_ns: int
    drift: float = 0.0


class Change(Action, frozen=True):
    """The operator asks for one member more or one fewer in a group; who is added boots."""

    group: GroupId
    add: ProcessId | None = None
    remove: ProcessId | None = None


Fault = Union[Crash, Recover, Pause, Resume, Slow, Block, Heal, Lossy, Renew, Suggest, Suspicion, Skew, Change]  # noqa: UP007
AnyAction = Union[Multicast, Arrive, Fire, Sync, Drop, Repeat, Fault]  # noqa: UP007

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(AnyAction)


def encode_actions(actions: Iterable[AnyAction]) -> str:
    """Actions as JSON lines."""
    return "".join(_encoder.encode(action).decode() + "\n" for action in actions)


def parse_action(line: str, where: str) -> AnyAction:
    """One JSON line as an action; `where` names the place for the error."""
    try:
        action: AnyAction = _decoder.decode(line)
    except msgspec.DecodeError as error:
        raise UsageError(f"{where}: {describe_error(error, AnyAction)}") from None
    return action
