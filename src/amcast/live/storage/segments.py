"""The file format of a durable log, and how a torn tail is told from damage.

    00000001.log: head | commit | commit | ... | zeros            (preallocated, so that a sync has little to do)
    head:    "AMCLOG02" | u64 number of the first record
    commit:  "AMCC" | u32 length | u32 crc | u64 number of its first record | u32 count | entries, padded to 8 bytes
    entry:   u32 length | u8 flags | record                         (flag 1: this record replaces all before it)

A commit is made durable as a whole: the next one is written only after it is on the disk. An invalid commit with no
valid one behind it never became durable: it is a torn tail, which may be truncated, because nothing in it was
acknowledged. An invalid commit with a valid one behind it was durable once and is damaged now: the log is refused.
(Without fsync the disk may write in any order, and a power failure may look like damage; it is refused as well.)

The last two characters of the head are the format's version. Format 2 has other record names than 1, which is refused.
"""

import struct
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from amcast.kernel.errors import UsageError
from amcast.live.errors import DamagedLogError

FORMAT: Final = 2
"""The version of the log's format, and of all other files in a data folder."""
_FAMILY: Final = b"AMCLOG"
MAGIC: Final = _FAMILY + b"%02d" % FORMAT
COMMIT_MAGIC: Final = b"AMCC"
REPLACES: Final = 1
_HEAD: Final = struct.Struct("!8sQ")
_COMMIT: Final = struct.Struct("!4sIIQI")
_CHECKED: Final = struct.Struct("!IQI")
_ENTRY: Final = struct.Struct("!IB")
FIRST_COMMIT: Final = _HEAD.size
START_AGAIN: Final = (
    "files of other versions cannot be converted. Run the version that wrote them; or, to begin anew, stop all nodes"
    " and clients of the cluster, empty the data folder of every node, and start them again"
)
"""What to do with a data folder of another version."""


class Entry(NamedTuple):
    """One record of the log."""

    number: int
    record: bytes
    replaces: bool


class Scan(NamedTuple):
    """The content of a log."""

    entries: list[Entry]
    """From the last replacing record on."""
    next_number: int
    last: Path | None
    """The last segment."""
    end: int
    """Where the next commit goes in the last segment."""
    torn_bytes: int
    """Bytes behind `end` that are not zero: a commit that never became durable."""
    files: list[Path]


def encode_head(first: int) -> bytes:
    """The head of a segment whose first record has this number."""
    return _HEAD.pack(MAGIC, first)


def encode_commit(first: int, records: Sequence[tuple[bytes, bool]]) -> bytes:
    """Encodes records, each with whether it replaces all before it, as one commit."""
    parts = [part for record, replaces in records for part in (_ENTRY.pack(len(record), replaces), record)]
    body = b"".join(parts)
    crc = zlib.crc32(body, zlib.crc32(_CHECKED.pack(len(body), first, len(records))))
    padding = bytes(-(_COMMIT.size + len(body)) % 8)
    return _COMMIT.pack(COMMIT_MAGIC, len(body), crc, first, len(records)) + body + padding


def list_segments(folder: Path) -> list[Path]:
    """The segments in a folder, oldest first."""
    return sorted(folder.glob("[0-9]" * 8 + ".log"))


def scan_log(folder: Path) -> Scan:
    """Reads a whole log; raises `DamagedLogError` unless it is valid up to a torn tail."""
    files = list_segments(folder)
    entries: list[Entry] = []
    number, end, torn = 0, FIRST_COMMIT, 0
    for index, file in enumerate(files):
        data = file.read_bytes()
        is_last = index == len(files) - 1
        _check_format(file, data)
        if is_last and _is_unfinished(data):
            end, torn = 0, len(data.rstrip(b"\0"))
            break
        first = _read_first_number(file, data)
        if number and first != number:
            raise DamagedLogError(
                f"{file}: begins with record {first}; expected {number}, so a segment is missing or damaged"
            )
        number, end = first, FIRST_COMMIT
        for commit_end, found in _read_commits(data, number):
            end = commit_end
            entries.extend(found)
            number += len(found)
        torn = _check_rest(file, data, end, is_last)
    start = max((i for i, entry in enumerate(entries) if entry.replaces), default=None)
    if start is None and entries and entries[0].number > 1:
        raise DamagedLogError(
            f"{files[0]}: begins with record {entries[0].number}, which replaces nothing; a segment is missing"
        )
    return Scan(entries[start or 0 :], number or 1, files[-1] if files else None, end, torn, files)


def _check_format(file: Path, data: bytes) -> None:
    """Refuses a segment of another version, whose records have other names."""
    version = data[len(_FAMILY) : len(MAGIC)]
    if data.startswith(_FAMILY) and version.isdigit() and int(version) != FORMAT:
        raise UsageError(f"{file}: a log of format {int(version)}; expected format {FORMAT}: {START_AGAIN}")


def _is_unfinished(data: bytes) -> bool:
    """Whether the machine stopped while this segment was created; nothing in it was acknowledged."""
    return data[: len(MAGIC)] != MAGIC and _find_commit(data, 0) is None


def _read_first_number(file: Path, data: bytes) -> int:
    if len(data) < _HEAD.size or data[:8] != MAGIC:
        raise DamagedLogError(f"{file}: does not begin with {MAGIC!r}; not a segment of a log, or damaged")
    first: int = _HEAD.unpack_from(data)[1]
    return first


def _read_commits(data: bytes, number: int) -> Iterator[tuple[int, list[Entry]]]:
    """The valid commits from the start on, each with the byte where it ends."""
    at = FIRST_COMMIT
    while (found := _read_commit(data, at)) is not None and found[1] and found[1][0].number == number:
        at, entries = found
        yield at, entries
        number += len(entries)


def _read_commit(data: bytes, at: int) -> tuple[int, list[Entry]] | None:
    if at + _COMMIT.size > len(data):
        return None
    magic, length, crc, first, count = _COMMIT.unpack_from(data, at)
    body = data[at + _COMMIT.size : at + _COMMIT.size + length]
    if magic != COMMIT_MAGIC or len(body) < length:
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


def _check_rest(file: Path, data: bytes, end: int, is_last: bool) -> int:
    """Counts the bytes of a torn commit behind the last valid one; refuses damage."""
    rest = len(data[end:].rstrip(b"\0"))
    if rest == 0:
        return 0
    if not is_last:
        raise DamagedLogError(f"{file}: damaged at byte {end}, and later segments exist; nothing was changed")
    valid = _find_commit(data, end)
    if valid is not None:
        raise DamagedLogError(f"{file}: damaged at byte {end}, but valid again at byte {valid}; nothing was changed")
    return rest


def _find_commit(data: bytes, at: int) -> int | None:
    """The place of a valid commit behind a byte, if there is any."""
    place = data.find(COMMIT_MAGIC, at)
    while place >= 0:
        if _read_commit(data, place) is not None:
            return place
        place = data.find(COMMIT_MAGIC, place + 1)
    return None
