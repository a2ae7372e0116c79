"""Traces, sweeps and results in an object store: read and written through Arrow, without a jar."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest

import amcast
from amcast.check.judge import Report
from amcast.cli.main import run as run_command
from amcast.kernel.errors import UsageError
from amcast.pipeline.check.job import CheckLimits, LargeRunJob, judge_folders
from amcast.pipeline.check.runner import run_sequentially
from amcast.pipeline.rows import files
from amcast.pipeline.rows.files import find_trace_folders, resolve_filesystem
from amcast.pipeline.rows.footers import read_footers
from amcast.pipeline.rows.locations import Location
from tests import ROOT
from tests.pipeline.rows.object_store import BUCKET, start_store
from tests.pipeline.small_runs import plain, planted_runs, without_run_name, write

PROGRAM = """
import contextlib, io, json, sys
from amcast.cli.main import run
from amcast.pipeline.check.job import CheckLimits, check
from amcast.pipeline.spark.session import open_session

def command(*words):
    with contextlib.redirect_stdout(io.StringIO()) as out:
        code = run([*words, "--json"])
    return code, json.loads(out.getvalue())

bucket, plan = sys.argv[1:]
trace = f"s3://{bucket}/runs/cycle"
with open_session("local[2]", brief=True) as spark:
    checks = [check(trace), check(trace, scratch=f"s3a://{bucket}/scratch", limits=CheckLimits(0, 0))]
    found = {
        "measure": command("measure", trace, "--out", f"s3://{bucket}/tables"),
        "sweep": command("sweep", plan, "--out", f"s3://{bucket}/sweep", "--traces"),
        "again": command("sweep", plan, "--out", f"s3a://{bucket}/sweep", "--traces"),
        "measured sweep": command("measure", f"s3a://{bucket}/sweep"),
        "report": command("report", f"s3://{bucket}/sweep"),
        "report of a run": command("report", trace, "--out", f"s3://{bucket}/page"),
    }
print(json.dumps([checks, found]))
"""
PLAN = """
protocol = "skeen"
topology.groups = 2
topology.replicas = 1
workload.messages = 20
[grid]
seed = "0..2"
"""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A store with one run, runs/cycle; its address and credentials are in the environment."""
    folder = tmp_path_factory.mktemp("store")
    write(folder / "cycle", planted_runs()["cycle_of_three"], rows_per_group=5, rows_per_file=12)
    with start_store(folder) as environment, pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        files._open_s3.cache_clear()
        system, inside = resolve_filesystem(f"s3a://{BUCKET}/runs/cycle")
        assert inside == f"{BUCKET}/runs/cycle"
        pafs.copy_files(str(folder / "cycle"), inside, destination_filesystem=system)
        yield BUCKET
    files._open_s3.cache_clear()


@pytest.fixture(scope="module")
def answers(store: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Any], dict[str, Any]]:
    """What commands with Spark answered, in a process whose workers have the store's environment from the start."""
    plan = tmp_path_factory.mktemp("plans") / "plan.toml"
    plan.write_text(PLAN)
    command = [sys.executable, "-c", PROGRAM, store, str(plan)]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    checks, found = json.loads(done.stdout.splitlines()[-1])
    return checks, found


def read_rows(uri: str) -> list[dict[str, Any]]:
    system, inside = resolve_filesystem(uri)
    rows: list[dict[str, Any]] = pq.read_table(inside, filesystem=system).to_pylist()
    return rows


def test_run_in_a_store_is_checked(store: str, answers: tuple[list[Any], dict[str, Any]]) -> None:
    wanted = without_run_name(plain(planted_runs()["cycle_of_three"]))
    (source,) = find_trace_folders(f"s3a://{store}/runs")
    assert source.folder == f"s3a://{store}/runs/cycle"
    (small,) = judge_folders([source], 0)[source.folder]
    footers = {table: tuple(read_footers(table, paths, ["cycle"])) for table, paths in source.tables.items()}
    job = LargeRunJob(run_sequentially, f"s3://{store}/scratch", CheckLimits(0, 0))
    (large,) = job.judge(source, footers)
    assert without_run_name(small) == without_run_name(large) == wanted
    for answer in answers[0]:
        assert without_run_name(answer["runs"][0]) == wanted
    with pytest.raises(UsageError, match="no such folder"):
        find_trace_folders(f"s3://{store}/nowhere")


def test_plain_check_reads_a_store(store: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The plain checker takes the same URIs, and names the store's files when it refuses one."""
    report = Report.from_dict(plain(planted_runs()["cycle_of_three"]))
    assert run_command(["check", f"s3a://{store}/runs", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert without_run_name(found)["properties"] == without_run_name(report.as_dict())["properties"]
    (Location(f"s3://{store}/bad") / "run.json").write_bytes(b'{"schema": 1}')
    assert run_command(["check", f"s3://{store}/bad"]) == 64
    assert f"s3://{store}/bad" in capsys.readouterr().err


def test_measures_go_to_a_store(store: str, answers: tuple[list[Any], dict[str, Any]]) -> None:
    code, found = answers[1]["measure"]
    assert (code, found["out"]) == (0, f"s3://{store}/tables")
    (spans,) = read_rows(f"s3://{store}/tables/spans.parquet")
    assert spans["multicasts"] == len(planted_runs()["cycle_of_three"].multicasts)
    measured = amcast.load(f"s3://{store}/runs/cycle").measures["spans"].to_arrow().to_pylist()
    assert [row["multicasts"] for row in measured] == [spans["multicasts"]]


def test_sweep_lives_in_a_store(store: str, answers: tuple[list[Any], dict[str, Any]]) -> None:
    """It is resumed, measured and reported there; nothing of it is in a folder of this machine."""
    found = answers[1]
    assert (found["sweep"][0], found["sweep"][1]["statuses"], found["sweep"][1]["run"]) == (0, {"ok": 3}, 3)
    assert (found["again"][0], found["again"][1]["run"]) == (0, 0)
    assert (Location(f"s3://{store}/sweep") / "journal").list_names() == []
    assert len(find_trace_folders(f"s3://{store}/sweep/runs")) == 3
    assert found["measured sweep"][1]["runs"] == 3
    assert {row["status"] for row in read_rows(f"s3://{store}/sweep/measures/summary.parquet")} == {"ok"}
    code, page = found["report"]
    assert (code, page["verdict"], page["page"]) == (0, "holds", f"s3://{store}/sweep/report.html")
    text = Location(page["page"]).read_bytes().decode()
    assert "Sweep sweep" in text
    assert f"s3://{store}/sweep/pictures/spacetime.svg" in page["files"]
    assert all(Location(file).is_file() for file in page["files"])
    assert not (ROOT / "s3:").exists()


def test_page_of_a_run_goes_to_a_store(store: str, answers: tuple[list[Any], dict[str, Any]]) -> None:
    code, page = answers[1]["report of a run"]
    assert (code, page["verdict"], page["page"]) == (1, "violated", f"s3://{store}/page/report.html")
    assert "<svg" in Location(page["page"]).read_bytes().decode()


def test_run_is_compacted_from_store_to_store(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    target = f"s3a://{store}/compacted"
    assert run_command(["compact", f"s3://{store}/runs/cycle", "--out", target, "--json"]) == 0
    tables = json.loads(capsys.readouterr().out)["tables"]
    assert all(table["files"] == 1 for table in tables.values())
    (source,) = find_trace_folders(target)
    (report,) = judge_folders([source], 0)[source.folder]
    assert without_run_name(report) == without_run_name(plain(planted_runs()["cycle_of_three"]))
    assert run_command(["compact", f"s3://{store}/runs/cycle", "--out", target]) == 64
    assert "not an empty folder" in capsys.readouterr().err


def test_run_in_a_store_is_watched(store: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A run with a cycle, and one that is going on, until patience ends. A watch of a store needs no Spark."""
    assert run_command(["watch", f"s3://{store}/runs/cycle", "--every", "0.2", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["verdict"] == "violated"
    write(tmp_path / "going", planted_runs()["healthy"])
    (tmp_path / "going" / "run.json").rename(tmp_path / "going" / ".run.json")
    Location(f"s3://{store}/going").upload(tmp_path / "going")
    assert run_command(["watch", f"s3://{store}/going", "--every", "0.2", "--patience", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["deliveries"] == sum(
        map(len, planted_runs()["healthy"].sequences.values())
    )
    assert run_command(["watch", f"s3://{store}/nowhere"]) == 64


def test_runs_in_a_store_are_compared(store: str, answers: object, capsys: pytest.CaptureFixture[str]) -> None:
    sweep = f"s3://{store}/sweep"
    page = f"s3://{store}/compared"
    assert run_command(["diff", sweep, f"s3a://{store}/sweep", "--out", page, "--json"]) == 0
    assert Location(f"{page}/report.html").read_bytes().startswith(b"<!doctype html>")
    assert json.loads(capsys.readouterr().out)["verdict"] == "holds"


def test_file_uris_are_paths(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "a run", planted_runs()["cycle_of_three"])
    uri = f"file://{tmp_path}/a%20run"
    assert run_command(["check", uri, "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["verdict"] == "violated"
    assert run_command(["compact", uri, "--out", f"file://{tmp_path}/copy", "--json"]) == 0
    assert (tmp_path / "copy" / "run.json").is_file()
    assert run_command(["check", "file://relative"]) == 64
    assert "expected an absolute path" in capsys.readouterr().err
