"""A scrubber finds every damaged byte of a log that is in use, and none in a log that is whole."""

from random import Random

import pytest

from amcast.simulation.world.simulated_files import SECTOR, SimulatedFile, SimulatedFiles
from amcast.storage.folder import StorageFolder
from amcast.storage.log import Log
from amcast.storage.scrubber import WINDOW_BYTES, Scrubber

SEGMENT_BYTES = 8 * SECTOR


class ScrubbedLog:
    """A log on simulated files, and its scrubber."""

    def __init__(self, segment_bytes: int = SEGMENT_BYTES) -> None:
        self.files = SimulatedFiles("folder")
        self._segment_bytes = segment_bytes
        self.log = self._open()
        self.scrubber = self.make_scrubber()

    def _open(self) -> Log:
        log = StorageFolder(self.files, lambda: 77, segment_bytes=self._segment_bytes).log
        assert log is not None
        return log

    def reopen(self) -> None:
        self.log.close()
        self.log = self._open()

    def make_scrubber(self, files: SimulatedFiles | None = None) -> Scrubber:
        return Scrubber(files or self.files, 77, lambda: self.log.durable_end)

    def write(self, *records: bytes, replaces: bool = False) -> None:
        self.log.write([(record, replaces) for record in records])

    def run_pass(self, scrubber: Scrubber | None = None) -> str:
        """Reads the whole log; returns the damage."""
        scrubber = scrubber or self.scrubber
        while scrubber.check_next():
            pass
        return scrubber.damage

    def list_segments(self) -> list[str]:
        return [name for name in self.files.list() if name.endswith(".log")]

    def flip(self, name: str, at: int) -> None:
        copy = self.files.copy()
        data = bytearray(copy[name])
        data[at] ^= 16
        self.files.put_back({**copy, name: bytes(data)})


@pytest.mark.parametrize("seed", range(8))
def test_log_that_grows_and_is_replaced_meanwhile_is_whole(seed: int) -> None:
    random, scene = Random(seed), ScrubbedLog()
    for _ in range(600):
        if random.random() < 0.25:
            sizes = [random.choice((0, 1, 30, 480, 510, 2000)) for _ in range(random.randint(1, 4))]
            scene.write(*(random.randbytes(size) for size in sizes), replaces=random.random() < 0.05)
        if random.random() < 0.02:
            scene.reopen()
        scene.files.short_reads = random.choice((0, 0, 3))
        scene.scrubber.check_next()
        assert scene.scrubber.damage == ""
    assert scene.scrubber.passes > 0


def test_every_flipped_bit_is_found() -> None:
    """Also those behind the last commit of a segment, which recovery would take for damage."""
    random, scene = Random(5), ScrubbedLog()
    for size in (10, 600, 1500, 700, 30, 2500, 40):
        scene.write(random.randbytes(size))
    copy, names = scene.files.copy(), scene.list_segments()
    assert len(names) >= 3
    missed = []
    for name in names:
        end = scene.log.durable_end.at if name == names[-1] else len(copy[name])
        for at in range(0, end, 37):
            scene.files.put_back(copy)
            scene.flip(name, at)
            damage = scene.run_pass(scene.make_scrubber())
            if f"{name}: " not in damage:
                missed.append((name, at, damage))
    assert missed == []


def test_lost_commit_before_the_last_segment_is_found() -> None:
    scene = ScrubbedLog()
    for number in range(12):
        scene.write(bytes([number + 1]) * 450)
    copy, first = scene.files.copy(), scene.list_segments()[0]
    last_commit = (len(copy[first].rstrip(b"\0")) - 1) // SECTOR * SECTOR
    scene.files.put_back({**copy, first: copy[first][:last_commit].ljust(len(copy[first]), b"\0")})
    assert scene.run_pass().endswith("00000002.log: it does not continue the segment before it")


def test_missing_segment_is_found() -> None:
    scene = ScrubbedLog()
    for number in range(20):
        scene.write(bytes([number + 1]) * 450)
    scene.files.remove(scene.list_segments()[1])
    assert scene.run_pass().endswith("00000003.log: it does not continue the segment before it")


def test_damage_is_forgotten_when_a_snapshot_has_replaced_it() -> None:
    scene = ScrubbedLog()
    scene.write(b"one")
    scene.flip("00000001.log", SECTOR + 9)
    assert scene.run_pass() == "folder/00000001.log: damaged at byte 512"
    scene.write(b"all", replaces=True)
    assert scene.list_segments() == ["00000002.log"]
    assert scene.run_pass() == ""


def test_segment_of_another_folder_is_found() -> None:
    scene = ScrubbedLog()
    scene.write(b"one")
    assert "a segment of folder 77; expected one of folder 78" in scene.run_pass(
        Scrubber(scene.files, 78, lambda: scene.log.durable_end)
    )


class UnreadableFile(SimulatedFile):
    def read_at(self, size: int, at: int) -> bytes:
        raise OSError(5, "Input/output error")


class UnreadableFiles(SimulatedFiles):
    def open(self, name: str) -> SimulatedFile:
        return UnreadableFile(self, self._entries[name])


def test_disk_that_cannot_be_read_is_reported() -> None:
    scene = ScrubbedLog()
    scene.write(b"one")
    files = UnreadableFiles("folder")
    files.put_back(scene.files.copy())
    assert "00000001.log: cannot be read at byte 0: [Errno 5]" in scene.run_pass(scene.make_scrubber(files))


def test_one_call_reads_one_commit() -> None:
    scene = ScrubbedLog(segment_bytes=1 << 20)
    for size in (10, 3 * WINDOW_BYTES, 10):
        scene.write(bytes(size))
    counts = []
    while count := scene.scrubber.check_next():
        counts.append(count)
    assert counts[:2] == [SECTOR, SECTOR]
    assert 3 * WINDOW_BYTES < counts[2] < 4 * WINDOW_BYTES
    assert counts[3:] == [SECTOR]
    assert (scene.scrubber.passes, scene.scrubber.bytes) == (1, sum(counts))
