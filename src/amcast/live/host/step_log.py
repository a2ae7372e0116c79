"""The step log: the events and effects of every step of a live process, for replay.

A process is pure: the same events at the same times give the same effects, in any environment. A host writes the events
and effects of each step; `replay` feeds the events to a fresh process and compares the effects. A file is a sequence of
frames, u32 length + msgpack array; the first one identifies the process:

    [schema, protocol, process, incarnation]
    [now, [event ...], [effect ...]]
    ...
"""

import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from amcast.kernel.effects import (
    About,
    CancelTimer,
    Close,
    Deliver,
    Effect,
    Note,
    Persist,
    ReadReady,
    Remember,
    Resolve,
    Restart,
    Send,
    SendEach,
    SetTimer,
)
from amcast.kernel.errors import UsageError
from amcast.kernel.events import (
    Event,
    Leader,
    LinkReset,
    PeerDown,
    Read,
    Receive,
    Requests,
    Started,
    StateTaken,
    Submit,
    Suspect,
    Timer,
)
from amcast.kernel.folder import FolderState
from amcast.kernel.ids import MessageId, ProcessId
from amcast.kernel.process import Process
from amcast.live.wire.frames import Codec

STEPS_SCHEMA: Final = 1
_LENGTH: Final = struct.Struct("!I")
_encoder: Final = msgspec.msgpack.Encoder()


class Header(msgspec.Struct, frozen=True, array_like=True):
    """The first frame of a file."""

    schema: int
    protocol: str
    process: ProcessId
    incarnation: int


class Step(NamedTuple):
    """One step: its time, its events and the effects that the process returned."""

    now: int
    events: list[Event]
    effects: list[Effect]


class StepLog:
    """Writes the steps of one process in one incarnation."""

    def __init__(self, path: Path, protocol: str, process: ProcessId, incarnation: int = 0) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("wb")
        self._append(Header(STEPS_SCHEMA, protocol, process, incarnation))

    def write(self, now: int, events: Sequence[Event], effects: Sequence[Effect]) -> None:
        """Appends one step."""
        self._append((now, events, effects))

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def _append(self, value: object) -> None:
        data = _encoder.encode(value)
        self._file.write(_LENGTH.pack(len(data)))
        self._file.write(data)


# The kernel's types name the base classes Body and Record; here these fields are raw bytes for the codec to decode.


class _Receive(msgspec.Struct, array_like=True, tag="Receive"):
    sender: ProcessId
    body: msgspec.Raw


class _Started(msgspec.Struct, array_like=True, tag="Started"):
    records: tuple[msgspec.Raw, ...]
    incarnation: int
    folder: FolderState | None = None


class _Send(msgspec.Struct, array_like=True, tag="Send"):
    targets: tuple[ProcessId, ...]
    body: msgspec.Raw
    about: About = None
    deferrable: tuple[ProcessId, ...] = ()


class _SendEach(msgspec.Struct, array_like=True, tag="SendEach"):
    targets: tuple[ProcessId, ...]
    bodies: tuple[msgspec.Raw, ...]
    abouts: tuple[MessageId, ...]


class _Persist(msgspec.Struct, array_like=True, tag="Persist"):
    record: msgspec.Raw
    replaces: bool = False
    after_deliveries: bool = False


_EventRow = (
    _Receive | _Started | Requests | Submit | Timer | Leader | Suspect | StateTaken | Read | LinkReset | PeerDown
)
_EffectRow = (
    _Send
    | _SendEach
    | _Persist
    | Deliver
    | Resolve
    | Close
    | ReadReady
    | SetTimer
    | CancelTimer
    | Note
    | Remember
    | Restart
)
_header: Final = msgspec.msgpack.Decoder(Header)
_row: Final = msgspec.msgpack.Decoder(tuple[int, list[_EventRow], list[_EffectRow]])


def read_header(path: Path) -> Header:
    """Reads the first frame of a step log."""
    for frame in _read_frames(path):
        try:
            header = _header.decode(frame)
        except msgspec.MsgspecError as error:
            raise UsageError(f"{path}: not a step log: {error}") from None
        if header.schema != STEPS_SCHEMA:
            raise UsageError(f"{path}: schema {header.schema}; expected {STEPS_SCHEMA}")
        return header
    raise UsageError(f"{path}: empty; expected a step log")


def read_steps(path: Path, codec: Codec) -> Iterator[Step]:
    """Reads the steps in order, without a last frame that is incomplete because the process was killed."""
    read_header(path)
    for number, frame in enumerate(_read_frames(path)):
        if number == 0:
            continue
        try:
            now, events, effects = _row.decode(frame)
            yield Step(
                now, [_decode_event(row, codec) for row in events], [_decode_effect(row, codec) for row in effects]
            )
        except msgspec.MsgspecError as error:
            raise UsageError(f"{path}: step {number} cannot be read: {error}") from None


def replay(path: Path, codec: Codec, process: Process) -> int:
    """Feeds the events to a fresh process; returns the number of steps, and raises `UsageError` at a difference."""
    count = 0
    for step in read_steps(path, codec):
        effects = process.step(step.events, step.now)
        if effects != step.effects:
            raise UsageError(
                f"{path}: step {count} differs: the live process returned {step.effects}, the fresh one {effects}"
            )
        count += 1
    return count


def _read_frames(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while len(head := file.read(_LENGTH.size)) == _LENGTH.size:
            (length,) = _LENGTH.unpack(head)
            frame = file.read(length)
            if len(frame) < length:
                return
            yield frame


def _decode_event(row: Any, codec: Codec) -> Event:
    match row:
        case _Receive(sender, body):
            return Receive(sender, codec.decode(body))
        case _Started(records, incarnation, folder):
            return Started(tuple(codec.decode_record(record) for record in records), incarnation, folder)
        case _:
            event: Event = row
            return event


def _decode_effect(row: Any, codec: Codec) -> Effect:
    match row:
        case _Send(targets, body, about, deferrable):
            return Send(targets, codec.decode(body), about, deferrable)
        case _SendEach(targets, bodies, abouts):
            return SendEach(targets, tuple([codec.decode(body) for body in bodies]), abouts)
        case _Persist(record, replaces, after_deliveries):
            return Persist(codec.decode_record(record), replaces, after_deliveries)
        case _:
            effect: Effect = row
            return effect
