"""A node's data folder as storage sees it: the lock, the identity and, where records are kept, the log.

Opening a folder begins an incarnation and tells what the folder is worth (`kernel/folder.py`). A doubtful log is left
as it is until `discard` puts it aside: the node has asked its group by then.
"""

import contextlib
from collections.abc import Callable
from typing import Final

from msgspec.structs import replace

from amcast.kernel.folder import MAX_STARTS, Condition, FolderState, KnownFolder
from amcast.storage import segments
from amcast.storage.client_ids import FILE as CLIENT_IDS
from amcast.storage.errors import DamagedLogError
from amcast.storage.files import Files
from amcast.storage.identity import Identity, read_identity, write_identity
from amcast.storage.log import SEGMENT_BYTES, Log

EPOCH: Final = 1 << 40
"""Record numbers after a discarded log begin at the next multiple, so they never fall: no log has as many records."""

DrawFolder = Callable[[], int]
"""Draws the number of a new folder, or of a start."""


class StorageFolder:
    """An open data folder, in one incarnation."""

    def __init__(
        self,
        files: Files,
        draw_folder: DrawFolder,
        *,
        keeps_log: bool = True,
        syncs: bool = True,
        segment_bytes: int = SEGMENT_BYTES,
    ) -> None:
        """Opens a folder. Without `keeps_log` it has an identity and no records."""
        self._files = files
        self._start = draw_folder()
        """A random number of this start."""
        self.path = files.path
        self._syncs = syncs
        self._segment_bytes = segment_bytes
        files.lock()
        try:
            self._identity = self._begin_incarnation(draw_folder)
            self.log: Log | None = self._open_log() if keeps_log else None
        except BaseException:
            files.unlock()
            raise
        self.incarnation = self._identity.incarnation
        self.is_open = True

    @property
    def state(self) -> FolderState:
        """What the folder says of itself."""
        identity = self._identity
        doubt = identity.doubt or ("" if self.log is None else self.log.doubt)
        condition: Condition = "sound" if identity.admitted else "lost" if identity.is_lost else "fresh"
        return FolderState(
            folder=identity.folder,
            incarnation=identity.incarnation,
            records=-1 if self.log is None else self.log.next_number - 1,
            condition="diverged" if identity.divergence else "doubtful" if doubt else condition,
            reason=identity.divergence or doubt,
            peers=identity.peers,
            admitted=identity.admitted,
            start=self._start,
            accepts_loss=identity.accepts_loss,
            starts=identity.starts,
        )

    def remember(self, peers: tuple[KnownFolder, ...], admitted: bool, doubt: str = "", divergence: str = "") -> None:
        """Makes durable what is known of other folders, and of this one: whether the group has admitted it, why it is
        doubtful, and how the node diverged. An operator's consent to a loss ends with the admission."""
        identity = replace(
            self._identity,
            peers=peers,
            admitted=admitted,
            doubt=doubt,
            divergence=divergence,
            accepts_loss=self._identity.accepts_loss and not admitted,
        )
        self._write_identity(identity)

    def discard(self, records: int = 0, incarnation: int = 0) -> None:
        """Puts the log and the client ids aside and begins a new log. Its record numbers are above all earlier ones,
        and above the `records` that others know of; the next incarnation is at least the given one, and never that of a
        node that takes part for the first time."""
        last = max(self._identity.incarnation, incarnation - 1)
        # A copy from before the first admission says that its node never took part; others know better. They may also
        # remember starts that it does not know, of which nothing is left.
        self._identity = replace(self._identity, incarnation=last, doubt="", is_lost=True, starts=())
        if self.log is None:
            self._put_aside()
            self._write_identity(self._identity)
            return
        self.log.close()
        self._begin_discarding(max(self.log.next_number, records))
        self.log = self._open_log()

    def accept_loss(self) -> int:
        """Lets the node take part with this folder as it is; returns how many records it has. Records before any damage
        go to a new log; client ids are put aside, because later ones may be missing."""
        records = [] if self.log is None else [*self.log.take_records(), *self.log.readable]
        self.discard()
        if self.log is not None and records:
            self.log.write([(record, False) for record in records])
        self._write_identity(replace(self._identity, accepts_loss=True, is_lost=False, divergence=""))
        return len(records)

    def close(self) -> None:
        """Closes the log and releases the folder."""
        if self.is_open and self.log is not None and self.log.next_number - 1 > self._identity.records:
            with contextlib.suppress(OSError):  # the records are durable without their number
                self._write_identity(self._identity)
        self.is_open = False
        if self.log is not None:
            self.log.close()
        self._files.unlock()

    def _begin_incarnation(self, draw_folder: DrawFolder) -> Identity:
        identity = read_identity(self._files)
        if identity is None:
            if segments.list_segments(self._files):
                segments.scan_log(self._files)  # refuses older formats, which had no identity
                raise DamagedLogError(
                    f"{self._files.path}: there is a log and no identity; expected both. If this node ran here, empty"
                    f" the folder and admit it anew with `amcast replace`"
                )
            identity = Identity(draw_folder(), -1)
        incarnation = identity.incarnation + 1
        starts = (*identity.starts, (incarnation, self._start))[-MAX_STARTS:]
        return write_identity(self._files, replace(identity, incarnation=incarnation, starts=starts))

    def _write_identity(self, identity: Identity) -> None:
        """Makes an identity durable, with how many records are durable behind it."""
        if self.log is not None and not self.log.doubt:
            identity = replace(identity, records=self.log.next_number - 1)
        self._identity = write_identity(self._files, identity)

    def _begin_discarding(self, records: int) -> None:
        first = (max(self._identity.first, records) // EPOCH + 1) * EPOCH + 1
        self._identity = write_identity(
            self._files, replace(self._identity, first=first, records=0, is_discarding=True)
        )

    def _open_log(self) -> Log:
        is_lost = self._identity.has_log and not self._identity.is_discarding
        if is_lost and not segments.list_segments(self._files):
            # An operator removed all segments: the node has lost its records, which its incarnation tells.
            self._begin_discarding(0)
        identity = self._identity
        if identity.is_discarding:
            self._put_aside()
        log = Log(
            self._files, identity.folder, identity.first, segment_bytes=self._segment_bytes, syncs=self._syncs,
            must_exist=identity.has_log and not identity.is_discarding, remembered=identity.records,
        )  # fmt: skip
        if not log.doubt and (identity.is_discarding or not identity.has_log):
            self._identity = write_identity(self._files, replace(identity, has_log=True, is_discarding=False))
        return log

    def _put_aside(self) -> None:
        names = segments.list_segments(self._files)
        names += [name for name in self._files.list() if name == CLIENT_IDS]
        for name in names:
            self._files.rename(name, f"{name}.damaged-{self._identity.incarnation}")
        self._files.sync()
