"""Numbers for clients: issued by the servers, never the same one to two clients that could be told apart by it.

A message id is its sender's number and a sequence number, and groups recognise a message that they have seen by its id:
two clients of one number would swallow each other's messages and be told that they were delivered. So a client is given
its number by a server. Server p issues the numbers that leave the remainder p when divided by STRIDE, so no two servers
issue the same one; how far it has come is on its disk, some numbers in advance, before it issues any, so a restarted
server issues none again. This holds in every mode of durability, and needs no agreement: one server is enough.

A client that ends with nothing unanswered gives its number back, with the incarnation and the sequence number that come
next. Whoever gets it then goes on from there: its ids are new, and what groups remember for each sender does not grow
with every short-lived client. A client that dies, or leaves something unanswered, keeps its number for ever: a later
sequence number would tell groups that all earlier ones were answered. Nobody can give back what was not issued to it: a
secret goes with each number.
"""

import secrets
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from amcast.kernel.errors import UsageError
from amcast.kernel.ids import MESSAGES_PER_SENDER, ProcessId
from amcast.live.storage.atomic_files import write_atomically

STRIDE: Final = 64
"""Only processes below this number issue numbers: each 2**16 to every client that has a certificate, 2**25 without."""
AHEAD: Final = 64
"""How many numbers are reserved with one write to the disk."""
MOST_OUT: Final = 100_000
"""Issued numbers whose return is waited for; of more, the oldest will not be taken back."""
MOST_USED: Final = MESSAGES_PER_SENDER * 9 // 10
"""A number with more messages behind it is not issued again."""


class AllocatedId(NamedTuple):
    """What a client begins with."""

    number: ProcessId
    incarnation: int
    sequence: int
    secret: bytes


class ClientIdAllocator:
    """The numbers that one server issues, over all its incarnations."""

    def __init__(self, folder: Path, me: ProcessId, incarnation: int) -> None:
        self._file = folder / "numbers"
        self._me = me
        self._lost = incarnation > 0 and not self._file.exists()
        """The disk was lost with what was issued: then nothing more is."""
        self._reserved: dict[int, int] = self._read()
        """First of a range -> how many numbers of it the disk knows as issued."""
        self._issued = dict(self._reserved)
        self._out: dict[ProcessId, bytes] = {}
        self._free: dict[int, list[tuple[ProcessId, int, int]]] = {}
        """First of a range -> (number, incarnation, sequence) that came back."""
        self._range_of: dict[ProcessId, int] = {}
        if not self._lost:
            self._write()

    def allocate(self, first: ProcessId, last: ProcessId) -> AllocatedId:
        """A number from this range that nobody else has."""
        number, incarnation, sequence = self._next(first, last)
        secret = secrets.token_bytes(16)
        self._out[number] = secret
        self._range_of[number] = first
        if len(self._out) > MOST_OUT:
            oldest = next(iter(self._out))
            del self._out[oldest], self._range_of[oldest]
        return AllocatedId(number, incarnation, sequence, secret)

    def release(self, number: ProcessId, secret: bytes, incarnation: int, sequence: int) -> bool:
        """Its holder has ended; False if it was not its holder, or the number is used up."""
        known = self._out.get(number)
        if known is None or not secrets.compare_digest(known, secret) or incarnation < 0 or sequence < 0:
            return False
        del self._out[number]
        first = self._range_of.pop(number)
        if sequence > MOST_USED:
            return False
        self._free.setdefault(first, []).append((number, incarnation, sequence))
        return True

    def _next(self, first: ProcessId, last: ProcessId) -> tuple[ProcessId, int, int]:
        free = self._free.get(first)
        if free:
            return free.pop()
        if self._me >= STRIDE:
            raise UsageError(f"process {self._me} issues no numbers; expected a process below {STRIDE} to be asked")
        if self._lost:
            raise UsageError(f"{self._file} is lost; expected another process than {self._me} to be asked for numbers")
        place = self._issued.get(first, 0)
        number = first + (self._me - first) % STRIDE + place * STRIDE
        if number > last:
            raise UsageError(f"process {self._me} has issued all its numbers from {first} to {last}")
        if place >= self._reserved.get(first, 0):
            self._reserved[first] = place + AHEAD
            self._write()
        self._issued[first] = place + 1
        return number, 0, 0

    def _read(self) -> dict[int, int]:
        if not self._file.exists():
            return {}
        try:
            return msgspec.json.decode(self._file.read_bytes(), type=dict[int, int])
        except msgspec.MsgspecError as error:
            raise UsageError(f"{self._file}: {error}; expected how many numbers were issued, by range") from None

    def _write(self) -> None:
        """Reservations are on the disk before any number of them is issued."""
        self._file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(self._file, msgspec.json.encode(self._reserved))
