"""A scrubber reads the segments of a log again while the log is in use: rot is found before the records are needed.

It verifies what recovery verifies: the head of each segment, every commit, the chain from one commit to the next and
from one segment to the next. It reads up to the last commit that was durable when the pass began, so it never reads
what is being written. A segment that a snapshot has replaced meanwhile is left out.

Each call of `check_next` reads one commit, and returns how many bytes; the caller decides how many it reads per second.
"""

from collections.abc import Callable
from typing import Final

from amcast.storage import segments
from amcast.storage.files import File, Files, read_range
from amcast.storage.log import LogEnd

WINDOW_BYTES: Final = 64 << 10
"""How much is read at once, unless a commit is larger."""


class Scrubber:
    """Reads one log, pass after pass."""

    def __init__(self, files: Files, folder: int, read_end: Callable[[], LogEnd]) -> None:
        """`read_end` returns where the last durable commit of the log ends."""
        self._files = files
        self._folder = folder
        self._read_end = read_end
        self.passes = 0
        """How many times the whole log was read."""
        self.bytes = 0
        """How many bytes were verified."""
        self.damage = ""
        """What is damaged, as a sentence; "" if the last pass has found nothing. Damage that a snapshot has replaced is
        forgotten by the next pass."""
        self._found: list[str] = []
        """Damage that this pass has found."""
        self._names: list[str] | None = None
        """Segments that this pass has not read yet; None between two passes."""
        self._end = LogEnd(0, 0)
        self._file: File | None = None
        self._name = ""
        self._size = 0
        self._at = 0
        """Where the next commit begins in the segment."""
        self._is_rest = False
        """All commits of the segment were read."""
        self._number = 0
        """The number of the next record; 0 before the first segment, and after one that is damaged."""
        self._chain = 0
        self._window = b""
        self._window_start = 0

    def check_next(self) -> int:
        """Verifies the next commit, or the head of the next segment; returns how many bytes that were, 0 at the end of
        a pass."""
        if self._names is None:
            self._end = self._read_end()
            last = segments.name_segment(self._end.segment)
            self._names = [name for name in segments.list_segments(self._files) if name <= last]
            self._number = 0
        while self._file is None or self._is_at_end():
            self.close()
            if not self._names:
                self._finish_pass()
                return 0
            self._open_segment(self._names.pop(0))
        try:
            check = self._check_rest if self._is_rest else self._check_commit if self._at else self._check_head
            count = check()
        except OSError as error:
            count = segments.SECTOR
            self._report(f"cannot be read at byte {self._at}: {error}")
        self.bytes += count
        return count

    def close(self) -> None:
        """Closes the segment that is being read."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _finish_pass(self) -> None:
        self._names = None
        self.passes += 1
        self.damage = "; ".join(self._found)
        self._found = []

    def _open_segment(self, name: str) -> None:
        try:
            self._file = self._files.open(name)
        except FileNotFoundError:
            self._number = 0
            return
        self._file.forget_cached()
        self._name, self._size, self._at = name, self._file.size(), 0
        self._is_rest = False
        self._window = b""

    def _is_last(self) -> bool:
        return self._name == segments.name_segment(self._end.segment)

    def _is_at_end(self) -> bool:
        return self._at >= (self._end.at if self._is_last() else self._size)

    def _check_head(self) -> int:
        head = segments.read_head(self._read(segments.SECTOR))
        if head is None:
            self._report("its first sector is damaged")
        elif head.folder != self._folder:
            self._report(f"a segment of folder {head.folder}; expected one of folder {self._folder}")
        elif self._number and (head.first, head.chain) != (self._number, self._chain):
            self._report("it does not continue the segment before it")
        else:
            self._number, self._chain, self._at = head.first, head.chain, segments.FIRST_COMMIT
        return segments.SECTOR

    def _check_commit(self) -> int:
        sector = self._read(segments.SECTOR)
        size = segments.measure_stored_commit(sector)
        commit = segments.read_commit(self._read(size), self._at, self._chain, start=self._at)
        if commit is not None and self._is_next(commit):
            self._number = commit.first + len(commit.records)
            self._chain, self._at = commit.chain, commit.end
            return size
        if self._is_last() or sector.strip(b"\0"):
            self._report(f"damaged at byte {self._at}")
        self._is_rest = True
        return segments.SECTOR

    def _is_next(self, commit: segments.Commit) -> bool:
        """Whether the numbers of a commit's records continue those before it; a snapshot may leave some out."""
        return commit.first == self._number or (commit.replaces and commit.first > self._number)

    def _check_rest(self) -> int:
        """Verifies that zeros follow the last commit of a segment; that it is the last one shows the next segment."""
        data = self._read(WINDOW_BYTES)
        if data.strip(b"\0"):
            self._report(f"damaged behind byte {self._at}")
        self._at += len(data)
        return len(data)

    def _read(self, size: int) -> bytes:
        """Reads at the current place; less than asked only at the end of the segment."""
        assert self._file is not None
        size = min(size, self._size - self._at)
        skipped = self._at - self._window_start
        if not self._window or skipped < 0 or skipped + size > len(self._window):
            self._window = read_range(self._file, min(max(size, WINDOW_BYTES), self._size - self._at), self._at)
            self._window_start, skipped = self._at, 0
        return self._window[skipped : skipped + size]

    def _report(self, sentence: str) -> None:
        """Notes damage, and leaves the rest of the segment out. A segment that was removed meanwhile is not damaged: a
        snapshot has replaced it."""
        if self._name in segments.list_segments(self._files):
            self._found.append(f"{self._files.path}/{self._name}: {sentence}")
            self.damage = self.damage or self._found[-1]
        self._number = 0
        self.close()
