"""A node's data folder as storage sees it: the lock, the identity and, where records are kept, the log.

Opening a folder begins an incarnation and tells what the folder is worth (`kernel/folder.py`). A doubtful log is left
as it is until `discard` puts it aside: the node has asked its group by then.
"""

from collections.abc import Callable
from typing import Final

from msgspec.structs import replace

from amcast.kernel.folder import FolderState, KnownFolder
from amcast.storage import segments
from amcast.storage.client_ids import FILE as CLIENT_IDS
from amcast.storage.errors import DamagedLogError
from amcast.storage.files import Files
from amcast.storage.identity import Identity, read_identity, write_identity
from amcast.storage.log import SEGMENT_BYTES, Log

EPOCH: Final = 1 << 40
"""Record numbers after a discarded log begin at the next multiple, so they never fall: no log has as many records."""

DrawFolder = Callable[[], int]
"""Draws the number of a new folder."""


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

    @property
    def state(self) -> FolderState:
        """What the folder says of itself."""
        identity, doubt = self._identity, "" if self.log is None else self.log.doubt
        return FolderState(
            folder=identity.folder,
            incarnation=identity.incarnation,
            records=0 if self.log is None else self.log.next_number - 1,
            condition="doubtful" if doubt else "sound" if identity.admitted else "fresh",
            reason=doubt,
            peers=identity.peers,
            admitted=identity.admitted,
        )

    def remember(self, peers: tuple[KnownFolder, ...], admitted: bool) -> None:
        """Makes durable what is known of other folders, and whether the group has admitted this one."""
        self._identity = write_identity(self._files, replace(self._identity, peers=peers, admitted=admitted))

    def discard(self, records: int = 0) -> None:
        """Puts the log and the client ids aside and begins a new log. Its record numbers are above all earlier ones,
        and above the `records` that others know of."""
        assert self.log is not None, "a folder without a log has nothing to discard"
        self.log.close()
        self._begin_discarding(max(self.log.next_number, records))
        self.log = self._open_log()

    def close(self) -> None:
        """Closes the log and releases the folder."""
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
        return write_identity(self._files, replace(identity, incarnation=identity.incarnation + 1))

    def _begin_discarding(self, records: int) -> None:
        first = (max(self._identity.first, records) // EPOCH + 1) * EPOCH + 1
        self._identity = write_identity(self._files, replace(self._identity, first=first, is_discarding=True))

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
            must_exist=identity.has_log and not identity.is_discarding,
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
