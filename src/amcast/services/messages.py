"""What services multicast and keep: commands, values that groups exchange, results; and their encoding.

A payload begins with `MARK`, a byte that no MessagePack document contains, so that a service ignores the payloads of
programs that multicast to its groups on their own.
"""

from hashlib import blake2b
from typing import Final, Literal

import msgspec

from amcast.services.fields import Form

MARK: Final = b"\xc1service\x01"

MARK_BYTES: Final = len(MARK)
STATE_MARK: Final = b"\xc1state\x02"
"""Begins the first piece of a snapshot."""

Consistency = Literal["linearizable", "group", "stale"]
"""What a query promises (`services/reads.py`)."""
KEY_BIT: Final = 1 << 62
"""Set in the sessions of calls with a key: each is a session of one request."""
MAX_KEY_LENGTH: Final = 256
CommandId = tuple[int, int]
"""Session and request: names one call, however often it is sent."""


class Command(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """One call of a command, or of a query that is ordered like one."""

    session: int
    request: int
    """Counts the calls of the session, from 1."""
    acknowledged: int
    """The caller has the results of all requests below this one."""
    is_retry: bool
    """Whether the call may have been multicast before, in another message."""
    now_ns: int
    """The caller's clock when the call was made, or that of the server that took it (`stamp_payload`)."""
    digest: str
    """Of the service as the caller knows it."""
    name: str
    arguments: bytes

    @property
    def id(self) -> CommandId:
        return self.session, self.request

    @property
    def exchange(self) -> CommandId:
        """Names what groups give each other for this command. Calls with one key are told apart by their times: a group
        may execute one that another group takes for a duplicate."""
        return self.session, self.now_ns if self.session & KEY_BIT else self.request


class Value(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """What one group gives to the others at one `yield` of a command."""

    session: int
    request: int
    """As `Command.exchange` has them."""
    step: int
    """The number of the `yield`, from 0."""
    group: str
    data: bytes
    ended: str = ""
    """Not empty: the group gives no value, it ended the command before; says how."""

    @property
    def id(self) -> CommandId:
        return self.session, self.request


class Success(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A command returned."""

    data: bytes


class Failure(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A command raised an exception."""

    kind: str
    text: str


class Result(msgspec.Struct, frozen=True, array_like=True):
    """The result of one command in one group."""

    request: int
    outcome: Success | Failure
    position: int
    """Where the group's order has the command."""
    steps: int
    """How often the command yielded."""
    about: bytes = b""
    """Of a call with a key: a digest of what was called."""


class Query(msgspec.Struct, frozen=True, array_like=True):
    """A read from the state of one replica (`services/reads.py`)."""

    session: int
    number: int
    """Names the read among those of its session."""
    name: str
    arguments: bytes
    consistency: Consistency
    position: int = 0
    """"group": the session has seen everything before this position."""
    max_age_ns: int = 0
    """"stale": the state contains everything that was answered longer ago."""


class ReadAnswer(msgspec.Struct, frozen=True, array_like=True):
    """What a replica answers to a read."""

    number: int
    result: Result | None
    """Its position is that of the state: after all commands before it."""
    refusal: str = ""
    """Why there is no result, as the end of a sentence."""


class QueuedCommand(msgspec.Struct, frozen=True, array_like=True):
    """A command that was delivered."""

    command: Command
    position: int
    destinations: tuple[str, ...]


class OwedValue(msgspec.Struct, frozen=True, array_like=True):
    """A value that this group gives, until it has delivered it itself."""

    value: Value
    destinations: tuple[str, ...]
    """The other groups of the command."""


class SessionState(msgspec.Struct, array_like=True):
    """What a group remembers of a session."""

    acknowledged: int = 1
    results: dict[int, Result] = msgspec.field(default_factory=dict)
    """By request, in the order of execution."""
    pending: set[int] = msgspec.field(default_factory=set)
    """Requests that are delivered and not finished."""
    finished_ns: int = 0
    """Of a call with a key: the group's time when it was finished."""
    exchange: int = 0
    """Of a call with a key: the time that names what groups give each other for it."""

    def forget_before(self, request: int) -> None:
        """Forgets the results that the caller has: those below a request."""
        results, known = self.results, self.acknowledged
        if request - known == 1:  # mostly: a caller that waits for each result
            results.pop(known, None)
        elif request - known <= len(results):
            for one in range(known, request):
                results.pop(one, None)
        else:
            for one in [known for known in results if known < request]:
                del results[one]
        self.acknowledged = request


class ExecutorState(msgspec.Struct, frozen=True, array_like=True):
    """The state of an executor: a function of what its group delivered."""

    digest: str
    service: bytes
    """Of a snapshot that an earlier version of amcast took; else empty."""
    now_ns: int
    executed: int
    sessions: list[tuple[int, int, list[Result], list[int]]]
    queue: list[QueuedCommand]
    """The command that waits for values comes first: it begins again."""
    received: list[tuple[int, int, list[Value]]]
    owed: list[OwedValue]
    keyed: list[tuple[int, SessionState]]
    form: Form | None = None
    """What the pieces behind this one are, which have the service's state; None: `service` has it."""
    answers: int | None = None
    """A checksum over all results; None: the snapshot is of an earlier version of amcast."""


_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(Command | Value)


def find_key_session(key: str) -> int:
    """The session of calls with a key: the same for every caller, in every run of its program."""
    return KEY_BIT | int.from_bytes(blake2b(key.encode(), digest_size=8).digest(), "big") >> 2


def digest_call(name: str, arguments: bytes) -> bytes:
    """A digest of what is called."""
    return blake2b(name.encode() + b"\0" + arguments, digest_size=16).digest()


def encode_payload(content: Command | Value) -> bytes:
    """Encodes what a service multicasts."""
    return MARK + _encoder.encode(content)


def stamp_payload(payload: bytes, now_ns: int) -> bytes:
    """A payload with another time in its command; one that is no command stays as it is."""
    content = decode_payload(payload)
    if type(content) is not Command:
        return payload
    return encode_payload(
        Command(
            content.session,
            content.request,
            content.acknowledged,
            content.is_retry,
            now_ns,
            content.digest,
            content.name,
            content.arguments,
        )
    )


def decode_payload(payload: bytes) -> Command | Value | None:
    """Decodes a payload; None if it is not one of a service."""
    if not payload.startswith(MARK):
        return None
    try:
        content: Command | Value = _decoder.decode(payload[MARK_BYTES:])
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
    return content
