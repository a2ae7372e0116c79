"""The run folder: what goes in comes out, equal input gives equal bytes, nothing is ever overwritten."""

from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from amcast.check import judge
from amcast.kernel.errors import UsageError
from amcast.kernel.message import Message
from amcast.trace.columns import TABLES
from amcast.trace.meta import Meta, RunClaims
from amcast.trace.recorder import Recorder
from amcast.trace.run import Run, read_run, to_columns
from amcast.trace.run_folder import FolderRecorder
from tests.mutants.planted import healthy

META = Meta(run="r1", protocol="skeen", seed=7, claims=RunClaims(genuine="strict", fifo=True, exactly_once=True))


def record_events(recorder: Recorder, messages: int = 40) -> None:
    """Facts of all five kinds, with and without each optional value, out of order as drivers give them."""
    for i in range(messages):
        message = Message(8_000_000_000 + i, 8, (0,) if i % 3 else (0, 1), b"x" * i)
        recorder.record_multicast(message, 10 * i, 8 if i % 2 else None, i if i % 2 else None)
        for process in (2, 0, 1) if i % 3 == 0 else (1, 0):
            position = i if process < 2 else i // 3
            recorder.record_delivery(
                process, process // 2, position, message, 10 * i + 5, i if i % 4 else None, None, 10 * i
            )
        recorder.record_packet(message.id, "Request", 8, 0, 90 + i, 10 * i, 10 * i + 3 if i % 5 else None)
        recorder.record_packet((message.id, message.id + 1), "Ack", 0, 1, 20, 10 * i, 10 * i + 1)
        recorder.record_packet(None, "Heartbeat", 0, 1, 8, 10 * i, 10 * i + 1)
        recorder.record_note(i % 3, 10 * i, "waited", message.id if i % 2 else None, i / 2 if i % 3 else None)
    for process in range(3):
        recorder.record_process(process, process // 2, "eu", None if process else 99)
    recorder.record_process(8, None, "us")


def write_run(folder: Path, **options: int) -> Path:
    with FolderRecorder(folder, META, **options) as recorder:
        record_events(recorder)
        recorder.close(complete=True)
    return folder


def rows(columns: dict[str, list[object]]) -> list[tuple[object, ...]]:
    hashable = [[tuple(v) if isinstance(v, list) else v for v in column] for column in columns.values()]
    return list(zip(*hashable, strict=True))


@pytest.mark.parametrize("options", [{}, {"rows_per_group": 7, "rows_per_file": 20}, {"rows_per_group": 1}])
def test_rows_are_read_back_unchanged(tmp_path: Path, options: dict[str, int]) -> None:
    in_memory = Recorder()
    record_events(in_memory)
    run = read_run(write_run(tmp_path / "run", **options))
    assert run.meta == META.with_claims(complete=True)
    for table in ("processes", "multicasts", "notes"):
        assert rows(getattr(run, table)) == rows(to_columns(table, getattr(in_memory, table)))
    assert run.packets is not None
    assert len(run.packets) == len(in_memory.packets)
    packets = [row for batch in run.packets.batches() for row in rows(batch)]
    assert packets == in_memory.packets
    names = [column.name for column in TABLES["deliveries"][1:]]
    by_place = sorted(in_memory.deliveries, key=lambda row: (row[0], row[2]))
    stored = sorted(rows(run.deliveries), key=lambda row: (row[0], row[2]))
    assert stored == by_place
    assert list(run.deliveries) == names


def test_rows_of_a_process_are_sorted_by_position(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", rows_per_group=7, rows_per_file=20)
    assert len(list((folder / "deliveries").glob("*.parquet"))) > 2
    seen: dict[int, int] = {}
    deliveries = read_run(folder).deliveries
    for process, position in zip(deliveries["process"], deliveries["position"], strict=True):
        assert position == seen.get(process, -1) + 1
        seen[process] = position


def test_equal_runs_give_equal_bytes(tmp_path: Path) -> None:
    one, two = write_run(tmp_path / "one", rows_per_group=16), write_run(tmp_path / "two", rows_per_group=16)
    files = sorted(file.relative_to(one) for file in one.rglob("*") if file.is_file())
    assert files == sorted(file.relative_to(two) for file in two.rglob("*") if file.is_file())
    assert len(files) >= 6
    for file in files:
        assert (one / file).read_bytes() == (two / file).read_bytes(), file


def test_columns_have_compact_encodings(tmp_path: Path) -> None:
    file = next((write_run(tmp_path / "run") / "deliveries").glob("*.parquet"))
    group = pq.ParquetFile(file).metadata.row_group(0)
    columns = {group.column(i).path_in_schema: group.column(i) for i in range(group.num_columns)}
    assert all(column.compression == "ZSTD" for column in columns.values())
    for name in ("position", "at_ns", "message", "rank_time"):
        assert "DELTA_BINARY_PACKED" in columns[name].encodings
    for name in ("run", "process", "group", "destinations.list.element"):
        assert "RLE_DICTIONARY" in columns[name].encodings


def test_memory_is_bounded(tmp_path: Path) -> None:
    recorder = FolderRecorder(tmp_path / "run", META, rows_per_group=50)
    most = 0
    for i in range(1000):
        recorder.record_packet(None, "Heartbeat", 0, 1, 8, i, i + 1)
        most = max(most, len(recorder.packets))
    assert most < 50
    recorder.close()


def test_folder_with_a_run_is_refused(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    before = {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}
    with pytest.raises(UsageError, match=r"holds a run already \(run.json\)"):
        FolderRecorder(folder, META)
    assert before == {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="a file; expected a folder"):
        FolderRecorder(tmp_path / "file", META)


def test_interrupted_run_is_recognised(tmp_path: Path) -> None:
    def fails() -> None:
        with FolderRecorder(tmp_path / "run", META, rows_per_group=5) as recorder:
            record_events(recorder)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fails()
    with pytest.raises(UsageError, match="was interrupted"):
        read_run(tmp_path / "run")
    assert not list((tmp_path / "run").rglob(".*.parquet"))
    with pytest.raises(UsageError, match="holds a run already"):
        FolderRecorder(tmp_path / "run", META)


def test_file_gets_its_name_when_complete(tmp_path: Path) -> None:
    recorder = FolderRecorder(tmp_path / "run", META, rows_per_group=5)
    record_events(recorder)
    packets = tmp_path / "run" / "packets"
    assert [file.name for file in packets.iterdir()] == [".part-00000.parquet"]
    recorder.flush()
    assert [file.name for file in packets.iterdir()] == ["part-00000.parquet"]
    assert not (tmp_path / "run" / "run.json").exists()
    recorder.close()
    assert (tmp_path / "run" / "run.json").exists()
    assert not list((tmp_path / "run").rglob(".*"))


def test_latest_points_at_last_run(tmp_path: Path) -> None:
    write_run(tmp_path / "one")
    assert (tmp_path / "latest").resolve() == tmp_path / "one"
    write_run(tmp_path / "two")
    assert (tmp_path / "latest").resolve() == tmp_path / "two"
    assert read_run(tmp_path / "latest").meta.run == "r1"
    (tmp_path / "latest").unlink()
    (tmp_path / "latest").mkdir()
    write_run(tmp_path / "three")
    assert not (tmp_path / "latest").is_symlink()


def test_several_writers_share_a_folder(tmp_path: Path) -> None:
    """As a live cluster does: each process writes its own files, one of them twice because it was restarted."""
    folder, trace = tmp_path / "run", healthy()
    owner = FolderRecorder(folder, trace.meta(), latest=False)
    whole = trace.recorder()
    for process, entries in trace.sequences.items():
        for incarnation in (entries[:2], entries[2:]):
            writer = FolderRecorder(folder, trace.meta(), writer=f"process-{process:05d}", joins=True)
            for position, message, at_ns in incarnation:
                row = trace.multicasts[message]
                delivered = Message(message, row["sender"], row["destinations"])
                writer.record_delivery(process, trace.group_of(process) or 0, position, delivered, at_ns)
            writer.close()
    owner.processes, owner.multicasts = whole.processes, whole.multicasts
    owner.packets, owner.notes = whole.packets, whole.notes
    owner.close(complete=True)
    names = sorted(file.name for file in (folder / "deliveries").iterdir())
    assert names[:2] == ["process-00000-00000.parquet", "process-00000-00001.parquet"]
    assert judge(read_run(folder)).verdict == "holds"
    with pytest.raises(UsageError, match="writer 'Process 3'"):
        FolderRecorder(folder, trace.meta(), writer="Process 3", joins=True)


def test_packets_table_is_absent_without_packets(tmp_path: Path) -> None:
    with FolderRecorder(tmp_path / "run", META, packets=False) as recorder:
        assert recorder.wants_packets is False
        recorder.record_process(0, 0)
    assert not (tmp_path / "run" / "packets").exists()
    run = read_run(tmp_path / "run")
    assert run.packets is None
    assert run.deliveries["process"] == []
    silent = Recorder()
    silent.wants_packets = False
    assert Run.from_recorder(silent, META).packets is None


def test_answers_table_says_that_senders_wait_for_answers(tmp_path: Path) -> None:
    with FolderRecorder(tmp_path / "silent", META) as recorder:
        recorder.record_process(0, 0)
    assert read_run(tmp_path / "silent").answers is None
    with FolderRecorder(tmp_path / "unanswered", META) as recorder:
        recorder.has_answers = True
    assert read_run(tmp_path / "unanswered").answers == {"message": [], "at_ns": []}
    with FolderRecorder(tmp_path / "answered", META, rows_per_group=2) as recorder:
        recorder.has_answers = True
        for number in range(5):
            recorder.record_answer(number, 10 * number)
    assert read_run(tmp_path / "answered").answers == {"message": [0, 1, 2, 3, 4], "at_ns": [0, 10, 20, 30, 40]}


def test_host_of_a_process_may_be_absent(tmp_path: Path) -> None:
    with FolderRecorder(tmp_path / "run", META) as recorder:
        recorder.record_process(0, 0)
        recorder.record_process(1, 0, host="here")
    assert read_run(tmp_path / "run").processes["host"] == [None, "here"]


@pytest.mark.parametrize("make", [lambda path: FolderRecorder(path, META), lambda path: Recorder()])
def test_memory_and_folder_recorders_get_equal_reports(tmp_path: Path, make: Callable[[Path], Recorder]) -> None:
    recorder = make(tmp_path / "run")
    record_events(recorder)
    if isinstance(recorder, FolderRecorder):
        recorder.close(complete=True)
        run = read_run(tmp_path / "run")
    else:
        run = Run.from_recorder(recorder, META.with_claims(complete=True))
    verdicts = {name: finding.verdict for name, finding in judge(run).properties.items()}
    assert verdicts["P4"] == verdicts["P5"] == "holds"
    assert verdicts["P1"] == "holds"
    assert verdicts["P6'"] == "violated"
