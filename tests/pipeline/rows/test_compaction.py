"""Compaction of many small folders: the same rows in few files."""

import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from amcast.kernel.errors import UsageError
from amcast.pipeline.rows import compaction
from amcast.pipeline.rows.files import find_trace_folders, sum_file_bytes
from amcast.pipeline.rows.tables import load_table
from amcast.trace.columns import TABLES
from tests.pipeline.small_runs import random_run, write


def rows(table: pa.Table) -> list[str]:
    return sorted(map(repr, table.to_pylist()))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Enough small run folders for compaction; tests must not change them."""
    runs = tmp_path_factory.mktemp("compaction") / "runs"
    for seed in range(compaction.MANY_FOLDERS + 3):
        trace = random_run(seed)
        if seed == 5:
            trace.packets = None
        write(runs / f"run-{seed}", trace)
    return runs


def test_compacted_rows_are_the_same_rows(spark: SparkSession, folder: Path, tmp_path: Path) -> None:
    folders = find_trace_folders(str(folder))
    counts = compaction.count_rows(spark, folders)
    assert counts == {
        source.folder: {t: sum(pq.read_metadata(file).num_rows for file in files) for t, files in source.tables.items()}
        for source in folders
    }
    compacted = compaction.compact_folders(spark, folders, counts, str(tmp_path / "place"))
    assert len(compacted) == 1
    assert [meta.run for meta in compacted[0].metas] == [meta.run for source in folders for meta in source.metas]
    for table in TABLES:
        whole = pa.concat_tables([load_table(source, table) for source in folders])
        assert rows(pq.read_table(list(compacted[0].tables[table]))) == rows(whole), table
        assert len(compacted[0].tables[table]) < compaction.MANY_FOLDERS
    assert sum_file_bytes(folders) == sum(file.stat().st_size for file in folder.rglob("*.parquet"))


def test_large_folders_and_few_folders_are_not_compacted(
    spark: SparkSession, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = find_trace_folders(str(folder))
    counts = compaction.count_rows(spark, folders)
    few = folders[: compaction.MANY_FOLDERS]
    assert compaction.compact_folders(spark, few, counts, str(tmp_path / "few")) is few
    counts[folders[0].folder] = {"deliveries": compaction.SMALL_ROWS + 1}
    compacted = compaction.compact_folders(spark, folders, counts, str(tmp_path / "place"))
    assert [source.folder for source in compacted] == [str(tmp_path / "place"), folders[0].folder]
    monkeypatch.setattr(compaction, "SMALL_ROWS", 10)
    pieces = [piece.num_rows for piece in compaction.merge_small_tables(pa.table({"a": [1] * 4}) for _ in range(7))]
    assert pieces == [12, 12, 4]


def test_truncated_file_is_refused_in_a_task(spark: SparkSession, folder: Path, tmp_path: Path) -> None:
    damaged = Path(shutil.copytree(folder, tmp_path / "runs"))
    file = next((damaged / "run-17" / "deliveries").glob("*.parquet"))
    file.write_bytes(file.read_bytes()[:60])
    with pytest.raises(UsageError, match=r"run-17.*expected a whole Parquet file"):
        compaction.count_rows(spark, find_trace_folders(str(damaged)))
