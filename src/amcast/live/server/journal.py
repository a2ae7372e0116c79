"""The journal of an application: its last state on disk, and the deliveries since then.

    application/
      state-00000000000000000017     the state after 17 deliveries (`live/storage/state_files.py`)
      from-00000000000000000017/     deliveries from position 17 on: a log of pages (`live/storage/store.py`)
      from-00000000000000000950/     and so on; a new log begins with each state, and every LOG_BYTES
      reserved                       every position below this number may have been received

A state is written in a thread while deliveries go on. The deliveries after it go to a log that begins with it, so that
the state, when it is complete, replaces all earlier logs and states, and until then those are as good as before. A
crash leaves an older state with the logs behind it, or a newer one with fewer logs. What is superfluous is renamed
(`from-00000000000000000017.removed-1`) before it is removed, which may take long: a crash leaves no half of a log, and
nobody else reads or removes it.

An application may keep its state in files of its own, and save them together with their position. Then there is no
state here, except one that was exported to another member; the logs begin with the position that it saved.

While an application waits for another member's state, its deliveries go to the journal alone (`spool_from`); it reads
them from there when it has the state. That needs no more memory however long the state takes.

With `durability = "memory"` nothing outlives the program: the folder is emptied at both ends, and serves for states
that are sent or received, and for the deliveries meanwhile.
"""

import logging
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import msgspec

from amcast.kernel.message import Message
from amcast.live.limits import KIB, MIB
from amcast.live.storage.atomic_files import read_json, write_atomically
from amcast.live.storage.state_files import (
    INCOMPLETE,
    PREFIX,
    DamagedStateError,
    StateFile,
    check_state,
    read_end,
    read_state,
)
from amcast.live.storage.store import Durability, LogStore

log = logging.getLogger("amcast.live")

Install = Callable[[Any, int], None]
"""Given `bytes` or an iterator of pieces, as `take` returned them, and the number of deliveries that they contain."""

LOG_BYTES: Final = 16 * MIB
"""A log that is longer is followed by a new one: a recovery reads one at a time."""
SEGMENT_BYTES: Final = 2 * MIB
SPOOL_BYTES: Final = 512 * KIB
"""Deliveries that wait in memory while they are spooled."""
OVERHEAD_BYTES: Final = 64
"""Of a message in a page, besides its payload, about."""
EXPORTED_S: Final = 60.0
"""So long an exported state is kept for members that ask for it, if the application needs no state itself."""
LOG_PREFIX: Final = "from-"
REMOVED: Final = ".removed-"
RESERVED: Final = 16_384
"""How many positions are reserved with one write: so many deliveries are marked as replayed after a crash, at most,
that no earlier run received."""
RESERVATION: Final = "reserved"


class JournalPage(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Consecutive messages; the first one was delivered at `position`."""

    position: int
    messages: list[Message]


_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(JournalPage)


class Journal:
    """The last state of an application, and the messages delivered to it since then."""

    def __init__(self, folder: Path, durability: Durability) -> None:
        self.folder = folder
        self.keeps = durability != "memory"
        """Whether the journal outlives the program."""
        self.syncs = durability == "fsync"
        self._durability = durability
        self._reservation = folder / RESERVATION
        self._failed: Exception | None = None
        self._store: LogStore | None = None
        self._store_bytes = 0
        """Written to the open log."""
        self._waiting: list[Message] = []
        self._waiting_bytes = 0
        self._first = 0
        """The position of the first waiting message."""
        self.bytes = 0
        """Of deliveries since the last state, or since the last one that is being taken."""
        self.state: StateFile | None = None
        """The newest complete state."""
        self._adopted_s = -EXPORTED_S
        """When it was complete, unless an earlier run wrote it."""
        self.state_bytes = 0
        """What the application gave for it."""
        self.spool_first: int | None = None
        """The first position of the spool; None if the application receives its deliveries."""
        self._useless: list[Path] = []
        """Logs of earlier spools, which may be read at the moment."""
        self._retired_count = 0
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not self.keeps:
            self._wipe()
        self.reserved = self._reserved_before = read_json(self._reservation, int, "a position") or 0

    # Reservations

    def has_reserved_before(self, position: int) -> bool:
        """Whether an earlier run of the program may have received a position."""
        return position < self._reserved_before

    def reserve(self, position: int) -> None:
        """Reserves a position, and those behind it, before the application receives it."""
        self.reserved = position + RESERVED
        if self.keeps:
            write_atomically(self._reservation, msgspec.json.encode(self.reserved))

    # Recovery

    def replay(self, install: Install, deliver: Callable[[int, Message], None], opened: int = 0) -> int:
        """Installs the last state and delivers the messages behind it; returns the position reached. An application
        that keeps its state in files has everything before the position `opened`: an older state is useless to it."""
        for path in self.folder.glob(f"{PREFIX}*{INCOMPLETE}"):
            path.unlink()
        remove_files(self.folder.glob(f"*{REMOVED}*"))
        if opened:
            remove_files(path for path in self._list_states() if int(path.name[len(PREFIX) :]) <= opened)
        self.state = self._find_state()
        position = opened
        if self.state is not None:
            position = self.state.position
            self.state_bytes = read_end(self.state.path).content
            install(read_state(self.state.path), position)
        logs = self._logs()
        for index, (first, path) in enumerate(logs):
            if index + 1 < len(logs) and logs[index + 1][0] <= position:
                continue
            if first > position:  # a spool that the program left when it crashed
                remove_files(self.retire(useless) for _, useless in logs[index:])
                break
            position = self._replay_log(path, position, deliver)
        self._first = position
        return position

    def _replay_log(self, path: Path, position: int, deliver: Callable[[int, Message], None]) -> int:
        self._close_log()
        self._store = self._open(path)
        end = position
        for record in self._store.records():
            page = _decoder.decode(record)
            self._store_bytes += len(record)
            end = page.position + len(page.messages)
            if end <= position:
                continue
            assert page.position <= position, f"the journal continues at {page.position}; expected {position}"
            self.bytes += len(record)
            for message in page.messages[position - page.position :]:
                deliver(position, message)
                position += 1
        if end < position:  # the state is ahead of this log: what follows belongs to another one
            self._close_log()
        return position

    def _list_states(self) -> list[Path]:
        return sorted(self.folder.glob(f"{PREFIX}{'[0-9]' * 20}"))

    def _find_state(self) -> StateFile | None:
        """The newest state that is not damaged; a damaged one is put aside."""
        for path in reversed(self._list_states()):
            position = int(path.name[len(PREFIX) :])
            try:
                check_state(path, position)
            except DamagedStateError as error:
                log.warning("%s. It is put aside, and another member's state is installed if it is needed", error)
                path.replace(path.with_name(f"{path.name}.damaged"))
                continue
            return StateFile(path, position, path.stat().st_size)
        return None

    def _open(self, folder: Path) -> LogStore:
        """Opens a log. Damaged records are put aside: another member has the application's state."""
        store = LogStore(folder, self._durability, SEGMENT_BYTES, threaded=False, accepts_doubt=True)
        if store.folder is not None and store.folder.condition == "doubtful":
            log.warning(
                "the journal of the application is damaged and put aside, and another member's state is installed if"
                " the log has no earlier one: %s",
                store.folder.reason,
            )
            store.discard(0, 0)
        store.start(lambda ticket: None, self._fail)
        return store

    # Writing

    @property
    def next_position(self) -> int:
        """The position of the next message."""
        return self._first + len(self._waiting)

    def add(self, message: Message) -> None:
        """Queues one delivery for the next `write`."""
        self._waiting.append(message)
        size = len(message.payload) + OVERHEAD_BYTES
        self._waiting_bytes += size
        self.bytes += size

    def write(self) -> None:
        """Makes the queued deliveries durable."""
        if not self._waiting:
            return
        if self._store is None or self._store_bytes > LOG_BYTES:
            self._begin_log()
        assert self._store is not None
        page = _encoder.encode(JournalPage(self._first, self._waiting))
        self._first += len(self._waiting)
        self._waiting, self._waiting_bytes = [], 0
        self._store_bytes += len(page)
        self._store.append(page)
        self._store.commit()
        if self._failed is not None:
            raise self._failed

    def begin_state(self) -> None:
        """Records that a state is taken now: the deliveries after it go to a log of their own."""
        if self.keeps:
            self.write()
            self._close_log()
        self.bytes = 0

    def adopt(self, state: StateFile) -> list[Path]:
        """Records that a state is complete. Returns the files that it makes superfluous, for the caller to remove."""
        superfluous = []
        if self.state is not None:
            if self.state.position >= state.position:
                return [] if state.path == self.state.path else [self.retire(state.path)]
            superfluous.append(self.state.path)
        self.state, self._adopted_s = state, time.monotonic()
        self.state_bytes = read_end(state.path).content
        logs = self._logs()
        superfluous += [path for (_, path), (end, _) in pairwise(logs) if end <= state.position]
        return [self.retire(path) for path in superfluous]

    def forget_until(self, position: int) -> list[Path]:
        """Forgets the deliveries before a position, because the application has saved what they led to in files of its
        own; and a state that was exported to another member before, unless that may still be read. Returns what is
        superfluous, for the caller to remove."""
        superfluous = []
        if self.keeps and self.next_position <= position:
            self._close_log()
            superfluous += [path for _, path in self._logs()]
            self._first = position
            self._waiting, self._waiting_bytes, self.bytes = [], 0, 0
        is_read = time.monotonic() < self._adopted_s + EXPORTED_S
        if self.state is not None and self.state.position <= position and not is_read:
            superfluous.append(self.state.path)
            self.state = None
        return [self.retire(path) for path in superfluous]

    def retire(self, path: Path) -> Path:
        """Gives a superfluous file or log another name, under which the caller removes it, in any thread."""
        self._retired_count += 1
        return path.rename(path.with_name(f"{path.name}{REMOVED}{self._retired_count}"))

    def _begin_log(self) -> None:
        self._close_log()
        self._store = self._open(self.folder / f"{LOG_PREFIX}{self._first:020d}")

    def _close_log(self) -> None:
        if self._store is not None:
            self._store.close()
            self._store = None
        self._store_bytes = 0

    def _logs(self) -> list[tuple[int, Path]]:
        """The logs with the positions that they begin with, in order."""
        paths = [path for path in sorted(self.folder.glob(LOG_PREFIX + "[0-9]" * 20)) if path not in self._useless]
        return [(int(path.name[len(LOG_PREFIX) :]), path) for path in paths]

    # Spooling

    def spool_from(self, position: int) -> None:
        """Begins to keep deliveries for an application that cannot receive them yet. An earlier spool is useless."""
        if self.spool_first is None and self.keeps:
            self.write()
        self._close_log()
        self._waiting, self._waiting_bytes = [], 0
        if self.spool_first is not None:
            self._useless += [path for first, path in self._logs() if first >= self.spool_first]
        self._first = self.spool_first = position

    def take_useless(self) -> list[Path]:
        """The logs of earlier spools, for the caller to remove when nobody reads them."""
        useless, self._useless = self._useless, []
        return [self.retire(path) for path in useless]

    def spool(self, message: Message) -> None:
        """Keeps one delivery."""
        self.add(message)
        if self._waiting_bytes > SPOOL_BYTES:
            self.write()

    def written_logs(self, position: int) -> list[Path]:
        """The logs with the deliveries from a position on that were written. They are closed; later deliveries go to
        another one."""
        self._close_log()
        logs = self._logs()
        ends = [first for first, _ in logs[1:]] + [self._first]
        return [path for (_, path), end in zip(logs, ends, strict=True) if end > position]

    def read_log(self, path: Path, position: int) -> Iterator[list[Message]]:
        """The messages of a closed log from a position on, page by page. Any thread may call it."""
        store = LogStore(path, self._durability, SEGMENT_BYTES, threaded=False)
        records = store.records()
        store.close()
        for record in records:
            page = _decoder.decode(record)
            if page.position + len(page.messages) > position:
                yield page.messages[max(0, position - page.position) :]

    def waiting_from(self, position: int) -> list[Message] | None:
        """The messages from a position on if none of them has been written, else None."""
        return None if position < self._first else self._waiting[position - self._first :]

    def end_spool(self, position: int) -> None:
        """Records that the application has received everything that was spooled, and everything before a position: a
        state of another member may be ahead of the replica. The next delivery to be kept has that position."""
        self.spool_first = None
        if position > self.next_position:
            self._close_log()
            self._waiting, self._waiting_bytes = [], 0
            self._first = position
        if not self.keeps:
            self._wipe_logs()
            self._waiting, self._waiting_bytes = [], 0

    # End

    def close(self, position: int) -> None:
        """Closes the journal of an application that has received everything before a position."""
        try:
            if self._failed is None and self.keeps:
                self.write()
                write_atomically(self._reservation, msgspec.json.encode(max(position, self._reserved_before)))
        except OSError as error:
            log.warning("the journal of the application is not complete, and the log repeats deliveries: %s", error)
        self._close_log()
        if not self.keeps:
            self._wipe()

    def _wipe_logs(self) -> None:
        self._close_log()
        for _, path in self._logs():
            shutil.rmtree(path)

    def _wipe(self) -> None:
        self._wipe_logs()
        remove_files(self.folder.glob(f"*{REMOVED}*"))
        for path in self.folder.glob(f"{PREFIX}*"):
            path.unlink()

    def _fail(self, error: Exception) -> None:
        self._failed = error


def remove_files(paths: Iterable[Path]) -> None:
    """Removes files and logs that a journal has retired."""
    for path in list(paths):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
