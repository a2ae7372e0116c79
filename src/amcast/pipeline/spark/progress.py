"""Progress of a long job: a bar on a terminal, otherwise a line every ten seconds, nothing for short jobs.

Spark's status tracker knows how many tasks of the running stages are done; a thread asks it twice a second. A job can
pass its own count of something that means more to its user than tasks.
"""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final, TextIO

from pyspark.sql import SparkSession

POLL_SECONDS: Final = 0.5
QUIET_SECONDS: Final = 2.0
"""A job shorter than this shows nothing."""
LINE_SECONDS: Final = 10.0


Count = Callable[[], tuple[int, int]]
"""Returns how many are done, and how many there are; (0, 0) when this is unknown."""


@contextmanager
def show_progress(
    spark: SparkSession, title: str, stream: TextIO | None = None, count: Count | None = None, unit: str = "tasks"
) -> Iterator[None]:
    """Shows the progress of Spark while the block runs, on standard error."""
    stream = stream or sys.stderr
    finished = threading.Event()
    show = _show_bar if stream.isatty() else _print_lines
    count = count or (lambda: count_tasks(spark))
    thread = threading.Thread(target=show, args=(count, unit, title, stream, finished), daemon=True)
    thread.start()
    try:
        yield
    finally:
        finished.set()
        thread.join()


def count_tasks(spark: SparkSession) -> tuple[int, int]:
    """Tasks done and tasks in all, over the running stages."""
    done = total = 0
    # The JVM may be gone; the job itself reports that.
    with suppress(Exception):
        tracker: Any = spark.sparkContext.statusTracker()
        for stage in tracker.getActiveStageIds():
            info = tracker.getStageInfo(stage)
            if info is not None:
                done += info.numCompletedTasks
                total += info.numTasks
    return done, total


def _show_bar(count: Count, unit: str, title: str, stream: TextIO, finished: threading.Event) -> None:
    if finished.wait(QUIET_SECONDS):
        return
    # Tasks import the modules of jobs, and the Python of a cluster's workers has no rich.
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn(f"{{task.completed}}/{{task.total}} {unit}"))
    with Progress(*columns, TimeElapsedColumn(), console=Console(file=stream), transient=True) as bar:
        shown = bar.add_task(title, total=None)
        while not finished.wait(POLL_SECONDS):
            done, total = count()
            bar.update(shown, completed=done, total=total or None)


def _print_lines(count: Count, unit: str, title: str, stream: TextIO, finished: threading.Event) -> None:
    begun = time.monotonic()
    while not finished.wait(LINE_SECONDS):
        done, total = count()
        if not total:
            continue
        stream.write(f"{title}: {done} of {total} {unit}, {time.monotonic() - begun:.0f} s\n")
        stream.flush()
