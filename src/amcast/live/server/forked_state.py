"""Exports an application's state from a copy of its process, as Redis saves: the copy shares all memory that is not
changed, sees the state of the moment at which it was made, and may take its time.

    run_replica("cluster.toml", "orders/1", shop.deliver, take=amcast.forked(shop.dump), install=shop.load)

The copy calls `take` and writes what it returns to a pipe, which a thread of the program reads. The program itself is
busy only while the operating system copies its page tables (for 1 GB, 0.1 to 0.3 s on a small virtual machine). The
copy has one thread, and no file or socket but the pipe: `take` must work in memory, and wait for no lock. The copy dies
with the program, because nobody reads the pipe then.
"""

import gc
import os
import signal
import struct
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Final, NoReturn

from amcast.kernel.errors import CannotTellError
from amcast.live.limits import KIB
from amcast.live.storage.state_files import check_piece

PIECE: Final = struct.Struct(">BQ")
WHOLE: Final = 0
"""Some bytes of a state that `take` returned as one `bytes`."""
PART: Final = 1
"""One of the pieces that `take` returned."""
FAILED: Final = 2
"""The text of an error."""
END: Final = 3
READ_BYTES: Final = 256 * KIB


class ForkedState:
    """Iterates over the pieces that a copy of the process exports."""

    def __init__(self, take: Callable[[], bytes | Iterable[bytes]]) -> None:
        read_end, write_end = os.pipe()
        self._child = os.fork()
        if self._child == 0:
            _export(take, write_end)
        os.close(write_end)
        self._pipe = os.fdopen(read_end, "rb", READ_BYTES)
        self._has_begun = False
        self.is_whole = False
        """Whether `take` returned one `bytes`; known at the end."""

    def __iter__(self) -> "ForkedState":
        return self

    def __next__(self) -> bytes:
        if not self._has_begun:
            self._has_begun = True
            return b""  # the first piece is drawn on the event loop, which must not wait for the copy
        head = self._pipe.read(PIECE.size)
        kind, size = PIECE.unpack(head) if len(head) == PIECE.size else (FAILED, 0)
        data = self._pipe.read(size)
        if kind == END:
            self.close()
            raise StopIteration
        if kind == FAILED or len(data) < size:
            self.close()
            raise CannotTellError(
                f"take failed in the copy of the process: {data.decode(errors='replace') or 'it was killed'}"
            )
        self.is_whole = kind == WHOLE
        return data

    def abandon(self) -> None:
        """Kills the copy; a thread that waits for its next piece gets an error."""
        if self._child:
            with suppress(ProcessLookupError):
                os.kill(self._child, signal.SIGKILL)

    def close(self) -> None:
        """Ends the copy."""
        if self._child:
            self._pipe.close()
            self.abandon()
            with suppress(ChildProcessError):
                os.waitpid(self._child, 0)
            self._child = 0


def forked(take: Callable[[], bytes | Iterable[bytes]]) -> Callable[[], Iterator[bytes]]:
    """Makes a `take` that exports the state from a copy of the process (POSIX `fork`)."""
    return lambda: ForkedState(take)


def _export(take: Callable[[], bytes | Iterable[bytes]], pipe: int) -> NoReturn:
    """The life of the copy. It leaves without any of the program's ends: those belong to the program."""
    try:
        gc.disable()  # a collection would touch, and so copy, all memory
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        _close_files(pipe)
        with os.fdopen(pipe, "wb", READ_BYTES) as file:
            try:
                state = take()
                if isinstance(state, bytes | bytearray):
                    for start in range(0, max(len(state), 1), READ_BYTES):
                        data = state[start : start + READ_BYTES]
                        file.write(PIECE.pack(WHOLE, len(data)))
                        file.write(data)
                else:
                    for piece in state:
                        part = check_piece(piece)
                        file.write(PIECE.pack(PART, len(part)))
                        file.write(part)
                file.write(PIECE.pack(END, 0))
            except BrokenPipeError:
                raise
            except Exception as error:
                text = f"{type(error).__name__}: {error}".encode()
                file.write(PIECE.pack(FAILED, len(text)) + text)
    finally:
        os._exit(0)


def _close_files(pipe: int) -> None:
    """Closes the sockets and locks of the program in the copy, which would hold them after the program has died."""
    os.closerange(3, pipe)
    os.closerange(pipe + 1, max(os.sysconf("SC_OPEN_MAX"), 1 << 16))
