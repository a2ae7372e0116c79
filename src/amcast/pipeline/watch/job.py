"""`amcast watch DIR`: follows an unfinished run, through Spark's Structured Streaming over its files.

Every second or so it reports how much was delivered, how fast, which replicas lag, and whether the order is violated.
Many processes may write the run; a file counts when it has its final name. The watch ends when run.json exists and
every file was read, when the order is violated, or when nothing new arrives for a given time.
"""

import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
from pyspark.sql import DataFrame, SparkSession

from amcast.check.verdict import Verdict
from amcast.kernel.errors import UsageError
from amcast.pipeline.kernels.fingerprints import Int64Array
from amcast.pipeline.rows.schemas import SCHEMAS
from amcast.pipeline.rows.sequences import split_lists, to_int64
from amcast.pipeline.spark.session import open_session, translate_errors
from amcast.pipeline.watch.incremental_order import IncrementalOrder
from amcast.pipeline.watch.window import select_deliveries, select_multicasts
from amcast.trace.columns import TABLES
from amcast.trace.meta import META_FILE, UNFINISHED_META_FILE

FILES_PER_BATCH: Final = 16
MAX_RECENT: Final = 1_000_000
"""Multicasts whose times are kept, for latencies."""


@dataclass
class WatchStatus:
    """The state of the run so far; rates and latencies are those of the latest batch."""

    deliveries: int = 0
    multicasts: int = 0
    per_second: float = 0.0
    latency_ns_p50: int | None = None
    latency_ns_p99: int | None = None
    merged: int = 0
    """Messages whose place in one order is certain."""
    lag: dict[int, int] = field(default_factory=dict)
    """process -> deliveries behind its group."""
    verdict: Verdict = "holds"
    """Of the order so far: violated is final, holds is not."""
    story: list[str] = field(default_factory=list)


class RunWatcher:
    """Collects the batches of both streams, which call it from threads of their own."""

    def __init__(self, on_status: Callable[[WatchStatus], None]) -> None:
        self.snapshot = WatchStatus()
        self.ended = threading.Event()
        self._on_status = on_status
        self._order = IncrementalOrder()
        self._batches: list[tuple[Int64Array, Int64Array]] = []
        """(message, at_ns) of the latest multicasts, batch by batch."""
        self._sent: tuple[Int64Array, Int64Array] = (np.zeros(0, np.int64), np.zeros(0, np.int64))
        """The same in one piece, sorted by message."""
        self._unmatched = self._sent
        """(message, at_ns) of deliveries whose multicast was not read yet."""
        self._lock = threading.Lock()

    def add_multicasts(self, rows: DataFrame, _: int) -> None:
        data = select_multicasts(rows).toArrow().combine_chunks()
        if not data.num_rows:
            return
        message, at = (to_int64(data.column(name).chunk(0)) for name in ("message", "at_ns"))
        with self._lock:
            self.snapshot.multicasts += message.size
            self._batches.append((message, at))
            while len(self._batches) > 1 and sum(ids.size for ids, _ in self._batches) > MAX_RECENT:
                del self._batches[0]
            message, at = (np.concatenate([batch[column] for batch in self._batches]) for column in (0, 1))
            order = np.argsort(message, kind="stable")
            self._sent = (message[order], at[order])
            self._look_up(*self._unmatched)

    def add_deliveries(self, rows: DataFrame, _: int) -> None:
        data = select_deliveries(rows).toArrow().combine_chunks()
        if not data.num_rows:
            return
        names = ("process", "group", "position", "message", "at_ns")
        process, group, position, message, at = (to_int64(data.column(name).chunk(0)) for name in names)
        with self._lock:
            self._order.absorb(process, group, position, message, *split_lists(data.column("destinations").chunk(0)))
            self._measure(message, at, data)
            self._judge()
            self._on_status(self.snapshot)

    def _measure(self, message: Int64Array, at: Int64Array, data: Any) -> None:
        now = self.snapshot
        now.deliveries += message.size
        span = int(at.max() - at.min())
        now.per_second = message.size / (span / 1e9) if span else 0.0
        sent = data.column("multicast_ns").chunk(0)
        if not sent.null_count:
            self._update_latency(at - to_int64(sent))
        else:
            early, since = self._unmatched
            self._look_up(np.concatenate([early, message]), np.concatenate([since, at]))

    def _look_up(self, message: Int64Array, at: Int64Array) -> None:
        """Latencies from the multicasts read so far; deliveries whose multicast was not read yet stay unmatched."""
        ids, times = self._sent
        place = np.minimum(np.searchsorted(ids, message), max(0, ids.size - 1))
        known = ids[place] == message if ids.size else np.zeros(message.size, np.bool_)
        self._update_latency(at[known] - times[place[known]])
        self._unmatched = (message[~known][-MAX_RECENT:], at[~known][-MAX_RECENT:])

    def _update_latency(self, latency: Int64Array) -> None:
        if latency.size:
            median, tail = (int(value) for value in np.percentile(latency, (50, 99)))
            self.snapshot.latency_ns_p50, self.snapshot.latency_ns_p99 = median, tail

    def _judge(self) -> None:
        now, order = self.snapshot, self._order
        now.merged, now.lag = order.merged, order.lag()
        if order.story:
            now.verdict, now.story = "violated", order.story
            self.ended.set()
        elif order.doubts:
            now.verdict, now.story = "unknown", order.doubts


def watch(
    folder: str,
    on_status: Callable[[WatchStatus], None],
    master: str | None = None,
    every_seconds: float = 1.0,
    patience_seconds: float | None = None,
) -> WatchStatus:
    """Watches a run folder until the run is over or its order is violated; calls `on_status` for every batch.

    With `patience_seconds`, it also stops when nothing new has arrived for that long.
    """
    place = Path(folder)
    if not place.is_dir():
        raise UsageError(f"{folder}: no such folder; expected the folder of a run that is going on")
    if not any((place / name).exists() for name in (META_FILE, UNFINISHED_META_FILE, *TABLES)):
        raise UsageError(f"{folder}: neither {META_FILE} nor a table; expected the folder of a run that is going on")
    watcher = RunWatcher(on_status)
    with (
        open_session(master) as spark,
        tempfile.TemporaryDirectory(prefix="amcast-watch-") as notes,
        _open_streams(spark, place, watcher, notes, every_seconds) as queries,
    ):
        _wait_for_end(place, watcher, queries, patience_seconds)
    return watcher.snapshot


@contextmanager
def _open_streams(
    spark: SparkSession, folder: Path, watcher: RunWatcher, notes: str, every_seconds: float
) -> Iterator[list[Any]]:
    queries: list[Any] = []
    try:
        for table, take in (("multicasts", watcher.add_multicasts), ("deliveries", watcher.add_deliveries)):
            (folder / table).mkdir(exist_ok=True)
            rows = (
                spark.readStream.schema(SCHEMAS[table])
                .option("maxFilesPerTrigger", FILES_PER_BATCH)
                .parquet(str(folder / table))
            )
            queries.append(
                rows.writeStream.foreachBatch(take)
                .option("checkpointLocation", f"{notes}/{table}")
                .trigger(processingTime=f"{round(1000 * every_seconds)} milliseconds")
                .start()
            )
        yield queries
    finally:
        for query in queries:
            query.stop()


def _wait_for_end(folder: Path, watcher: RunWatcher, queries: list[Any], patience_seconds: float | None) -> None:
    """Waits until the order is violated, or the run is over and read, or patience ends."""
    quiet, rows = 0.0, -1
    step = 0.25
    while not watcher.ended.wait(step):
        for query in queries:
            failure = query.exception()
            if failure is not None:
                with translate_errors():
                    raise failure
        total = watcher.snapshot.deliveries + watcher.snapshot.multicasts
        # Spark takes seconds to read its first batch; patience begins when every table was looked at.
        is_reading = all(query.lastProgress for query in queries)
        quiet = quiet + step if is_reading and total == rows else 0.0
        rows = total
        if patience_seconds is not None and quiet >= patience_seconds:
            return
        if (folder / META_FILE).exists():
            for query in queries:
                query.processAllAvailable()
            return
