"""The outbox of a client: messages with a key, on its disk before they are sent, so that a restart repeats none.

    multicast(..., key="order-17") -- Posted, synced --> session --> groups
                                      Answered <--------- receipt

A group recognises a message by its id, which is its sender's process id and a sequence number, and delivers it once
however often it is requested. So a client that was killed needs only the ids that it has given away: the outbox keeps
the process id over all runs of the program, and for every key the id and the payload of its message. The next run takes
the same process id in a later incarnation, requests what has no receipt again, under the same ids, and begins new
messages behind every sequence number that an earlier run may have used (`reserved`).

**Why a message that was posted is delivered once.** Nothing is requested before its record is durable, so every run
knows every id that a group may have. Whatever has no receipt is requested before anything else, and the session holds
messages that are WINDOW or more numbers ahead of it (`parts/client/session.py`): no group can take it for one that was
answered long ago. A record that is lost with the last write was never requested.

Keys whose messages have their receipts are remembered: the latest `keys` of them, for `seconds` each.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Final

import msgspec

from amcast.kernel.errors import UsageError
from amcast.kernel.ids import MessageId, ProcessId
from amcast.live.storage.system_files import SystemFile, SystemFiles
from amcast.storage.atomic_files import decode_checked, encode_checked, write_atomically
from amcast.storage.files import read_file, write_all

FILE: Final = "outbox"
MAX_KEY_LENGTH: Final = 256
RESERVED: Final = 4096
"""Sequence numbers that are reserved with one write."""
SPARE_RECORDS: Final = 4096
"""The file is written anew when it has so many records more than twice what is remembered."""


class Identity(msgspec.Struct, frozen=True, tag=True):
    """Who the client is in all runs."""

    cluster: str
    process: ProcessId
    incarnation: int
    reserved: int
    """Every sequence number that was used is below."""


class Posted(msgspec.Struct, frozen=True, tag=True):
    """A message that was given away, or is about to be."""

    key: str
    message: MessageId
    groups: tuple[str, ...]
    payload: bytes


class Answered(msgspec.Struct, frozen=True, tag=True):
    """A message with a receipt."""

    key: str
    message: MessageId
    groups: tuple[str, ...]
    digest: bytes
    absent: tuple[str, ...]
    at_s: float


OutboxRecord = Identity | Posted | Answered
_decoder: Final = msgspec.json.Decoder(OutboxRecord)


@dataclass(frozen=True)
class Outbox:
    """Where a client keeps its messages with a key, and for how long it remembers keys."""

    folder: Path | str
    keys: int = 100_000
    """Keys with a receipt that are remembered, the latest ones."""
    seconds: float = 86_400.0
    """How long each of them is remembered after its receipt."""

    def __post_init__(self) -> None:
        if type(self.keys) is not int or self.keys < 1:
            raise UsageError(f"outbox: keys = {self.keys!r}; expected a number from 1 on")
        if type(self.seconds) not in (int, float) or not self.seconds > 0:
            raise UsageError(f"outbox: seconds = {self.seconds!r}; expected seconds above 0")

    def open(self, cluster: str, clock: Callable[[], float] = time.time) -> "OpenOutbox":
        """Opens the files, which no other program may have open."""
        return OpenOutbox(self, cluster, clock)


class OpenOutbox:
    """The messages of one client, on disk and in memory."""

    def __init__(self, settings: Outbox, cluster: str, clock: Callable[[], float]) -> None:
        self._settings = settings
        self._cluster = cluster
        self._clock = clock
        self.identity: Identity | None = None
        """None until a server has given the client a process id."""
        self.unanswered: dict[str, Posted] = {}
        """By key, in the order of their ids."""
        self._answered: dict[str, Answered] = {}
        """By key, the first answered one first."""
        self._unwritten: list[Posted] = []
        self._records = 0
        self._end = 0
        self._file: SystemFile | None = None
        files = SystemFiles(Path(settings.folder))
        try:
            self._files = files.make_folder()
            files.lock()
        except UsageError:
            raise UsageError(
                f"outbox = {str(settings.folder)!r}: another program has it open; expected a folder for each client"
            ) from None
        except OSError as error:
            raise UsageError(
                f"outbox = {str(settings.folder)!r}: {error.strerror}; expected a folder that this program may write"
            ) from None
        try:
            self._load(read_file(files, FILE) or b"")
        except BaseException:
            files.unlock()
            raise

    # The identity

    def begin(self, process: ProcessId, incarnation: int, sequence: int) -> Identity:
        """Takes the process id that a server gave to this client, which no other one has."""
        return self._become(Identity(self._cluster, process, incarnation, sequence))

    def resume(self) -> Identity:
        """The process id of earlier runs, in an incarnation of its own."""
        known = self.identity
        assert known is not None, "an outbox without identity has nothing to resume"
        return self._become(msgspec.structs.replace(known, incarnation=known.incarnation + 1))

    def _become(self, identity: Identity) -> Identity:
        self.identity = identity
        self._rewrite()
        return identity

    def reserve(self, sequence: int) -> None:
        """Reserves sequence numbers from this one on."""
        assert self.identity is not None
        if sequence >= self.identity.reserved:
            self.identity = msgspec.structs.replace(self.identity, reserved=sequence + RESERVED)
            self._append([self.identity], syncs=True)

    # Messages

    def find(self, key: str, groups: tuple[str, ...], payload: bytes) -> Posted | Answered | None:
        """The message of a key that is remembered; refuses the key if that is another message."""
        if not isinstance(key, str) or not 0 < len(key) <= MAX_KEY_LENGTH:
            raise UsageError(f"key = {key!r}; expected a text of 1 to {MAX_KEY_LENGTH} characters")
        self._forget()
        posted, answered = self.unanswered.get(key), self._answered.get(key)
        known = posted or answered
        if known is None:
            return None
        is_same = posted.payload == payload if posted else answered is not None and answered.digest == _digest(payload)
        if known.groups != groups or not is_same:
            raise UsageError(f"key = {key!r} was used for another message; expected a key of its own")
        return known

    def post(self, message: Posted) -> None:
        """Adds a message, which may be requested when it is written."""
        self.unanswered[message.key] = message
        self._unwritten.append(message)

    @property
    def has_unwritten(self) -> bool:
        """Whether messages wait to be written."""
        return bool(self._unwritten)

    def write(self) -> list[Posted]:
        """Makes the messages durable that were added since the last time, and returns them: they may be requested."""
        posted, self._unwritten = self._unwritten, []
        if posted:
            self._append(posted, syncs=True)
        return posted

    def answer(self, key: str, absent: tuple[str, ...]) -> None:
        """Remembers a receipt. If its record is lost, the message is requested once more, and not delivered again."""
        posted = self.unanswered.pop(key)
        answered = Answered(key, posted.message, posted.groups, _digest(posted.payload), absent, self._clock())
        self._answered.pop(key, None)
        self._answered[key] = answered
        self._append([answered], syncs=False)
        if self._records > 2 * (len(self._answered) + len(self.unanswered)) + SPARE_RECORDS:
            self._forget()
            self._rewrite()

    def _forget(self) -> None:
        """Forgets the oldest keys beyond the number and the time that are set."""
        until = self._clock() - self._settings.seconds
        while self._answered:
            oldest = next(iter(self._answered.values()))
            if len(self._answered) <= self._settings.keys and oldest.at_s > until:
                return
            del self._answered[oldest.key]

    # The file

    def _load(self, data: bytes) -> None:
        lines = data.split(b"\n")
        for first in range(0, len(lines) - 1, 2):
            content = decode_checked(b"\n".join((*lines[first : first + 2], b"")))
            if content is None:
                if any(decode_checked(b"\n".join((*lines[at : at + 2], b""))) for at in range(first + 2, len(lines))):
                    raise UsageError(
                        f"{self._files.path}/{FILE}: record {first // 2 + 1} is damaged; expected the file as the"
                        f" client wrote it: without this record it may repeat or lose messages"
                    )
                break  # The last write was torn: what it contains was never requested.
            try:
                self._apply(_decoder.decode(content))
            except msgspec.MsgspecError as error:
                raise UsageError(f"{self._files.path}/{FILE}: {error}; expected the outbox of a client") from None
            self._records += 1
        if self.identity is not None and self.identity.cluster != self._cluster:
            raise UsageError(
                f"outbox = {self._files.path!r} is of cluster {self.identity.cluster!r}; expected one of"
                f" {self._cluster!r}"
            )

    def _apply(self, record: OutboxRecord) -> None:
        if isinstance(record, Identity):
            self.identity = record
        elif isinstance(record, Posted):
            self.unanswered[record.key] = record
        else:
            self.unanswered.pop(record.key, None)
            self._answered.pop(record.key, None)
            self._answered[record.key] = record

    def _append(self, records: Iterable[OutboxRecord], *, syncs: bool) -> None:
        assert self._file is not None
        encoded = [encode_checked(msgspec.json.encode(record)) for record in records]
        data = b"".join(encoded)
        write_all(self._file, data, self._end)
        self._end += len(data)
        self._records += len(encoded)
        if syncs:
            self._file.sync()

    def _rewrite(self) -> None:
        """Replaces the file by one with what is remembered."""
        assert self.identity is not None
        records = [self.identity, *self._answered.values(), *self.unanswered.values()]
        data = b"".join(encode_checked(msgspec.json.encode(record)) for record in records)
        write_atomically(self._files, FILE, data)
        if self._file is not None:
            self._file.close()
        self._file, self._end, self._records = self._files.open(FILE), len(data), len(records)

    def close(self) -> None:
        """Closes the files for another program."""
        if self._file is not None:
            self._file.sync()
            self._file.close()
            self._file = None
        self._files.unlock()


def _digest(payload: bytes) -> bytes:
    return blake2b(payload, digest_size=16).digest()
