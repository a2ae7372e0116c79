"""A durable log over the file interface: recovery, commits, segments (`storage/segments.py` describes the files).

A disk that fails, or is full, makes a write raise; the log must not be used after that. What was written in part is
removed.
"""

import contextlib
from collections.abc import Sequence
from typing import Final, NamedTuple

from amcast.storage import segments
from amcast.storage.files import File, Files, write_all

SEGMENT_BYTES: Final = 16 << 20


class LogEnd(NamedTuple):
    """A place in a log."""

    segment: int
    at: int


class Log:
    """The log of one folder. `first` is the number of its first record, if there is no segment yet."""

    def __init__(
        self,
        files: Files,
        folder: int,
        first: int = 1,
        *,
        segment_bytes: int = SEGMENT_BYTES,
        syncs: bool = True,
        must_exist: bool = False,
        remembered: int = 0,
    ) -> None:
        """`remembered`: the number of a record that was durable once."""
        self._files = files
        self._folder = folder
        self._segment_bytes = segment_bytes
        self._syncs = syncs
        self._file: File | None = None
        self._size = 0
        """The size of the last segment."""
        self.is_marked = True
        """Nothing was written since the last marker."""
        scan = segments.scan_log(files, folder)
        self.records = scan.records
        """Of earlier incarnations, until `take_records` returns them."""
        self.doubt = scan.doubt
        """Why durable records may be missing; such a log has no records that may be used, and cannot be written."""
        self.readable: Sequence[bytes] = ()
        """Records before the damage of a doubtful log, for an operator who accepts the loss of the others."""
        self.torn_bytes = scan.torn_bytes
        exists = len(scan.files) > 1 or (len(scan.files) == 1 and scan.end > 0)
        if must_exist and scan.files and not exists and not self.doubt:
            self.doubt = f"{files.path}/{scan.files[0]}: its first sector is missing"
        self.next_number = scan.next_number if exists else first
        self.doubt = self.doubt or segments.describe_missing_end(files.path, self.next_number, remembered)
        self._chain = scan.chain
        self._end = scan.end
        self._segment = int(scan.files[-1][:8]) if scan.files else 0
        self.durable_end = LogEnd(self._segment, self._end)
        """Where the last durable commit ends. It is replaced as a whole: another thread may read it."""
        if self.doubt:
            self.readable, self.records = self.records, []
        else:
            self._repair(scan)

    def take_records(self) -> Sequence[bytes]:
        """Returns the records of earlier incarnations, once."""
        records, self.records = self.records, []
        return records

    def write(self, records: Sequence[tuple[bytes, bool]]) -> None:
        """Makes records durable, each with whether it replaces all before it. A snapshot starts a segment of its own,
        so that all earlier ones can be removed."""
        if not any([replaces for _, replaces in records]):  # noqa: C419, a list is faster
            self._write_commit([record for record, _ in records], replaces=False)
            return
        last = max(i for i, (_, replaces) in enumerate(records) if replaces)
        old = segments.list_segments(self._files)
        self._write_commit([record for record, _ in records[last:]], replaces=True, skipped=last)
        self._remove(old)

    def mark(self) -> None:
        """Writes a commit without records, which proves that all before it was durable; nothing if it is there."""
        if not self.is_marked:
            self._write_commit([], replaces=False)
            self.is_marked = True

    def close(self) -> None:
        """Closes the last segment."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _write_commit(self, records: Sequence[bytes], replaces: bool, skipped: int = 0) -> None:
        size = segments.measure_commit(records)
        if replaces or self._end + size > self._size:
            self._add_segment(size)
        assert self._file is not None, "a doubtful or closed log was written"
        data, chain = segments.encode_commit(self.next_number + skipped, records, replaces, self._chain, self._end)
        try:
            write_all(self._file, data, self._end)
        except OSError:
            self._remove_failed_commit()
            raise
        if self._syncs:
            self._file.sync()
        self._end += len(data)
        self._chain = chain
        self.durable_end = LogEnd(self._segment, self._end)
        self.next_number += skipped + len(records)
        self.is_marked = False

    def _remove_failed_commit(self) -> None:
        """Removes what was written of a commit that a full disk refused: it may end inside of a sector, which the next
        recovery could not tell from rot. If the disk refuses that, too, the log is doubtful then."""
        assert self._file is not None
        with contextlib.suppress(OSError):
            self._file.truncate(self._end)

    # Segments

    def _repair(self, scan: segments.Scan) -> None:
        """Truncates a torn tail and finishes what a crash interrupted."""
        self._remove(scan.obsolete)
        if not scan.files:
            self._add_segment()
            return
        self._file = self._files.open(scan.files[-1])
        self._size = _round_up(max(self._file.size(), self._segment_bytes))
        if scan.torn_bytes or scan.end == 0:
            self._file.truncate(scan.end)
        self._file.allocate(self._size)
        if scan.end == 0:
            self._write_head(begins=len(scan.files) == 1)
        elif self._syncs:
            self._file.sync()

    def _add_segment(self, size: int = 0) -> None:
        begins = self._segment == 0
        self.close()
        self._segment += 1
        self._file = self._files.create(segments.name_segment(self._segment))
        self._size = _round_up(max(self._segment_bytes, segments.FIRST_COMMIT + size))
        self._file.allocate(self._size)
        self._write_head(begins)
        if self._syncs:
            self._files.sync()

    def _write_head(self, begins: bool) -> None:
        assert self._file is not None
        write_all(self._file, segments.encode_head(self._folder, self.next_number, self._chain, begins), 0)
        self._end = segments.FIRST_COMMIT
        if self._syncs:
            self._file.sync()

    def _remove(self, names: Sequence[str]) -> None:
        for name in names:
            self._files.remove(name)
        if names and self._syncs:
            self._files.sync()


def _round_up(size: int) -> int:
    return -(-size // segments.SECTOR) * segments.SECTOR
