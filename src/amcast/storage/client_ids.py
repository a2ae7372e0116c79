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

The reservations are checksummed. A server that has lost them, or finds them damaged, allocates nothing: others do.
"""

import secrets
from collections.abc import Callable
from typing import Final, NamedTuple

import msgspec

from amcast.kernel.errors import UsageError
from amcast.kernel.ids import MESSAGES_PER_SENDER, ProcessId
from amcast.storage.atomic_files import decode_checked, encode_checked, write_atomically
from amcast.storage.files import Files, read_file

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

    def __init__(
        self,
        files: Files,
        me: ProcessId,
        incarnation: int,
        draw_secret: Callable[[int], bytes] = secrets.token_bytes,
    ) -> None:
        self._files = files
        self._path = f"{files.path}/{FILE}"
        self._me = me
        self._draw_secret = draw_secret
        reserved = self._read()
        self._is_lost = reserved is None if FILE in files.list() else incarnation > 0
        """The reservations are gone or damaged: nothing more is allocated."""
        self._reserved: dict[int, int] = reserved or {}
        """First id of a range -> how many ids of it are reserved on the disk."""
        self._allocated = dict(self._reserved)
        """First id of a range -> how many ids of it are allocated, or may be."""
        self._secrets: dict[ProcessId, bytes] = {}
        """Of allocated ids that were not released, oldest first."""
        self._released: dict[int, list[tuple[ProcessId, int, int]]] = {}
        """First id of a range -> released (process, incarnation, sequence)."""
        self._range_of: dict[ProcessId, int] = {}
        if not self._is_lost:
            self._write(self._reserved)

    def allocate(self, first: ProcessId, last: ProcessId) -> AllocatedId:
        """Allocates an id from this range that no other client has."""
        process, incarnation, sequence = self._next(first, last)
        secret = self._draw_secret(16)
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
        self._check_lost()
        place = self._allocated.get(first, 0)
        process = first + (self._me - first) % STRIDE + place * STRIDE
        if process > last:
            raise UsageError(f"process {self._me} has allocated all its client ids from {first} to {last}")
        if place >= self._reserved.get(first, 0):
            # The file was written when this incarnation began; it is put aside with a log that is discarded.
            self._is_lost = FILE not in self._files.list()
            self._check_lost()
            self._write({**self._reserved, first: place + AHEAD})
        self._allocated[first] = place + 1
        return process, 0, 0

    def _check_lost(self) -> None:
        if self._is_lost:
            raise UsageError(f"{self._path} is lost; expected another process than {self._me} to allocate client ids")

    def _read(self) -> dict[int, int] | None:
        """The reservations; None if there are none that can be trusted."""
        data = read_file(self._files, FILE)
        content = None if data is None else decode_checked(data)
        if content is None:
            return None
        try:
            return msgspec.json.decode(content, type=dict[int, int])
        except msgspec.MsgspecError:
            return None

    def _write(self, reserved: dict[int, int]) -> None:
        """Makes reservations durable, before any id of them is allocated."""
        write_atomically(self._files, FILE, encode_checked(msgspec.json.encode(reserved)))
        self._reserved = reserved
