"""`amcast watch DIR`: follows an unfinished run, through Spark's Structured Streaming over its files.

Every second or so it reports how much was delivered, how fast, which replicas lag, and whether integrity or order is
violated. Many processes may write the run; a file counts when it has its final name. New files come from a feed (Spark,
or the lists of an object store), and are read as every check reads them. The watch ends when run.json exists and every
file was read, when the run is violated, or when nothing new arrives for a given time.
"""

import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from amcast.check.verdict import Verdict
from amcast.kernel.errors import UsageError
from amcast.pipeline.kernels.fingerprints import Int64Array
from amcast.pipeline.rows.files import open_parquet
from amcast.pipeline.rows.footers import refuse_other_runs
from amcast.pipeline.rows.locations import Location
from amcast.pipeline.rows.sequences import to_int64
from amcast.pipeline.rows.tables import arrow_schema
from amcast.pipeline.watch.feeds import Feed, follow_store, open_streams
from amcast.pipeline.watch.incremental_order import DeliveredRow, IncrementalOrder
from amcast.pipeline.watch.state import WatchState
from amcast.trace.columns import TABLES
from amcast.trace.meta import META_FILE, UNFINISHED_META_FILE
from amcast.trace.parquet import iterate_canonical

READERS: Final = 16
"""Files that are read at once."""
SAVE_SECONDS: Final = 5.0
"""The state is kept this often, if something new was read."""
MAX_RECENT: Final = 1_000_000
"""Multicasts whose times are kept, for latencies."""

REAL_TIME_REASON: Final = (
    "a watch forgets what it has merged before the answers to it are written, and the hosts whose clocks are compared"
    " are only known at the end of a run; amcast check judges a run that is over"
)


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
    holes: dict[int, int] = field(default_factory=dict)
    """process -> the first position that it lacks, although it has later ones."""
    verdict: Verdict = "unknown"
    """Of integrity and order (P1, P4, P5) in what was read so far: violated is final, the others are not."""
    real_time: Verdict = "unknown"
    """Of P9, which a watch never knows."""
    real_time_reason: str = REAL_TIME_REASON
    story: list[str] = field(default_factory=lambda: ["nothing was read so far"])
    """The violation, or what is missing."""


class RunWatcher:
    """Collects the new files of all streams, which call it from threads of their own."""

    def __init__(self, run: str | None, on_status: Callable[[WatchStatus], None]) -> None:
        self.snapshot = WatchStatus()
        self.ended = threading.Event()
        self.failure: UsageError | None = None
        """Why the run cannot be judged: a file, a row, or two tables that contradict each other."""
        self._run = run
        self._on_status = on_status
        self._order = IncrementalOrder()
        self._batches: list[tuple[Int64Array, Int64Array]] = []
        """(message, at_ns) of the latest multicasts, batch by batch."""
        self._sent: tuple[Int64Array, Int64Array] = (np.zeros(0, np.int64), np.zeros(0, np.int64))
        """The same in one piece, sorted by message."""
        self._unmatched = self._sent
        """(message, at_ns) of deliveries whose multicast was not read yet."""
        self._files: dict[str, set[str]] = {table: set() for table in _TAKERS}
        """The files of each table that were read."""
        self._lock = threading.Lock()

    def save(self, state: WatchState) -> None:
        """Keeps what was read so far, and which files that were."""
        with self._lock:
            state.write(self._run, {name: getattr(self, name) for name in _KEPT})

    def restore(self, state: WatchState) -> None:
        """Continues where another watch of this run stopped."""
        run = self._run
        for name, value in state.read(run).items():
            setattr(self, name, value)
        self._run = run if run is not None else self._run
        if self.snapshot.verdict == "violated":
            self.ended.set()

    def take_files(self, table: str, files: Iterable[str]) -> None:
        """Reads new files of a table, through the reader that every check uses."""
        if self.ended.is_set():
            return
        paths = sorted(set(files) - self._files[table])
        try:
            with ThreadPoolExecutor(READERS) as readers:
                parts = list(readers.map(lambda path: self._read(table, path), paths))
            data = pa.concat_tables([part for part in parts if part is not None] or [_EMPTY[table]]).combine_chunks()
            with self._lock:
                self._refuse_other_runs(data, paths)
                if data.num_rows:
                    _TAKERS[table](self, data)
                self._files[table].update(paths)
        except UsageError as refusal:
            self.failure = refusal
            self.ended.set()

    def _read(self, table: str, path: str) -> pa.Table | None:
        batches = list(iterate_canonical(table, path, open_parquet(path)))
        for batch in batches:
            if self._run is not None:
                refuse_other_runs(batch.column("run"), path, [self._run])
        return pa.concat_tables(batches) if batches else None

    def _refuse_other_runs(self, data: pa.Table, paths: list[str]) -> None:
        """Refuses rows of a second run, where neither run.json nor what stands for it said the name of the run."""
        for name in pc.unique(data.column("run")).to_pylist():
            self._run = self._run if self._run is not None else name
            if name != self._run:
                raise UsageError(
                    f"{Path(paths[0]).parent}: rows of runs {self._run!r} and {name!r}; expected one run to watch"
                )

    def _add_multicasts(self, data: pa.Table) -> None:
        self._order.add_multicasts(zip(*(data.column(c).to_pylist() for c in _MULTICASTS), strict=True))
        message, at = (to_int64(data.column(name).chunk(0)) for name in ("message", "at_ns"))
        self.snapshot.multicasts += message.size
        self._batches.append((message, at))
        while len(self._batches) > 1 and sum(ids.size for ids, _ in self._batches) > MAX_RECENT:
            del self._batches[0]
        message, at = (np.concatenate([batch[column] for batch in self._batches]) for column in (0, 1))
        order = np.argsort(message, kind="stable")
        self._sent = (message[order], at[order])
        self._look_up(*self._unmatched)
        self._order.judge()
        self._update_verdict()

    def _add_deliveries(self, data: pa.Table) -> None:
        columns = {name: data.column(name).to_pylist() for name in DeliveredRow._fields}
        columns["destinations"] = [
            groups if groups is None else tuple(sorted(set(groups))) for groups in columns["destinations"]
        ]
        self._order.add_deliveries(map(DeliveredRow, *columns.values()))
        self._measure(to_int64(data.column("message").chunk(0)), to_int64(data.column("at_ns").chunk(0)), data)
        self._update_verdict()
        self._on_status(self.snapshot)

    def _add_notes(self, data: pa.Table) -> None:
        notes = (data.column(name).to_pylist() for name in ("process", "name", "value"))
        for process, name, value in zip(*notes, strict=True):
            known = value is not None and isfinite(value)
            if name == "trace-gap":
                self._order.add_lost_rows(process, value if known else None)
            elif name == "installed" and known:
                self._order.add_snapshot(process, value)
        self._order.judge()
        self._update_verdict()

    def _add_processes(self, data: pa.Table) -> None:
        """The membership, which a run writes at its end."""
        rows = (data.column(name).to_pylist() for name in ("process", "group"))
        self._order.add_processes(zip(*rows, strict=True))
        self._order.judge()
        self._update_verdict()

    def _measure(self, message: Int64Array, at: Int64Array, data: pa.Table) -> None:
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

    def finish(self) -> None:
        """Judges what is left when the run is over and every file was read."""
        with self._lock:
            if not self.ended.is_set():
                self._order.finish()
                self._update_verdict()

    def _update_verdict(self) -> None:
        now, order = self.snapshot, self._order
        now.merged, now.lag, now.holes = order.merged, order.lag(), order.holes()
        now.verdict, now.story = "holds", []
        if order.story:
            now.verdict, now.story = "violated", order.story
            self.ended.set()
        elif missing := [*order.doubts, *order.open_questions()]:
            now.verdict, now.story = "unknown", missing


_KEPT: Final = ("_run", "snapshot", "_order", "_batches", "_sent", "_unmatched", "_files")
"""What a state consists of."""
_MULTICASTS: Final = ("message", "destinations", "at_ns", "sender", "session", "sequence")
_EMPTY: Final = {table: arrow_schema(table).empty_table() for table in TABLES}
_TAKERS: Final[dict[str, Callable[[RunWatcher, pa.Table], None]]] = {
    "processes": RunWatcher._add_processes,
    "multicasts": RunWatcher._add_multicasts,
    "deliveries": RunWatcher._add_deliveries,
    "notes": RunWatcher._add_notes,
}
"""The tables that a watch reads, and what it does with them."""
TABLES_READ: Final = tuple(_TAKERS)


def watch(
    folder: str,
    on_status: Callable[[WatchStatus], None],
    master: str | None = None,
    every_seconds: float = 1.0,
    patience_seconds: float | None = None,
    state: Path | None = None,
) -> WatchStatus:
    """Watches a run folder until the run is over or its order is violated; calls `on_status` for every batch.

    With `patience_seconds`, it also stops when nothing new has arrived for that long. With `state`, a file, it
    continues where an earlier watch stopped, however that ended, and reads no file again that counted already.
    """
    place = Location.of(folder)
    if not place.is_folder():
        raise UsageError(f"{folder}: no such folder; expected the folder of a run that is going on")
    if not {META_FILE, UNFINISHED_META_FILE, *TABLES} & {*place.list_names()}:
        raise UsageError(f"{folder}: neither {META_FILE} nor a table; expected the folder of a run that is going on")
    watcher = RunWatcher(_find_run(place), on_status)
    kept = WatchState(state) if state is not None else None
    if kept is not None and kept.exists():
        watcher.restore(kept)
    feeds = open_streams(master, Path(place.path), TABLES_READ, watcher.take_files, every_seconds)
    if not place.is_local:
        feeds = follow_store(place, TABLES_READ, watcher.take_files, every_seconds)
    with feeds as feed:
        _wait_for_end(place, watcher, feed, patience_seconds, kept)
    if watcher.failure is None and kept is not None:
        watcher.save(kept)
    if watcher.failure is not None:
        raise watcher.failure
    return watcher.snapshot


def _find_run(folder: Location) -> str | None:
    """The name of the run, from run.json or what stands for it during the run; None if neither says one: then the first
    row does."""
    for name in (META_FILE, UNFINISHED_META_FILE):
        try:
            found = msgspec.json.decode((folder / name).read_bytes())
        except (UsageError, msgspec.DecodeError):
            continue
        if isinstance(found, dict) and isinstance(found.get("run"), str):
            return str(found["run"])
    return None


def _wait_for_end(
    folder: Location, watcher: RunWatcher, feed: Feed, patience_seconds: float | None, state: WatchState | None
) -> None:
    """Waits until the order is violated, or the run is over and read, or patience ends; keeps the state meanwhile."""
    quiet, rows, saved, due = 0.0, -1, -1, 0.0
    step = 0.25
    while not watcher.ended.wait(step):
        feed.raise_failure()
        total = watcher.snapshot.deliveries + watcher.snapshot.multicasts
        # The first files take seconds to arrive; patience begins when every table was looked at.
        quiet = quiet + step if feed.has_looked() and total == rows else 0.0
        rows = total
        if state is not None and rows != saved and time.monotonic() >= due:
            begun = time.monotonic()
            watcher.save(state)
            # A large state takes long to write: at most a tenth of the time goes into that.
            saved, due = rows, time.monotonic() + max(SAVE_SECONDS, 10 * (time.monotonic() - begun))
        if patience_seconds is not None and quiet >= patience_seconds:
            return
        if (folder / META_FILE).is_file():
            feed.drain()
            if watcher.failure is None:
                watcher.finish()
            return
