"""Run folders of any writer: every defect is refused in one sentence that names it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from amcast.check import judge
from amcast.kernel.errors import UsageError
from amcast.trace.meta import encode_metas
from amcast.trace.parquet import iterate_canonical
from amcast.trace.run import read_run, read_runs
from amcast.trace.run_folder import FolderRecorder
from tests.mutants.planted import healthy


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return save(tmp_path / "run")


def save(folder: Path, run: str = "planted") -> Path:
    trace = healthy()
    whole = trace.recorder()
    with FolderRecorder(folder, trace.meta(run), latest=False) as recorder:
        for table in ("processes", "multicasts", "deliveries", "packets", "notes"):
            getattr(recorder, table).extend(getattr(whole, table))
        recorder.close(complete=True)
    return folder


def rewrite(folder: Path, table: str, change: Callable[[pa.Table], pa.Table]) -> Path:
    file = folder / table / "part-00000.parquet"
    pq.write_table(change(pq.read_table(file)), file)
    return file


def column(name: str, values: Callable[[list[Any]], list[Any]], kind: pa.DataType) -> Callable[[pa.Table], pa.Table]:
    def change(table: pa.Table) -> pa.Table:
        at = table.schema.names.index(name)
        return table.set_column(at, name, pa.array(values(table.column(name).to_pylist()), kind))

    return change


def assert_refused(folder: Path, *words: str) -> None:
    with pytest.raises(UsageError) as refusal:
        judge(read_run(folder))
    for word in words:
        assert word in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_complete_folder_is_read(folder: Path) -> None:
    assert judge(read_run(folder)).verdict == "holds"


def test_missing_folder_is_refused(tmp_path: Path) -> None:
    assert_refused(tmp_path / "nowhere", "nowhere", "no such folder")


@pytest.mark.parametrize("table", ["processes", "multicasts", "deliveries"])
def test_missing_required_table_is_refused(folder: Path, table: str) -> None:
    (folder / table / "part-00000.parquet").unlink()
    assert_refused(folder, f"table {table} is missing", str(folder))
    (folder / table).rmdir()
    assert_refused(folder, f"table {table} is missing", str(folder))


def test_optional_tables_may_be_absent(folder: Path) -> None:
    for table in ("packets", "notes"):
        (folder / table / "part-00000.parquet").unlink()
        (folder / table).rmdir()
    found = judge(read_run(folder)).properties
    assert found["P6"].verdict == found["P6'"].verdict == "unknown"
    assert found["P5"].verdict == "holds"


@pytest.mark.parametrize("table", ["multicasts", "deliveries", "packets", "notes"])
def test_truncated_file_is_refused(folder: Path, table: str) -> None:
    file = folder / table / "part-00000.parquet"
    file.write_bytes(file.read_bytes()[:-40])
    assert_refused(folder, str(file), "expected a whole Parquet file")


@pytest.mark.parametrize("table", ["deliveries", "packets"])
def test_file_of_another_format_is_refused(folder: Path, table: str) -> None:
    (folder / table / "part-00000.parquet").write_text("position,message\n0,1\n")
    assert_refused(folder, table, "expected a whole Parquet file")


def test_damaged_pages_are_refused(folder: Path) -> None:
    file = rewrite(folder, "packets", lambda table: table)
    data = bytearray(file.read_bytes())
    data[4:200] = bytes(196)
    file.write_bytes(bytes(data))
    assert_refused(folder, str(file))


@pytest.mark.parametrize(
    ("table", "name"), [("deliveries", "position"), ("processes", "crashed_at_ns"), ("packets", "received_ns")]
)
def test_missing_column_is_refused(folder: Path, table: str, name: str) -> None:
    rewrite(folder, table, lambda data: data.drop_columns([name]))
    assert_refused(folder, table, f"column {name} is missing; expected long")


@pytest.mark.parametrize(
    ("table", "name", "values", "kind", "words"),
    [
        (
            "deliveries",
            "position",
            lambda v: list(map(str, v)),
            pa.string(),
            "position is string; expected long",
        ),
        (
            "deliveries",
            "message",
            lambda v: list(map(float, v)),
            pa.float64(),
            "message is double; expected long",
        ),
        ("multicasts", "destinations", lambda v: [d[0] for d in v], pa.int32(), "is int32; expected array<int>"),
        ("packets", "sent_ns", lambda v: list(map(str, v)), pa.string(), "column sent_ns is string; expected long"),
        ("notes", "value", lambda v: list(map(str, v)), pa.string(), "column value is string; expected double"),
        ("deliveries", "message", lambda v: [None, *v[1:]], pa.int64(), "column message is null in row 0 (1 nulls)"),
        ("packets", "source", lambda v: [None, *v[1:]], pa.int32(), "column source is null in row 0 (1 nulls)"),
        (
            "multicasts",
            "destinations",
            lambda v: [[None], *v[1:]],
            pa.list_(pa.int32()),
            "has a null inside its list in row 0",
        ),
        ("processes", "process", lambda v: [2**40, *v[1:]], pa.int64(), "column process:"),
        (
            "deliveries",
            "position",
            lambda v: [*v[:2], -1, *v[3:]],
            pa.int64(),
            "position is -1 in row 2; expected 0",
        ),
        ("deliveries", "position", lambda v: [2**63 - 1, *v[1:]], pa.int64(), "in row 0; expected 0 to 46116860184273"),
        ("multicasts", "at_ns", lambda v: [-(2**63), *v[1:]], pa.int64(), "at_ns is -9223372036854775808 in row 0"),
    ],
)
def test_wrong_type_is_refused(
    folder: Path, table: str, name: str, values: Callable[[list[Any]], list[Any]], kind: pa.DataType, words: str
) -> None:
    rewrite(folder, table, column(name, values, kind))
    assert_refused(folder, table, words)


def test_traces_of_other_writers_are_read(folder: Path) -> None:
    """Wider integers, large strings, dictionaries, unknown columns, absent optional ones, more files: all fine."""

    def loosely(table: pa.Table) -> pa.Table:
        for at, field in enumerate(table.schema):
            if pa.types.is_int32(field.type):
                table = table.set_column(at, field.name, table.column(at).cast(pa.int64()))
            if pa.types.is_string(field.type):
                table = table.set_column(at, field.name, table.column(at).dictionary_encode())
        return table.append_column("weather", pa.array(["fine"] * len(table)))

    for table in ("processes", "multicasts", "deliveries", "packets"):
        rewrite(folder, table, loosely)
    rewrite(folder, "deliveries", lambda t: t.drop_columns(["multicast_ns", "committed_ns", "destinations"]))
    rewrite(folder, "processes", column("crashed_at_ns", lambda v: [None] * len(v), pa.null()))
    (folder / "deliveries" / ".part-00001.parquet").write_text("an unfinished file")
    (folder / "deliveries" / "_SUCCESS").write_text("")
    (folder / "run.json").write_text('{"schema": 1, "run": "planted", "weather": "fine", "claims": {"complete": true}}')
    report = judge(read_run(folder))
    assert report.verdict == "holds"
    assert report.properties["P7"].claimed is False


@pytest.mark.parametrize("view", [pa.list_view, pa.large_list_view])
def test_views_of_lists_are_read_as_lists(tmp_path: Path, view: Callable[[pa.DataType], pa.DataType]) -> None:
    values = [[1], None, [], [2, 3], [4]]
    file = tmp_path / "part.parquet"
    pq.write_table(pa.table({"destinations": pa.array(values, view(pa.int16()))}), file)
    for rows in (2, 100):
        found = pa.concat_tables(
            iterate_canonical("deliveries", file, pq.ParquetFile(file), ["destinations"], rows=rows)
        )
        found.validate(full=True)
        assert found.column("destinations").to_pylist() == values


def test_absent_claims_claim_nothing(folder: Path) -> None:
    (folder / "run.json").write_text('{"schema": 1, "run": "planted"}')
    claims = read_run(folder).meta.claims
    assert (claims.genuine, claims.complete, claims.fifo, claims.exactly_once) == ("no", False, False, False)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "expected JSON"),
        ("[]", "an empty list"),
        ("3", "int 3; expected an object"),
        ('{"run": "planted"}', "field schema is missing"),
        ('{"schema": 1}', "field run is missing"),
        ('{"schema": 2, "run": "planted"}', "schema is 2; expected 1"),
        ('{"schema": "1", "run": "planted"}', "schema is '1'; expected 1"),
        ('{"schema": 1, "run": 5}', "run: Expected `str`, got `int`"),
        ('{"schema": 1, "run": ""}', "run is empty"),
        ('{"schema": 1, "run": "planted", "claims": {"genuine": "very"}}', "claims.genuine: Invalid enum value 'very'"),
        ('{"schema": 1, "run": "planted", "claims": {"complete": "yes"}}', "claims.complete: Expected `bool`"),
        ('{"schema": 1, "run": "other"}', "rows of run 'planted'; expected only ['other']"),
    ],
)
def test_invalid_run_json_is_refused(folder: Path, text: str, words: str) -> None:
    (folder / "run.json").write_text(text)
    assert_refused(folder, "part-00000.parquet" if "rows of" in words else "run.json", words)


def test_missing_run_json_is_refused(folder: Path) -> None:
    (folder / "run.json").unlink()
    assert_refused(folder, "no run.json")


def test_packets_of_another_run_are_refused(folder: Path) -> None:
    rewrite(folder, "packets", column("run", lambda v: ["other", *v[1:]], pa.string()))
    assert_refused(folder, "rows of another run than 'planted'")


def test_runs_may_share_tables(tmp_path: Path) -> None:
    folder, other = save(tmp_path / "both", "one"), save(tmp_path / "other", "two")
    for table in ("processes", "multicasts", "deliveries", "packets"):
        (other / table / "part-00000.parquet").rename(folder / table / "part-00001.parquet")
    trace = healthy()
    (folder / "run.json").write_bytes(encode_metas([trace.meta("one"), trace.meta("two")]))
    runs = read_runs(folder)
    assert [run.meta.run for run in runs] == ["one", "two"]
    assert [judge(run).verdict for run in runs] == ["holds", "holds"]
    assert [len(run.packets or ()) for run in runs] == [len(healthy().packets or ())] * 2
    assert read_run(folder, "two").meta.run == "two"
    assert_refused(folder, "holds 2 runs")
    with pytest.raises(UsageError, match="run 'three' is not there"):
        read_run(folder, "three")
    twice = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps([twice[0], twice[0]]))
    assert_refused(folder, "run 'one' is described 2 times")


def test_folder_of_run_folders_is_read(tmp_path: Path) -> None:
    save(tmp_path / "b", "two")
    save(tmp_path / "a", "one")
    (tmp_path / "latest").symlink_to("a")
    assert [run.meta.run for run in read_runs(tmp_path)] == ["one", "two"]
