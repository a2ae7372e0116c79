"""The desk of a replica: what others may ask it besides multicasting, one question per connection.

    VISIT  [version, cluster, process, question]       the first frame, in the place of HELLO
    TELL   one answer, or a row of them                a refusal is a REFUSE frame, as everywhere

| question | answers |
|---|---|
| Stand | Stands: which positions it keeps, whether it has caught up, and whether it holds its group's state |
| Subscribe | Told, Told, ... from a position on, Beat when nothing happens; Gone when the position is no longer kept |
| Enrol | Issued: a number for a new client (`live/storage/client_ids.py`) |
| Return | nothing: a client ends and gives its number back |
| Members | Membership: who is in which group now, as this replica knows it (`live/membership/topology_follower.py`) |
| Inspect | Inspected: how this replica is, or what blocks a message; for operators |
| Copy | Taken and then Pieces: the state of the application there (`live/server/application.py`) |

A subscription has a connection of its own, so that whoever reads slowly is slowed down by TCP and holds up nothing
else: the desk writes no more than the socket takes, and the deliveries are shared (`live/host/recent_deliveries.py`).
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from amcast.kernel.errors import WrongUse
from amcast.kernel.ids import MAX_SENDER, GroupId, ProcessId
from amcast.kernel.message import Message
from amcast.kernel.reconfiguration import encoded
from amcast.kernel.topology import Topology
from amcast.live.host.recent_deliveries import Kept
from amcast.live.limits import KIB, Limits
from amcast.live.security.permissions import FIRST_CLIENT, Rights
from amcast.live.storage.client_ids import Numbers
from amcast.live.wire import frames as codec
from amcast.live.wire.connection import Connection
from amcast.live.wire.frames import WIRE_VERSION, BadFrame, Refused

if TYPE_CHECKING:
    from amcast.live.server.status import Watch

log = logging.getLogger("amcast.live")

CHUNK_BYTES: Final = 128 * KIB
"""One answer holds so much, or one message."""


class Question(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Base of what may be asked."""


class Stand(Question, frozen=True):
    """Where are you?"""


class Subscribe(Question, frozen=True):
    """Tell me what your group delivers."""

    group: GroupId
    position: int


class Enrol(Question, frozen=True):
    """Give me a number."""


class Return(Question, frozen=True):
    """I end; whoever gets my number next shall begin with this life and this sequence number."""

    number: ProcessId
    secret: bytes
    life: int
    sequence: int


class Copy(Question, frozen=True):
    """What is the state of the application at your place, after at least so many deliveries?"""

    position: int


class Inspect(Question, frozen=True):
    """How are you? Or, with a message: what does it wait for at your place?"""

    message: int | None = None


class Members(Question, frozen=True):
    """Who is there?"""


Questions = Stand | Subscribe | Enrol | Return | Copy | Inspect | Members


class Visit(msgspec.Struct, frozen=True, array_like=True):
    """The first frame of a connection that only asks. New fields may only be added at the end."""

    version: int
    cluster: str
    process: ProcessId
    """Whom the sender believes it is asking."""
    question: Questions


class Answer(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Base of answers."""


class Stands(Answer, frozen=True):
    """Deliveries [first, next) are kept."""

    first: int
    next: int
    caught_up: bool
    life: int
    holds: bool = True
    """It has its group's state, and does not wait to be given it (`live/membership/state_survey.py`)."""


class Told(Answer, frozen=True):
    """Deliveries, the first of them at this position."""

    position: int
    messages: list[Message]


class Beat(Answer, frozen=True):
    """Nothing new."""

    next: int


class Gone(Answer, frozen=True):
    """The position is no longer kept here; [first, next) is."""

    first: int
    next: int


class Issued(Answer, frozen=True):
    """A number, the life to begin with, the first sequence number, and what proves later that it was issued."""

    number: ProcessId
    life: int
    sequence: int
    secret: bytes
    topology: bytes = b""
    """The current one, if members have changed: what the client was configured with may be older."""


class Taken(Answer, frozen=True):
    """The application's state after so many deliveries; so many bytes follow."""

    position: int
    bytes: int


class Piece(Answer, frozen=True):
    """Some of the bytes, in order."""

    data: bytes


class Inspected(Answer, frozen=True):
    """JSON, as `live/server/status.py` makes it."""

    json: bytes


class Membership(Answer, frozen=True):
    """The topology, as `kernel/reconfiguration.py` encodes it."""

    topology: bytes


Answers = Membership | Inspected | Stands | Told | Beat | Gone | Issued | Taken | Piece

_encoder: Final = msgspec.msgpack.Encoder()
_visit: Final = msgspec.msgpack.Decoder(Visit)
_answer: Final = msgspec.msgpack.Decoder(Answers)


def visit_frame(visit: Visit) -> bytes:
    return codec.framed(codec.VISIT, _encoder.encode(visit))


def read_answer(payload: Any) -> Answers:
    """One TELL frame's content."""
    try:
        return cast(Answers, _answer.decode(payload))
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise BadFrame(f"an answer that cannot be read: {error}") from None


class Talk:
    """The answering end of one connection."""

    def __init__(self, connection: Connection, limits: Limits) -> None:
        self.connection = connection
        self._limits = limits
        self._room = asyncio.Event()
        connection.on_room = self._room.set
        connection.narrow(2 * CHUNK_BYTES)

    async def tell(self, answer: Answers) -> None:
        """One answer; returns when the socket takes more, and hangs up on who takes nothing for too long."""
        self.connection.write(codec.framed(codec.TELL, _encoder.encode(answer)))
        while self.connection.paused:
            self._room.clear()
            try:
                async with asyncio.timeout(self._limits.linger_s):
                    await self._room.wait()
            except TimeoutError:
                raise Refused(f"nothing was taken for {self._limits.linger_s} s (limits.linger_s)") from None


class Desk:
    """Answers questions about one replica."""

    def __init__(
        self,
        me: ProcessId,
        group: GroupId,
        cluster: str,
        life: int,
        limits: Limits,
        rights: Rights | None = None,
        opens: Callable[[Message], list[Message]] | None = None,
    ) -> None:
        self.kept = Kept(limits.kept_bytes, opens)
        self.caught_up = asyncio.Event()
        """This replica has delivered what its group had delivered when it started."""
        self.numbers: Numbers | None = None
        self.application: Callable[[int], Awaitable[tuple[int, bytes]]] | None = None
        """State of the application after at least so many deliveries, if there is one that can tell."""
        self.topology: Callable[[], Topology | None] = lambda: None
        """Who is there, if the process knows it."""
        self.holds: Callable[[], bool] = lambda: True
        """Whether this replica has its group's state."""
        self.subscribers = 0
        self.group = group
        self._me = me
        self._cluster = cluster
        self._life = life
        self._limits = limits
        self._rights = rights
        """None: everybody may ask everything."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._handlers: Mapping[type, Callable[[Talk, Any], Awaitable[None]]] = {
            Stand: self._stand,
            Subscribe: self._subscribe,
            Enrol: self._enrol,
            Return: self._return,
            Copy: self._copy,
            Inspect: self._inspect,
            Members: self._members,
        }
        self.watch: Watch | None = None
        """What tells operators about this replica."""

    def take(self, connection: Connection, payload: Any) -> None:
        """A connection began with a question."""
        try:
            visit = _visit.decode(payload)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise BadFrame(f"a question that cannot be read: {error}") from None
        if visit.version != WIRE_VERSION:
            raise Refused(f"the question is of wire version {visit.version}; process {self._me} speaks {WIRE_VERSION}")
        if visit.cluster != self._cluster:
            raise Refused(f"this is cluster {self._cluster!r}, not {visit.cluster!r}")
        if visit.process != self._me:
            raise Refused(f"this is process {self._me}, not {visit.process}")
        if len(self._tasks) >= self._limits.peers:
            raise Refused(f"{self._limits.peers} visitors are here; limits.peers allows no more")
        task = asyncio.get_running_loop().create_task(self._answer(connection, visit.question))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        connection.closed.add_done_callback(lambda _: task.cancel())

    async def close(self) -> None:
        """Stop answering."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _answer(self, connection: Connection, question: Question) -> None:
        try:
            await self._handlers[type(question)](Talk(connection, self._limits), question)
            connection.finish()
        except (Refused, WrongUse, OSError) as error:
            connection.refuse(str(error))
        except asyncio.CancelledError:
            connection.finish()

    # The answers

    async def _stand(self, talk: Talk, question: Stand) -> None:
        kept, caught_up = self.kept, self.caught_up.is_set()
        await talk.tell(Stands(kept.first, kept.next, caught_up, self._life, self.holds()))

    async def _subscribe(self, talk: Talk, question: Subscribe) -> None:
        if question.group != self.group:
            raise Refused(f"process {self._me} is in group {self.group}, not {question.group}")
        if self._rights is not None:
            self._rights.check_reader(talk.connection.subject(), question.group)
        if question.position < 0:
            raise Refused(f"position {question.position}; expected 0 or more")
        self.subscribers += 1
        try:
            await self._tell_deliveries(talk, question.position)
        finally:
            self.subscribers -= 1

    async def _tell_deliveries(self, talk: Talk, position: int) -> None:
        kept = self.kept
        while position >= kept.first:
            messages = kept.since(position, CHUNK_BYTES)
            if messages:
                await talk.tell(Told(position, messages))
                position += len(messages)
            elif not await kept.changed(self._limits.beat_s):
                await talk.tell(Beat(kept.next))
        await talk.tell(Gone(kept.first, kept.next))

    async def _inspect(self, talk: Talk, question: Inspect) -> None:
        if self._rights is not None:
            self._rights.check_operator(talk.connection.subject())
        if self.watch is None:
            raise Refused(f"process {self._me} tells operators nothing")
        told = self.watch.status() if question.message is None else self.watch.explain(question.message)
        await talk.tell(Inspected(msgspec.json.encode(told)))

    async def _enrol(self, talk: Talk, question: Enrol) -> None:
        if self.numbers is None:
            raise Refused(f"process {self._me} issues no numbers")
        block = (FIRST_CLIENT, MAX_SENDER)
        if self._rights is not None:
            block = self._rights.block_of(talk.connection.subject())
        issued = self.numbers.issue(*block)
        topology = self.topology()
        now = b"" if topology is None or topology.number == 0 else encoded(topology)
        await talk.tell(Issued(issued.number, issued.life, issued.sequence, issued.secret, now))

    async def _members(self, talk: Talk, question: Members) -> None:
        topology = self.topology()
        if topology is None:
            raise Refused(f"process {self._me} was not told yet who is there")
        await talk.tell(Membership(encoded(topology)))

    async def _return(self, talk: Talk, question: Return) -> None:
        if self.numbers is not None:
            self.numbers.take_back(question.number, question.secret, question.life, question.sequence)

    async def _copy(self, talk: Talk, question: Copy) -> None:
        if self.application is None:
            raise Refused(f"process {self._me} hosts no application that can tell its state")
        if self._rights is not None:
            self._rights.check_node(talk.connection.subject())
        try:
            async with asyncio.timeout(self._limits.silence_s / 2):
                position, state = await self.application(question.position)
        except TimeoutError:
            raise Refused(f"the application of process {self._me} is behind position {question.position}") from None
        await talk.tell(Taken(position, len(state)))
        for start in range(0, len(state), CHUNK_BYTES):
            await talk.tell(Piece(state[start : start + CHUNK_BYTES]))
