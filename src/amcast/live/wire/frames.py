"""What goes over a wire: frames, and the bodies in them.

    u32 length | u8 version | u8 kind | a msgpack array       (length counts everything after itself)

    HELLO    who I am, in which incarnation, and how much of what you sent I have
    REFUSE   why I will not talk to you
    ACK      how much of what you sent I have
    BODIES   [number, ack, [body ...]]: all that one tick had for one peer
    TRACED   the same, with what the receiver needs in order to record packets: [..., sent_ns, [about ...], [bytes ...]]
    VISIT    a question in place of a HELLO, for `live/rpc/server.py` (since version 2)
    TELL     an answer to it
    PIECE    [number, ack, [which, of how many, bytes, sent_ns, about]]: of a body too large for a frame (version 2)

HELLO and REFUSE keep their shape in every version, so that two versions can still tell each other why they part. A
process speaks a range of versions; two talk in the highest that both speak. What version 2 added is that range and
VISIT; a peer that knows version 1 only is dialled again with that one, so a cluster can be upgraded node by node.
A body is encoded once, however many processes it goes to: a frame joins encoded bodies, it does not encode again.
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

WIRE_VERSION: Final = 2
OLDEST_VERSION: Final = 1
"""What this code can still talk to."""
HELLO: Final = 0
REFUSE: Final = 1
ACK: Final = 2
BODIES: Final = 3
TRACED: Final = 4
RPC_REQUEST: Final = 5
RPC_REPLY: Final = 6
FRAGMENT: Final = 7
KINDS: Final = ("HELLO", "REFUSE", "ACK", "BODIES", "TRACED", "VISIT", "TELL", "PIECE")

HEAD: Final = struct.Struct("!IBB")
HEAD_BYTES: Final = HEAD.size
SHORT_HEAD: Final = struct.Struct("!IH")
"""The same with version and kind as one number, for who expects a certain one."""
_FRONT: Final = struct.Struct("!I4sQBQ")
"""How a BODIES or TRACED frame begins: the head, then what msgpack calls array of 3 or 6, uint64 number, uint64 ack."""
AFTER_LENGTH: Final = _FRONT.size - 4
"""How much of it the length counts."""
pack_front: Final = _FRONT.pack
_COUNT: Final = struct.Struct("!BI")
"""What follows: array32 of bodies."""
_pack_count: Final = _COUNT.pack
U64: Final = 0xCF
_ARRAY32: Final = 0xDD
ALONE: Final = _pack_count(_ARRAY32, 1)
"""What stands before a body that is the only one of its frame."""
_FRONT_ALONE: Final = struct.Struct(f"{_FRONT.format}{len(ALONE)}s")
BEFORE_ALONE: Final = _FRONT_ALONE.size - 4
pack_front_alone: Final = _FRONT_ALONE.pack
"""The same with ALONE behind it: all that comes before a lone body."""

LinkIncarnation = tuple[int, int]
"""A link's name on one side: (incarnation of the process, number of the link in that incarnation)."""


TopologyVersion = tuple[int, int]
"""The number of the topology that a process goes by, and a digest of it."""


class Hello(msgspec.Struct, frozen=True, array_like=True):
    """The first frame in both directions. New fields may only be added at the end."""

    version: int
    cluster: str
    protocol: str
    process: ProcessId
    target: ProcessId
    """Whom the sender believes it is talking to."""
    incarnation: int
    link: int
    known: LinkIncarnation | None
    """The receiver's mark, if the sender has talked to it before in this incarnation."""
    received: int
    """How many frames of that link the sender has."""
    oldest: int = 0
    """The sender speaks versions from here to `version`; 0: that one only."""
    region: str = ""
    """Where the sender is; links that imitate distances ask for it."""
    number: int = -1
    """Of the topology that the sender goes by; -1: it does not say."""
    members: int = 0
    """A digest of its groups and their members (`topology_version`)."""


class Refusal(msgspec.Struct, frozen=True, array_like=True):
    version: int
    reason: str


class Fragment(msgspec.Struct, frozen=True, array_like=True):
    """Some bytes of a body that no frame could hold."""

    index: int
    count: int
    data: bytes
    sent_ns: int
    """0: nobody traces it."""
    about: About


class Frame(NamedTuple):
    """A decoded BODIES or TRACED frame; the last three are empty without tracing."""

    number: int
    ack: int
    bodies: list[Body]
    sent_ns: int = 0
    abouts: Sequence[About] = ()
    sizes: Sequence[int] = ()


_encoder: Final = msgspec.msgpack.Encoder()
encoded: Final = _encoder.encode
"""A body as bytes, however large."""
_hello: Final = msgspec.msgpack.Decoder(Hello)
_refusal: Final = msgspec.msgpack.Decoder(Refusal)
_piece: Final = msgspec.msgpack.Decoder(tuple[int, int, Fragment])
_ack: Final = msgspec.msgpack.Decoder(tuple[int])


def lead(version: int, kind: int) -> bytes:
    """What stands between the length and the number of a BODIES or TRACED frame: it is the same for many frames."""
    return bytes((version, kind, 0x93 if kind == BODIES else 0x96, U64))


def tail(parts: Sequence[bytes]) -> bytes:
    """Some encoded bodies, joined as every frame that carries them has them."""
    return ALONE + parts[0] if len(parts) == 1 else _pack_count(_ARRAY32, len(parts)) + b"".join(parts)


@cache
def heads(version: int, most: int) -> tuple[bytes, ...]:
    """How a BODIES frame begins that is so many bytes long, its length included."""
    return tuple(HEAD.pack(max(size - 4, 0), version, BODIES) for size in range(most + 1))


def numbered(lead: bytes, number: int, ack: int, tail: bytes) -> bytes:
    """A BODIES or TRACED frame."""
    return pack_front(len(tail) + AFTER_LENGTH, lead, number, U64, ack) + tail


def framed(kind: int, payload: bytes, version: int = WIRE_VERSION) -> bytes:
    return HEAD.pack(len(payload) + 2, version, kind) + payload


def hello_frame(hello: Hello) -> bytes:
    return framed(HELLO, _encoder.encode(hello), hello.version)


def refusal_frame(reason: str) -> bytes:
    return framed(REFUSE, _encoder.encode(Refusal(WIRE_VERSION, reason)))


def ack_frame(received: int, version: int = WIRE_VERSION) -> bytes:
    return framed(ACK, _encoder.encode((received,)), version)


def agreed_version(mine: tuple[int, int], hello: Hello) -> int | None:
    """The highest version that both sides speak, if there is one."""
    highest = min(mine[1], hello.version)
    return highest if highest >= max(mine[0], hello.oldest or hello.version) else None


def stamped(frame: bytes, version: int) -> bytes:
    """A frame that waited while nobody knew what the peer speaks; versions 1 and 2 differ in this byte only."""
    return frame if frame[4] == version else frame[:4] + bytes((version,)) + frame[5:]


def topology_version(topology: Topology) -> TopologyVersion:
    """The configuration of a topology and a digest of its members, which two processes compare in their HELLOs."""
    return topology.configuration, zlib.crc32(msgspec.json.encode(sorted(named_members(topology).items())))


def named_members(topology: Topology) -> dict[GroupId, tuple[str, tuple[ProcessId, ...]]]:
    """The name and the members of every group."""
    return {group: (topology.names.get(group, str(group)), topology.members(group)) for group in topology.groups}


def read_hello(payload: Any) -> Hello:
    return cast(Hello, _read(_hello, payload, "a HELLO"))


def read_refusal(payload: Any) -> Refusal:
    return cast(Refusal, _read(_refusal, payload, "a REFUSE"))


def read_ack(payload: Any) -> int:
    return cast(tuple[int], _read(_ack, payload, "an ACK"))[0]


def _read(decoder: msgspec.msgpack.Decoder[Any], payload: Any, what: str) -> Any:
    try:
        return decoder.decode(payload)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise BadFrameError(f"{what} that cannot be read: {error}") from None


def one_of(kinds: Iterable[type]) -> Any:
    """The type "any of these"; an empty list gives a type that nothing fits."""
    known = tuple(kinds)
    return Union[known] if known else msgspec.UnsetType  # noqa: UP007


class Codec:
    """Encoder and decoder for the bodies and records of one protocol (`Spec.wire_bodies()`, `Spec.records`)."""

    def __init__(
        self, bodies: Iterable[type[Body]], records: Iterable[type[Record]] = (), limits: Limits | None = None
    ) -> None:
        self.limits = limits or Limits()
        self.bodies = tuple(bodies)
        self.records = tuple(records)
        any_body = one_of(self.bodies)
        self._body = msgspec.msgpack.Decoder(any_body)
        self._record = msgspec.msgpack.Decoder(one_of(self.records))
        self._frame = msgspec.msgpack.Decoder(tuple[int, int, list[any_body]])  # type: ignore[valid-type]
        self.decode_bodies: Callable[[Any], tuple[int, int, list[Body]]] = self._frame.decode
        """A BODIES frame, without the wrapping that `read` adds: number, ack, bodies."""
        self._traced = msgspec.msgpack.Decoder(
            tuple[int, int, list[any_body], int, list[About], list[int]]  # type: ignore[valid-type]
        )
        self._most = self.limits.body_bytes
        self.whole_bytes = self.limits.frame_bytes * 3 // 4
        """A larger body might not fit a frame together with its head and its trace: it travels in pieces."""
        self.piece_bytes = min(MIB, self.limits.frame_bytes // 2)

    def encode(self, body: Body) -> bytes:
        data = _encoder.encode(body)
        if len(data) > self._most:
            raise UsageError(
                f"body {type(body).__name__} has {len(data)} bytes; expected at most {self._most} (limits.body_bytes)"
            )
        return data

    def decode(self, data: Any) -> Body:
        body: Body = self._body.decode(data)
        return body

    def encode_record(self, record: Record) -> bytes:
        return _encoder.encode(record)

    def decode_record(self, data: Any) -> Record:
        try:
            record: Record = self._record.decode(data)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise UsageError(
                f"a record of the log cannot be read: {error}; expected a log of the same protocol and version"
            ) from None
        return record

    def frame(self, number: int, ack: int, parts: Sequence[bytes], version: int = WIRE_VERSION) -> bytes:
        """All encoded bodies of one tick for one peer."""
        return numbered(lead(version, BODIES), number, ack, tail(parts))

    def traced(
        self,
        number: int,
        ack: int,
        parts: Sequence[bytes],
        sent_ns: int,
        abouts: Sequence[About],
        version: int = WIRE_VERSION,
    ) -> bytes:
        """The same with the facts that the receiver records."""
        facts = _encoder.encode(sent_ns) + _encoder.encode(abouts) + _encoder.encode([len(part) for part in parts])
        return numbered(lead(version, TRACED), number, ack, tail(parts) + facts)

    def piece(self, number: int, ack: int, piece: Fragment, version: int = WIRE_VERSION) -> bytes:
        """One piece of an encoded body."""
        return framed(FRAGMENT, _encoder.encode((number, ack, piece)), version)

    def read_piece(self, payload: Any) -> tuple[int, int, Fragment]:
        """Number, ack and piece of a PIECE frame."""
        return cast(tuple[int, int, Fragment], _read(_piece, payload, "a PIECE"))

    def read_whole(self, data: bytes) -> Body:
        """A body that came in pieces."""
        return cast(Body, _read(self._body, data, "a body in pieces"))

    def read(self, kind: int, payload: Any) -> Frame:
        """A BODIES or TRACED frame, or a refusal that says what is wrong with it."""
        decoder = self._traced if kind == TRACED else self._frame
        frame = Frame(*_read(decoder, payload, f"a {KINDS[kind]} frame"))
        if kind == TRACED and not len(frame.bodies) == len(frame.abouts) == len(frame.sizes):
            raise BadFrameError("a TRACED frame whose lists differ in length")
        return frame
