"""The file interface of durable storage, implemented by the operating system. Only the owner can read the files."""

import contextlib
import errno
import fcntl
import os
from pathlib import Path

from amcast.kernel.errors import UsageError


class SystemFile:
    """An open file."""

    def __init__(self, number: int) -> None:
        self._number = number

    def read_at(self, size: int, at: int) -> bytes:
        return os.pread(self._number, size, at)

    def write_at(self, data: bytes | memoryview, at: int) -> int:
        return os.pwrite(self._number, data, at)

    def sync(self) -> None:
        os.fdatasync(self._number)

    def size(self) -> int:
        return os.fstat(self._number).st_size

    def truncate(self, size: int) -> None:
        os.ftruncate(self._number, size)

    def allocate(self, size: int) -> None:
        os.posix_fallocate(self._number, 0, size)

    def forget_cached(self) -> None:
        with contextlib.suppress(AttributeError, OSError):  # where the system can
            os.posix_fadvise(self._number, 0, 0, os.POSIX_FADV_DONTNEED)

    def close(self) -> None:
        os.close(self._number)


class SystemFiles:
    """The files of one folder, which need not exist yet."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = str(folder)
        self._lock = -1

    def make_folder(self) -> "SystemFiles":
        """Creates the folder, if there is none, so that only its owner can enter it."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return self

    def create(self, name: str) -> SystemFile:
        return SystemFile(os.open(self.folder / name, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))

    def open(self, name: str) -> SystemFile:
        return SystemFile(os.open(self.folder / name, os.O_RDWR | os.O_NOFOLLOW))

    def list(self) -> list[str]:
        return sorted(entry.name for entry in self.folder.iterdir()) if self.folder.is_dir() else []

    def rename(self, old: str, new: str) -> None:
        (self.folder / old).replace(self.folder / new)

    def remove(self, name: str) -> None:
        (self.folder / name).unlink(missing_ok=True)

    def sync(self) -> None:
        handle = os.open(self.folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # where the system cannot
                raise
        finally:
            os.close(handle)

    def lock(self) -> None:
        number = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(number)
            raise UsageError(
                f"{self.folder}: in use by another process; expected a folder per process (is this node running"
                f" already?)"
            ) from None
        self._lock = number

    def unlock(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1
