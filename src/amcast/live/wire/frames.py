"""The wire format: frames, and the encoded bodies in them.

    u32 length | u8 version | u8 kind | a msgpack array                          with TLS; HELLO and REFUSE
    u32 length | u8 version | u8 kind | u16 guard | a msgpack array | u32 crc    without TLS

    HELLO         identity and incarnation of the sender, and how many frames of this link it has received
    REFUSE        why the sender refuses the connection
    ACK           how many frames of this link the sender has received
    BODIES        [number, ack, [body ...]]: all bodies of one tick for one peer
    TRACED        BODIES with the data that the receiver records: [..., sent_ns, [about ...], [bytes ...]]
    RPC_REQUEST   the first frame of a connection without a link (`live/rpc/server.py`)
    RPC_REPLY     an answer to it
    FRAGMENT      [number, ack, [index, count, bytes, sent_ns, about]]: a part of a body larger than a frame

The length counts everything after itself.

HELLO and REFUSE keep their shape in every version, so that two processes without a common version can still tell each
other why they part. A process speaks a range of versions, and two processes use the highest that both speak, so a
cluster can be upgraded node by node. Processes of a range understand each other's bodies: version 6 is the oldest one
spoken, because nodes before it do not know the requests by which a group admits data folders, and would never answer.

The checksum of TCP has 16 bits, and network cards and middleboxes compute it anew: over months, corrupted segments get
through. Every frame therefore has a CRC-32 of all its bytes, HELLO and REFUSE in a field of their own. A frame that
does not match closes the connection, and the link sends it again on the next one. The guard repeats the length: a
corrupted length is noticed before anybody waits for bytes that never come. With TLS these two are left out: a record
whose authentication tag (128 bits) does not match ends the connection in the same way. The CRC continues from the bytes
behind the front to the front itself, because a fan-out sends the same bytes behind different fronts, and computes their
share once.

A body is encoded once, however many processes it goes to: a frame joins encoded bodies.
"""

import struct
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any, Final, Literal, NamedTuple, Union, cast

import msgspec

from amcast.kernel.checksum import crc32
from amcast.kernel.effects import About
from amcast.kernel.errors import UsageError
from amcast.kernel.ids import GroupId, ProcessId
from amcast.kernel.message import Body, Record
from amcast.kernel.topology import Topology
from amcast.live.errors import BadFrameError, CorruptedFrameError
from amcast.live.limits import MIB, Limits

WIRE_VERSION: Final = 6
OLDEST_VERSION: Final = 6
"""The oldest version that this code speaks."""
CHECKED_VERSION: Final = 5
"""The first version with a checksum in HELLO and REFUSE: those of older versions are read, to refuse them."""
HELLO: Final = 0
REFUSE: Final = 1
ACK: Final = 2
BODIES: Final = 3
TRACED: Final = 4
RPC_REQUEST: Final = 5
RPC_REPLY: Final = 6
FRAGMENT: Final = 7
KINDS: Final = ("HELLO", "REFUSE", "ACK", "BODIES", "TRACED", "RPC_REQUEST", "RPC_REPLY", "FRAGMENT")

HEAD: Final = struct.Struct("!IBB")
HEAD_BYTES: Final = HEAD.size
_CHECKED_HEAD_BYTES: Final = HEAD_BYTES + 2
"""The head and its guard."""
SHORT_HEAD: Final = struct.Struct("!IH")
"""The head with version and kind as one number, to compare both at once."""
_FRONT: Final = struct.Struct("!I4sQBQ")
"""The front of a BODIES or TRACED frame: the head, then a msgpack array of 3 or 6, uint64 number, uint64 ack."""
_CHECKED_FRONT: Final = struct.Struct("!I2sH2sQBQ")
"""The same with a guard after the head."""
CRC_BEGINS: Final = _CHECKED_FRONT.size
"""The CRC of a frame continues from the bytes behind so many first ones to these."""
_COUNT: Final = struct.Struct("!BI")
"""Array32 with the count of bodies, which follows the front."""
_pack_count: Final = _COUNT.pack
_U32: Final = struct.Struct("!I")
_pack_u32: Final = _U32.pack
_unpack_u32: Final = _U32.unpack_from
_U64: Final = 0xCF
_ARRAY32: Final = 0xDD
SINGLE: Final = _pack_count(_ARRAY32, 1)
"""The count before the only body of a frame."""
SINGLE_CRC: Final = crc32(SINGLE)

LinkIncarnation = tuple[int, int]
"""Names one side of a link: (incarnation of the process, number of the link in that incarnation)."""
TopologyVersion = tuple[int, int]
"""The configuration of the topology that a process uses, and a digest of its members."""


class Hello(msgspec.Struct, frozen=True, array_like=True):
    """The first frame in both directions. New fields may only be added at the end."""

    version: int
    cluster: str
    protocol: str
    process: ProcessId
    target: ProcessId
    """The process that the sender expects at the other end."""
    incarnation: int
    link: int
    known: LinkIncarnation | None
    """The receiver's link incarnation, if the sender has talked to it before in its own incarnation."""
    received: int
    """How many frames of that link the sender has received."""
    oldest: int = 0
    """The sender speaks versions from here to `version`; 0: that one only."""
    region: str = ""
    """The sender's region, for emulated delays."""
    configuration: int = -1
    """Of the topology that the sender uses; -1: not stated."""
    members_digest: int = 0
    """A digest of the groups and members of that topology (`topology_version`)."""
    start: int = 0
    """A random number of the start of the sender's process, if it has a data folder: copies of one folder may begin the
    same incarnation."""
    checksum: int = 0
    """CRC-32 of all fields before it; 0 before version 5."""
    order: Literal["", "acyclic", "real-time"] = ""
    """What this node's answers promise: two settings in one cluster promise nothing. "": not stated, as by clients and
    earlier releases. No damage makes one value of another."""


class Refusal(msgspec.Struct, frozen=True, array_like=True):
    """Why a connection is refused, and a version that the refusing process speaks."""

    version: int
    reason: str
    checksum: int = 0
    """CRC-32 of all fields before it; 0 before version 5."""


class Fragment(msgspec.Struct, frozen=True, array_like=True):
    """Some bytes of a body that is larger than a frame."""

    index: int
    count: int
    data: bytes
    sent_ns: int
    """0 if packets are not traced."""
    about: About


class Frame(NamedTuple):
    """A decoded BODIES or TRACED frame; the last three fields are empty without tracing."""

    number: int
    ack: int
    bodies: list[Body]
    sent_ns: int = 0
    abouts: Sequence[About] = ()
    sizes: Sequence[int] = ()


_encoder: Final = msgspec.msgpack.Encoder()
encode_body: Final = _encoder.encode
"""Encodes a body, however large."""
_hello: Final = msgspec.msgpack.Decoder(Hello)
_refusal: Final = msgspec.msgpack.Decoder(Refusal)
_fragment: Final = msgspec.msgpack.Decoder(tuple[int, int, Fragment])
_ack: Final = msgspec.msgpack.Decoder(tuple[int])


class Framing:
    """The shape of the frames of one link or RPC connection: their version, and whether they carry checksums."""

    __slots__ = ("_bodies", "_traced", "after_length", "head_bytes", "is_checked", "trailer_bytes", "version")

    def __init__(self, version: int, is_checked: bool) -> None:
        self.version = version
        self.is_checked = is_checked
        self.head_bytes = _CHECKED_HEAD_BYTES if is_checked else HEAD_BYTES
        """Bytes before the payload."""
        self.trailer_bytes = _U32.size if is_checked else 0
        """Bytes behind the payload."""
        front = _CHECKED_FRONT if is_checked else _FRONT
        self.after_length = front.size - 4 + self.trailer_bytes
        """What the length of a BODIES or TRACED frame counts besides the parts."""
        self._bodies = bytes((version, BODIES)), bytes((0x93, _U64))
        self._traced = bytes((version, TRACED)), bytes((0x96, _U64))

    def make(self, kind: int, payload: bytes) -> bytes:
        """A frame of any kind around an encoded payload."""
        if not self.is_checked:
            return make_frame(kind, payload, self.version)
        length = len(payload) + self.head_bytes
        return _seal(HEAD.pack(length, self.version, kind) + _guard(length).to_bytes(2, "big") + payload)

    def make_numbered(self, number: int, ack: int, tail: bytes, tail_crc: int, kind: int = BODIES) -> bytes:
        """A BODIES or TRACED frame; `tail_crc` is the CRC-32 of the tail where frames are checked."""
        start, array = self._bodies if kind == BODIES else self._traced
        length = len(tail) + self.after_length
        if not self.is_checked:
            return _FRONT.pack(length, start + array, number, _U64, ack) + tail
        front = _CHECKED_FRONT.pack(length, start, (length ^ length >> 16) & 0xFFFF, array, number, _U64, ack)
        return b"".join((front, tail, _pack_u32(crc32(front, tail_crc))))

    def fast_make_single(self, number: int, ack: int, part: bytes) -> bytes:
        """A BODIES frame with one body: the fast twin of `make_numbered`, without a copy of the body."""
        start, array = self._bodies
        length = len(part) + self.after_length + len(SINGLE)
        if not self.is_checked:
            return b"".join((_FRONT.pack(length, start + array, number, _U64, ack), SINGLE, part))
        front = _CHECKED_FRONT.pack(length, start, (length ^ length >> 16) & 0xFFFF, array, number, _U64, ack)
        return b"".join((front, SINGLE, part, _pack_u32(crc32(front, crc32(part, SINGLE_CRC)))))

    def payload(self, frame: bytes) -> bytes:
        """The payload of a frame that this process has made or opened before."""
        return frame[self.head_bytes : len(frame) - self.trailer_bytes]

    def open(self, frame: Any) -> Any:
        """The payload of a whole frame that was received; refuses one that was changed on its way."""
        if not self.is_checked:
            return frame[HEAD_BYTES:]
        end = len(frame) - 4
        begin = CRC_BEGINS if end > CRC_BEGINS else end
        if end < _CHECKED_HEAD_BYTES or crc32(frame[:begin], crc32(frame[begin:end])) != _unpack_u32(frame, end)[0]:
            raise CorruptedFrameError(f"a frame of {len(frame)} bytes whose checksum does not match")
        return frame[_CHECKED_HEAD_BYTES:end]


@cache
def find_framing(version: int, is_plain: bool) -> Framing:
    """The shape of frames in a version, on connections without TLS (`is_plain`) or with it."""
    return Framing(version, is_plain)


CHECKED: Final = find_framing(WIRE_VERSION, True)
"""The newest shape of frames with checksums."""


def _guard(length: int) -> int:
    return (length ^ length >> 16) & 0xFFFF


def _seal(frame: bytes) -> bytes:
    """Appends the checksum to a frame."""
    return frame + _pack_u32(crc32(frame[:CRC_BEGINS], crc32(frame[CRC_BEGINS:])))


def check_guard(frame: Any, length: int) -> None:
    """Refuses the beginning of a frame whose length was changed, before the rest is waited for."""
    guard = frame[HEAD_BYTES:_CHECKED_HEAD_BYTES]
    if len(guard) == 2 and int.from_bytes(guard, "big") != _guard(length):
        raise CorruptedFrameError(f"a frame of {length} bytes whose length does not match its guard")


def join_parts(parts: Sequence[bytes]) -> bytes:
    """Joins encoded bodies as a frame carries them, with their count in front."""
    return SINGLE + parts[0] if len(parts) == 1 else _pack_count(_ARRAY32, len(parts)) + b"".join(parts)


@cache
def bodies_heads(framing: Framing, longest: int) -> tuple[bytes, ...]:
    """The heads of all BODIES frames up to a length, by the length of the whole frame."""
    return tuple(
        HEAD.pack(length, framing.version, BODIES) + (_guard(length).to_bytes(2, "big") if framing.is_checked else b"")
        for length in (max(size - 4, 0) for size in range(longest + 1))
    )


def make_frame(kind: int, payload: bytes, version: int = WIRE_VERSION) -> bytes:
    """A frame without a checksum around an encoded payload: HELLO, REFUSE, and all others with TLS."""
    return HEAD.pack(len(payload) + 2, version, kind) + payload


def encode_hello(hello: Hello) -> bytes:
    """A HELLO frame, in the version that it states."""
    sealed = msgspec.structs.replace(hello, checksum=_struct_crc(hello))
    return make_frame(HELLO, _encoder.encode(sealed), hello.version)


def encode_refusal(reason: str, version: int = WIRE_VERSION) -> bytes:
    """A REFUSE frame of a process that speaks a version."""
    refusal = Refusal(version, reason)
    return make_frame(REFUSE, _encoder.encode(msgspec.structs.replace(refusal, checksum=_struct_crc(refusal))))


def _struct_crc(struct: Hello | Refusal) -> int:
    """The CRC-32 of the fields before `checksum`, never 0; 0 where the version has none."""
    if struct.version < CHECKED_VERSION:
        return 0
    fields = struct.__struct_fields__
    return crc32(_encoder.encode([getattr(struct, name) for name in fields[: fields.index("checksum")]])) or 1


def encode_ack(received: int, framing: Framing = CHECKED) -> bytes:
    """An ACK frame."""
    return framing.make(ACK, _encoder.encode((received,)))


def negotiate_version(own: tuple[int, int], hello: Hello) -> int | None:
    """The highest version that both sides speak, if there is one."""
    highest = min(own[1], hello.version)
    return highest if highest >= max(own[0], hello.oldest or hello.version) else None


def reframe(frame: bytes, old: Framing, new: Framing) -> bytes:
    """Gives a frame that was queued before the peer's version was known the shape that the peer reads."""
    return new.make(frame[5], old.payload(frame))


def topology_version(topology: Topology) -> TopologyVersion:
    """The configuration of a topology and a digest of its members, which two processes compare in their HELLOs."""
    return topology.configuration, crc32(msgspec.json.encode(sorted(named_members(topology).items())))


def named_members(topology: Topology) -> dict[GroupId, tuple[str, tuple[ProcessId, ...]]]:
    """The name and the members of every group."""
    return {group: (topology.names.get(group, str(group)), topology.members(group)) for group in topology.groups}


def read_hello(payload: Any) -> Hello:
    """Decodes the payload of a HELLO frame."""
    hello = cast(Hello, _read(_hello, payload, "a HELLO frame"))
    if hello.checksum != _struct_crc(hello):
        raise CorruptedFrameError("a HELLO frame whose checksum does not match")
    return hello


def read_refusal(payload: Any) -> Refusal:
    """Decodes the payload of a REFUSE frame."""
    refusal = cast(Refusal, _read(_refusal, payload, "a REFUSE frame"))
    if refusal.checksum != _struct_crc(refusal):
        raise CorruptedFrameError("a REFUSE frame whose checksum does not match")
    return refusal


def read_ack(payload: Any) -> int:
    """Decodes the payload of an ACK frame."""
    return cast(tuple[int], _read(_ack, payload, "an ACK frame"))[0]


def _read(decoder: msgspec.msgpack.Decoder[Any], payload: Any, what: str) -> Any:
    try:
        return decoder.decode(payload)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise BadFrameError(f"{what} that cannot be read: {error}") from None


def union_of(kinds: Iterable[type]) -> Any:
    """The union of some types; no types give one that no value matches."""
    known = tuple(kinds)
    return Union[known] if known else msgspec.UnsetType  # noqa: UP007


class Codec:
    """Encodes and decodes the bodies and records of one protocol (`Spec.wire_bodies()`, `Spec.records`)."""

    def __init__(
        self, bodies: Iterable[type[Body]], records: Iterable[type[Record]] = (), limits: Limits | None = None
    ) -> None:
        self.limits = limits or Limits()
        self.bodies = tuple(bodies)
        self.records = tuple(records)
        any_body = union_of(self.bodies)
        self._body = msgspec.msgpack.Decoder(any_body)
        self._record = msgspec.msgpack.Decoder(union_of(self.records))
        self._frame = msgspec.msgpack.Decoder(tuple[int, int, list[any_body]])  # type: ignore[valid-type]
        self.decode_bodies: Callable[[Any], tuple[int, int, list[Body]]] = self._frame.decode
        """Decodes a BODIES frame to number, ack and bodies, without the error handling and the tuple of `read`."""
        self._traced = msgspec.msgpack.Decoder(
            tuple[int, int, list[any_body], int, list[About], list[int]]  # type: ignore[valid-type]
        )
        self._body_bytes = self.limits.body_bytes
        self.whole_bytes = self.limits.frame_bytes * 3 // 4
        """A larger body might not fit a frame together with its head and its trace data: it is sent in fragments."""
        self.fragment_bytes = min(MIB, self.limits.frame_bytes // 2)

    def encode(self, body: Body) -> bytes:
        """Encodes a body of at most `limits.body_bytes`."""
        data = _encoder.encode(body)
        if len(data) > self._body_bytes:
            raise UsageError(
                f"body {type(body).__name__} has {len(data)} bytes;"
                f" expected at most {self._body_bytes} (limits.body_bytes)"
            )
        return data

    def decode(self, data: Any) -> Body:
        """Decodes one body."""
        body: Body = self._body.decode(data)
        return body

    def encode_record(self, record: Record) -> bytes:
        """Encodes a record for the log."""
        return _encoder.encode(record)

    def decode_record(self, data: Any) -> Record:
        """Decodes a record of the log."""
        try:
            record: Record = self._record.decode(data)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise UsageError(
                f"a record of the log cannot be read: {error}; expected a log of the same protocol and version"
            ) from None
        return record

    def encode_frame(self, number: int, ack: int, parts: Sequence[bytes], framing: Framing = CHECKED) -> bytes:
        """A BODIES frame of encoded bodies."""
        tail = join_parts(parts)
        return framing.make_numbered(number, ack, tail, crc32(tail))

    def encode_traced(
        self,
        number: int,
        ack: int,
        parts: Sequence[bytes],
        sent_ns: int,
        abouts: Sequence[About],
        framing: Framing = CHECKED,
    ) -> bytes:
        """A TRACED frame of encoded bodies."""
        facts = _encoder.encode(sent_ns) + _encoder.encode(abouts) + _encoder.encode([len(part) for part in parts])
        tail = join_parts(parts) + facts
        return framing.make_numbered(number, ack, tail, crc32(tail), TRACED)

    def encode_fragment(self, number: int, ack: int, piece: Fragment, framing: Framing = CHECKED) -> bytes:
        """A FRAGMENT frame."""
        return framing.make(FRAGMENT, _encoder.encode((number, ack, piece)))

    def read_fragment(self, payload: Any) -> tuple[int, int, Fragment]:
        """Decodes a FRAGMENT frame to number, ack and fragment."""
        return cast(tuple[int, int, Fragment], _read(_fragment, payload, "a FRAGMENT frame"))

    def read_reassembled(self, data: bytes) -> Body:
        """Decodes a body that came in fragments."""
        return cast(Body, _read(self._body, data, "a body in fragments"))

    def read(self, kind: int, payload: Any) -> Frame:
        """Decodes a BODIES or TRACED frame; raises `BadFrameError` if it is neither."""
        decoder = self._traced if kind == TRACED else self._frame
        frame = Frame(*_read(decoder, payload, f"a {KINDS[kind]} frame"))
        if kind == TRACED and not len(frame.bodies) == len(frame.abouts) == len(frame.sizes):
            raise BadFrameError("a TRACED frame whose lists differ in length")
        return frame
