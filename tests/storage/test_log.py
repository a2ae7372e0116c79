"""The log on files that are cut, torn, short and rotten at every place: recovery returns what was acknowledged, or says
that it cannot; it never returns less without saying so."""

from collections.abc import Callable, Iterator
from random import Random

import pytest

from amcast.simulation.world.simulated_files import SECTOR, PowerCutError, SimulatedFiles
from amcast.storage.client_ids import ClientIdAllocator
from amcast.storage.folder import EPOCH, StorageFolder
from amcast.storage.identity import FILES

Group = list[tuple[bytes, bool]]


def open_folder(files: SimulatedFiles, segment_bytes: int = 4096) -> StorageFolder:
    return StorageFolder(files, lambda: 77, segment_bytes=segment_bytes)


def write(folder: StorageFolder, *records: bytes, replaces: bool = False) -> None:
    assert folder.log is not None
    folder.log.write([(record, replaces) for record in records])


def read(folder: StorageFolder) -> list[bytes]:
    assert folder.log is not None
    assert folder.log.doubt == ""
    return list(folder.log.take_records())


def draw_groups(random: Random, count: int) -> list[Group]:
    """Commits of all sizes, some with a snapshot in the middle."""
    groups: list[Group] = []
    for _ in range(count):
        sizes = [random.choice((0, 1, 30, 480, 510, 2000)) for _ in range(random.randint(1, 4))]
        groups.append([(random.randbytes(size), random.random() < 0.08) for size in sizes])
    return groups


def apply(records: list[bytes], group: Group) -> list[bytes]:
    """The records of a log after one more commit."""
    for record, replaces in group:
        records = [record] if replaces else [*records, record]
    return records


def copy_files(files: SimulatedFiles) -> SimulatedFiles:
    other = SimulatedFiles(files.path)
    other.put_back(files.copy())
    return other


def count_operations(action: Callable[[], object], files: SimulatedFiles) -> int:
    """How many file operations an action takes."""
    files.operations_left = 1 << 30
    action()
    used = (1 << 30) - files.operations_left
    files.operations_left = -1
    return used


@pytest.mark.parametrize("seed", range(12))
def test_power_cut_at_every_operation_keeps_what_was_acknowledged(seed: int) -> None:
    random = Random(seed)
    files = SimulatedFiles(f"seed {seed}")
    folder = open_folder(files, 2048)
    records: list[bytes] = []
    for group in draw_groups(random, 12):
        for cut in _every_cut(files, group):
            torn = copy_files(files)
            victim = open_folder(torn, 2048)
            assert victim.log is not None
            torn.operations_left = cut
            with pytest.raises(PowerCutError):
                victim.log.write(group)
            torn.cut_power(random)
            found = read(open_folder(torn, 2048))
            assert found in (records, apply(records, group)), f"seed {seed}, cut after {cut} operations"
        assert folder.log is not None
        folder.log.write(group)
        records = apply(records, group)
    assert read(open_folder(files, 2048)) == records


def _every_cut(files: SimulatedFiles, group: Group) -> Iterator[int]:
    trial = copy_files(files)
    folder = open_folder(trial, 2048)
    assert folder.log is not None
    log = folder.log
    yield from range(count_operations(lambda: log.write(group), trial))


@pytest.mark.parametrize("seed", range(4))
def test_power_cut_at_every_operation_of_recovery_is_recovered_from(seed: int) -> None:
    random = Random(seed)
    files = SimulatedFiles(f"seed {seed}")
    folder = open_folder(files)
    write(folder, b"one" * 300)
    assert folder.log is not None
    files.operations_left = 1
    with pytest.raises(PowerCutError):
        folder.log.write([(b"two" * 900, False)])
    files.cut_power(random)
    operations = count_operations(lambda: open_folder(copied), copied := copy_files(files))
    for cut in range(operations):
        torn = copy_files(files)
        torn.operations_left = cut
        with pytest.raises(PowerCutError):
            open_folder(torn)
        torn.cut_power(random)
        assert read(open_folder(torn)) == [b"one" * 300], f"seed {seed}, cut after {cut} operations"


def test_flipped_bit_anywhere_in_the_last_commit_is_doubtful() -> None:
    files = SimulatedFiles("rot")
    folder = open_folder(files)
    write(folder, b"first" * 30)
    write(folder, b"second" * 150)
    image = files.copy()
    name = "00000001.log"
    end = len(image[name].rstrip(b"\0"))
    assert end == 4 * SECTOR
    for at in range(0, end, 3):
        data = bytearray(image[name])
        data[at] ^= 1 << at % 8
        rotten = SimulatedFiles("rot")
        rotten.put_back({**image, name: bytes(data)})
        state = open_folder(rotten).state
        assert state.condition == "doubtful", f"byte {at}"
        assert f"{name}:" in state.reason
        assert rotten.copy()[name] == data, "a doubtful log is left as it is"


@pytest.mark.parametrize("seed", range(40))
def test_flipped_bit_anywhere_in_a_folder_never_loses_records_silently(seed: int) -> None:
    random = Random(seed)
    files = SimulatedFiles(f"seed {seed}")
    folder = open_folder(files, 2048)
    records: list[bytes] = []
    for group in draw_groups(random, 10):
        assert folder.log is not None
        folder.log.write(group)
        records = apply(records, group)
    image = copy_files(files)
    for _ in range(20):
        rotten = copy_files(image)
        assert rotten.flip_bit(random)
        after = open_folder(rotten, 2048)
        assert after.log is not None
        assert after.log.doubt or read(after) == records, f"seed {seed}"
        assert after.state.folder == 77


def test_missing_sector_before_a_marker_is_doubtful_and_without_one_torn() -> None:
    for marked in (False, True):
        files = SimulatedFiles("missing")
        folder = open_folder(files)
        write(folder, b"x" * 1200)
        if marked:
            assert folder.log is not None
            folder.log.mark()
        image = files.copy()
        for sector in (1, 2, 3):
            data = bytearray(image["00000001.log"])
            data[sector * SECTOR : (sector + 1) * SECTOR] = bytes(SECTOR)
            damaged = SimulatedFiles("missing")
            damaged.put_back({**image, "00000001.log": bytes(data)})
            after = open_folder(damaged).log
            assert after is not None
            assert bool(after.doubt) == marked
            assert bool(after.torn_bytes) == (not marked)


def test_segment_of_another_folder_or_another_place_is_doubtful() -> None:
    images = []
    for number in (1, 2):
        files = SimulatedFiles("mixed")
        folder = StorageFolder(files, lambda number=number: number, segment_bytes=1024)  # type: ignore[misc]
        for record in (b"a", b"b", b"c"):
            write(folder, record + bytes([number]))
        images.append(files.copy())
    for place in ("00000001.log", "00000002.log", "00000003.log"):
        mixed = SimulatedFiles("mixed")
        mixed.put_back({**images[0], place: images[1][place]})
        assert "a segment of folder 2; expected one of folder 1" in open_folder(mixed, 1024).state.reason
    swapped = SimulatedFiles("mixed")
    swapped.put_back({**images[0], "00000002.log": images[0]["00000003.log"]})
    assert "expected 2 and the chain of the segment before" in open_folder(swapped, 1024).state.reason


@pytest.mark.parametrize("seed", range(6))
def test_short_writes_at_every_call_lose_nothing(seed: int) -> None:
    random = Random(seed)
    files = SimulatedFiles(f"seed {seed}")
    files.short_writes = 1 << 30
    records: list[bytes] = []
    for _ in range(3):
        folder = open_folder(files, 2048)
        assert read(folder) == records
        for group in draw_groups(random, 6):
            assert folder.log is not None
            folder.log.write(group)
            records = apply(records, group)
        files.kill_process()
    assert read(open_folder(files, 2048)) == records


@pytest.mark.parametrize("space", [0, 100, 512, 1000])
def test_full_disk_fails_the_write_and_keeps_what_was_acknowledged(space: int) -> None:
    """The log is sound, also where the disk has taken a part of a sector."""
    files = SimulatedFiles("full")
    folder = open_folder(files)
    write(folder, b"kept")
    files.space_left = space
    with pytest.raises(OSError, match="full"):
        write(folder, b"lost" * 300)
    files.space_left = -1
    files.kill_process()
    assert read(open_folder(files)) == [b"kept"]


def test_commit_whose_sync_failed_does_not_pass_for_durable() -> None:
    """After a failed sync the system may show what was written, and never write it."""
    files = SimulatedFiles("failing")
    folder = open_folder(files)
    write(folder, b"a")
    files.failing_syncs = 1
    with pytest.raises(OSError, match="cannot be written"):
        write(folder, b"b")
    files.kill_process()
    after = open_folder(files)
    assert read(after) == [b"a"]
    write(after, b"c")
    files.cut_power(Random(0))
    assert read(open_folder(files)) == [b"a", b"c"]


@pytest.mark.parametrize("end", ["closed", "killed"])
@pytest.mark.parametrize("harm", ["last segment removed", "last commit zero", "older log"])
def test_log_that_ends_before_what_its_folder_remembers_is_doubtful(harm: str, end: str) -> None:
    """Also where nobody else counts the records of a folder: in a group of one."""
    files = SimulatedFiles("behind")
    folder = open_folder(files, 2048)
    write(folder, b"a" * 300)
    older = {name: data for name, data in files.copy().items() if name.endswith(".log")}
    for _ in range(5):
        write(folder, b"b" * 600)
    if end == "closed":
        folder.close()
    else:
        folder.remember((), True)
        files.kill_process()
    whole = {name: data for name, data in files.copy().items() if name.endswith(".log")}
    last = max(whole)
    assert last > "00000002.log"
    data = whole[last]
    at = len(data.rstrip(b"\0")) // SECTOR * SECTOR - SECTOR
    harmed = {
        "last segment removed": {name: data for name, data in whole.items() if name != last},
        "last commit zero": {**whole, last: data[:at] + bytes(len(data) - at)},
        "older log": older,
    }[harm]
    rest = {name: data for name, data in files.copy().items() if name not in whole}
    files.put_back({**rest, **harmed})
    assert "it had record" in open_folder(files, 2048).state.reason


def test_operator_who_accepts_a_loss_keeps_the_records_before_the_damage() -> None:
    files = SimulatedFiles("rotten")
    folder = open_folder(files)
    write(folder, b"snapshot", replaces=True)
    for number in range(4):
        write(folder, b"%d" % number)
    assert folder.log is not None
    segment = files.open("00000002.log")
    place = 4 * SECTOR + 30  # in the third commit behind the snapshot
    segment.write_at(bytes([segment.read_at(1, place)[0] ^ 1]), place)
    files.kill_process()
    folder = open_folder(files)
    assert folder.state.condition == "doubtful"
    assert folder.accept_loss() == 3
    folder.close()
    folder = open_folder(files)
    assert (folder.state.condition, folder.state.accepts_loss) == ("fresh", True)
    assert read(folder) == [b"snapshot", b"0", b"1"]


def test_record_numbers_count_what_a_snapshot_replaced() -> None:
    files = SimulatedFiles("numbers")
    folder = open_folder(files)
    assert folder.log is not None
    folder.log.write([(b"a", False), (b"b", False), (b"snapshot", True), (b"c", False)])
    assert folder.state.records == 4
    after = open_folder(files)
    assert after.state.records == 4
    assert read(after) == [b"snapshot", b"c"]


def test_discarded_log_is_put_aside_and_numbers_never_fall() -> None:
    files = SimulatedFiles("discarded")
    folder = open_folder(files)
    write(folder, b"a", b"b")
    image = bytearray(files.copy()["00000001.log"])
    image[600] ^= 1
    files.put_back({**files.copy(), "00000001.log": bytes(image)})
    operations = count_operations(lambda: open_folder(trial).discard(EPOCH), trial := copy_files(files))
    for cut in range(operations):
        torn = copy_files(files)
        torn.operations_left = cut
        with pytest.raises(PowerCutError):
            open_folder(torn).discard()
        torn.cut_power(Random(cut))
        after = open_folder(torn)
        if after.log is not None and after.log.doubt:
            after.discard()
        assert (after.state.condition, after.state.records) == ("lost", EPOCH), cut
        assert read(after) == []
        write(after, b"next")
        assert (open_folder(torn).state.records, read(open_folder(torn))) == (EPOCH + 1, [b"next"])
        assert any(name.startswith("00000001.log.damaged-") for name in torn.list())
    assert open_folder(trial).state.records == 2 * EPOCH, "above what others know of"


def test_removed_log_is_a_lost_one() -> None:
    files = SimulatedFiles("removed")
    write(open_folder(files), b"a", b"b")
    files.remove("00000001.log")
    after = open_folder(files)
    assert (after.incarnation, read(after), after.state.records) == (1, [], EPOCH)


def test_one_identity_file_is_enough_and_the_newer_one_counts() -> None:
    files = SimulatedFiles("identity")
    for incarnation in range(3):
        assert open_folder(files).incarnation == incarnation
    newest = files.copy()
    open_folder(files)
    for damaged, old in (FILES, FILES[::-1]):
        other = SimulatedFiles("identity")
        other.put_back({**files.copy(), old: newest[old], damaged: b"?"})
        assert open_folder(other).incarnation == 3, "one start is forgotten with its only file"
        other.put_back({**files.copy(), old: newest[old]})
        assert open_folder(other).incarnation == 4


@pytest.mark.parametrize("seed", range(30))
def test_no_client_id_is_allocated_twice_over_power_cuts_and_full_disks(seed: int) -> None:
    random = Random(seed)
    files = SimulatedFiles(f"seed {seed}")
    seen: set[int] = set()
    for incarnation in range(12):
        files.operations_left = random.choice((-1, random.randint(0, 40)))
        files.short_writes = random.choice((0, 2))
        try:
            allocator = ClientIdAllocator(files, 3, incarnation, random.randbytes)
            for _ in range(random.randint(1, 90)):
                files.space_left = random.randrange(2000) if random.random() < 0.02 else -1
                try:
                    allocated = allocator.allocate(1 << 20, 1 << 40).process
                except OSError:
                    continue
                assert allocated not in seen, f"seed {seed}"
                seen.add(allocated)
        except PowerCutError:
            pass
        except OSError:
            files.space_left = -1
        files.space_left = -1
        files.cut_power(random)
        if "client_ids" not in files.list():
            return  # the first start was cut off: nothing is allocated any more
    assert seen
