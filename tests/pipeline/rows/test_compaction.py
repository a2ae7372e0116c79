"""Many small folders in few files: the same rows, and nothing left behind."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from amcast.kernel.errors import UsageError
from amcast.pipeline.check.run_view import loaded
from amcast.pipeline.rows import compaction as gather
from amcast.pipeline.rows.files import size_of, sources
from amcast.trace.columns import TABLES
from tests.pipeline.small_runs import random_run, write


def rows(table: pa.Table) -> list[str]:
    return sorted(map(repr, table.to_pylist()))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for seed in range(gather.MANY + 3):
        trace = random_run(seed)
        if seed == 5:
            trace.packets = None
        write(tmp_path / "runs" / f"run-{seed}", trace)
    return tmp_path / "runs"


def test_gathered_rows_are_the_rows(spark: SparkSession, folder: Path, tmp_path: Path) -> None:
    found = sources(str(folder))
    counts = gather.footers(spark, found)
    assert counts == {source.folder: gather.counted([source])[0] for source in found}
    easier = gather.gathered(spark, found, counts, str(tmp_path / "place"))
    assert len(easier) == 1
    assert [meta.run for meta in easier[0].metas] == [meta.run for source in found for meta in source.metas]
    for table in TABLES:
        whole = pa.concat_tables([loaded(source, table) for source in found])
        assert rows(pq.read_table(list(easier[0].tables[table]))) == rows(whole), table
        assert len(easier[0].tables[table]) < gather.MANY
    assert size_of(found) == sum(file.stat().st_size for file in folder.rglob("*.parquet"))


def test_large_folders_and_few_folders_stay_where_they_are(
    spark: SparkSession, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = sources(str(folder))
    counts = gather.footers(spark, found)
    few = found[: gather.MANY]
    assert gather.gathered(spark, few, counts, str(tmp_path / "few")) is few
    counts[found[0].folder] = {"deliveries": gather.SMALL_ROWS + 1}
    easier = gather.gathered(spark, found, counts, str(tmp_path / "place"))
    assert [source.folder for source in easier] == [str(tmp_path / "place"), found[0].folder]
    monkeypatch.setattr(gather, "SMALL_ROWS", 10)
    pieces = [piece.num_rows for piece in gather._in_bulk(pa.table({"a": [1] * 4}) for _ in range(7))]
    assert pieces == [12, 12, 4]


def test_what_is_no_table_is_refused_wherever_it_is_read(spark: SparkSession, folder: Path) -> None:
    file = next((folder / "run-17" / "deliveries").glob("*.parquet"))
    file.write_bytes(file.read_bytes()[:60])
    with pytest.raises(UsageError, match=r"run-17.*expected a whole Parquet file"):
        gather.footers(spark, sources(str(folder)))
