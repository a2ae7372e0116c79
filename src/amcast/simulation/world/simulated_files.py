"""Files in memory that a power cut tears and faults damage: the simulator's implementation of `storage/files.py`.

Readers see what was written last. The disk has what was synced; of each sector that was written since, a power cut
keeps the new content or the old one. Directories are journaled: a power cut keeps a prefix of what was created, renamed
and removed since the last sync. A sector is written whole or not at all.
"""

import errno
from random import Random
from typing import Final

from amcast.kernel.errors import Error

SECTOR: Final = 512


class PowerCutError(Error):
    """The machine stops in the middle of a file operation."""


class _Content:
    """The bytes of one file, and what the disk has instead of them."""

    __slots__ = ("cached", "data", "lost", "partial", "size", "unsynced")

    def __init__(self) -> None:
        self.data = bytearray()
        self.size = 0
        """The length that is durable."""
        self.unsynced: dict[int, bytes] = {}
        """Place of a sector that was written since the last sync -> its content on the disk."""
        self.lost: dict[int, bytes] = {}
        """The same for sectors that the disk claims to have written, and has not."""
        self.cached: dict[int, bytes] = {}
        """The same for sectors whose sync has failed: readers see them until the memory is needed for others."""
        self.partial = -1
        """Place of a sector that a short write has filled in part: the disk does not get it before the rest."""

    def write(self, data: bytes, at: int, is_lost: bool) -> None:
        end = at + len(data)
        if end > len(self.data):
            self.data.extend(bytes(end - len(self.data)))
        for place in range(at - at % SECTOR, end, SECTOR):
            old = self.cached.pop(place, bytes(self.data[place : place + SECTOR]))
            if is_lost:
                self.lost.setdefault(place, self.unsynced.pop(place, old))
            else:
                self.unsynced.setdefault(place, self.lost.pop(place, old))
        self.data[at:end] = data
        self.partial = end - end % SECTOR if end % SECTOR and end < len(self.data) else -1

    def resize(self, size: int) -> None:
        if size < len(self.data):
            for place in range(size - size % SECTOR, len(self.data), SECTOR):
                self.unsynced.setdefault(place, bytes(self.data[place : place + SECTOR]))
            del self.data[size:]
        else:
            self.data.extend(bytes(size - len(self.data)))

    def cut_power(self, random: Random) -> None:
        """Keeps of what was not synced a part that is drawn."""
        size = random.choice((self.size, len(self.data)))
        share = random.choice((0.0, 0.5, 0.5, 1.0))
        for place, old in sorted(self.unsynced.items()):
            if random.random() >= share or place == self.partial:
                self._put_back(place, old)
        self.drop(self.lost)
        self.drop(self.cached)
        self.resize(size)
        self.size = size
        self.unsynced.clear()
        self.partial = -1

    def sync(self) -> None:
        self.unsynced.clear()
        self.size = len(self.data)

    def fail_sync(self) -> None:
        """What was written stays in memory, is not on the disk, and is not tried again."""
        for place, old in self.unsynced.items():
            self.cached.setdefault(place, old)
        self.sync()

    def drop(self, sectors: dict[int, bytes]) -> None:
        """Gives sectors the content that the disk has instead."""
        for place, old in sorted(sectors.items()):
            self._put_back(place, old)
        sectors.clear()

    def _put_back(self, place: int, old: bytes) -> None:
        if place + len(old) > len(self.data):
            self.data.extend(bytes(place + len(old) - len(self.data)))
        self.data[place : place + len(old)] = old


class SimulatedFile:
    """An open file of a simulated folder."""

    __slots__ = ("_content", "_folder")

    def __init__(self, folder: "SimulatedFiles", content: _Content) -> None:
        self._folder = folder
        self._content = content

    def read_at(self, size: int, at: int) -> bytes:
        folder = self._folder
        if folder.short_reads and size > 1:
            folder.short_reads -= 1
            size = max(1, min(size, len(self._content.data) - at) // 2)
        return bytes(self._content.data[at : at + size])

    def write_at(self, data: bytes | memoryview, at: int) -> int:
        folder = self._folder
        folder.count_operation()
        part = bytes(data[: folder.take_space(folder.shorten(len(data)))])
        self._content.write(part, at, folder.take_lost_write())
        if folder.cuts_commit and at >= SECTOR:
            folder.operations_left = 0
        return len(part)

    def sync(self) -> None:
        self._folder.count_operation()
        if self._folder.takes_failing_sync():
            self._content.fail_sync()
            raise OSError(errno.EIO, "the simulated disk cannot be written")
        self._content.sync()

    def size(self) -> int:
        return len(self._content.data)

    def truncate(self, size: int) -> None:
        self._folder.count_operation()
        self._content.resize(size)

    def allocate(self, size: int) -> None:
        self._folder.count_operation()
        if size > len(self._content.data):
            self._folder.check_space()
            self._content.resize(size)

    def forget_cached(self) -> None:
        self._content.drop(self._content.cached)

    def close(self) -> None:
        pass


class SimulatedFiles:
    """The files of one simulated folder, with the faults that are pending."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._entries: dict[str, _Content] = {}
        self._journal: list[dict[str, _Content]] = []
        """The entries before each change of the directory that was not synced."""
        self.operations_left = -1
        """How many operations are done before the power is cut; -1: it is not."""
        self.cuts_commit = False
        """The power is cut right after the next write behind the first sector of a file."""
        self.short_writes = 0
        """How many of the next writes do only a part of what they are asked; ..."""
        self.short_reads = 0
        """... and how many of the next reads."""
        self.lost_writes = 0
        """How many of the next writes the disk claims to have done, and has not."""
        self.failing_syncs = 0
        """How many of the next syncs of files fail."""
        self.space_left = -1
        """How many bytes can still be written; -1: any number. Nothing grows any more where it is limited."""

    def create(self, name: str) -> SimulatedFile:
        self._change_entries()
        self.check_space()
        assert name not in self._entries, f"{name} exists"
        self._entries[name] = _Content()
        return SimulatedFile(self, self._entries[name])

    def open(self, name: str) -> SimulatedFile:
        if name not in self._entries:
            raise FileNotFoundError(name)
        return SimulatedFile(self, self._entries[name])

    def list(self) -> list[str]:
        return sorted(self._entries)

    def rename(self, old: str, new: str) -> None:
        self._change_entries()
        self._entries[new] = self._entries.pop(old)

    def remove(self, name: str) -> None:
        if name in self._entries:
            self._change_entries()
            del self._entries[name]

    def sync(self) -> None:
        self.count_operation()
        self._journal.clear()

    def lock(self) -> None:
        pass

    def unlock(self) -> None:
        pass

    # Faults

    def cut_power(self, random: Random) -> None:
        """Loses a drawn part of what was not synced."""
        self.operations_left = -1
        self.cuts_commit = False
        if self._journal:
            self._entries = random.choice([*self._journal, self._entries])
            self._journal.clear()
        for name in sorted(self._entries):
            self._entries[name].cut_power(random)

    def kill_process(self) -> None:
        """Ends the process that uses the files: what it wrote stays, and what the disk lost is gone."""
        self.operations_left = -1
        for content in self._entries.values():
            content.drop(content.lost)

    def flip_bit(self, random: Random) -> bool:
        """Flips one bit of what was written; False if nothing was."""
        data = self._choose_file(random)
        if not data:
            return False
        data[_choose_byte(data, random)] ^= 1 << random.randrange(8)
        return True

    def zero_sector(self, random: Random) -> None:
        """Gives a sector of what was written the content that it had before the first write."""
        data = self._choose_file(random)
        if data:
            at = _choose_byte(data, random) // SECTOR * SECTOR
            data[at : at + SECTOR] = bytes(len(data[at : at + SECTOR]))

    def _choose_file(self, random: Random) -> bytearray:
        """The content of a file in which something was written; empty if there is none."""
        contents = [content.data for _, content in sorted(self._entries.items()) if content.data.rstrip(b"\0")]
        return random.choice(contents) if contents else bytearray()

    def empty(self) -> None:
        """Removes all files."""
        self._entries = {}
        self._journal.clear()

    def copy(self) -> dict[str, bytes]:
        """An operator's copy of all files."""
        return {name: bytes(content.data) for name, content in sorted(self._entries.items())}

    def put_back(self, copy: dict[str, bytes]) -> None:
        """Replaces all files by a copy."""
        self.empty()
        for name, data in copy.items():
            content = self._entries[name] = _Content()
            content.data = bytearray(data)
            content.size = len(data)

    @property
    def has_lost_writes(self) -> bool:
        """Whether something is on the disk, or will be, that the next power cut shows to be missing."""
        return self.lost_writes > 0 or any(content.lost for content in self._entries.values())

    # For open files

    def count_operation(self) -> None:
        if self.operations_left == 0:
            raise PowerCutError(self.path)
        self.operations_left -= self.operations_left > 0

    def check_space(self) -> None:
        if self.space_left >= 0:
            raise OSError(errno.ENOSPC, "the simulated disk is full")

    def take_space(self, size: int) -> int:
        """How many of `size` bytes fit."""
        if self.space_left < 0:
            return size
        fits = min(size, self.space_left)
        if fits == 0:
            self.check_space()
        self.space_left -= fits
        return fits

    def shorten(self, size: int) -> int:
        """How much of `size` bytes the next operation does: all, or a part."""
        if self.short_writes == 0 or size < 2:
            return size
        self.short_writes -= 1
        return size // 2

    def take_lost_write(self) -> bool:
        is_lost = self.lost_writes > 0
        self.lost_writes -= is_lost
        return is_lost

    def takes_failing_sync(self) -> bool:
        is_failing = self.failing_syncs > 0
        self.failing_syncs -= is_failing
        return is_failing

    def _change_entries(self) -> None:
        self.count_operation()
        self._journal.append(dict(self._entries))


def _choose_byte(data: bytearray, random: Random) -> int:
    """A byte that was written. What was written last decides whether damage passes for a torn tail."""
    written = len(data.rstrip(b"\0"))
    return random.randrange(max(0, written - SECTOR), written) if random.random() < 0.5 else random.randrange(written)
