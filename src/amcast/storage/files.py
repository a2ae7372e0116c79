"""The file interface of durable storage. A live node implements it with the operating system, the simulator with
memory and faults, so both run the same log, recovery and allocator.

The system may write or read less than asked, without an error: `write_all`, `read_all` and `read_range` are the only
callers of `write_at` and `read_at`.
"""

import errno
from typing import Final, Protocol

READ_BYTES: Final = 1 << 24
"""How much is read at most with one call."""


class File(Protocol):
    """An open file."""

    def read_at(self, size: int, at: int) -> bytes:
        """Reads at most `size` bytes, perhaps fewer; nothing only at the end of the file."""

    def write_at(self, data: bytes | memoryview, at: int) -> int:
        """Writes the beginning of the data, perhaps not all of it; returns how many bytes."""

    def sync(self) -> None:
        """Makes everything written to the file durable."""

    def size(self) -> int:
        """The length of the file in bytes."""

    def truncate(self, size: int) -> None:
        """Cuts the file at this length."""

    def allocate(self, size: int) -> None:
        """Extends the file with zeros to this length and reserves the space."""

    def forget_cached(self) -> None:
        """Asks the system to read the file from the disk when it is read next, not from memory."""

    def close(self) -> None:
        """Closes the file; what was not synced may still be lost."""


class Files(Protocol):
    """The files of one folder."""

    path: str
    """The folder, for messages."""

    def create(self, name: str) -> File:
        """Creates a file that only its owner can read; raises `FileExistsError` if it exists."""

    def open(self, name: str) -> File:
        """Opens a file; raises `FileNotFoundError` if there is none."""

    def list(self) -> list[str]:
        """The names of all files, sorted; nothing if there is no folder."""

    def rename(self, old: str, new: str) -> None:
        """Renames a file, replacing another one in one step."""

    def remove(self, name: str) -> None:
        """Removes a file; does nothing if there is none."""

    def sync(self) -> None:
        """Makes creations, renamings and removals durable."""

    def lock(self) -> None:
        """Locks the folder until `unlock`; raises `UsageError` if another process has locked it."""

    def unlock(self) -> None:
        """Releases the lock; does nothing without one."""


def write_all(file: File, data: bytes, at: int) -> None:
    """Writes all of the data, or raises `OSError`: a system that makes no progress is full."""
    written = file.write_at(data, at)
    while written < len(data):
        more = file.write_at(memoryview(data)[written:], at + written)
        if more <= 0:
            raise OSError(errno.ENOSPC, f"only {written} of {len(data)} bytes could be written")
        written += more


def read_all(file: File) -> bytes:
    """Reads the whole file."""
    parts = []
    at = 0
    while part := file.read_at(READ_BYTES, at):
        parts.append(part)
        at += len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def read_range(file: File, size: int, at: int) -> bytes:
    """Reads a part of a file; less than asked only at its end."""
    parts = []
    while size > 0 and (part := file.read_at(size, at)):
        parts.append(part)
        at += len(part)
        size -= len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def read_file(files: Files, name: str) -> bytes | None:
    """Reads a file by its name from the disk; None if there is none. What a sync has refused may still be in memory,
    and must not pass for durable."""
    try:
        file = files.open(name)
    except FileNotFoundError:
        return None
    try:
        file.forget_cached()
        return read_all(file)
    finally:
        file.close()
