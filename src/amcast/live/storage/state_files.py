"""Files with the state of an application: written, sent, received and read in pieces, so that no process ever holds a
whole state that its application gives in pieces.

    state-00000000000000000017      the state after 17 deliveries; it is complete, because it was renamed when it was

    head     8 bytes of magic, the position (u64)
    blocks   length (u32), checksum (u32), at most BLOCK_BYTES of the stream
    end      length 0, checksum, 1 if the application gave one `bytes`, 0 if it gave pieces (u8), bytes of content (u64)

The stream is a sequence of pieces, each behind its length (u64). Every checksum covers everything before it, the head
included, so that no damage, exchange or loss of a block is taken for a state. Between members the file travels as it
is.
"""

import struct
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from amcast.kernel.checksum import crc32
from amcast.kernel.errors import CannotTellError, UsageError
from amcast.live.limits import KIB, MIB
from amcast.live.storage.system_files import SystemFile, SystemFiles

State = bytes | Iterator[bytes]
"""What an application exports: all at once, or in pieces."""

MAGIC: Final = b"amstate1"
HEAD: Final = struct.Struct(">8sQ")
BLOCK: Final = struct.Struct(">II")
END: Final = struct.Struct(">BQ")
PIECE: Final = struct.Struct(">Q")
BLOCK_BYTES: Final = 256 * KIB
SYNC_BYTES: Final = 8 * MIB
"""So much is written between two synchronisations: one at the end would delay those of the log for seconds."""
PREFIX: Final = "state-"
INCOMPLETE: Final = ".new"


class DamagedStateError(CannotTellError):
    """A file with the state of an application is damaged, or not whole."""


class AbandonedError(CannotTellError):
    """The replica stopped while a state was written."""


class StateFile(NamedTuple):
    """A complete state on disk."""

    path: Path
    position: int
    """The state contains all deliveries before this position."""
    size: int
    """Of the file."""


def name_state(position: int) -> str:
    """The name of the file with the state after a number of deliveries."""
    return f"{PREFIX}{position:020d}"


class IncompleteState:
    """A state file that is being written; it gets its name when it is complete."""

    def __init__(self, folder: Path, position: int, syncs: bool) -> None:
        self._files = SystemFiles(folder).make_folder()
        self._name = name_state(position)
        self._position = position
        self._syncs = syncs
        self._files.remove(self._name + INCOMPLETE)
        self._file: SystemFile = self._files.create(self._name + INCOMPLETE)
        self._at = self._synced = 0

    @property
    def path(self) -> Path:
        """The file while it is incomplete."""
        return self._files.folder / (self._name + INCOMPLETE)

    def write(self, data: bytes | bytearray) -> None:
        """Appends bytes to the file."""
        view = memoryview(data)
        while view:
            written = self._file.write_at(view, self._at)
            self._at += written
            view = view[written:]
        if self._syncs and self._at - self._synced >= SYNC_BYTES:
            self._file.sync()
            self._synced = self._at

    def complete(self) -> StateFile:
        """Makes the file durable and gives it its name."""
        if self._syncs:
            self._file.sync()
        self._file.close()
        self._files.rename(self._name + INCOMPLETE, self._name)
        if self._syncs:
            self._files.sync()
        return StateFile(self._files.folder / self._name, self._position, self._at)

    def abandon(self) -> None:
        """Removes what was written."""
        self._file.close()
        self._files.remove(self._name + INCOMPLETE)


class StateWriter:
    """Writes the pieces of one state."""

    def __init__(self, folder: Path, position: int, syncs: bool) -> None:
        self._file = IncompleteState(folder, position, syncs)
        self._buffer = bytearray()
        self._content = 0
        head = HEAD.pack(MAGIC, position)
        self._checksum = crc32(head)
        self._file.write(head)

    def add_piece(self, piece: bytes) -> None:
        """Adds one piece of the application."""
        self.begin_piece(len(piece))
        self.add(piece)

    def begin_piece(self, size: int) -> None:
        """Begins a piece whose bytes follow by `add`."""
        self._content += size
        self.add(PIECE.pack(size))

    def add(self, data: bytes) -> None:
        """Adds bytes to the piece."""
        view = memoryview(data)
        while view:
            room = BLOCK_BYTES - len(self._buffer)
            self._buffer += view[:room]
            view = view[room:]
            if len(self._buffer) == BLOCK_BYTES:
                self._flush()

    def finish(self, is_whole: bool) -> StateFile:
        """Makes the state durable; `is_whole` if the application gave it as one `bytes`."""
        self._flush()
        end = END.pack(is_whole, self._content)
        self._file.write(BLOCK.pack(0, crc32(end, self._checksum)) + end)
        return self._file.complete()

    def abandon(self) -> None:
        """Removes what was written."""
        self._file.abandon()

    def _flush(self) -> None:
        if self._buffer:
            self._checksum = crc32(self._buffer, self._checksum)
            self._file.write(BLOCK.pack(len(self._buffer), self._checksum) + self._buffer)
            self._buffer.clear()


def write_state(
    folder: Path, position: int, state: bytes | Iterable[bytes], syncs: bool, is_abandoned: Callable[[], bool]
) -> StateFile:
    """Writes the state of an application; raises `AbandonedError` when `is_abandoned` says so between two pieces."""
    writer = StateWriter(folder, position, syncs)
    try:
        if isinstance(state, bytes):
            writer.add_piece(state)
            return writer.finish(is_whole=True)
        for piece in state:
            if is_abandoned():
                raise AbandonedError("the replica has stopped")
            if data := check_piece(piece):
                writer.add_piece(data)
        return writer.finish(is_whole=getattr(state, "is_whole", False))
    except BaseException:
        writer.abandon()
        raise


def check_piece(piece: object) -> bytes:
    """A piece of a state, which must be bytes."""
    if not isinstance(piece, bytes | bytearray | memoryview):
        raise UsageError(f"take gave a piece of type {type(piece).__name__}; expected bytes")
    return piece if isinstance(piece, bytes) else bytes(piece)


class StateReader:
    """Iterates over the pieces of a state file, and checks every block before it gives anything of it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.open("rb")
        self.position = 0
        self.is_whole = False
        """Whether the application gave the state as one `bytes`; known at the end."""
        head = self._file.read(HEAD.size)
        if len(head) != HEAD.size or head[: len(MAGIC)] != MAGIC:
            raise self._damage("no head")
        self.position = HEAD.unpack(head)[1]
        self._checksum = crc32(head)
        self._buffer = bytearray()
        self._ended = False
        self._content = 0

    def __iter__(self) -> "StateReader":
        return self

    def __next__(self) -> bytes:
        while len(self._buffer) < PIECE.size:
            if self._ended or not self._read_block():
                if self._buffer:
                    raise self._damage("an incomplete piece")
                self.close()
                raise StopIteration
        size = PIECE.unpack_from(self._buffer)[0]
        while len(self._buffer) < PIECE.size + size:
            if not self._read_block():
                raise self._damage("an incomplete piece")
        piece = bytes(memoryview(self._buffer)[PIECE.size : PIECE.size + size])
        del self._buffer[: PIECE.size + size]
        return piece

    def check(self) -> None:
        """Reads the rest; raises `DamagedStateError` unless everything is as it was written."""
        while self._read_block():
            self._buffer.clear()
        self.close()

    def close(self) -> None:
        self._file.close()

    def _read_block(self) -> bool:
        """Reads the next block into the buffer; False at the end."""
        block = self._file.read(BLOCK.size)
        length, checksum = BLOCK.unpack(block) if len(block) == BLOCK.size else (BLOCK_BYTES + 1, 0)
        if length > BLOCK_BYTES:
            raise self._damage("an incomplete or damaged block")
        data = self._file.read(length or END.size)
        self._checksum = crc32(data, self._checksum)
        if len(data) != (length or END.size) or self._checksum != checksum:
            raise self._damage("a checksum does not match")
        if length:
            self._buffer += data
            return True
        self._ended = True
        self.is_whole = bool(END.unpack(data)[0])
        if self._file.read(1):
            raise self._damage("bytes behind its end")
        return False

    def _damage(self, what: str) -> DamagedStateError:
        self.close()
        return DamagedStateError(f"{self._path}: {what}; expected the state of an application")


class StateEnd(NamedTuple):
    """The last bytes of a state file."""

    is_whole: bool
    content: int
    """Bytes that the application gave."""


def read_end(path: Path) -> StateEnd:
    """The end of a state file that was checked before."""
    with path.open("rb") as file:
        file.seek(-END.size, 2)
        is_whole, content = END.unpack(file.read(END.size))
    return StateEnd(bool(is_whole), content)


def check_state(path: Path, position: int) -> None:
    """Raises `DamagedStateError` unless a file is the whole state after a number of deliveries."""
    reader = StateReader(path)
    if reader.position != position:
        reader.close()
        raise DamagedStateError(f"{path}: the state after {reader.position} deliveries; expected {position}")
    reader.check()


def read_state(path: Path) -> State:
    """The state in a checked file as the application gave it: one `bytes`, or an iterator of the same pieces."""
    reader = StateReader(path)
    return b"".join(reader) if read_end(path).is_whole else reader
