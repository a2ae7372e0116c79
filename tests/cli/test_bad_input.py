"""A user's mistake gets one clear sentence and exit code 64; nothing is written, nothing is lost."""

import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from amcast.cli.main import run


def assert_refused(capsys: pytest.CaptureFixture[str], arguments: list[str], *expected: str, code: int = 64) -> None:
    assert run(arguments) == code
    output = capsys.readouterr()
    assert "Traceback" not in output.err
    assert len(output.err.strip().splitlines()) == 1, output.err
    for words in expected:
        assert words in output.err, output.err


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("traces") / "good"
    assert run(["simulate", "--protocol", "skeen", "--messages", "20", "--out", str(folder), "--json"]) == 0
    return folder


@pytest.fixture
def trace(recorded: Path, tmp_path: Path) -> Path:
    copy = tmp_path / "run"
    shutil.copytree(recorded, copy)
    return copy


def test_unknown_commands_flags_and_values_are_refused(capsys) -> None:
    assert_refused(capsys, ["simulat"], "simulat")
    assert_refused(capsys, ["simulate", "--protokol", "skeen"], "--protokol")
    assert_refused(capsys, ["simulate", "--protocol", "skeen", "--messages", "many"], "--messages", "many")
    assert_refused(capsys, ["simulate"], "no protocol", "--protocol NAME")


def test_module_runs_the_command() -> None:
    done = subprocess.run([sys.executable, "-m", "amcast", "simulat"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (64, "")
    assert done.stderr.startswith("amcast: No such command 'simulat'")


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["--protocol", "nope"], ("'nope' does not exist", "skeen")),
        (["--protocol", "skeen", "--groups", "0"], ("groups = 0", "expected 1 to")),
        (["--protocol", "skeen", "--clients", "0"], ("clients = 0", "at least 1")),
        (["--protocol", "skeen", "--groups", "2", "--destinations", "3"], ("destinations = 3", "2 groups")),
        (["--protocol", "skeen", "--destinations", "x"], ("--destinations 'x'", "expected a number")),
        (["--protocol", "skeen", "--faults", "earthquake"], ("'earthquake'", "expected none, all")),
        (["--protocol", "skeen", "--faults", "crash"], ("does not claim to survive 'crash'", "pause")),
        (["--protocol", "skeen", "--environment", "mars"], ("'mars' does not exist", "aws-12")),
        (["--protocol", "skeen", "--messages", "-1"], ("messages = -1", "0 to")),
        (["--protocol", "skeen", "--outstanding", "0"], ("outstanding = 0", "expected 1 to")),
    ],
)
def test_impossible_runs_are_refused_and_nothing_is_written(flags, expected, capsys, tmp_path) -> None:
    out = tmp_path / "run"
    assert_refused(capsys, ["simulate", *flags, "--out", str(out)], *expected)
    assert not out.exists()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("protocol = 'skeen'\nspeed = 3", ("plan.toml", "speed")),
        ("protocol = 'skeen'\n[network]\ndelay = 3", ("network", "delay")),
        ("protocol = 'skeen'\n[network]\nloss = 1.5", ("loss = 1.5", "probability")),
        ("protocol = 'skeen'\n[network]\ndelay_ns = 'fast'", ("delay_ns", "int", "str")),
        ("protocol = 'skeen'\n[topology]\ngroups = 'two'", ("groups", "int", "str")),
        ("protocol = 'skeen'\n[workload]\nname = 'nope'", ("'nope' does not exist", "micro")),
        ("protocol = 'skeen'\n[workload]\ncolour = 3", ("workload micro", "colour")),
        ("protocol = 'skeen'\n[faults]\nevents = [{ do = 'pause' }]", ("faults.events[0]", "at_ns")),
        ("protocol = 'skeen'\n[faults]\nevents = [{ at_ns = 1, do = 'explode' }]", ("explode",)),
        ("protocol = 'skeen'\n[options]\nturbo = true", ("options of protocol skeen", "turbo")),
        ("seed = 3", ("no protocol",)),
        ("protocol = ", ("not TOML",)),
    ],
)
def test_plans_with_mistakes_name_the_field(text, expected, capsys, tmp_path) -> None:
    plan = tmp_path / "plan.toml"
    plan.write_text(text)
    out = tmp_path / "run"
    assert_refused(capsys, ["simulate", "--plan", str(plan), "--out", str(out)], *expected)
    assert not out.exists()


def test_missing_plan_is_refused(capsys, tmp_path) -> None:
    assert_refused(capsys, ["simulate", "--plan", str(tmp_path / "no.toml")], "no.toml", "cannot be read")


@pytest.mark.parametrize("seeds", ["9..3", "x", "1...3", ""])
def test_invalid_seed_ranges_are_refused(seeds, capsys) -> None:
    assert_refused(capsys, ["fuzz", "--protocol", "skeen", "--seeds", seeds], "--seeds", "expected")


def test_existing_run_is_never_overwritten(recorded, capsys) -> None:
    before = {file: file.read_bytes() for file in recorded.rglob("*.parquet")}
    assert_refused(capsys, ["simulate", "--protocol", "skeen", "--out", str(recorded)], str(recorded))
    assert before == {file: file.read_bytes() for file in recorded.rglob("*.parquet")}


def test_missing_table_is_refused(trace, capsys) -> None:
    assert_refused(capsys, ["check", str(trace / "nowhere")], "nowhere", "no such folder")
    shutil.rmtree(trace / "deliveries")
    assert_refused(capsys, ["check", str(trace)], "deliveries", str(trace))


def test_missing_run_json_is_refused(trace, capsys) -> None:
    (trace / "run.json").unlink()
    assert_refused(capsys, ["check", str(trace)], "run.json")


def test_other_schema_version_is_refused(trace, capsys) -> None:
    (trace / "run.json").write_text('{"schema": 99, "run": "x"}')
    assert_refused(capsys, ["check", str(trace)], "schema is 99", "expected 1")


def test_missing_column_and_wrong_type_are_refused(trace, capsys) -> None:
    file = next((trace / "deliveries").glob("*.parquet"))
    table = pq.read_table(file)
    pq.write_table(table.drop_columns(["position"]), file)
    assert_refused(capsys, ["check", str(trace)], file.name, "position")
    place = table.schema.get_field_index("position")
    wrong = table.set_column(place, "position", pa.array(["x"] * len(table)))
    pq.write_table(wrong, file)
    assert_refused(capsys, ["check", str(trace)], file.name, "position", "string")


def test_truncated_file_is_refused(trace, capsys) -> None:
    file = next((trace / "packets").glob("*.parquet"))
    file.write_bytes(file.read_bytes()[:-20])
    assert_refused(capsys, ["check", str(trace)], file.name)


def test_unknown_view_selection_is_refused(trace, capsys) -> None:
    assert_refused(capsys, ["view", str(trace), "--message", "77"], "77")
    assert_refused(capsys, ["view", str(trace), "--window", "soon"], "--window 'soon'", "milliseconds")
    assert_refused(capsys, ["view", str(trace), "--window", "9..3"], "upside down")
    assert_refused(capsys, ["view", str(trace), "--picture", str(trace / "no" / "a.svg")], "cannot be written")


def test_internal_error_exits_with_70(monkeypatch, capsys) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("planted")

    monkeypatch.setattr("amcast.cli.data.traces.read_runs", broken)
    assert_refused(capsys, ["check", "anything"], "internal error", "planted", code=70)
