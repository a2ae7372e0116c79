"""Watching an unfinished run: changing numbers, and an order violation reported during the run."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from amcast.cli.main import run as run_command
from amcast.kernel.errors import UsageError
from amcast.kernel.message import Message
from amcast.pipeline.watch.job import RunWatcher, WatchStatus, watch
from amcast.pipeline.watch.state import WatchState
from amcast.trace.meta import Meta
from amcast.trace.run_folder import FolderRecorder

GROUPS = {0: (0, 1), 1: (2, 3)}


class Writer:
    """A run of two groups of two that writes files as it goes."""

    def __init__(self, folder: Path, run: str = "going-on") -> None:
        self.recorder = FolderRecorder(folder, Meta(run=run), latest=False)
        self.position = dict.fromkeys(range(4), 0)

    def write_messages(self, first: int, count: int, swapped_at: int = -1, silent: int = -1) -> None:
        """Messages to both groups, 1 ms apart and delivered 5 ms later; one group may swap two of them."""
        messages = [Message(first + at, 9, (0, 1)) for at in range(count)]
        for message in messages:
            self.recorder.record_multicast(message, message.id * 1_000_000)
        for group, members in GROUPS.items():
            mine = list(messages)
            if group == 1 and swapped_at >= 0:
                at = swapped_at - first
                mine[at], mine[at + 1] = mine[at + 1], mine[at]
            for process in members:
                for message in mine if process != silent else []:
                    at_ns = message.id * 1_000_000 + 5_000_000
                    self.recorder.record_delivery(process, group, self.position[process], message, at_ns)
                    self.position[process] += 1
        self.recorder.flush()

    def end(self) -> None:
        for group, members in GROUPS.items():
            for process in members:
                self.recorder.record_process(process, group)
        self.recorder.close(complete=True)


def test_run_is_watched_to_its_end(spark: SparkSession, tmp_path: Path) -> None:
    writer, statuses = Writer(tmp_path / "run"), []
    writer.write_messages(0, 100)
    steps = [lambda: writer.write_messages(100, 100, silent=3), writer.end]

    def on_status(now: WatchStatus) -> None:
        """The run goes on once it was seen so far."""
        statuses.append(now.deliveries)
        if steps:
            steps.pop(0)()

    last = watch(str(tmp_path / "run"), on_status, every_seconds=0.5)
    assert last.verdict == "holds"
    assert (last.deliveries, last.multicasts, last.merged) == (700, 200, 200)
    assert last.lag == {0: 0, 1: 0, 2: 0, 3: 100}
    assert last.latency_ns_p50 == 5_000_000
    assert last.per_second > 0
    assert statuses == [400, 700]


def test_order_violation_is_reported_during_the_run(spark: SparkSession, tmp_path: Path) -> None:
    writer = Writer(tmp_path / "run")
    writer.write_messages(0, 50)
    steps = [lambda: writer.write_messages(50, 50, swapped_at=70)]
    last = watch(str(tmp_path / "run"), lambda now: steps.pop()() if steps else None, every_seconds=0.5)
    assert not (tmp_path / "run" / "run.json").exists()
    assert last.verdict == "violated"
    assert last.story[0] == "2 messages precede each other in a cycle: 71 -> 70 -> 71"
    assert "process 2 delivered 71 at position 70, before 70 at position 71" in last.story
    assert "process 0 delivered 70 at position 70, before 71 at position 71" in last.story


def test_hole_that_is_never_filled_is_unknown(spark: SparkSession, tmp_path: Path) -> None:
    """What a process recorded behind the hole is not judged, and the watch says so, during the run and at its end."""
    writer, statuses = Writer(tmp_path / "run"), []
    writer.write_messages(0, 20)
    for process in GROUPS[1]:
        writer.position[process] += 1
    writer.write_messages(20, 20, swapped_at=30)
    writer.end()
    last = watch(str(tmp_path / "run"), lambda now: statuses.append(now.verdict), every_seconds=0.5)
    assert last.verdict == "unknown"
    assert last.holes == {2: 20, 3: 20}
    assert "process 2 lacks position 20, and has 20 later ones" in last.story
    assert "holds" not in statuses


def test_files_of_other_writers_are_watched_and_wrong_ones_refused(spark: SparkSession, tmp_path: Path) -> None:
    writer = Writer(tmp_path / "run")
    writer.write_messages(0, 20)
    (file,) = (tmp_path / "run" / "deliveries").glob("*.parquet")
    data = pq.read_table(file)
    for name, kind in (("process", pa.uint64()), ("group", pa.int64()), ("message", pa.int16())):
        data = data.set_column(data.schema.get_field_index(name), name, data.column(name).cast(kind))
    pq.write_table(data, file)
    last = watch(str(tmp_path / "run"), lambda now: None, every_seconds=0.2, patience_seconds=1)
    assert (last.verdict, last.merged) == ("holds", 20)
    groups = pa.array([[0]] * len(data), pa.list_(pa.int32()))
    at = data.schema.get_field_index("destinations")
    pq.write_table(data.set_column(at, "destinations", groups), file)
    with pytest.raises(UsageError, match="deliveries: destinations of message"):
        watch(str(tmp_path / "run"), lambda now: None, every_seconds=0.2, patience_seconds=1)


def test_watch_stops_after_its_patience(spark: SparkSession, tmp_path: Path) -> None:
    writer = Writer(tmp_path / "run")
    writer.write_messages(0, 10)
    last = watch(str(tmp_path / "run"), lambda now: None, every_seconds=0.2, patience_seconds=1)
    assert (last.verdict, last.merged) == ("holds", 10)


def test_watch_continues_from_its_state(spark: SparkSession, tmp_path: Path) -> None:
    """Files that were read are not opened again, and what follows from them is still known."""
    writer, state = Writer(tmp_path / "run"), tmp_path / "states" / "watch"
    alert, folder = tmp_path / "alerts", str(tmp_path / "run")
    writer.write_messages(0, 50)
    first = watch(folder, lambda now: None, every_seconds=0.2, patience_seconds=1, state=state)
    assert (first.verdict, first.deliveries) == ("holds", 200)
    for file in (tmp_path / "run").glob("*/*.parquet"):
        file.write_bytes(b"damaged")
    writer.write_messages(50, 50, swapped_at=70)
    options = ["--every", "0.2", "--state", str(state), "--alert", str(alert)]
    assert run_command(["watch", folder, *options]) == 1
    line = json.loads(alert.read_text())
    assert (line["verdict"], line["folder"]) == ("violated", folder)
    assert line["story"][0] == "2 messages precede each other in a cycle: 71 -> 70 -> 71"
    again = watch(folder, lambda now: None, every_seconds=0.2, state=state)
    assert (again.verdict, again.deliveries) == ("violated", 400)
    state.write_text("something else")
    with pytest.raises(UsageError, match="not the state of a watch; expected a new file"):
        watch(folder, lambda now: None, state=state)


def test_two_runs_in_one_folder_are_refused(tmp_path: Path) -> None:
    """Without run.json the first row names the run, and a watch that continues knows that name."""
    for run in ("one", "two"):
        writer = Writer(tmp_path / run, run)
        writer.write_messages(0, 5)
    files = {run: [str(file) for file in (tmp_path / run / "deliveries").glob("*.parquet")] for run in ("one", "two")}
    watcher = RunWatcher(None, lambda now: None)
    watcher.take_files("deliveries", files["one"])
    assert watcher.failure is None
    state = WatchState(tmp_path / "state")
    watcher.save(state)
    continued = RunWatcher(None, lambda now: None)
    continued.restore(state)
    both = RunWatcher(None, lambda now: None)
    both.take_files("deliveries", [*files["one"], *files["two"]])
    assert "rows of runs 'one' and 'two'; expected one run to watch" in str(both.failure)
    for each in (watcher, continued):
        each.take_files("deliveries", files["two"])
        assert "rows of run 'two'; expected only ['one']" in str(each.failure)


def test_state_of_another_run_or_version_is_refused(tmp_path: Path) -> None:
    state = WatchState(tmp_path / "state")
    state.write("one", {"a": 1})
    assert state.read("one") == {"a": 1}
    with pytest.raises(UsageError, match="of run 'one'; expected that of 'two'"):
        state.read("two")
    (tmp_path / "state").write_bytes((tmp_path / "state").read_bytes()[:-3])
    with pytest.raises(UsageError, match="damaged, or of another version"):
        state.read("one")


def test_folder_without_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="expected the folder of a run"):
        watch(str(tmp_path / "nowhere"), lambda now: None)
    with pytest.raises(UsageError, match="nor a table"):
        watch(str(tmp_path), lambda now: None)
