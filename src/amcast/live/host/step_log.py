"""The step log: every step of a live process, so that it can be stepped again.

A process is pure: the same events at the same times give the same effects, in any world. A host writes what it fed and
what it got; `replay` feeds the same to a fresh object and compares. A file is a row of frames, u32 length + msgpack
array, of which the first says whose steps they are:

    [schema, protocol, process, incarnation]
    [now, [event ...], [effect ...]]
    ...
"""

import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from amcast.kernel.effects import About, CancelTimer, Deliver, Effect, Note, Persist, Resolve, Send, SendEach, SetTimer
from amcast.kernel.errors import UsageError
from amcast.kernel.events import Event, Leader, LinkReset, PeerDown, Receive, Requests, Started, Submit, Suspect, Timer
from amcast.kernel.ids import MessageId, ProcessId
from amcast.kernel.process import Process
from amcast.live.wire.frames import Codec

STEPS_SCHEMA: Final = 1
_LENGTH: Final = struct.Struct("!I")
_encoder: Final = msgspec.msgpack.Encoder()


class Header(msgspec.Struct, frozen=True, array_like=True):
    schema: int
    protocol: str
    process: ProcessId
    incarnation: int


class Step(NamedTuple):
    now: int
    events: list[Event]
    effects: list[Effect]


class StepLog:
    """Writes the steps of one process in one incarnation."""

    def __init__(self, path: Path, protocol: str, process: ProcessId, incarnation: int = 0) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("wb")
        self._put(Header(STEPS_SCHEMA, protocol, process, incarnation))

    def write(self, now: int, events: Sequence[Event], effects: Sequence[Effect]) -> None:
        self._put((now, events, effects))

    def close(self) -> None:
        self._file.close()

    def _put(self, value: object) -> None:
        data = _encoder.encode(value)
        self._file.write(_LENGTH.pack(len(data)))
        self._file.write(data)


# The kernel's types name the bases Body and Record; here their fields are raw bytes, which the codec then decodes.


class _Receive(msgspec.Struct, array_like=True, tag="Receive"):
    sender: ProcessId
    body: msgspec.Raw


class _Started(msgspec.Struct, array_like=True, tag="Started"):
    records: tuple[msgspec.Raw, ...]
    incarnation: int


class _Send(msgspec.Struct, array_like=True, tag="Send"):
    targets: tuple[ProcessId, ...]
    body: msgspec.Raw
    about: About = None
    later: tuple[ProcessId, ...] = ()


class _SendEach(msgspec.Struct, array_like=True, tag="SendEach"):
    targets: tuple[ProcessId, ...]
    bodies: tuple[msgspec.Raw, ...]
    abouts: tuple[MessageId, ...]


class _Persist(msgspec.Struct, array_like=True, tag="Persist"):
    record: msgspec.Raw
    replaces: bool = False
    ends: bool = False


_EventRow = _Receive | _Started | Requests | Submit | Timer | Leader | Suspect | LinkReset | PeerDown
_EffectRow = _Send | _SendEach | _Persist | Deliver | Resolve | SetTimer | CancelTimer | Note
_header: Final = msgspec.msgpack.Decoder(Header)
_row: Final = msgspec.msgpack.Decoder(tuple[int, list[_EventRow], list[_EffectRow]])


def read_header(path: Path) -> Header:
    for frame in _frames(path):
        try:
            header = _header.decode(frame)
        except msgspec.MsgspecError as error:
            raise UsageError(f"{path}: not a step log: {error}") from None
        if header.schema != STEPS_SCHEMA:
            raise UsageError(f"{path}: schema {header.schema}; expected {STEPS_SCHEMA}")
        return header
    raise UsageError(f"{path}: empty; expected a step log")


def read_steps(path: Path, codec: Codec) -> Iterator[Step]:
    """The steps in order. A last frame that was cut off (the process was killed) is left out."""
    read_header(path)
    for number, frame in enumerate(_frames(path)):
        if number == 0:
            continue
        try:
            now, events, effects = _row.decode(frame)
            yield Step(now, [_event(row, codec) for row in events], [_effect(row, codec) for row in effects])
        except msgspec.MsgspecError as error:
            raise UsageError(f"{path}: step {number} cannot be read: {error}") from None


def replay(path: Path, codec: Codec, process: Process) -> int:
    """Feed a fresh process what a live one was fed; the number of steps, or a sentence about the first difference."""
    count = 0
    for step in read_steps(path, codec):
        effects = process.step(step.events, step.now)
        if effects != step.effects:
            raise UsageError(
                f"{path}: step {count} differs: the live process gave {step.effects}, the fresh one {effects}"
            )
        count += 1
    return count


def _frames(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while len(head := file.read(_LENGTH.size)) == _LENGTH.size:
            (length,) = _LENGTH.unpack(head)
            frame = file.read(length)
            if len(frame) < length:
                return
            yield frame


def _event(row: Any, codec: Codec) -> Event:
    match row:
        case _Receive(sender, body):
            return Receive(sender, codec.decode(body))
        case _Started(records, incarnation):
            return Started(tuple(codec.decode_record(record) for record in records), incarnation)
        case _:
            event: Event = row
            return event


def _effect(row: Any, codec: Codec) -> Effect:
    match row:
        case _Send(targets, body, about, later):
            return Send(targets, codec.decode(body), about, later)
        case _SendEach(targets, bodies, abouts):
            return SendEach(targets, tuple([codec.decode(body) for body in bodies]), abouts)
        case _Persist(record, replaces, ends):
            return Persist(codec.decode_record(record), replaces, ends)
        case _:
            effect: Effect = row
            return effect
