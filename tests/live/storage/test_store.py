"""The durable log: which records survive every kind of end, and which logs are refused."""

import errno
import os
import random
import resource
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from amcast.kernel.effects import Remember
from amcast.kernel.errors import UsageError
from amcast.kernel.folder import KnownFolder
from amcast.live.storage import store
from amcast.live.storage.store import Durability, LogStore, MemoryStore, open_store, verify_log
from amcast.live.storage.system_files import SystemFile, SystemFiles
from amcast.storage import segments
from amcast.storage.errors import DamagedLogError
from amcast.storage.identity import FILES
from tests import ROOT

SMALL = 4096
MODES: tuple[Durability, ...] = ("fsync", "os")


class Writer:
    """A store, and what it reported as a host would see it."""

    def __init__(self, folder: Path, mode: Durability = "fsync", segment_bytes: int = SMALL) -> None:
        self.store = LogStore(folder, mode, segment_bytes)
        self.records = list(self.store.records())
        self.durable = 0
        self.failed: Exception | None = None
        self._changed = threading.Condition()
        self.store.start(self._durable, self._fail)

    def _durable(self, ticket: int) -> None:
        with self._changed:
            self.durable = max(self.durable, ticket)
            self._changed.notify_all()

    def _fail(self, error: Exception) -> None:
        with self._changed:
            self.failed = error
            self._changed.notify_all()

    def write(self, *records: bytes, replaces: bool = False) -> None:
        """Appends and commits records, and waits until they are durable or the store has failed."""
        for record in records:
            ticket = self.store.append(record, replaces)
        self._durable(self.store.commit())
        with self._changed:
            assert self._changed.wait_for(lambda: self.durable >= ticket or self.failed, timeout=20)


def list_segments(folder: Path) -> list[Path]:
    return [folder / name for name in segments.list_segments(SystemFiles(folder))]


def read_records(folder: Path, mode: Durability = "fsync") -> list[bytes]:
    writer = Writer(folder, mode)
    writer.store.close()
    return writer.records


@pytest.mark.parametrize("mode", MODES)
def test_records_survive_many_segments_and_incarnations_in_order(tmp_path: Path, mode: Durability) -> None:
    rng = random.Random(7)
    written: list[bytes] = []
    for incarnation in range(4):
        writer = Writer(tmp_path, mode)
        assert writer.store.incarnation == incarnation
        assert writer.records == written
        for _ in range(20):
            group = [rng.randbytes(rng.randint(0, 300)) for _ in range(rng.randint(1, 9))]
            writer.write(*group)
            written += group
        writer.store.close()
    assert len(list_segments(tmp_path)) > 4
    assert verify_log(tmp_path).records == len(written)


def test_acknowledged_records_survive_a_kill(tmp_path: Path) -> None:
    """A killed process runs no handler, so no acknowledged record may need one."""
    code = f"""
import os, sys
sys.path.insert(0, {str(ROOT)!r})
from pathlib import Path
from tests.live.storage.test_store import Writer
writer = Writer(Path({str(tmp_path)!r}), sys.argv[1])
for number in range(50):
    writer.write(b"%d" % number)
    print(number, flush=True)
writer.store.append(b"not committed")
os.kill(os.getpid(), 9)
"""
    for mode in MODES:
        before = len(read_records(tmp_path))
        done = subprocess.run([sys.executable, "-c", code, mode], capture_output=True, text=True, check=False)
        assert done.returncode == -9, done.stderr
        assert read_records(tmp_path)[before:] == [b"%d" % number for number in range(50)]


@pytest.mark.parametrize("mode", MODES)
def test_snapshot_replaces_earlier_records_and_removes_their_segments(tmp_path: Path, mode: Durability) -> None:
    writer = Writer(tmp_path, mode)
    for number in range(100):
        writer.write(b"x" * 200, b"%d" % number)
    many = len(list_segments(tmp_path))
    writer.write(b"snapshot", replaces=True)
    assert many > 3
    assert len(list_segments(tmp_path)) == 1
    writer.write(b"after")
    writer.store.close()
    assert read_records(tmp_path, mode) == [b"snapshot", b"after"]


def test_crash_before_old_segments_are_removed_is_harmless(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    for _ in range(40):
        writer.write(b"x" * 200)
    old = {file: file.read_bytes() for file in list_segments(tmp_path)}
    assert len(old) > 2
    writer.write(b"snapshot", replaces=True)
    writer.store.close()
    for file, data in list(old.items())[1:]:
        file.write_bytes(data)
    assert read_records(tmp_path) == [b"snapshot"]


def test_record_larger_than_a_segment_gets_its_own_segment(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    writer.write(b"small")
    writer.write(b"x" * 10 * SMALL)
    writer.write(b"small again")
    writer.store.close()
    assert [len(record) for record in read_records(tmp_path)] == [5, 10 * SMALL, 11]


def read_files(folder: Path) -> dict[Path, bytes]:
    return {file: file.read_bytes() for file in folder.iterdir()}


def put_back(files: dict[Path, bytes]) -> None:
    for file, data in files.items():
        file.write_bytes(data)


def write_two_commits(folder: Path) -> tuple[Path, int, int]:
    """Writes a log of two commits, the second of several sectors, and kills the store; returns its file, and where the
    second commit begins and ends."""
    writer = Writer(folder)
    writer.write(b"first" * 10)
    (file,) = list_segments(folder)
    middle = segments.scan_log(SystemFiles(folder)).end
    writer.write(b"second" * 250)
    killed = read_files(folder)
    writer.store.close()
    put_back(killed)
    return file, middle, segments.scan_log(SystemFiles(folder)).end


def test_power_cut_during_a_commit_leaves_a_torn_tail_that_is_truncated_and_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file, middle, end = write_two_commits(tmp_path)
    killed = read_files(tmp_path)
    places = range(middle, end, segments.SECTOR)
    assert len(places) == 4
    for missing in range(1, 1 << len(places)):
        torn = bytearray(killed[file])
        for place in (place for index, place in enumerate(places) if missing >> index & 1):
            torn[place : place + segments.SECTOR] = bytes(segments.SECTOR)
        put_back({**killed, file: bytes(torn)})
        caplog.clear()
        before = verify_log(tmp_path)
        assert before.records == 1
        assert file.read_bytes() == torn, "verify changes nothing"
        writer = Writer(tmp_path)
        assert writer.records == [b"first" * 10]
        writer.write(b"next")
        writer.store.close()
        assert read_records(tmp_path) == [b"first" * 10, b"next"]
        is_torn = missing != (1 << len(places)) - 1
        assert ("a torn tail of" in caplog.text and "never acknowledged" in caplog.text) == is_torn


def test_rotten_bit_in_any_commit_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    file, _, end = write_two_commits(tmp_path)
    whole = file.read_bytes()
    for at in (*range(0, end, 37), end - 1):
        damaged = bytearray(whole)
        damaged[at] ^= 1 << at % 8
        file.write_bytes(damaged)
        with pytest.raises(DamagedLogError, match=str(file)):
            verify_log(tmp_path)
        with pytest.raises(DamagedLogError, match="the log was not changed"):
            LogStore(tmp_path)
        assert file.read_bytes() == damaged
    file.write_bytes(whole)
    assert len(read_records(tmp_path)) == 2


def test_missing_sector_before_the_marker_of_a_clean_stop_is_refused(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    writer.write(b"x" * 1000)
    writer.store.close()
    (file,) = list_segments(tmp_path)
    damaged = bytearray(file.read_bytes())
    damaged[2 * segments.SECTOR : 3 * segments.SECTOR] = bytes(segments.SECTOR)
    file.write_bytes(damaged)
    with pytest.raises(DamagedLogError, match="damaged at byte"):
        LogStore(tmp_path)


def test_idle_store_writes_a_marker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "IDLE_S", 0.01)
    writer = Writer(tmp_path)
    writer.write(b"x")
    end = segments.FIRST_COMMIT + 2 * segments.SECTOR
    deadline = time.monotonic() + 20
    while segments.scan_log(SystemFiles(tmp_path)).end != end and time.monotonic() < deadline:
        time.sleep(0.005)
    assert segments.scan_log(SystemFiles(tmp_path)).end == end
    writer.write(b"y")
    writer.store.close()
    assert read_records(tmp_path) == [b"x", b"y"]


def test_short_writes_and_reads_of_the_system_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write, read = os.pwrite, os.pread
    monkeypatch.setattr(os, "pwrite", lambda file, data, at: write(file, bytes(data)[:300], at))
    monkeypatch.setattr(os, "pread", lambda file, size, at: read(file, min(size, 300), at))
    for mode in MODES:
        writer = Writer(tmp_path / mode, mode)
        writer.write(b"one" * 400, b"two")
        writer.write(b"snapshot" * 300, replaces=True)
        writer.store.close()
        assert read_records(tmp_path / mode, mode) == [b"snapshot" * 300]


def test_system_that_writes_nothing_fails_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for mode in MODES:
        writer = Writer(tmp_path / mode, mode)
        with monkeypatch.context() as patch:
            patch.setattr(os, "pwrite", lambda file, data, at: 0)
            writer.write(b"record")
        assert "only 0 of 512 bytes could be written" in str(writer.failed)
        assert writer.durable == 0
        writer.store.close()
        assert read_records(tmp_path / mode, mode) == []


def test_folder_that_cannot_be_synced_fails_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = Writer(tmp_path)

    def refuse(number: int) -> None:
        raise OSError(errno.EIO, "the disk has failed")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", refuse)  # of folders; files are synced by fdatasync
        writer.write(b"x" * 2 * SMALL)  # begins a segment
    assert "the disk has failed" in str(writer.failed)
    assert writer.durable == 0
    writer.store.close()
    assert read_records(tmp_path) in ([], [b"x" * 2 * SMALL])


def test_log_whose_last_segment_is_gone_is_refused(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    for _ in range(60):
        writer.write(b"x" * 200)
    writer.store.close()
    list_segments(tmp_path)[-1].unlink()
    for read in (verify_log, LogStore):
        with pytest.raises(DamagedLogError, match=r"its log ends with record \d+; it had record 60"):
            read(tmp_path)


def test_only_the_owner_can_read_a_data_folder(tmp_path: Path) -> None:
    folder = tmp_path / "data" / "process-00000"
    LogStore(folder).close()
    assert folder.stat().st_mode & 0o777 == 0o700
    for file in folder.iterdir():
        assert file.stat().st_mode & 0o777 == 0o600, file


def test_missing_segment_is_refused(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    for _ in range(60):
        writer.write(b"x" * 200)
    writer.store.close()
    files = list_segments(tmp_path)
    for missing in (files[0], files[1]):
        data = missing.read_bytes()
        missing.unlink()
        with pytest.raises(DamagedLogError, match="a segment is missing"):
            verify_log(tmp_path)
        missing.write_bytes(data)
    assert verify_log(tmp_path).records == 60


def test_log_of_an_older_format_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    file, _, _ = write_two_commits(tmp_path)
    for version in (1, 2):
        old = (b"AMCLOG%02d" % version) + file.read_bytes()[8:] + bytes(SMALL)
        old = old[: segments.CONTENT] + b"ABCD" + old[segments.SECTOR :]
        file.write_bytes(old)
        for read in (verify_log, LogStore):
            with pytest.raises(
                UsageError, match=rf"a log of format {version}; expected format 3: .* empty the data folder"
            ):
                read(tmp_path)
        assert file.read_bytes() == old


def test_unfinished_segment_is_created_again(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    writer.write(b"one")
    writer.store.close()
    for beginning in (b"", bytes(SMALL)):
        (tmp_path / "00000002.log").write_bytes(beginning)
        assert read_records(tmp_path) == [b"one"]
    writer = Writer(tmp_path)
    writer.write(b"two")
    writer.store.close()
    assert read_records(tmp_path) == [b"one", b"two"]


@pytest.mark.parametrize("space", [2048, 2300])
def test_full_disk_fails_the_store_and_keeps_acknowledged_records(tmp_path: Path, space: int) -> None:
    """Also if the last write ends inside of a sector."""
    code = f"""
import resource, signal, sys
sys.path.insert(0, {str(ROOT)!r})
from pathlib import Path
from tests.live.storage.test_store import Writer
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
writer = Writer(Path({str(tmp_path)!r}), sys.argv[1])
writer.write(b"acknowledged")
resource.setrlimit(resource.RLIMIT_FSIZE, ({space}, resource.RLIM_INFINITY))
writer.write(b"x" * 1500)
print(writer.failed)
writer.write(b"y")
print(writer.durable)
"""
    for mode in MODES:
        done = subprocess.run([sys.executable, "-c", code, mode], capture_output=True, text=True, check=False)
        assert "cannot be written any more" in done.stdout, done.stderr
        assert done.stdout.splitlines()[1] == "1"
        assert read_records(tmp_path)[-1] == b"acknowledged"
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY


@pytest.mark.parametrize("mode", ["os", "memory"])
def test_full_disk_fails_a_node_that_cannot_remember_other_folders(
    tmp_path: Path, mode: Durability, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory that may wait is written by a thread of its own; the host hears of it as of a failed log."""
    failed: list[Exception] = []
    opened = open_store(tmp_path, mode)
    opened.start(lambda ticket: None, failed.append)
    opened.remember(Remember((), admitted=True, lazy=True))

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(SystemFile, "write_at", refuse)
    opened.remember(Remember((KnownFolder(1, 2, 3, 4),), admitted=True, lazy=True))
    deadline = time.monotonic() + 10
    while not failed and time.monotonic() < deadline:
        time.sleep(0.01)
    assert "cannot be written any more: [Errno 28] No space left on device" in str(failed[0])


def test_folder_is_locked_by_one_process_at_a_time(tmp_path: Path) -> None:
    first = LogStore(tmp_path)
    with pytest.raises(UsageError, match="in use by another process"):
        LogStore(tmp_path)
    with pytest.raises(UsageError, match="is this node running already"):
        open_store(tmp_path, "memory")
    first.close()
    LogStore(tmp_path).close()
    second = open_store(tmp_path, "memory")
    with pytest.raises(UsageError, match="in use by another process"):
        open_store(tmp_path, "memory")
    second.close()
    open_store(tmp_path, "memory").close()


def test_incarnations_increase_and_one_of_two_identity_files_is_enough(tmp_path: Path) -> None:
    folders = set()
    for incarnation in range(6):
        if incarnation > 2:
            damaged = tmp_path / FILES[incarnation % 2]
            damaged.write_bytes(damaged.read_bytes().replace(b'"incarnation":', b'"incarnation":1'))
        store = open_store(tmp_path, "memory")
        assert isinstance(store, MemoryStore)
        assert store.incarnation == incarnation
        assert store.folder is not None
        folders.add(store.folder.folder)
        store.close()
    assert len(folders) == 1
    for name in FILES:
        (tmp_path / name).write_text("seven")
    for _ in range(2):
        with pytest.raises(DamagedLogError, match="both identity files are damaged"):
            open_store(tmp_path, "memory")


def test_verify_names_a_missing_folder_or_log(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such folder"):
        verify_log(tmp_path / "nowhere")
    with pytest.raises(UsageError, match="no segments"):
        verify_log(tmp_path)
    assert os.listdir(tmp_path) == []  # noqa: PTH208
