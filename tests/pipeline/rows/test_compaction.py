"""Many small folders in few files: the same rows, and nothing left behind."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from amcast.kernel.errors import UsageError
from amcast.pipeline.rows import compaction as gather
from amcast.pipeline.rows.files import find_trace_folders, sum_file_bytes
from amcast.pipeline.rows.tables import load_table
from amcast.trace.columns import TABLES
from tests.pipeline.small_runs import random_run, write


def rows(table: pa.Table) -> list[str]:
    return sorted(map(repr, table.to_pylist()))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for seed in range(gather.MANY_FOLDERS + 3):
        trace = random_run(seed)
        if seed == 5:
            trace.packets = None
        write(tmp_path / "runs" / f"run-{seed}", trace)
    return tmp_path / "runs"


def test_gathered_rows_are_the_rows(spark: SparkSession, folder: Path, tmp_path: Path) -> None:
    found = find_trace_folders(str(folder))
    counts = gather.count_rows(spark, found)
    assert counts == {source.folder: gather.count_rows_of_share([source])[0] for source in found}
    easier = gather.compact_folders(spark, found, counts, str(tmp_path / "place"))
    assert len(easier) == 1
    assert [meta.run for meta in easier[0].metas] == [meta.run for source in found for meta in source.metas]
    for table in TABLES:
        whole = pa.concat_tables([load_table(source, table) for source in found])
        assert rows(pq.read_table(list(easier[0].tables[table]))) == rows(whole), table
        assert len(easier[0].tables[table]) < gather.MANY_FOLDERS
    assert sum_file_bytes(found) == sum(file.stat().st_size for file in folder.rglob("*.parquet"))


def test_large_folders_and_few_folders_stay_where_they_are(
    spark: SparkSession, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = find_trace_folders(str(folder))
    counts = gather.count_rows(spark, found)
    few = found[: gather.MANY_FOLDERS]
    assert gather.compact_folders(spark, few, counts, str(tmp_path / "few")) is few
    counts[found[0].folder] = {"deliveries": gather.SMALL_ROWS + 1}
    easier = gather.compact_folders(spark, found, counts, str(tmp_path / "place"))
    assert [source.folder for source in easier] == [str(tmp_path / "place"), found[0].folder]
    monkeypatch.setattr(gather, "SMALL_ROWS", 10)
    pieces = [piece.num_rows for piece in gather.merge_small_tables(pa.table({"a": [1] * 4}) for _ in range(7))]
    assert pieces == [12, 12, 4]


def test_what_is_no_table_is_refused_wherever_it_is_read(spark: SparkSession, folder: Path) -> None:
    file = next((folder / "run-17" / "deliveries").glob("*.parquet"))
    file.write_bytes(file.read_bytes()[:60])
    with pytest.raises(UsageError, match=r"run-17.*expected a whole Parquet file"):
        gather.count_rows(spark, find_trace_folders(str(folder)))
