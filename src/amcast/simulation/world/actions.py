"""Actions: everything that can happen in a world, as data. A script is a list of actions, one JSON object a line.

An action names its object in terms that survive the removal of earlier actions: the n-th packet in flight on a link,
not the number of a packet. This is what makes scripts shrink.
"""

from collections.abc import Iterable
from typing import Annotated, Literal, Union

import msgspec
from msgspec import Meta, Struct

from amcast.kernel.config import describe_error
from amcast.kernel.errors import UsageError
from amcast.kernel.ids import GroupId, MessageId, ProcessId

Count = Annotated[int, Meta(ge=0)]


class Action(Struct, frozen=True, tag_field="do", tag=str.lower, forbid_unknown_fields=True, omit_defaults=True):
    """Base of actions."""


class Multicast(Action, frozen=True):
    """A client a-multicasts a message."""

    sender: ProcessId
    message: MessageId
    destinations: tuple[GroupId, ...]
    size: Count = 0


class Arrive(Action, frozen=True):
    """Packets reach a process in one step: for each, its source and its place among the packets in flight on that
    link."""

    target: ProcessId
    packets: tuple[tuple[ProcessId, Count], ...]


class Fire(Action, frozen=True):
    """A timer fires."""

    process: ProcessId
    timer: str


class Sync(Action, frozen=True):
    """The disk makes the first `count` waiting records durable (0: all)."""

    process: ProcessId
    count: Count = 0


class Drop(Action, frozen=True):
    """A packet is lost, on links that may lose packets."""

    source: ProcessId
    target: ProcessId
    place: Count = 0


class Repeat(Action, frozen=True):
    """A packet is duplicated, on links that may duplicate packets."""

    source: ProcessId
    target: ProcessId
    place: Count = 0


class Crash(Action, frozen=True):
    """A process crashes. The first `kept` of the records that waited for its disk are durable."""

    process: ProcessId
    kept: Count = 0
    torn: Count = 0
    """Above 0, where records live in the real log: the power is cut while these records are written, and the number
    draws when, and which unsynced sectors the disk keeps."""


class DiskFault(Action, frozen=True, tag="disk"):
    """Something happens to the data folder of a process, where records live in the real log. short: the next writes
    and reads do only a part of what they are asked; lost: the disk claims to have done the next writes, and has not;
    rot: a bit flips, or a sector is zero; fail: the next sync fails; cut: the power is cut during the next start; full:
    nothing can be written any more; space: it can again, and syncs succeed; copy: the operator copies the folder;
    old: the operator puts that copy back as soon as the process is down, and its first starts fail."""

    process: ProcessId
    kind: Literal["short", "lost", "rot", "fail", "cut", "full", "space", "copy", "old"]
    draw: Count = 0
    """Draws what the fault leaves open."""


class Recover(Action, frozen=True):
    """A crashed process begins a new incarnation, with its records or (amnesia) without any, as a node that was
    replaced or keeps none. A node may also start with a data folder that was emptied without a replacement, or with an
    older copy of its folder, which lacks the last `rolled_back` records."""

    process: ProcessId
    amnesia: bool = False
    emptied: bool = False
    rolled_back: Count = 0


class Pause(Action, frozen=True):
    """A process takes no steps until it is resumed."""

    process: ProcessId


class Resume(Action, frozen=True):
    """A paused process takes steps again."""

    process: ProcessId


class Slow(Action, frozen=True):
    """A process needs `extra_ns` more for each packet (0: none)."""

    process: ProcessId
    extra_ns: Count


class Block(Action, frozen=True):
    """Links hold back their packets, by source and target, until a Heal."""

    pairs: tuple[tuple[ProcessId, ProcessId], ...]


class Heal(Action, frozen=True):
    """Blocked links open again: these, by source and target, or all if none is named."""

    pairs: tuple[tuple[ProcessId, ProcessId], ...] = ()


class Lossy(Action, frozen=True):
    """Links lose this share of packets from now on. Links other than raw ones send a lost packet again."""

    loss: Annotated[float, Meta(ge=0, lt=1)]


class Renew(Action, frozen=True):
    """A link begins a new incarnation both ways, as after an overflow: packets in flight are lost."""

    one: ProcessId
    other: ProcessId


class Suggest(Action, frozen=True):
    """The leader oracle suggests a leader of a group to a process (a Leader event)."""

    process: ProcessId
    group: GroupId
    leader: ProcessId


class Suspicion(Action, frozen=True):
    """The group oracle reports a group as up or down to a process (a Suspect event)."""

    process: ProcessId
    group: GroupId
    up: bool


class Unreachable(Action, frozen=True):
    """A process learns that nobody is at a peer's address (a PeerDown event), which may be wrong."""

    process: ProcessId
    peer: ProcessId


class Leave(Action, frozen=True):
    """A process announces that it leaves in good order (`Spec.farewell`). It runs on until a Crash stops it."""

    process: ProcessId


class Collect(Action, frozen=True):
    """A server takes the requests of clients as Requests events, one for all that arrive in one step; or no longer."""

    process: ProcessId
    on: bool = True


class Restore(Action, frozen=True):
    """A process continues as a copy that was restored from its snapshot. Nobody, itself included, can tell."""

    process: ProcessId


class BeginRead(Action, frozen=True):
    """The local user of a server reads (a Read event)."""

    process: ProcessId


class Differ(Action, frozen=True):
    """The members of a group, which all have delivered the same, take the states of their applications; that of one
    process differs."""

    process: ProcessId


class ExpectRefusal(Action, frozen=True):
    """A process whose state differs must have stopped by now, and the others of its group must know. Nothing happens
    but this judgement."""

    process: ProcessId


class Skew(Action, frozen=True):
    """The clock of a process differs from real time by an offset and a drift."""

    process: ProcessId
    offset_ns: int
    drift: float = 0.0


class Change(Action, frozen=True):
    """The operator requests a group with one member more or one fewer. A process that is added boots."""

    group: GroupId
    add: ProcessId | None = None
    remove: ProcessId | None = None


Fault = Union[  # noqa: UP007
    Crash,
    DiskFault,
    Recover,
    Pause,
    Resume,
    Slow,
    Block,
    Heal,
    Lossy,
    Renew,
    Suggest,
    Suspicion,
    Unreachable,
    Leave,
    Collect,
    Restore,
    BeginRead,
    Differ,
    ExpectRefusal,
    Skew,
    Change,
]
AnyAction = Union[Multicast, Arrive, Fire, Sync, Drop, Repeat, Fault]  # noqa: UP007

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(AnyAction)


def encode_actions(actions: Iterable[AnyAction]) -> str:
    """Encodes actions as JSON lines."""
    return "".join(_encoder.encode(action).decode() + "\n" for action in actions)


def parse_action(line: str, where: str) -> AnyAction:
    """Parses one JSON line; `where` names the line in errors."""
    try:
        action: AnyAction = _decoder.decode(line)
    except msgspec.DecodeError as error:
        raise UsageError(f"{where}: {describe_error(error, AnyAction)}") from None
    return action
