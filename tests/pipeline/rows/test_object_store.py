"""Traces in an object store: checked and measured through Arrow, without a jar."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest

from amcast.kernel.errors import UsageError
from amcast.pipeline.check.job import CheckLimits, LargeRunJob, judge_folders
from amcast.pipeline.check.runner import run_sequentially
from amcast.pipeline.rows import files
from amcast.pipeline.rows.files import find_trace_folders, resolve_filesystem
from amcast.pipeline.rows.footers import read_footers
from tests import ROOT
from tests.pipeline.rows.object_store import BUCKET, start_store
from tests.pipeline.small_runs import plain, planted_runs, without_run_name, write

PROGRAM = """
import json, sys
from pathlib import Path
from amcast.pipeline.check.job import CheckLimits, check
from amcast.pipeline.measure.job import measure
from amcast.pipeline.spark.session import open_session
with open_session("local[2]", brief=True) as spark:
    small = check(sys.argv[1])
    large = check(sys.argv[1], scratch=sys.argv[2], limits=CheckLimits(0, 0))
    measure(spark, sys.argv[1], Path(sys.argv[3]))
print(json.dumps([small, large]))
"""


def test_run_in_a_store_is_checked_and_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = planted_runs()["cycle_of_three"]
    write(tmp_path / "cycle", trace, rows_per_group=5, rows_per_file=12)
    wanted = without_run_name(plain(trace))
    with start_store(tmp_path) as environment:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        files._open_s3.cache_clear()
        system, inside = resolve_filesystem(f"s3a://{BUCKET}/runs/cycle")
        assert inside == f"{BUCKET}/runs/cycle"
        pafs.copy_files(str(tmp_path / "cycle"), inside, destination_filesystem=system)
        (source,) = find_trace_folders(f"s3a://{BUCKET}/runs")
        assert source.folder == f"s3a://{BUCKET}/runs/cycle"
        (small,) = judge_folders([source], 0)[source.folder]
        footers = {table: tuple(read_footers(table, paths, ["cycle"])) for table, paths in source.tables.items()}
        job = LargeRunJob(run_sequentially, f"s3://{BUCKET}/scratch", CheckLimits(0, 0))
        (large,) = job.judge(source, footers)
        assert without_run_name(small) == without_run_name(large) == wanted
        with pytest.raises(UsageError, match="no such folder"):
            find_trace_folders(f"s3://{BUCKET}/nowhere")
        command = [sys.executable, "-c", PROGRAM, f"s3://{BUCKET}/runs/cycle", f"s3a://{BUCKET}/scratch"]
        done = subprocess.run(
            [*command, str(tmp_path / "measures")],
            capture_output=True,
            text=True,
            env=os.environ,
            cwd=ROOT,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        for answer in json.loads(done.stdout.splitlines()[-1]):
            assert without_run_name(answer["runs"][0]) == wanted
        (spans,) = pq.read_table(tmp_path / "measures" / "spans.parquet").to_pylist()
        assert spans["multicasts"] == len(trace.multicasts)
    files._open_s3.cache_clear()
