"""Many small folders, made easy to read: their footers read in a few tasks, their rows gathered into a few files.

Spark opens every file by itself, and the files of a thousand cells cost far more to open than their rows to read.
"""

from collections.abc import Iterable, Iterator
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from amcast.pipeline.check.run_view import loaded, schema_of
from amcast.pipeline.rows.files import Source, filesystem, opened, parts, validated
from amcast.pipeline.spark.tasks import spark_runner
from amcast.trace.columns import TABLES

MANY: Final = 16
"""More folders than this are many."""
SHARE: Final = 50
"""Folders per task."""
SMALL_ROWS: Final = 500_000
"""A folder with more rows than this is not worth copying."""

Counts = dict[str, dict[str, int]]
"""folder -> table -> rows."""


def footers(spark: SparkSession, found: list[Source]) -> Counts:
    """How many rows each table of each folder has, after refusing what is no table of a trace."""
    if len(found) <= MANY:
        return {source.folder: counted([source])[0] for source in found}
    shares = [found[at : at + SHARE] for at in range(0, len(found), SHARE)]
    answers = spark_runner(spark)([(counted, (share,)) for share in shares])
    return {
        source.folder: counts
        for share, answer in zip(shares, answers, strict=True)
        for source, counts in zip(share, answer, strict=True)
    }


def counted(found: list[Source]) -> list[dict[str, int]]:
    """What a task does for `footers`."""
    counts = []
    for source in found:
        validated(source)
        counts.append({t: sum(opened(file).metadata.num_rows for file in files) for t, files in source.tables.items()})
    return counts


def gathered(spark: SparkSession, found: list[Source], counts: Counts, place: str) -> list[Source]:
    """The same rows in fewer files: small folders copied together to a place that all workers see."""
    small = [source for source in found if sum(counts[source.folder].values()) <= SMALL_ROWS]
    if len(small) <= MANY:
        return found
    where, inner = filesystem(place)
    for table in TABLES:
        where.create_dir(f"{inner}/{table}")
    shares = [small[at : at + SHARE] for at in range(0, len(small), SHARE)]
    spark_runner(spark)([(gather, (share, place, number)) for number, share in enumerate(shares)])
    metas = tuple(meta for source in small for meta in source.metas)
    tables = {table: files for table in TABLES if (files := parts(f"{place}/{table}"))}
    copied = {source.folder for source in small}
    return [Source(place, metas, tables), *(source for source in found if source.folder not in copied)]


def gather(found: list[Source], place: str, number: int) -> None:
    """What a task does for `gathered`: one file per table."""
    for table in TABLES:
        where, inner = filesystem(f"{place}/{table}/.part-{number:05}.parquet")
        there = [source for source in found if table in source.tables]
        if not there:
            continue
        with pq.ParquetWriter(inner, schema_of(table), filesystem=where, compression="zstd") as writer:
            for data in _in_bulk(loaded(source, table) for source in there):
                writer.write_table(data)
        where.move(inner, inner.replace("/.part-", "/part-"))


def _in_bulk(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """The same rows in fewer pieces: every piece becomes a row group."""
    kept: list[pa.Table] = []
    for data in tables:
        kept.append(data)
        if sum(part.num_rows for part in kept) >= SMALL_ROWS:
            yield pa.concat_tables(kept)
            kept = []
    if kept:
        yield pa.concat_tables(kept)
