"""A simulated disk whose records live in the real log, on simulated files.

A start goes through the recovery of a live node. The disk remembers what it must find: a sound log with fewer or other
records than were acknowledged is a violation, and so is doubt about a log that a power cut has merely torn. Doubt about
a damaged folder is right, and so are missing records where an older copy was put back.

The folder of a node has its identity, too, and what it remembers of other folders: its group decides what a doubtful
folder or an older copy is worth (`parts/node/admission.py`). Writes that the disk has lost just before a crash are more
than a group can notice: here the operator sees the fault and calls the folder doubtful. A bare process has no group
that could decide: it starts without records.

Clients get their ids from servers: the disk allocates some, and no id may be allocated twice.
"""

import contextlib
from collections.abc import Callable
from random import Random
from typing import Final

import msgspec

from amcast.kernel.effects import Persist, Remember
from amcast.kernel.errors import UsageError
from amcast.kernel.events import Started
from amcast.kernel.folder import FolderState, KnownFolder
from amcast.kernel.ids import ProcessId
from amcast.kernel.message import Record
from amcast.simulation.world.disk import Disk
from amcast.simulation.world.simulated_files import SECTOR, PowerCutError, SimulatedFiles
from amcast.storage.client_ids import STRIDE, ClientIdAllocator
from amcast.storage.errors import DamagedLogError
from amcast.storage.folder import StorageFolder
from amcast.storage.identity import Identity, write_identity

FIRST_CLIENT: Final = 1 << 20
LAST_CLIENT: Final = 1 << 24
"""The range of ids that are allocated to clients."""

_OPERATIONS: Final = 12
"""A power cut happens within as many file operations; a commit that begins a segment takes about ten."""

MAX_FAILING: Final = 6
"""Fewer starts than this fail after an older copy was put back."""

_encode: Final[Callable[[Record], bytes]] = msgspec.msgpack.Encoder().encode


class LogDisk(Disk):
    """The data folder of one process."""

    __slots__ = (
        "_allocated",
        "_allocator",
        "_copy",
        "_cut",
        "_failing_starts",
        "_folder",
        "_folders",
        "_has_lost_writes",
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
        "copied",
        "copied_state",
        "files",
        "has_identity",
        "peers",
    )

    def __init__(self, process: ProcessId, segment_bytes: int, has_identity: bool = False) -> None:
        """`has_identity`: the process is a node, whose group admits its folder."""
        super().__init__()
        self.has_identity = has_identity
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
        self._has_lost_writes = False
        """Writes were lost since the last start."""
        self._cut = 0
        """Above 0: the power is cut during the next start, and the number draws when and what the disk keeps."""
        self._copy: dict[str, bytes] | None = None
        """An operator's copy of the folder; at first, of the one that the first start has made."""
        self.copied = 0
        """How many records the copy has, or had before they were replaced."""
        self.copied_state: FolderState | None = None
        """What the folder said of itself when it was copied."""
        self.peers: tuple[KnownFolder, ...] = ()
        """What the folder remembers of others."""
        self._allocator: ClientIdAllocator | None = None
        self._allocated: set[ProcessId] = set()
        """Client ids that were allocated here, and not released."""
        self._is_old = False
        """The copy is put back when the process is down."""
        self._failing_starts = 0
        """In how many starts the copy is opened, and the process crashes before it has asked anybody."""

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
        self._copy = None
        self.peers = ()
        self._is_rotten = self._is_behind = self._has_lost_writes = self.files.has_lost_writes

    def start(self, incarnation: int) -> tuple[Started, str | None]:
        """Recovers from the folder. The incarnation of a node is the one that its folder has counted; an operator who
        replaces the folder gives it this one."""
        self.doubt = ""
        if self._cut:
            self._cut_start()
        fault = self._recover(incarnation)
        folder = self._folder
        assert folder is not None
        if self._copy is None:
            self._take_copy()
        self._unconfirmed = []
        if not self.has_identity or folder.state.condition != "doubtful":
            self._is_rotten = self._is_behind = self._has_lost_writes = self.files.has_lost_writes
        if not self.has_identity:
            return Started(tuple(self.records), incarnation), fault
        self.peers = folder.state.peers
        self._allocator = ClientIdAllocator(self.files, self._process, folder.incarnation, bytes)
        return Started(tuple(self.records), folder.incarnation, folder.state), fault

    def remember(self, effect: Remember) -> None:
        """Makes durable what the node knows of folders; OSError if the disk is full."""
        assert self._folder is not None, "the process is down"
        self._folder.remember(effect.peers, effect.admitted, effect.doubt, effect.divergence)
        self.peers = effect.peers

    def discard(self, records: int, incarnation: int) -> None:
        """Puts the records aside, as a node does whose group sends it its state; the process is about to end."""
        assert self._folder is not None, "the process is down"
        self._folder.discard(records, incarnation)
        self.records = []
        self._is_rotten = self._is_behind = self._has_lost_writes = self.files.has_lost_writes

    def replace(self, incarnation: int) -> None:
        """Prepares an empty folder in place of a lost one, for a start in this incarnation (`amcast replace`). An
        operator whom the disk fails tries again, or takes another one."""
        self.erase()
        self.files.failing_syncs = 0
        write_identity(self.files, Identity(self._draw_folder(), incarnation - 1, is_lost=True))

    def allocate_client_id(self) -> str | None:
        """Gives a client its id; returns what is wrong with it, as the end of a sentence about the process."""
        assert self._allocator is not None, "the process is down, or no node"
        try:
            allocated = self._allocator.allocate(FIRST_CLIENT, LAST_CLIENT)
        except (UsageError, OSError):
            return None  # reservations are lost, or the disk is full: other servers allocate
        if allocated.process in self._allocated:
            return f"allocates client id {allocated.process} again, which a client has"
        self._allocated.add(allocated.process)
        if allocated.process // STRIDE % 3 == 0:
            self._allocated.discard(allocated.process)
            self._allocator.release(allocated.process, allocated.secret, allocated.incarnation, allocated.sequence + 1)
        return None

    @property
    def can_start(self) -> bool:
        return self.files.space_left < 0

    @property
    def is_failing(self) -> bool:
        return self.files.space_left >= 0 or self.files.failing_syncs > 0

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
                self._is_behind = self._is_rotten = self._has_lost_writes = True
            case "rot" if draw % 4 == 0:
                self.files.zero_sector(Random(draw))
                self._is_behind = self._is_rotten = self._has_lost_writes = True
            case "rot":
                self._is_rotten = self.files.flip_bit(Random(draw))
                return self._is_rotten
            case "fail":
                self.files.failing_syncs = 1
            case "full":
                # Less than a commit: its last write ends anywhere, also inside of a sector.
                self.files.space_left = (1 + len(self._known)) * 337 % SECTOR
            case "space":
                self.files.space_left = -1
                self.files.failing_syncs = 0
            case "cut":
                self._cut = 1 + draw
            case "copy":
                if self._folder is None or self._is_old:
                    return False
                self._take_copy()
            case "old":
                if self._copy is None:
                    return False
                self._is_behind = True
                self._is_old = True
                self._failing_starts = draw % MAX_FAILING
                if self._folder is None:
                    self._put_back()
        return True

    # Inside

    def _take_copy(self) -> None:
        assert self._folder is not None, "the process is down"
        self._copy, self.copied_state = self.files.copy(), self._folder.state
        self.copied = max(self._folder.state.records, self.count)

    def _put_back(self) -> None:
        """Puts the operator's copy back, and starts it as often as it fails."""
        assert self._copy is not None
        self.files.put_back(self._copy)
        self._is_old = False
        for _ in range(self._failing_starts):
            with contextlib.suppress(DamagedLogError, OSError):  # a full disk, or a damaged copy, fails earlier still
                StorageFolder(self.files, self._draw_folder, segment_bytes=self._segment_bytes)
            self.files.kill_process()

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
        with contextlib.suppress(PowerCutError, DamagedLogError, OSError):
            StorageFolder(self.files, self._draw_folder, segment_bytes=self._segment_bytes)
        self.files.cut_power(Random(self._cut))
        self._cut = 0

    def _draw_folder(self) -> int:
        self._folders += 1
        return self._process << 16 | self._folders

    def _recover(self, incarnation: int) -> str | None:
        """Opens the folder and takes its records over; returns what is wrong with the storage code."""
        try:
            folder = self._folder = StorageFolder(self.files, self._draw_folder, segment_bytes=self._segment_bytes)
        except OSError:
            self.files.kill_process()
            return self._recover(incarnation)  # the disk has failed during the start: the node stops, and starts again
        except DamagedLogError as error:
            # Both identity files: the operator empties the folder.
            is_right = self._is_rotten
            if self.has_identity:
                self.replace(incarnation)
            else:
                self.erase()
            self._recover(incarnation)
            return None if is_right else f"cannot open a folder that nothing has damaged: {error}"
        assert folder.log is not None
        self.files.failing_syncs = 0
        last, self._incarnation = self._incarnation, folder.incarnation
        if folder.incarnation <= last and not self._is_behind and folder.state.folder == self._opened:
            return f"begins incarnation {folder.incarnation} of its folder again"
        self._opened = folder.state.folder
        if folder.log.doubt:
            self.doubt = folder.log.doubt
            self._drop_records(folder)
            return None if self._is_rotten else f"doubts a log that nothing has damaged: {self.doubt}"
        found = [self._known.get(data) for data in folder.log.take_records()]
        if found == self.records:
            return None
        promised = len(self.records)
        for effect in self._unconfirmed:
            Disk.store(self, effect)
        if found == self.records:
            return None
        if not self._is_behind:
            self._drop_records(folder)
            return f"recovered {len(found)} records that differ from the {promised} that were acknowledged"
        if self.has_identity and not self._has_lost_writes:
            self.records = [record for record in found if record is not None]  # its group has to notice
        else:
            self.doubt = "its disk has lost writes"
            self._drop_records(folder)
        return None

    def _drop_records(self, folder: StorageFolder) -> None:
        """A node asks its group first; a bare process has none to ask."""
        self.records = []
        if not self.has_identity:
            folder.discard()
        elif not folder.state.reason:
            folder.remember(folder.state.peers, folder.state.admitted, self.doubt)
