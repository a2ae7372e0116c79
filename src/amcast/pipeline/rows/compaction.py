"""Compacts many small trace folders: footers are read in a few tasks, and rows are copied into a few files.

Spark opens every file by itself, and opening the files of a thousand cells costs far more than reading their rows.
"""

from collections.abc import Iterable, Iterator
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from amcast.pipeline.check.runner import Runner, run_sequentially
from amcast.pipeline.rows.files import TraceFolder, list_parquet_files, resolve_filesystem
from amcast.pipeline.rows.footers import (
    FILES_PER_TASK,
    Footers,
    RowGroup,
    count_table_rows,
    read_footers,
    split_files,
)
from amcast.pipeline.rows.tables import arrow_schema, load_table
from amcast.pipeline.rows.uniqueness import drop_repeated
from amcast.pipeline.spark.tasks import make_spark_runner
from amcast.trace.columns import TABLES

MANY_FOLDERS: Final = 16
"""More folders than this are compacted."""
FOLDERS_PER_TASK: Final = 50
"""Folders that one task reads."""
SMALL_ROWS: Final = 500_000
"""A folder with more rows than this is not worth copying."""

MANY_FILES: Final = 100
"""The footers of more files than this are read by tasks."""

FileShare = tuple[str, str, tuple[str, ...], list[str]]
"""(folder, table, files, runs of the folder)."""
RowCounts = dict[str, dict[str, int]]
"""folder -> table -> rows."""


def read_all_footers(spark: SparkSession, folders: list[TraceFolder]) -> dict[str, Footers]:
    """The row groups of each folder, by folder: every file is opened once, by tasks if there are many files. Refuses
    files that are no tables of a trace."""
    runner: Runner = run_sequentially
    if sum(len(files) for source in folders for files in source.tables.values()) > MANY_FILES:
        runner = make_spark_runner(spark)
    shares: list[list[FileShare]] = []
    files = FILES_PER_TASK
    for source in folders:
        for table, paths in split_files(source):
            if files >= FILES_PER_TASK:
                shares.append([])
                files = 0
            shares[-1].append((source.folder, table, paths, [meta.run for meta in source.metas]))
            files += len(paths)
    answers = runner([(read_footers_of_shares, (share,)) for share in shares])
    found: dict[str, dict[str, tuple[RowGroup, ...]]] = {
        source.folder: dict.fromkeys(source.tables, ()) for source in folders
    }
    for share, answer in zip(shares, answers, strict=True):
        for (folder, table, *_), row_groups in zip(share, answer, strict=True):
            found[folder][table] += tuple(row_groups)
    return found


def read_footers_of_shares(shares: list[FileShare]) -> list[list[RowGroup]]:
    """The work of one task of `read_all_footers`."""
    return [read_footers(table, paths, runs) for _, table, paths, runs in shares]


def count_rows(spark: SparkSession, folders: list[TraceFolder]) -> RowCounts:
    """The number of rows of each table of each folder; refuses files that are no tables of a trace."""
    return {folder: count_table_rows(footers) for folder, footers in read_all_footers(spark, folders).items()}


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
            tables = (drop_repeated(table, load_table(source, table)) for source in present)
            for data in merge_small_tables(tables):
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
