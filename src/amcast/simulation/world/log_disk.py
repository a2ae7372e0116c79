"""A simulated disk whose records live in the real log, on simulated files.

A start goes through the recovery of a live node. The disk remembers what it must find: a sound log with fewer or other
records than were acknowledged is a violation, and so is doubt about a log that a power cut has merely torn. Doubt about
a damaged folder, or one that is behind what its owner has promised, is right: the process then starts without records,
as if its operator and its group had looked.
"""

import contextlib
from collections.abc import Callable
from random import Random
from typing import Final

import msgspec

from amcast.kernel.effects import Persist
from amcast.kernel.events import Started
from amcast.kernel.folder import FolderState
from amcast.kernel.ids import ProcessId
from amcast.kernel.message import Record
from amcast.simulation.world.disk import Disk
from amcast.simulation.world.simulated_files import PowerCutError, SimulatedFiles
from amcast.storage.errors import DamagedLogError
from amcast.storage.folder import StorageFolder

_OPERATIONS: Final = 12
"""A power cut happens within as many file operations; a commit that begins a segment takes about ten."""

_encode: Final[Callable[[Record], bytes]] = msgspec.msgpack.Encoder().encode


class LogDisk(Disk):
    """The data folder of one process."""

    __slots__ = (
        "_copy",
        "_cut",
        "_folder",
        "_folders",
        "_incarnation",
        "_is_behind",
        "_is_old",
        "_is_rotten",
        "_known",
        "_opened",
        "_process",
        "_segment_bytes",
        "_unconfirmed",
        "_written",
        "files",
    )

    def __init__(self, process: ProcessId, segment_bytes: int) -> None:
        super().__init__()
        self._process = process
        self._segment_bytes = segment_bytes
        self.files = SimulatedFiles(f"process-{process}")
        self._folder: StorageFolder | None = None
        """None while the process is down."""
        self._folders = 0
        """How many folders were created here."""
        self._incarnation = -1
        self._opened = 0
        """The last incarnation of the folder with this number."""
        self._known: dict[bytes, Record] = {}
        """Records by their encoding."""
        self._written = 0
        """How many of the next waiting records are on the disk: a group is written at once."""
        self._unconfirmed: list[Persist] = []
        """Records that were being written when the process crashed: all of them may be durable, or none."""
        self._is_rotten = False
        """A bit was flipped since the last start: the folder may be doubtful."""
        self._is_behind = False
        """Writes were lost, or an older copy was put back: the folder may be sound and lack records."""
        self._cut = 0
        """Above 0: the power is cut during the next start, and the number draws when and what the disk keeps."""
        self._copy: dict[str, bytes] | None = None
        """An operator's copy of the folder; at first, of the one that the first start has made."""
        self._is_old = False
        """The copy is put back when the process is down."""

    def store(self, effect: Persist, limit: int = 1) -> None:
        if self._written == 0:
            group = self.list_writable(max(1, limit))
            try:
                self._write(group)
            except OSError:
                self._unconfirmed = group
                raise
            self._written = len(group)
        self._written -= 1
        super().store(effect)

    def crash(self, kept: int, torn: int = 0) -> None:
        group = self.list_writable(kept)
        self._written = 0
        if torn:
            # Often just before the commit is synced: then its sectors are torn.
            self.files.cuts_commit = torn % 2 == 1
            self.files.operations_left = -1 if self.files.cuts_commit else torn // 2 % _OPERATIONS
        try:
            if group:
                self._write(group)
        except (PowerCutError, OSError):
            pass
        self._unconfirmed += group
        if torn:
            self.files.cut_power(Random(torn))
        else:
            self.files.kill_process()
        self._folder = None
        if self._is_old:
            self._put_back()
        self.waiting.clear()
        self.busy = False

    def erase(self) -> None:
        super().erase()
        self._unconfirmed = []
        self.files.empty()

    def start(self, incarnation: int) -> tuple[Started, str | None]:
        """Recovers from the folder."""
        self.doubt = ""
        if self._cut:
            self._cut_start()
        fault = self._recover()
        if self._copy is None:
            self._copy = self.files.copy()
        self._unconfirmed = []
        self._is_rotten = self._is_behind = self.files.has_lost_writes
        return Started(tuple(self.records), incarnation), fault

    @property
    def can_start(self) -> bool:
        return not self.files.is_full

    @property
    def state(self) -> FolderState:
        """What the open folder says of itself."""
        assert self._folder is not None, "the process is down"
        return self._folder.state

    # Faults

    def damage(self, kind: str, draw: int) -> bool:
        """Performs a disk fault (`actions.DiskFault`); False if it does not apply."""
        match kind:
            case "short":
                self.files.short_writes = 1 + draw % 4
                self.files.short_reads = 1 + draw % 5
            case "lost":
                self.files.lost_writes = 1 + draw % 3
                self._is_behind = self._is_rotten = True
            case "rot":
                self._is_rotten = self.files.flip_bit(Random(draw))
                return self._is_rotten
            case "full":
                self.files.is_full = True
            case "space":
                self.files.is_full = False
            case "cut":
                self._cut = 1 + draw
            case "copy":
                self._copy = self.files.copy()
            case "old":
                if self._copy is None:
                    return False
                self._is_behind = True
                self._is_old = True
                if self._folder is None:
                    self._put_back()
        return True

    # Inside

    def _put_back(self) -> None:
        """Puts the operator's copy back."""
        assert self._copy is not None
        self.files.put_back(self._copy)
        self._is_old = False

    def _write(self, group: list[Persist]) -> None:
        assert self._folder is not None, "the process is down"
        assert self._folder.log is not None
        encoded = []
        for effect in group:
            # Padding, so that small records fill several sectors and segments.
            data = _encode(effect.record) + b"\xc1" * (600 + len(self._known) * 337 % 1400)
            self._known[data] = effect.record
            encoded.append((data, effect.replaces))
        self._folder.log.write(encoded)

    def _cut_start(self) -> None:
        """Cuts the power while the folder is opened."""
        self.files.operations_left = self._cut % (2 * _OPERATIONS)
        with contextlib.suppress(PowerCutError, DamagedLogError):
            StorageFolder(self.files, self._draw_folder, segment_bytes=self._segment_bytes)
        self.files.cut_power(Random(self._cut))
        self._cut = 0

    def _draw_folder(self) -> int:
        self._folders += 1
        return self._process << 16 | self._folders

    def _recover(self) -> str | None:
        """Opens the folder and takes its records over; returns what is wrong with the storage code."""
        try:
            folder = self._folder = StorageFolder(self.files, self._draw_folder, segment_bytes=self._segment_bytes)
        except DamagedLogError as error:
            # Both identity files: the operator empties the folder.
            self.erase()
            self._recover()
            return None if self._is_rotten else f"cannot open a folder that nothing has damaged: {error}"
        assert folder.log is not None
        last, self._incarnation = self._incarnation, folder.incarnation
        if folder.incarnation <= last and not self._is_behind and folder.state.folder == self._opened:
            return f"begins incarnation {folder.incarnation} of its folder again"
        self._opened = folder.state.folder
        if folder.log.doubt:
            self.doubt = folder.log.doubt
            folder.discard()
            self.records = []
            return None if self._is_rotten else f"doubts a log that nothing has damaged: {self.doubt}"
        found = [self._known.get(data) for data in folder.log.take_records()]
        if found == self.records:
            return None
        promised = len(self.records)
        for effect in self._unconfirmed:
            Disk.store(self, effect)
        if found == self.records:
            return None
        self.records = []
        folder.discard()
        if self._is_behind:
            return None
        return f"recovered {len(found)} records that differ from the {promised} that were acknowledged"
