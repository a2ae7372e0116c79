"""Compacts many small trace folders: footers are read in a few tasks, and rows are copied into a few files.

Spark opens every file by itself, and opening the files of a thousand cells costs far more than reading their rows.
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
"""More folders than this are compacted."""
FOLDERS_PER_TASK: Final = 50
"""Folders that one task reads."""
SMALL_ROWS: Final = 500_000
"""A folder with more rows than this is not worth copying."""

RowCounts = dict[str, dict[str, int]]
"""folder -> table -> rows."""


def count_rows(spark: SparkSession, folders: list[TraceFolder]) -> RowCounts:
    """The number of rows of each table of each folder; refuses files that are no tables of a trace."""
    if len(folders) <= MANY_FOLDERS:
        return {source.folder: count_rows_of_share([source])[0] for source in folders}
    shares = [folders[at : at + FOLDERS_PER_TASK] for at in range(0, len(folders), FOLDERS_PER_TASK)]
    answers = make_spark_runner(spark)([(count_rows_of_share, (share,)) for share in shares])
    return {
        source.folder: counts
        for share, answer in zip(shares, answers, strict=True)
        for source, counts in zip(share, answer, strict=True)
    }


def count_rows_of_share(folders: list[TraceFolder]) -> list[dict[str, int]]:
    """The work of one task of `count_rows`."""
    counts = []
    for source in folders:
        check_schemas(source)
        counts.append(
            {t: sum(open_parquet(file).metadata.num_rows for file in files) for t, files in source.tables.items()}
        )
    return counts


def compact_folders(
    spark: SparkSession, folders: list[TraceFolder], counts: RowCounts, place: str
) -> list[TraceFolder]:
    """The same rows in fewer files: small folders are copied together to a place that all workers see."""
    small = [source for source in folders if sum(counts[source.folder].values()) <= SMALL_ROWS]
    if len(small) <= MANY_FOLDERS:
        return folders
    where, path = resolve_filesystem(place)
    for table in TABLES:
        where.create_dir(f"{path}/{table}")
    shares = [small[at : at + FOLDERS_PER_TASK] for at in range(0, len(small), FOLDERS_PER_TASK)]
    make_spark_runner(spark)([(compact_share, (share, place, number)) for number, share in enumerate(shares)])
    metas = tuple(meta for source in small for meta in source.metas)
    tables = {table: files for table in TABLES if (files := list_parquet_files(f"{place}/{table}"))}
    copied = {source.folder for source in small}
    return [TraceFolder(place, metas, tables), *(source for source in folders if source.folder not in copied)]


def compact_share(folders: list[TraceFolder], place: str, number: int) -> None:
    """The work of one task of `compact_folders`: one file per table."""
    for table in TABLES:
        where, path = resolve_filesystem(f"{place}/{table}/.part-{number:05}.parquet")
        present = [source for source in folders if table in source.tables]
        if not present:
            continue
        with pq.ParquetWriter(path, arrow_schema(table), filesystem=where, compression="zstd") as writer:
            for data in merge_small_tables(load_table(source, table) for source in present):
                writer.write_table(data)
        where.move(path, path.replace("/.part-", "/part-"))


def merge_small_tables(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """The same rows in fewer tables: every table becomes a row group."""
    small_tables: list[pa.Table] = []
    for data in tables:
        small_tables.append(data)
        if sum(part.num_rows for part in small_tables) >= SMALL_ROWS:
            yield pa.concat_tables(small_tables)
            small_tables = []
    if small_tables:
        yield pa.concat_tables(small_tables)
