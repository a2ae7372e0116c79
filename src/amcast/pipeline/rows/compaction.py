"""Many small folders, made easy to read: their footers read in a few tasks, their rows gathered into a few files.

Spark opens every file by itself, and the files of a thousand cells cost far more to open than their rows to read.
"""

from collections.abc import Iterable, Iterator
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from amcast.pipeline.rows.files import TraceFolder, check_schemas, list_parquet_files, open_parquet, resolve_filesystem
from amcast.pipeline.rows.tables import arrow_schema, load_table
from amcast.pipeline.spark.tasks import make_spark_runner
from amcast.trace.columns import TABLES

MANY_FOLDERS: Final = 16
"""More folders than this are many."""
FOLDERS_PER_TASK: Final = 50
"""Folders per task."""
SMALL_ROWS: Final = 500_000
"""A folder with more rows than this is not worth copying."""

RowCounts = dict[str, dict[str, int]]
"""folder -> table -> rows."""


def count_rows(spark: SparkSession, found: list[TraceFolder]) -> RowCounts:
    """How many rows each table of each folder has, after refusing what is no table of a trace."""
    if len(found) <= MANY_FOLDERS:
        return {source.folder: count_rows_of_share([source])[0] for source in found}
    shares = [found[at : at + FOLDERS_PER_TASK] for at in range(0, len(found), FOLDERS_PER_TASK)]
    answers = make_spark_runner(spark)([(count_rows_of_share, (share,)) for share in shares])
    return {
        source.folder: counts
        for share, answer in zip(shares, answers, strict=True)
        for source, counts in zip(share, answer, strict=True)
    }


def count_rows_of_share(found: list[TraceFolder]) -> list[dict[str, int]]:
    """What a task does for `footers`."""
    counts = []
    for source in found:
        check_schemas(source)
        counts.append(
            {t: sum(open_parquet(file).metadata.num_rows for file in files) for t, files in source.tables.items()}
        )
    return counts


def compact_folders(spark: SparkSession, found: list[TraceFolder], counts: RowCounts, place: str) -> list[TraceFolder]:
    """The same rows in fewer files: small folders copied together to a place that all workers see."""
    small = [source for source in found if sum(counts[source.folder].values()) <= SMALL_ROWS]
    if len(small) <= MANY_FOLDERS:
        return found
    where, inner = resolve_filesystem(place)
    for table in TABLES:
        where.create_dir(f"{inner}/{table}")
    shares = [small[at : at + FOLDERS_PER_TASK] for at in range(0, len(small), FOLDERS_PER_TASK)]
    make_spark_runner(spark)([(compact_share, (share, place, number)) for number, share in enumerate(shares)])
    metas = tuple(meta for source in small for meta in source.metas)
    tables = {table: files for table in TABLES if (files := list_parquet_files(f"{place}/{table}"))}
    copied = {source.folder for source in small}
    return [TraceFolder(place, metas, tables), *(source for source in found if source.folder not in copied)]


def compact_share(found: list[TraceFolder], place: str, number: int) -> None:
    """What a task does for `gathered`: one file per table."""
    for table in TABLES:
        where, inner = resolve_filesystem(f"{place}/{table}/.part-{number:05}.parquet")
        there = [source for source in found if table in source.tables]
        if not there:
            continue
        with pq.ParquetWriter(inner, arrow_schema(table), filesystem=where, compression="zstd") as writer:
            for data in merge_small_tables(load_table(source, table) for source in there):
                writer.write_table(data)
        where.move(inner, inner.replace("/.part-", "/part-"))


def merge_small_tables(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """The same rows in fewer pieces: every piece becomes a row group."""
    kept: list[pa.Table] = []
    for data in tables:
        kept.append(data)
        if sum(part.num_rows for part in kept) >= SMALL_ROWS:
            yield pa.concat_tables(kept)
            kept = []
    if kept:
        yield pa.concat_tables(kept)
