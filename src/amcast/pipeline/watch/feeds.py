"""Where a watch gets its files from: Structured Streaming over a folder, or the lists of an object store.

PySpark ships no reader of object stores, and a list says as much: an object is in it when its upload is complete.
"""

import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import unquote, urlsplit

from pyspark.sql import DataFrame, SparkSession

from amcast.pipeline.rows.files import list_parquet_files
from amcast.pipeline.rows.locations import Location
from amcast.pipeline.spark.session import open_session, translate_errors

FILES_PER_BATCH: Final = 1000
FILE_SCHEMA: Final = "path string, modificationTime timestamp, length long, content binary"
"""Spark's source of whole files; only their paths are used."""
LIST_SHARE: Final = 0.2
"""A feed spends at most this share of its time on lists: a store may take seconds for tens of thousands of files."""

TakeFiles = Callable[[str, list[str]], None]
"""Called with a table and some new files of it."""


class Feed(Protocol):
    """A source of new files, which passes them on in threads of its own."""

    def raise_failure(self) -> None:
        """Raises what ended the feed, if anything."""

    def has_looked(self) -> bool:
        """Whether every table was looked at."""

    def drain(self) -> None:
        """Returns when every file that exists now was passed on."""


@contextmanager
def open_streams(
    master: str | None, folder: Path, tables: Sequence[str], take_files: TakeFiles, every_seconds: float
) -> Iterator[Feed]:
    """A feed from a folder, by a stream of Spark for each table."""
    with open_session(master) as spark, tempfile.TemporaryDirectory(prefix="amcast-watch-") as notes:
        queries: list[Any] = []
        try:
            for table in tables:
                (folder / table).mkdir(exist_ok=True)
                queries.append(_open_stream(spark, folder / table, take_files, every_seconds, f"{notes}/{table}"))
            yield _SparkFeed(queries)
        finally:
            for query in queries:
                query.stop()


def _open_stream(spark: SparkSession, folder: Path, take_files: TakeFiles, every_seconds: float, notes: str) -> Any:
    files = (
        spark.readStream.format("binaryFile")
        .schema(FILE_SCHEMA)
        .option("pathGlobFilter", "*.parquet")
        .option("maxFilesPerTrigger", FILES_PER_BATCH)
        .load(str(folder))
        .select("path")
    )
    return (
        files.writeStream.foreachBatch(partial(_take_batch, take_files, folder.name))
        .option("checkpointLocation", notes)
        .trigger(processingTime=f"{round(1000 * every_seconds)} milliseconds")
        .start()
    )


def _take_batch(take_files: TakeFiles, table: str, files: DataFrame, _: int) -> None:
    take_files(table, [unquote(urlsplit(row.path).path) for row in files.select("path").collect()])


class _SparkFeed:
    def __init__(self, queries: list[Any]) -> None:
        self._queries = queries

    def raise_failure(self) -> None:
        for query in self._queries:
            failure = query.exception()
            if failure is not None:
                with translate_errors():
                    raise failure

    def has_looked(self) -> bool:
        return all(query.lastProgress for query in self._queries)

    def drain(self) -> None:
        for query in self._queries:
            query.processAllAvailable()


@contextmanager
def follow_store(
    folder: Location, tables: Sequence[str], take_files: TakeFiles, every_seconds: float
) -> Iterator[Feed]:
    """A feed from a folder of an object store."""
    feed = _StoreFeed(folder, tables, take_files, every_seconds)
    feed.start()
    try:
        yield feed
    finally:
        feed.stop()


class _StoreFeed:
    """Lists the tables of a folder again and again, in a thread."""

    def __init__(self, folder: Location, tables: Sequence[str], take_files: TakeFiles, every_seconds: float) -> None:
        self._folder = folder
        self._tables = tables
        self._take_files = take_files
        self._every_seconds = every_seconds
        self._known: dict[str, set[str]] = {table: set() for table in tables}
        self._ended = threading.Event()
        self._wanted = threading.Event()
        """Somebody waits for the next round."""
        self._rounds = 0
        self._round_ended = threading.Condition()
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="store-feed", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        self._wanted.set()
        self._thread.join()

    def raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def has_looked(self) -> bool:
        return self._rounds > 0

    def drain(self) -> None:
        with self._round_ended:
            until = self._rounds + 2  # the current round may have passed a table already
            while self._rounds < until and self._failure is None:
                self._wanted.set()
                self._round_ended.wait(0.1)
        self.raise_failure()

    def _run(self) -> None:
        while not self._ended.is_set():
            begun = time.monotonic()
            try:
                self._look()
            except Exception as error:
                self._failure = error
            took = time.monotonic() - begun
            with self._round_ended:
                self._rounds += 1
                self._round_ended.notify_all()
            if self._failure is not None:
                return
            self._wanted.wait(max(self._every_seconds, took / LIST_SHARE))
            self._wanted.clear()

    def _look(self) -> None:
        for table in self._tables:
            known = self._known[table]
            fresh = [file for file in list_parquet_files(str(self._folder / table)) if file not in known]
            for at in range(0, len(fresh), FILES_PER_BATCH):
                if self._ended.is_set():
                    return
                self._take_files(table, fresh[at : at + FILES_PER_BATCH])
            known.update(fresh)
