"""The wire format: frames, and the encoded bodies in them.

    u32 length | u8 version | u8 kind | a msgpack array       (length counts everything after itself)

    HELLO         identity and incarnation of the sender, and how many frames of this link it has received
    REFUSE        why the sender refuses the connection
    ACK           how many frames of this link the sender has received
    BODIES        [number, ack, [body ...]]: all bodies of one tick for one peer
    TRACED        BODIES with the data that the receiver records: [..., sent_ns, [about ...], [bytes ...]]
    RPC_REQUEST   the first frame of a connection without a link (`live/rpc/server.py`)
    RPC_REPLY     an answer to it
    FRAGMENT      [number, ack, [index, count, bytes, sent_ns, about]]: a part of a body larger than a frame

HELLO and REFUSE keep their shape in every version, so that two processes without a common version can still tell each
other why they part. A process speaks a range of versions, and two processes use the highest that both speak. Version 4
added that range, RPC requests and fragments; a peer of version 3 is dialled again in that version, so a cluster can be
upgraded node by node. Versions 1 and 2 named most bodies differently and are not spoken any more.

A body is encoded once, however many processes it goes to: a frame joins encoded bodies.
"""

import struct
import zlib
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any, Final, NamedTuple, Union, cast

import msgspec

from amcast.kernel.effects import About
from amcast.kernel.errors import UsageError
from amcast.kernel.ids import GroupId, ProcessId
from amcast.kernel.message import Body, Record
from amcast.kernel.topology import Topology
from amcast.live.errors import BadFrameError
from amcast.live.limits import MIB, Limits

WIRE_VERSION: Final = 4
OLDEST_VERSION: Final = 3
"""The oldest version that this code speaks."""
RANGE_VERSION: Final = 4
"""The first version with a range in HELLO, RPC requests, fragments and announcements of leaving."""
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
SHORT_HEAD: Final = struct.Struct("!IH")
"""The head with version and kind as one number, to compare both at once."""
_FRONT: Final = struct.Struct("!I4sQBQ")
"""The front of a BODIES or TRACED frame: the head, then a msgpack array of 3 or 6, uint64 number, uint64 ack."""
AFTER_LENGTH: Final = _FRONT.size - 4
"""Bytes of the front that the length counts."""
pack_front: Final = _FRONT.pack
_COUNT: Final = struct.Struct("!BI")
"""Array32 with the count of bodies, which follows the front."""
_pack_count: Final = _COUNT.pack
U64: Final = 0xCF
_ARRAY32: Final = 0xDD
SINGLE: Final = _pack_count(_ARRAY32, 1)
"""The count before the only body of a frame."""
_FRONT_SINGLE: Final = struct.Struct(f"{_FRONT.format}{len(SINGLE)}s")
BEFORE_SINGLE: Final = _FRONT_SINGLE.size - 4
pack_front_single: Final = _FRONT_SINGLE.pack
"""Packs the front and SINGLE: everything before the only body of a frame."""

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


class Refusal(msgspec.Struct, frozen=True, array_like=True):
    """Why a connection is refused, and a version that the refusing process speaks."""

    version: int
    reason: str


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


def frame_start(version: int, kind: int) -> bytes:
    """The bytes between the length and the number of a BODIES or TRACED frame, equal for all frames of a link."""
    return bytes((version, kind, 0x93 if kind == BODIES else 0x96, U64))


def join_parts(parts: Sequence[bytes]) -> bytes:
    """Joins encoded bodies as a frame carries them, with their count in front."""
    return SINGLE + parts[0] if len(parts) == 1 else _pack_count(_ARRAY32, len(parts)) + b"".join(parts)


@cache
def bodies_heads(version: int, longest: int) -> tuple[bytes, ...]:
    """The heads of all BODIES frames up to a length, by the length of the whole frame."""
    return tuple(HEAD.pack(max(size - 4, 0), version, BODIES) for size in range(longest + 1))


def _make_numbered(start: bytes, number: int, ack: int, tail: bytes) -> bytes:
    """A BODIES or TRACED frame."""
    return pack_front(len(tail) + AFTER_LENGTH, start, number, U64, ack) + tail


def make_frame(kind: int, payload: bytes, version: int = WIRE_VERSION) -> bytes:
    """A frame of any kind around an encoded payload."""
    return HEAD.pack(len(payload) + 2, version, kind) + payload


def encode_hello(hello: Hello) -> bytes:
    """A HELLO frame, in the version that it states."""
    return make_frame(HELLO, _encoder.encode(hello), hello.version)


def encode_refusal(reason: str) -> bytes:
    """A REFUSE frame."""
    return make_frame(REFUSE, _encoder.encode(Refusal(WIRE_VERSION, reason)))


def encode_ack(received: int, version: int = WIRE_VERSION) -> bytes:
    """An ACK frame."""
    return make_frame(ACK, _encoder.encode((received,)), version)


def negotiate_version(own: tuple[int, int], hello: Hello) -> int | None:
    """The highest version that both sides speak, if there is one."""
    highest = min(own[1], hello.version)
    return highest if highest >= max(own[0], hello.oldest or hello.version) else None


def restamp(frame: bytes, version: int) -> bytes:
    """Sets the version of a frame that was queued before the peer's version was known; only this byte differs."""
    return frame if frame[4] == version else frame[:4] + bytes((version,)) + frame[5:]


def topology_version(topology: Topology) -> TopologyVersion:
    """The configuration of a topology and a digest of its members, which two processes compare in their HELLOs."""
    return topology.configuration, zlib.crc32(msgspec.json.encode(sorted(named_members(topology).items())))


def named_members(topology: Topology) -> dict[GroupId, tuple[str, tuple[ProcessId, ...]]]:
    """The name and the members of every group."""
    return {group: (topology.names.get(group, str(group)), topology.members(group)) for group in topology.groups}


def read_hello(payload: Any) -> Hello:
    """Decodes the payload of a HELLO frame."""
    return cast(Hello, _read(_hello, payload, "a HELLO frame"))


def read_refusal(payload: Any) -> Refusal:
    """Decodes the payload of a REFUSE frame."""
    return cast(Refusal, _read(_refusal, payload, "a REFUSE frame"))


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

    def encode_frame(self, number: int, ack: int, parts: Sequence[bytes], version: int = WIRE_VERSION) -> bytes:
        """A BODIES frame of encoded bodies."""
        return _make_numbered(frame_start(version, BODIES), number, ack, join_parts(parts))

    def encode_traced(
        self,
        number: int,
        ack: int,
        parts: Sequence[bytes],
        sent_ns: int,
        abouts: Sequence[About],
        version: int = WIRE_VERSION,
    ) -> bytes:
        """A TRACED frame of encoded bodies."""
        facts = _encoder.encode(sent_ns) + _encoder.encode(abouts) + _encoder.encode([len(part) for part in parts])
        return _make_numbered(frame_start(version, TRACED), number, ack, join_parts(parts) + facts)

    def encode_fragment(self, number: int, ack: int, piece: Fragment, version: int = WIRE_VERSION) -> bytes:
        """A FRAGMENT frame."""
        return make_frame(FRAGMENT, _encoder.encode((number, ack, piece)), version)

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
