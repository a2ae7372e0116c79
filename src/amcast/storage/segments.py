"""The file format of a durable log, and how a torn tail is told from damage.

    00000001.log: head | commit | commit | ... | zeros            (preallocated, so that a sync has little to do)
    sector:  508 bytes of content | u32 checksum, salted with the chain and the place of the sector in its segment
    head:    one sector: "AMCLOG03" | u64 folder | u64 number of the first record | u32 chain | u8 flags
    commit:  whole sectors: "AMCC" | u32 length | u64 number of its first record | u32 count | u8 flags
             | u32 length of each record | records | zeros up to the end of the sector

The chain is a checksum over the checksums of all sectors before, so a sector is valid only at its place behind the
commits that it was written after. Flag 1 of a commit: its first record replaces all before it; such a commit is the
first of its segment. Flag 1 of a head: the log begins here. A commit without records only marks that all before it was
durable.

A commit is made durable as a whole: the next one is written only after it is on the disk. A crash meanwhile leaves each
of its sectors written or missing: a missing one still has its old content, zeros. An invalid last commit of valid and
missing sectors is a torn tail: nothing in it was acknowledged, and it may be truncated. A sector that is neither is
rotten: the commit may have been durable once, and so may whatever stood behind it. Such a log is doubtful, wherever the
sector is, and so is one in which sectors are missing before a valid commit. (Without fsync the disk may write in any
order, and a power failure may look like damage; the log is doubtful as well.) The last commit entirely gone looks like
a commit that never was: that the log cannot tell, only peers that remember how many records it had.

The last two characters of the head's first word are the format's version. Older ones are refused.
"""

import re
import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from amcast.kernel.checksum import crc32
from amcast.kernel.errors import UsageError
from amcast.storage.files import Files, read_file

FORMAT: Final = 3
"""The version of the log's format, and of all other files in a data folder."""
_FAMILY: Final = b"AMCLOG"
MAGIC: Final = _FAMILY + b"%02d" % FORMAT
COMMIT_MAGIC: Final = b"AMCC"
SECTOR: Final = 512
CONTENT: Final = SECTOR - 4
"""Bytes of a sector before its checksum."""
REPLACES: Final = 1
BEGINS: Final = 1
_HEAD: Final = struct.Struct("!8sQQIB")
_COMMIT: Final = struct.Struct("!4sIQIB")
_SUM: Final = struct.Struct("!I")
_MASK: Final = 0xFFFFFFFF
_PLACES: Final = 2654435761
"""An odd number: multiples spread the salts of neighbouring places over all 32 bits."""
FIRST_COMMIT: Final = SECTOR
_NAME: Final = re.compile(r"\d{8}\.log")
START_AGAIN: Final = (
    "files of other versions cannot be converted. Run the version that wrote them; or, to begin anew, stop all nodes"
    " and clients of the cluster, empty the data folder of every node, and start them again"
)
"""What to do with a data folder of another version."""


class Head(NamedTuple):
    """The first sector of a segment."""

    folder: int
    first: int
    """Number of the first record."""
    chain: int
    begins: bool
    """The log begins here: no earlier segment is missing."""


class Commit(NamedTuple):
    """A valid commit."""

    first: int
    """Number of the first record."""
    replaces: bool
    records: list[bytes]
    end: int
    """Where the next commit begins in the segment."""
    chain: int


class Scan(NamedTuple):
    """The content of a log."""

    records: list[bytes]
    """From the last replacing record on."""
    next_number: int
    chain: int
    files: list[str]
    """The segments that are needed, oldest first."""
    obsolete: list[str]
    """Earlier segments, replaced by a snapshot and not removed yet."""
    end: int
    """Where the next commit goes in the last segment; 0: the segment was not finished when the machine stopped."""
    torn_bytes: int
    """Bytes behind `end` that are not zero: a commit that never became durable."""
    doubt: str = ""
    """Why records that were durable may be missing, as a sentence; the log is not valid then."""


class _DoubtfulLogError(Exception):
    """Ends a scan: what was durable cannot be told."""


def encode_head(folder: int, first: int, chain: int, begins: bool) -> bytes:
    """The head of a segment whose first record has this number."""
    content = _HEAD.pack(MAGIC, folder, first, chain, BEGINS if begins else 0).ljust(CONTENT, b"\0")
    return content + _SUM.pack(crc32(content))


def measure_commit(records: Sequence[bytes]) -> int:
    """How many bytes a commit of these records takes."""
    return -(-(_COMMIT.size + 4 * len(records) + sum(map(len, records))) // CONTENT) * SECTOR


def encode_commit(first: int, records: Sequence[bytes], replaces: bool, chain: int, at: int) -> tuple[bytes, int]:
    """Encodes records as one commit that begins at this byte of its segment; returns the next chain, too."""
    lengths = struct.pack(f"!{len(records)}I", *map(len, records))
    body = b"".join((lengths, *records))
    body = _COMMIT.pack(COMMIT_MAGIC, len(body), first, len(records), replaces) + body
    salt = chain + at // SECTOR * _PLACES
    pack = _SUM.pack
    if len(body) <= CONTENT:
        body = body.ljust(CONTENT, b"\0")
        check = pack(crc32(body, salt & _MASK))
        return body + check, crc32(check, chain)
    body += bytes(-len(body) % CONTENT)
    sectors: list[bytes] = []
    sums: list[bytes] = []
    for start in range(0, len(body), CONTENT):
        content = body[start : start + CONTENT]
        check = pack(crc32(content, salt & _MASK))
        salt += _PLACES
        sectors += (content, check)
        sums.append(check)
    return b"".join(sectors), crc32(b"".join(sums), chain)


def name_segment(number: int) -> str:
    return f"{number:08d}.log"


def list_segments(files: Files) -> list[str]:
    """The segments in a folder, oldest first."""
    return [name for name in files.list() if _NAME.fullmatch(name)]


def scan_log(files: Files, folder: int | None = None) -> Scan:
    """Reads a whole log of a folder (None: of any). Changes nothing."""
    names = list_segments(files)
    images = [(name, read_file(files, name) or b"") for name in names]
    for name, data in images:
        _check_format(f"{files.path}/{name}", data)
    snapshots = [index for index, (_, data) in enumerate(images) if _begins_with_snapshot(data)]
    start = snapshots[-1] if snapshots else 0
    scanner = _Scanner(files.path, folder, must_begin=not snapshots)
    try:
        for index in range(start, len(images)):
            scanner.read_segment(*images[index], is_last=index == len(images) - 1)
    except _DoubtfulLogError as doubt:
        scanner.doubt = str(doubt)
    return Scan(
        scanner.records,
        scanner.number or 1,
        scanner.chain,
        names[start:],
        names[:start],
        scanner.end,
        scanner.torn,
        scanner.doubt,
    )


def describe_missing_end(path: str, next_number: int, remembered: int) -> str:
    """What is wrong with a log that ends before a record that was durable once, as a sentence; "" if it does not."""
    if next_number > remembered:
        return ""
    return f"{path}: its log ends with record {next_number - 1}; it had record {remembered}"


class _Scanner:
    """Reads segments one after the other."""

    def __init__(self, path: str, folder: int | None, must_begin: bool) -> None:
        self._path = path
        self._folder = folder
        self._must_begin = must_begin
        """No snapshot was found: the first segment must be the beginning of the log."""
        self.records: list[bytes] = []
        self.number = 0
        """The number of the next record; 0 before the first segment."""
        self.chain = 0
        self.end = 0
        self.torn = 0
        self.doubt = ""

    def read_segment(self, name: str, data: bytes, is_last: bool) -> None:
        file = f"{self._path}/{name}"
        head = read_head(data)
        if head is None:
            if not is_last or data.rstrip(b"\0"):
                raise _DoubtfulLogError(f"{file}: its first sector is damaged")
            self.end = 0
            return
        self._check_head(file, head)
        self.number, self.chain, self.end = head.first, head.chain, FIRST_COMMIT
        while (commit := read_commit(data, self.end, self.chain)) is not None:
            # Records that a snapshot replaced before they were written have numbers, too.
            if commit.first < self.number or (commit.first > self.number and not commit.replaces):
                break
            if commit.replaces:
                self.records.clear()
            self.records += commit.records
            self.number = commit.first + len(commit.records)
            self.end, self.chain = commit.end, commit.chain
        self._check_rest(file, data, is_last)

    def _check_head(self, file: str, head: Head) -> None:
        if self._folder is not None and head.folder != self._folder:
            raise _DoubtfulLogError(f"{file}: a segment of folder {head.folder}; expected one of folder {self._folder}")
        if self.number == 0 and self._must_begin and not head.begins:
            raise _DoubtfulLogError(
                f"{file}: begins with record {head.first} and without a valid snapshot; a segment is missing or damaged"
            )
        if self.number and (head.first, head.chain) != (self.number, self.chain):
            raise _DoubtfulLogError(
                f"{file}: begins with record {head.first}; expected {self.number} and the chain of the segment before;"
                f" a segment is missing or damaged"
            )

    def _check_rest(self, file: str, data: bytes, is_last: bool) -> None:
        """Counts the bytes of a torn commit behind the last valid one; doubts everything else."""
        rest = data[self.end :].rstrip(b"\0")
        if not rest:
            return
        if not is_last:
            raise _DoubtfulLogError(f"{file}: damaged at byte {self.end}, and later segments exist")
        for place in range(self.end, self.end + len(rest), SECTOR):
            sector = data[place : place + SECTOR]
            if _is_rotten(sector, place, self.chain):
                raise _DoubtfulLogError(
                    f"{file}: damaged at byte {place}, behind the last valid commit at byte {self.end}"
                )
        self.torn = len(rest)


def _check_format(file: str, data: bytes) -> None:
    """Refuses a segment of another version, whose records have other names. A damaged version number of this one is
    damage: all else in the sector is right."""
    version = data[len(_FAMILY) : len(MAGIC)]
    if not data.startswith(_FAMILY) or not version.isdigit() or int(version) == FORMAT:
        return
    if read_head(MAGIC + data[len(MAGIC) :]) is None:
        raise UsageError(f"{file}: a log of format {int(version)}; expected format {FORMAT}: {START_AGAIN}")


def read_head(data: bytes) -> Head | None:
    """The head of a segment, given by its first sector; None if it is damaged."""
    content, check = data[:CONTENT], data[CONTENT:SECTOR]
    if len(check) < _SUM.size or not content.startswith(MAGIC) or _SUM.pack(crc32(content)) != check:
        return None
    _, folder, first, chain, flags = _HEAD.unpack_from(content)
    return Head(folder, first, chain, bool(flags & BEGINS))


def _begins_with_snapshot(data: bytes) -> bool:
    """Whether the first commit of a segment is valid and replaces all before it."""
    head = read_head(data)
    commit = None if head is None else read_commit(data, FIRST_COMMIT, head.chain)
    return commit is not None and commit.replaces


def _is_valid(sector: bytes, place: int, chain: int) -> bool:
    salt = (chain + place // SECTOR * _PLACES) & _MASK
    return len(sector) == SECTOR and _SUM.pack(crc32(sector[:CONTENT], salt)) == sector[CONTENT:]


def _is_rotten(sector: bytes, place: int, chain: int) -> bool:
    """Whether a sector is neither what the next commit wrote there nor what was there before."""
    return bool(sector.strip(b"\0")) and not _is_valid(sector, place, chain)


def read_commit(data: bytes, at: int, chain: int, start: int = 0) -> Commit | None:
    """The commit at a byte of a segment, if all its sectors are valid there. The data may be a part of the segment that
    begins at byte `start`."""
    at -= start
    if not _is_valid(data[at : at + SECTOR], start + at, chain):
        return None
    magic, length, first, count, flags = _COMMIT.unpack_from(data, at)
    end = at + -(-(_COMMIT.size + length) // CONTENT) * SECTOR
    if magic != COMMIT_MAGIC or length < 4 * count or end > len(data):
        return None
    contents, sums = [], []
    for place in range(at, end, SECTOR):
        sector = data[place : place + SECTOR]
        if not _is_valid(sector, start + place, chain):
            return None
        contents.append(sector[:CONTENT])
        sums.append(sector[CONTENT:])
    body = b"".join(contents)
    records = []
    place = _COMMIT.size + 4 * count
    for size in struct.unpack_from(f"!{count}I", body, _COMMIT.size):
        records.append(body[place : place + size])
        place += size
    return Commit(first, bool(flags & REPLACES), records, start + end, crc32(b"".join(sums), chain))


def measure_stored_commit(sector: bytes) -> int:
    """How many bytes the commit takes that begins with this sector, which may be damaged."""
    length = _COMMIT.unpack_from(sector)[1] if len(sector) == SECTOR else 0
    return -(-(_COMMIT.size + length) // CONTENT) * SECTOR
