"""Client ids: allocated by servers, never the same id to two clients whose messages could be confused.

A message id consists of its sender's id and a sequence number, and groups recognise a delivered message by its id: two
clients with one id would have their messages dropped as duplicates and acknowledged. A server therefore gives each
client its id. Server p allocates the ids that leave the remainder p when divided by STRIDE, so no two servers allocate
the same one. Ids are reserved on its disk, AHEAD at a time, before any of them is allocated, so a restarted server
allocates none again. This holds in every mode of durability, and needs no agreement: one server is enough.

A client that ends with nothing unanswered releases its id, with the incarnation and the sequence number that come next.
The next client with this id continues from there: its message ids are new, and the state that groups keep per sender
does not grow with every short-lived client. A client that dies, or leaves a message unanswered, keeps its id for ever:
a later sequence number would tell groups that all earlier messages were answered. A secret goes with each id, so only
its holder can release it.
"""

import secrets
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from amcast.kernel.errors import UsageError
from amcast.kernel.ids import MESSAGES_PER_SENDER, ProcessId
from amcast.live.storage.atomic_files import write_atomically

FILE: Final = "client_ids"
STRIDE: Final = 64
"""Only processes below this number allocate ids: each 2**16 to every client with a certificate, 2**25 without."""
AHEAD: Final = 64
"""How many ids are reserved with one write to the disk."""
MAX_HOLDERS: Final = 100_000
"""Holders whose release is awaited; with more, the id of the oldest cannot be released."""
MAX_SEQUENCE: Final = MESSAGES_PER_SENDER * 9 // 10
"""An id whose next sequence number is larger is not allocated again."""


class AllocatedId(NamedTuple):
    """A client's id, its first incarnation and sequence number, and the secret to release it."""

    process: ProcessId
    incarnation: int
    sequence: int
    secret: bytes


class ClientIdAllocator:
    """The ids that one server allocates, over all its incarnations."""

    def __init__(self, folder: Path, me: ProcessId, incarnation: int) -> None:
        self._file = folder / FILE
        self._me = me
        self._is_lost = incarnation > 0 and not self._file.exists()
        """The disk was lost with the reservations: nothing more is allocated."""
        self._reserved: dict[int, int] = self._read()
        """First id of a range -> how many ids of it are reserved on the disk."""
        self._allocated = dict(self._reserved)
        """First id of a range -> how many ids of it are allocated, or may be."""
        self._secrets: dict[ProcessId, bytes] = {}
        """Of allocated ids that were not released, oldest first."""
        self._released: dict[int, list[tuple[ProcessId, int, int]]] = {}
        """First id of a range -> released (process, incarnation, sequence)."""
        self._range_of: dict[ProcessId, int] = {}
        if not self._is_lost:
            self._write()

    def allocate(self, first: ProcessId, last: ProcessId) -> AllocatedId:
        """Allocates an id from this range that no other client has."""
        process, incarnation, sequence = self._next(first, last)
        secret = secrets.token_bytes(16)
        self._secrets[process] = secret
        self._range_of[process] = first
        if len(self._secrets) > MAX_HOLDERS:
            oldest = next(iter(self._secrets))
            del self._secrets[oldest], self._range_of[oldest]
        return AllocatedId(process, incarnation, sequence, secret)

    def release(self, process: ProcessId, secret: bytes, incarnation: int, sequence: int) -> bool:
        """Takes the id of a client that ended back; False if the secret is wrong, or the id is used up."""
        known = self._secrets.get(process)
        if known is None or not secrets.compare_digest(known, secret) or incarnation < 0 or sequence < 0:
            return False
        del self._secrets[process]
        first = self._range_of.pop(process)
        if sequence > MAX_SEQUENCE:
            return False
        self._released.setdefault(first, []).append((process, incarnation, sequence))
        return True

    def _next(self, first: ProcessId, last: ProcessId) -> tuple[ProcessId, int, int]:
        released = self._released.get(first)
        if released:
            return released.pop()
        if self._me >= STRIDE:
            raise UsageError(f"process {self._me} allocates no client ids; expected a process below {STRIDE}")
        if self._is_lost:
            raise UsageError(f"{self._file} is lost; expected another process than {self._me} to allocate client ids")
        place = self._allocated.get(first, 0)
        process = first + (self._me - first) % STRIDE + place * STRIDE
        if process > last:
            raise UsageError(f"process {self._me} has allocated all its client ids from {first} to {last}")
        if place >= self._reserved.get(first, 0):
            self._reserved[first] = place + AHEAD
            self._write()
        self._allocated[first] = place + 1
        return process, 0, 0

    def _read(self) -> dict[int, int]:
        if not self._file.exists():
            return {}
        try:
            return msgspec.json.decode(self._file.read_bytes(), type=dict[int, int])
        except msgspec.MsgspecError as error:
            raise UsageError(f"{self._file}: {error}; expected how many ids are reserved, by range") from None

    def _write(self) -> None:
        """Makes reservations durable, before any id of them is allocated."""
        self._file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(self._file, msgspec.json.encode(self._reserved))
