"""Many small folders: footers are read by tasks, and folders share tasks."""

import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from amcast.kernel.errors import UsageError
from amcast.pipeline.rows.files import find_trace_folders, sum_file_bytes
from amcast.pipeline.rows.folder_tasks import MANY_FILES, read_all_footers, share_folders
from amcast.pipeline.rows.footers import count_table_rows
from amcast.pipeline.spark.tasks import make_spark_runner
from tests.pipeline.small_runs import random_run, write


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """So many folders that tasks read the footers; tests must not change them."""
    runs = tmp_path_factory.mktemp("many") / "runs"
    for seed in range(MANY_FILES // 4):
        trace = random_run(seed)
        if seed == 5:
            trace.packets = None
        write(runs / f"run-{seed:02}", trace)
    return runs


def test_footers_of_many_folders_are_read_in_tasks(spark: SparkSession, folder: Path) -> None:
    folders = find_trace_folders(str(folder))
    assert sum(len(files) for source in folders for files in source.tables.values()) > MANY_FILES
    counts = {
        name: count_table_rows(footers) for name, footers in read_all_footers(make_spark_runner(spark), folders).items()
    }
    assert counts == {
        source.folder: {t: sum(pq.read_metadata(file).num_rows for file in files) for t, files in source.tables.items()}
        for source in folders
    }
    assert sum_file_bytes(folders) == sum(file.stat().st_size for file in folder.rglob("*.parquet"))


def test_truncated_file_is_refused_in_a_task(spark: SparkSession, folder: Path, tmp_path: Path) -> None:
    damaged = Path(shutil.copytree(folder, tmp_path / "runs"))
    file = next((damaged / "run-17" / "deliveries").glob("*.parquet"))
    file.write_bytes(file.read_bytes()[:60])
    with pytest.raises(UsageError, match=r"run-17.*expected a whole Parquet file"):
        read_all_footers(make_spark_runner(spark), find_trace_folders(str(damaged)))


def test_small_folders_share_tasks_and_large_ones_do_not(folder: Path) -> None:
    folders = find_trace_folders(str(folder))
    rows = {source.folder: 1000 for source in folders} | {folders[3].folder: 2_000_000}
    shares = share_folders(folders, rows, cores=1)
    assert shares[0] == [folders[3]]
    assert len(shares) == 4
    assert sorted(source.folder for share in shares for source in share) == sorted(rows)
    assert share_folders([], {}, cores=1) == []
