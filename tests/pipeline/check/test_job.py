"""The Spark check against the plain checker: many small runs in one job, and small runs judged in the way of large
ones.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from amcast.kernel.errors import CannotTellError, UsageError
from amcast.pipeline.check.job import CheckLimits, check, exit_code_of
from amcast.trace.columns import TABLES
from tests.mutants.planted import Trace, healthy
from tests.pipeline.small_runs import plain, planted_runs, random_run, without_run_name, write

LARGE = CheckLimits(small_rows=0, gapped_rows=0)
pytestmark = pytest.mark.usefixtures("spark")


def judge_folder(folder: Path, limits: CheckLimits | None = None) -> dict[str, dict[str, Any]]:
    return {report["run"]: report for report in check(str(folder), limits=limits)["runs"]}


def rewrite(folder: Path, table: str, change: Any) -> None:
    """Change a table of a run folder, file by file."""
    for file in sorted((folder / table).glob("*.parquet")):
        pq.write_table(change(pq.read_table(file)), file)


def test_small_runs_get_the_plain_checkers_reports(tmp_path: Path) -> None:
    runs = {f"planted-{name}": trace for name, trace in planted_runs().items()}
    runs |= {f"random-{seed}": random_run(2000 + seed) for seed in range(250)}
    wanted = {}
    for at, (name, trace) in enumerate(sorted(runs.items())):
        report = plain(trace)
        if isinstance(report, dict):
            # Some folders directly below, some deeper, as sweeps write them.
            write(tmp_path / (f"part={at % 3}" if at % 2 else ".") / name, trace)
            wanted[name] = report
    answer = check(str(tmp_path))
    assert answer["verdict"] == "violated"
    assert exit_code_of(answer) == 1
    found = {report["run"]: report for report in answer["runs"]}
    assert set(found) == set(wanted)
    assert len(found) > 290
    for name, report in wanted.items():
        assert without_run_name(found[name]) == without_run_name(report), name
    verdicts = {report["verdict"] for report in found.values()}
    assert verdicts == {"holds", "violated", "unknown"}


LARGE_RUNS = ["healthy", "cycle_of_three", "one_replica_swaps", "delivered_twice", "idle_process_receives"]
LARGE_RUNS += ["auditor_sees_a_transfer_half_done", "answered_message_that_a_later_one_overtakes"]


@pytest.mark.parametrize("name", LARGE_RUNS)
def test_large_run_path_gives_the_same_reports(tmp_path: Path, name: str) -> None:
    trace = planted_runs()[name]
    found = judge_folder(write(tmp_path / name, trace, rows_per_group=5, rows_per_file=12), LARGE)
    assert without_run_name(found[name]) == without_run_name(plain(trace))


def without(*columns: str) -> Any:
    return lambda table: table.drop_columns([name for name in columns if name in table.column_names])


def make_larger_run(messages: int = 60) -> Trace:
    """A healthy run with a mistake in the middle, over three groups of three."""
    trace = Trace({0: [0, 1, 2], 1: [3, 4, 5], 2: [6, 7, 8]}, [20, 21])
    for message in range(messages):
        groups = [(0, 1), (1, 2), (0, 2), (0, 1, 2), (1,)][message % 5]
        trace.multicast(message, *groups, sender=20 + message % 2)
        for target in trace.members(message):
            trace.deliver(target, message)
            trace.packet(message, 20 + message % 2, target)
    trace.crashed[5] = 5000
    trace.order(5, *trace.delivered(5)[:20])
    for process in trace.groups[2]:
        mine = trace.delivered(process)
        mine[10], mine[11] = mine[11], mine[10]
        trace.order(process, *mine)
    return trace


def test_optional_columns_may_be_absent(tmp_path: Path) -> None:
    """Without destinations and times of multicast in the deliveries, a join finds them: same report."""
    trace = make_larger_run()
    folder = write(tmp_path / "bare", trace, rows_per_group=50, rows_per_file=100)
    wanted = without_run_name(plain(trace))
    assert wanted["properties"]["P5"]["verdict"] == "violated"
    rewrite(folder, "deliveries", without("destinations", "multicast_ns", "committed_ns"))
    assert without_run_name(judge_folder(folder, LARGE)["bare"]) == wanted


def one_process_per_file(folder: Path, shuffle: bool) -> None:
    """The layout of the largest traces: a file per process that states everything; its rows in order, or not."""
    table = pq.read_table(folder / "deliveries")
    sent = {row["message"]: row["at_ns"] for row in pq.read_table(folder / "multicasts").to_pylist()}
    at = table.schema.get_field_index("multicast_ns")
    times = pa.array([sent[message] for message in table.column("message").to_pylist()], pa.int64())
    table = table.set_column(at, "multicast_ns", times)
    for file in (folder / "deliveries").iterdir():
        file.unlink()
    for process in sorted(set(table.column("process").to_pylist())):
        mine = table.filter(pc.equal(table.column("process"), process)).sort_by("position")
        if shuffle:
            mine = mine.take(pa.array([*range(1, mine.num_rows), 0]))
        pq.write_table(mine, folder / "deliveries" / f"p{process}.parquet")


@pytest.mark.parametrize("shuffle", [False, True])
def test_sorted_layout_and_unsorted_rows(tmp_path: Path, shuffle: bool) -> None:
    trace = make_larger_run()
    folder = write(tmp_path / "laid-out", trace)
    one_process_per_file(folder, shuffle)
    assert without_run_name(judge_folder(folder, LARGE)["laid-out"]) == without_run_name(plain(trace))


def test_large_lookup_is_joined_by_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Too many messages to look up in memory: Spark joins and sorts, and the report is the same."""
    monkeypatch.setattr("amcast.pipeline.check.job.LOOKUP_MESSAGES", 10)
    trace = make_larger_run()
    folder = write(tmp_path / "joined", trace, rows_per_group=50, rows_per_file=100)
    assert without_run_name(judge_folder(folder, LARGE)["joined"]) == without_run_name(plain(trace))


def test_runs_may_share_their_tables(tmp_path: Path) -> None:
    traces = {"one": healthy(), "two": planted_runs()["cycle_of_three"]}
    shared = tmp_path / "shared"
    for trace in traces.values():
        trace.answers = [(2, 1020), (1, 2000)]
    for name, trace in traces.items():
        write(tmp_path / name, trace)
    for table in TABLES:
        (shared / table).mkdir(parents=True)
        for name in traces:
            (tmp_path / name / table / "part-00000.parquet").rename(shared / table / f"{name}.parquet")
    metas = [json.loads((tmp_path / name / "run.json").read_text()) for name in traces]
    (shared / "run.json").write_text(json.dumps(metas))
    for limits in (None, LARGE):
        found = judge_folder(shared, limits)
        assert {name: without_run_name(report) for name, report in found.items()} == {
            n: without_run_name(plain(t)) for n, t in traces.items()
        }


def test_unfinished_files_and_latest_link_are_ignored(tmp_path: Path) -> None:
    folder = write(tmp_path / "run", healthy())
    (folder / "deliveries" / ".part-00001.parquet").write_bytes(b"half")
    (tmp_path / "latest").symlink_to("run")
    assert [report["run"] for report in check(str(tmp_path))["runs"]] == ["run"]


# Bad input


def check_refused(folder: Path) -> str:
    with pytest.raises((UsageError, CannotTellError)) as caught:
        check(str(folder))
    sentence = str(caught.value)
    assert "\n" not in sentence
    return sentence


def test_folders_without_runs_are_refused(tmp_path: Path) -> None:
    assert "no such folder" in check_refused(tmp_path / "nowhere")
    assert "run.json" in check_refused(tmp_path)
    (tmp_path / "file").write_text("")
    assert "no such folder" in check_refused(tmp_path / "file")
    folder = write(tmp_path / "run", healthy())
    for file in (folder / "multicasts").iterdir():
        file.unlink()
    assert "table multicasts is missing" in check_refused(folder)


def change_table(tmp_path: Path, table: str, change: Any) -> Path:
    folder = write(tmp_path / "run", healthy())
    rewrite(folder, table, change)
    return folder


def cast(column: str, to: str) -> Any:
    def change(table: Any) -> Any:
        at = table.schema.get_field_index(column)
        return table.set_column(at, column, table.column(column).cast(to))

    return change


BAD: Iterable[tuple[str, Any, str]] = [
    ("deliveries", without("message"), "column message is missing"),
    ("multicasts", cast("at_ns", "string"), "column at_ns is string; expected long"),
    ("processes", without("group"), "column group is missing"),
    ("packets", cast("source", "double"), "column source is double; expected int"),
]


@pytest.mark.parametrize(("table", "change", "sentence"), BAD)
def test_invalid_tables_are_refused(tmp_path: Path, table: str, change: Any, sentence: str) -> None:
    found = check_refused(change_table(tmp_path, table, change))
    assert sentence in found
    assert table in found


@pytest.mark.parametrize("keep", [0, 100, -20])
def test_truncated_files_are_refused(tmp_path: Path, keep: int) -> None:
    folder = write(tmp_path / "run", healthy())
    file = next((folder / "deliveries").glob("*.parquet"))
    file.write_bytes(file.read_bytes()[:keep])
    assert f"{file.name}" in check_refused(folder)


def test_damaged_page_is_refused_in_one_sentence(tmp_path: Path) -> None:
    folder = write(tmp_path / "run", healthy())
    file = next((folder / "deliveries").glob("*.parquet"))
    data = bytearray(file.read_bytes())
    data[4:400] = bytes(396)
    file.write_bytes(data)
    assert f"{file.name}" in check_refused(folder)
