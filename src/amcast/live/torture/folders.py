"""Damage to the data folder of a node that is stopped, as disks, power cuts and operators do it."""

import random
import shutil
from pathlib import Path
from typing import Final, NamedTuple

from amcast.live.storage.system_files import SystemFiles
from amcast.storage import segments
from amcast.storage.identity import FILES as IDENTITY_FILES
from amcast.storage.identity import read_identity

JOURNAL: Final = "application"
"""The folder of the journal of a hosted program, inside of the data folder."""
TORN_BYTES: Final = (600, 6000)
"""The size of the record in a torn commit: at least two sectors."""
ZEROED_SHARE: Final = 0.25
"""How much of the rot is lost sectors."""


class FlippedBit(NamedTuple):
    """A bit of a file that was flipped."""

    file: Path
    byte: int
    bit: int

    def flip(self) -> None:
        """Flips the bit, or flips it back."""
        with self.file.open("r+b") as file:
            file.seek(self.byte)
            value = file.read(1)[0] ^ 1 << self.bit
            file.seek(self.byte)
            file.write(bytes([value]))

    def __str__(self) -> str:
        return f"bit {self.bit} of byte {self.byte} in {self.file.parent.name}/{self.file.name}"


class ZeroedSector(NamedTuple):
    """A sector of a log that a disk has lost: it reads as zeros, as before it was written."""

    file: Path
    byte: int
    content: bytes

    def flip(self) -> None:
        """Loses the sector, or brings it back."""
        with self.file.open("r+b") as file:
            file.seek(self.byte)
            lost = bytes(len(self.content))
            is_lost = file.read(len(lost)) == lost
            file.seek(self.byte)
            file.write(self.content if is_lost else lost)

    def __str__(self) -> str:
        return f"the sector at byte {self.byte} is zero in {self.file.parent.name}/{self.file.name}"


Rot = FlippedBit | ZeroedSector


def choose_rot(folder: Path, rng: random.Random) -> Rot:
    """Draws damage to a data folder: a bit, or a sector of a log that is not in the last commit (a commit of which
    sectors are missing may never have become durable)."""
    if rng.random() < ZEROED_SHARE:
        scan = segments.scan_log(SystemFiles(folder))
        file = folder / rng.choice(scan.files)
        data = file.read_bytes()
        starts = _find_commits(data)
        until = starts[-1] if file.name == scan.files[-1] and starts else len(data.rstrip(b"\0"))
        places = range(segments.FIRST_COMMIT, until, segments.SECTOR)
        if places:
            place = rng.choice(places)
            return ZeroedSector(file, place, data[place : place + segments.SECTOR])
    return choose_bit(folder, rng)


def _find_commits(data: bytes) -> list[int]:
    """Where the commits of a segment begin."""
    head = segments.read_head(data)
    starts, at, chain = [], segments.FIRST_COMMIT, 0 if head is None else head.chain
    while (commit := segments.read_commit(data, at, chain)) is not None:
        starts.append(at)
        at, chain = commit.end, commit.chain
    return starts


def choose_bit(folder: Path, rng: random.Random) -> FlippedBit:
    """Draws a bit of a log: in the last commit, anywhere between, in the head of a segment, or in the journal of the
    hosted program; or one of an identity file, of which there are two."""
    place = rng.choice(("last commit", "last commit", "middle", "middle", "head", "journal", "identity"))
    journal = folder / JOURNAL
    if place == "journal" and segments.list_segments(SystemFiles(journal)):
        folder, place = journal, "middle"
    if place == "identity":
        file = folder / rng.choice(IDENTITY_FILES)
        return FlippedBit(file, rng.randrange(file.stat().st_size), rng.randrange(8))
    scan = segments.scan_log(SystemFiles(folder))
    name = scan.files[-1] if place == "last commit" else rng.choice(scan.files)
    end = scan.end if name == scan.files[-1] else (folder / name).stat().st_size
    low, high = 0, segments.SECTOR
    if place != "head" and end > segments.FIRST_COMMIT:
        low, high = (max(end - segments.SECTOR, segments.FIRST_COMMIT) if place == "last commit" else 0), end
    return FlippedBit(folder / name, rng.randrange(low, high), rng.randrange(8))


def tear_log(folder: Path, rng: random.Random) -> int:
    """Leaves what a power cut leaves of the commit that was written then: some of its sectors; the others have their
    old content, zeros. Returns how many sectors there are."""
    files = SystemFiles(folder)
    identity = read_identity(files)
    scan = segments.scan_log(files, None if identity is None else identity.folder)
    if scan.doubt or scan.end == 0:
        return 0
    record = rng.randbytes(rng.randint(*TORN_BYTES))
    data, _ = segments.encode_commit(scan.next_number, [record], False, scan.chain, scan.end)
    places = range(0, len(data), segments.SECTOR)
    kept = rng.sample(places, rng.randint(1, len(places) - 1))
    with (folder / scan.files[-1]).open("r+b") as file:
        for place in kept:
            file.seek(scan.end + place)
            file.write(data[place : place + segments.SECTOR])
    return len(kept)


def copy_folder(folder: Path, copy: Path) -> None:
    """Copies a data folder; an older copy is replaced."""
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(folder, copy)


def put_back(copy: Path, folder: Path) -> None:
    """Puts an older copy in the place of a data folder."""
    shutil.rmtree(folder)
    copy.rename(folder)
