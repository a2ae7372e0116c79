"""The files of a durable log, and how to tell a torn tail from a damaged middle.

    00000001.log: head | commit | commit | ... | zeros            (preallocated, so that a sync has little to do)
    head:    "AMCLOG01" | u64 number of the first record
    commit:  "AMCC" | u32 length | u32 crc | u64 number of its first record | u32 count | entries, padded to 8 bytes
    entry:   u32 length | u8 flags | record                         (flag 1: this record replaces all before it)

A commit is what was made durable at once: the next one is written only after it is on the disk. So a commit that does
not check, with nothing sound behind it, is one that never became durable: a torn tail, which may be cut, because nobody
was told of it. With something sound behind it, it was durable once and is damaged now: that is never guessed around.
(Without fsync the disk may write in any order, and a power failure may look like damage; it is refused just the same.)
"""

import struct
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from amcast.live.errors import DamagedLogError

MAGIC: Final = b"AMCLOG01"
MARK: Final = b"AMCC"
REPLACES: Final = 1
_HEAD: Final = struct.Struct("!8sQ")
_COMMIT: Final = struct.Struct("!4sIIQI")
_CHECKED: Final = struct.Struct("!IQI")
_ENTRY: Final = struct.Struct("!IB")
FIRST_COMMIT: Final = _HEAD.size


class Entry(NamedTuple):
    number: int
    record: bytes
    replaces: bool


class Scan(NamedTuple):
    """What a folder's log holds."""

    entries: list[Entry]
    """From the last replacing record on."""
    next_number: int
    last: Path | None
    end: int
    """Where the next commit goes in the last segment."""
    torn_bytes: int
    """Bytes behind that place that are not zero: a commit that never became durable."""
    files: list[Path]


def head(first: int) -> bytes:
    return _HEAD.pack(MAGIC, first)


def commit(first: int, records: Sequence[tuple[bytes, bool]]) -> bytes:
    """Some records as one commit."""
    parts = [part for record, replaces in records for part in (_ENTRY.pack(len(record), replaces), record)]
    body = b"".join(parts)
    crc = zlib.crc32(body, zlib.crc32(_CHECKED.pack(len(body), first, len(records))))
    padding = bytes(-(_COMMIT.size + len(body)) % 8)
    return _COMMIT.pack(MARK, len(body), crc, first, len(records)) + body + padding


def segments(folder: Path) -> list[Path]:
    return sorted(folder.glob("[0-9]" * 8 + ".log"))


def scan(folder: Path) -> Scan:
    """Read a whole log; raises `Damaged` if it is anything but sound up to a torn tail."""
    files = segments(folder)
    entries: list[Entry] = []
    number, end, torn = 0, FIRST_COMMIT, 0
    for index, file in enumerate(files):
        data = file.read_bytes()
        last = index == len(files) - 1
        if last and _unborn(data):
            end, torn = 0, len(data.rstrip(b"\0"))
            break
        first = _first(file, data)
        if number and first != number:
            raise DamagedLogError(
                f"{file}: begins with record {first}; expected {number}, so a segment is missing or damaged"
            )
        number, end = first, FIRST_COMMIT
        for commit_end, found in _commits(data, number):
            end = commit_end
            entries.extend(found)
            number += len(found)
        torn = _judge_rest(file, data, end, last)
    start = max((i for i, entry in enumerate(entries) if entry.replaces), default=None)
    if start is None and entries and entries[0].number > 1:
        raise DamagedLogError(
            f"{files[0]}: begins with record {entries[0].number}, which replaces nothing; a segment is missing"
        )
    return Scan(entries[start or 0 :], number or 1, files[-1] if files else None, end, torn, files)


def _unborn(data: bytes) -> bool:
    """The power went while this segment was being made; nobody was told of anything in it."""
    return data[: len(MAGIC)] != MAGIC and _sound_after(data, 0) is None


def _first(file: Path, data: bytes) -> int:
    if len(data) < _HEAD.size or data[:8] != MAGIC:
        raise DamagedLogError(f"{file}: does not begin with {MAGIC!r}; not a segment of a log, or damaged")
    first: int = _HEAD.unpack_from(data)[1]
    return first


def _commits(data: bytes, number: int) -> Iterator[tuple[int, list[Entry]]]:
    """The sound commits from the start on, with the place where each ends."""
    at = FIRST_COMMIT
    while (found := _commit_at(data, at)) is not None and found[1] and found[1][0].number == number:
        at, entries = found
        yield at, entries
        number += len(entries)


def _commit_at(data: bytes, at: int) -> tuple[int, list[Entry]] | None:
    if at + _COMMIT.size > len(data):
        return None
    mark, length, crc, first, count = _COMMIT.unpack_from(data, at)
    body = data[at + _COMMIT.size : at + _COMMIT.size + length]
    if mark != MARK or len(body) < length:
        return None
    if zlib.crc32(body, zlib.crc32(_CHECKED.pack(length, first, count))) != crc:
        return None
    entries: list[Entry] = []
    place = 0
    for index in range(count):
        size, flags = _ENTRY.unpack_from(body, place)
        place += _ENTRY.size
        entries.append(Entry(first + index, body[place : place + size], bool(flags & REPLACES)))
        place += size
    end = at + _COMMIT.size + length
    return end + -end % 8, entries


def _judge_rest(file: Path, data: bytes, end: int, last: bool) -> int:
    """How many bytes of a torn commit follow; damage is refused."""
    rest = len(data[end:].rstrip(b"\0"))
    if rest == 0:
        return 0
    if not last:
        raise DamagedLogError(f"{file}: damaged at byte {end}, and later segments exist; nothing was changed")
    sound = _sound_after(data, end)
    if sound is not None:
        raise DamagedLogError(f"{file}: damaged at byte {end}, but sound again at byte {sound}; nothing was changed")
    return rest


def _sound_after(data: bytes, at: int) -> int | None:
    """The place of a sound commit behind a damaged one, if there is any."""
    place = data.find(MARK, at)
    while place >= 0:
        if _commit_at(data, place) is not None:
            return place
        place = data.find(MARK, place + 1)
    return None
