"""A disk that is full or slow on purpose: the files of a hosted program that is tortured.

The program reads from a control file what its disk does; the nemesis writes it while the program runs:

    full 1000     after so many more bytes, nothing can be written: the last write is short
    slow 0.02     every write and every sync takes so many seconds longer
"""

import errno
import os
import time
from pathlib import Path
from typing import Final

from amcast.live.storage import system_files
from amcast.live.storage.system_files import SystemFile

RELOAD_S: Final = 0.1


class DiskControl:
    """What the disk of this process does, by its control file."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._read_at = 0.0
        self._text = ""
        self._left: float = float("inf")
        """Bytes that still fit."""
        self.delay_s = 0.0

    def take(self, size: int, is_divisible: bool = True) -> int:
        """How many of so many bytes fit; raises `OSError` if none does, or not all where that is no answer."""
        self._reload()
        fits = int(min(size, self._left))
        if size and (not fits or (fits < size and not is_divisible)):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._left -= fits
        return fits

    def wait(self) -> None:
        """Waits as long as a slow disk does."""
        self._reload()
        if self.delay_s:
            time.sleep(self.delay_s)

    def _reload(self) -> None:
        now = time.monotonic()
        if now - self._read_at < RELOAD_S:
            return
        self._read_at = now
        text = self._file.read_text() if self._file.exists() else ""
        if text != self._text:
            self._text = text
            kind, _, value = text.partition(" ")
            self._left = float(value) if kind == "full" else float("inf")
            self.delay_s = float(value) if kind == "slow" else 0.0


def install_faulty_disk(file: Path) -> None:
    """Makes all later files of this process's data folder obey a control file."""
    control = DiskControl(file)

    class FaultyFile(SystemFile):
        """A file on the faulty disk."""

        def write_at(self, data: bytes | memoryview, at: int) -> int:
            control.wait()
            return super().write_at(data[: control.take(len(data))], at)

        def allocate(self, size: int) -> None:
            control.take(max(size - self.size(), 0), is_divisible=False)
            super().allocate(size)

        def sync(self) -> None:
            control.wait()
            super().sync()

    system_files.SystemFile = FaultyFile  # type: ignore[misc]
